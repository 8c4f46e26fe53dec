"""A pyproject.toml, which other tools read too, configures Upshift in a table, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.errors import ConfigError
from upshift.model.configuration import load_configuration


def test_the_table_of_upshift_configures_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.upshift]\nstore = "here"\n')
    assert load_configuration(tmp_path, {}).store == "here"


@pytest.mark.parametrize(("text", "key"), [("tool = 'x'", "tool"), ("[tool]\nupshift = 3", "upshift")])
def test_what_should_be_a_table_and_is_none_is_named(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"{key} is not a table") as caught:
        load_configuration(tmp_path, {})
    assert caught.value.where == str(tmp_path / "pyproject.toml")
