"""``secrets=``: sources are checked where the user wrote them, and no message shows what may be a value."""

from __future__ import annotations

from typing import Any

import pytest

import upshift
from upshift import pipeline, step


@pytest.mark.parametrize(
    ("secrets", "what", "fix"),
    [
        (
            {"DB": "aws:arn:aws:s3:::bucket"},
            "secrets['DB']: 'arn:aws:s3:::bucket' names no secret of AWS",
            "aws:arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME",
        ),
        (
            {"DB": "k8s:db"},
            "secrets['DB']: 'db' names no key of a Secret",
            "k8s:hugging-face/token",
        ),
        ({"DB": "fiel:x"}, "secrets['DB']: there are no sources of the form fiel:…", "Did you mean 'file'?"),
        ({"DB": "envv:DB"}, "secrets['DB']: there are no sources of the form envv:…", "Did you mean 'env'?"),
        ({"DB": "HOME"}, "secrets['DB'] does not name the source of the value", "Did you mean 'env:HOME'?"),
        (
            {"DB": "env:"},
            "secrets['DB'] does not name the source of the value",
            '"env:NAME" or "file:PATH"',
        ),
        (
            {"DB": "env:MY-DB"},
            "secrets['DB']: 'MY-DB' is not a valid name of an environment variable",
            "env:NAME",
        ),
        ({"MY-DB": "env:DB"}, "secrets: 'MY-DB' is not a valid name of an environment variable", "HF_TOKEN"),
        ({"UPSHIFT_HOME": "env:DB"}, "secrets: 'UPSHIFT_HOME' is a variable of Upshift's own", "HF_TOKEN"),
        ({1: "env:DB"}, "secrets: 1 is not a valid name of an environment variable", "HF_TOKEN"),
        (["DB"], "secrets is a list, not a dict", '{"HF_TOKEN": "env:HF_TOKEN"}'),
    ],
)
@pytest.mark.parametrize("owner", [step, pipeline])
def test_what_makes_no_sense_is_refused_with_the_right_form(
    owner: Any, secrets: Any, what: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    with pytest.raises(upshift.SettingsError) as refused:
        owner(secrets=secrets)
    assert refused.value.what.startswith(f"@{owner.__name__}: {what}")
    assert refused.value.fix is not None and fix in refused.value.fix
    assert refused.value.where is not None and "test_secrets_option.py:" in refused.value.where


@pytest.mark.parametrize("value", ["hunter2", "AKIA:hunter2", "https://ada:hunter2@db", b"hunter2", 5])
def test_a_value_in_place_of_a_source_is_not_shown(value: Any) -> None:
    with pytest.raises(upshift.SettingsError) as refused:
        step(secrets={"DB": value})
    assert "hunter2" not in str(refused.value) and "AKIA" not in str(refused.value)


def test_with_options_is_checked_too_and_the_plain_call_is_not_affected() -> None:
    @step(secrets={"DB": "file:~/db"})
    def use(n: int) -> int:
        return n

    assert use(3) == 3
    assert use.options.settings.secrets == {"DB": "file:~/db"}
    assert use.with_options(timeout=3).options.settings.secrets == {"DB": "file:~/db"}
    assert use.with_options(secrets={"A": "env:A"}).options.settings.secrets == {"A": "env:A"}
    with pytest.raises(upshift.SettingsError, match="with_options: secrets"):
        use.with_options(secrets={"A": "b"})
