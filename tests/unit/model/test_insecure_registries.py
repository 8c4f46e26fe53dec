"""Registries that are spoken to without TLS are named in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.errors import ConfigError
from upshift.model.configuration import load_configuration


def test_they_are_a_list_and_a_variable_goes_before_it(tmp_path: Path) -> None:
    assert load_configuration(tmp_path, {}).insecure_registries == ()
    (tmp_path / "upshift.toml").write_text('insecure_registries = ["Lab:5000", "10.0.0.7"]\n')
    assert load_configuration(tmp_path, {}).insecure_registries == ("lab:5000", "10.0.0.7")
    variable = {"UPSHIFT_INSECURE_REGISTRIES": "a:1, b:2"}
    assert load_configuration(tmp_path, variable).insecure_registries == ("a:1", "b:2")


@pytest.mark.parametrize("value", ['"lab:5000"', "[7]", '["http://lab:5000"]', '["lab:5000/ml"]', '[""]'])
def test_what_is_no_list_of_registries_is_refused(value: str, tmp_path: Path) -> None:
    file = tmp_path / "upshift.toml"
    file.write_text(f"insecure_registries = {value}\n")
    with pytest.raises(ConfigError, match=r"insecure_registries = .* is invalid") as caught:
        load_configuration(tmp_path, {})
    assert caught.value.where == str(file)
    assert caught.value.fix == 'Expected a list of HOST or HOST:PORT, such as ["registry.example.org:5000"].'


def test_a_variable_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_configuration(tmp_path, {"UPSHIFT_INSECURE_REGISTRIES": "a:1,,b:2"})
    assert caught.value.where == "UPSHIFT_INSECURE_REGISTRIES"
