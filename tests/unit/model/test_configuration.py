"""``upshift.toml`` and the table in pyproject.toml: what is read, what takes precedence, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.errors import ConfigError, NotFound
from upshift.model.configuration import Configuration, Target, load_configuration


def test_the_table_of_upshift_configures_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.upshift]\nstore = "here"\n')
    assert load_configuration(tmp_path, {}).store == "here"


@pytest.mark.parametrize(("text", "key"), [("tool = 'x'", "tool"), ("[tool]\nupshift = 3", "upshift")])
def test_what_should_be_a_table_and_is_none_is_named(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"{key} is not a table") as caught:
        load_configuration(tmp_path, {})
    assert caught.value.where == str(tmp_path / "pyproject.toml")


def test_a_target_says_after_what_silence_a_node_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "upshift.toml"
    file.write_text('[targets.cluster]\nbackend = "slurm"\nnodes_silence = "2m"\n')
    assert load_configuration(tmp_path, {}).target("cluster").nodes_silence == "2m"
    file.write_text('[targets.cluster]\nbackend = "slurm"\nnodes_silence = "2 years"\n')
    with pytest.raises(ConfigError, match="target 'cluster': nodes_silence: expected a number and one of"):
        load_configuration(tmp_path, {})


@pytest.mark.parametrize("seconds", ["soon", "-1", "0", "1e3"])
def test_a_silence_that_is_no_number_of_seconds_is_refused_before_anything_runs(
    tmp_path: Path, seconds: str
) -> None:
    with pytest.raises(ConfigError, match=r"UPSHIFT_NODES_SILENCE = .* is invalid"):
        load_configuration(tmp_path, {"UPSHIFT_NODES_SILENCE": seconds})


@pytest.mark.parametrize(("named", "backend"), [("kubflow", "kubeflow"), ("skypilot", "skypilot")])
def test_a_backend_that_has_to_be_configured_is_not_taken_for_another(named: str, backend: str) -> None:
    with pytest.raises(NotFound, match=f"no target is named '{named}'") as caught:
        Configuration().target(named)
    assert caught.value.fix is not None
    assert "Did you mean" not in caught.value.fix
    assert f'[targets.NAME]\nbackend = "{backend}"\n' in caught.value.fix


def test_a_misspelt_backend_whose_target_is_configured_leads_to_the_names_of_targets() -> None:
    kf = Target(name="kf", backend="kubeflow")
    with pytest.raises(NotFound) as caught:
        Configuration(targets={"kf": kf}).target("kubflow")
    assert "kf" in str(caught.value.fix)
    assert Configuration(targets={"kf": kf}).target("kubeflow") is kf


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ('[target.big]\nbackend = "slurm"\n', "Did you mean 'targets'?"),
        ('[targets.big]\nbackend = "slurm"\npartitoin = "x"\n', "Options of the backend itself belong under"),
    ],
)
def test_an_unknown_key_leads_to_the_table_that_it_belongs_to(tmp_path: Path, text: str, fix: str) -> None:
    (tmp_path / "upshift.toml").write_text(text)
    with pytest.raises(ConfigError, match="unknown key") as caught:
        load_configuration(tmp_path, {})
    assert fix in str(caught.value)
