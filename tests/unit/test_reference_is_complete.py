"""The reference names everything that a user can name."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

import upshift
from upshift import cli
from upshift.backends.docker import offers as containers
from upshift.backends.local.backend import OPTIONS
from upshift.backends.local.offers import MANNERS
from upshift.model.configuration import Configuration, Target
from upshift.runtime.launch import seats

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
INTERNAL = {
    "UPSHIFT_CLAIMS",
    "UPSHIFT_CONFIGS",
    "UPSHIFT_NAMESPACE",
    "UPSHIFT_DEVICES_HELD",
    "UPSHIFT_DEVICES_TAKER",
    "UPSHIFT_ENGINE",
    "UPSHIFT_ENVIRONMENT",
    "UPSHIFT_ORDER",
    "UPSHIFT_ORDER_FILE",
    "UPSHIFT_PARENT",
    "UPSHIFT_POD_NODE",
    "UPSHIFT_RUNTIME",
    "UPSHIFT_SCRATCH",
    "UPSHIFT_SPEC",
    "UPSHIFT_SUPERVISOR",
    *(name for name in seats.VARIABLES if name != seats.QUIET),
}
"""Variables by which processes of Upshift, and backends, tell each other something, or a build its steps; not
for users."""


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def named(column: str) -> set[str]:
    """What the tables of the settings name in a first column of this title."""
    tables = re.findall(rf"^\| {column} \|.*\n((?:\|.*\n)+)", page("settings.md"), re.MULTILINE)
    return set(re.findall(r"^\| `([a-z0-9_]+)` \|", "".join(tables), re.MULTILINE))


@pytest.mark.parametrize("name", upshift.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(upshift, name)
    if isinstance(value, type) and issubclass(value, upshift.UpshiftError):
        assert f"        - {name}\n" in page("errors.md")
    else:
        assert f"::: upshift.{name}\n" in page("python.md") or f"`upshift.{name}`" in page("python.md")


def test_every_exit_code_is_there() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page("errors.md"), re.MULTILINE)}
    raised = {
        getattr(upshift, n).exit_code for n in upshift.__all__ if hasattr(getattr(upshift, n), "exit_code")
    }
    assert codes == {0, cli.BUG, cli.INTERRUPTED, cli.BROKEN_PIPE, *raised}


def test_every_key_of_the_configuration_is_there() -> None:
    fields = {f.name for cls in (Configuration, Target) for f in attrs.fields(cls)}
    assert fields - {"source", "targets", "name", "where"} == named("key")


def test_every_option_of_the_local_backend_is_there() -> None:
    assert set(OPTIONS) == named("option")


def test_every_option_of_containers_is_there() -> None:
    assert set(containers.OPTIONS) - set(MANNERS) == named("option of containers")


def test_every_variable_is_there() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in ROOT.glob("src/**/*.py"))
    overrides = {f.name for f in attrs.fields(Configuration)} - {"source", "targets"}
    known = set(re.findall(r"UPSHIFT_[A-Z0-9_]*[A-Z]", sources)) | {
        f"UPSHIFT_{name.upper()}" for name in overrides
    }
    assert known - INTERNAL == set(re.findall(r"^\| `(UPSHIFT_\w+)`", page("settings.md"), re.MULTILINE))
