"""The packaged tables of launchers' arguments, against the parsers that are installed."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from upshift.runtime.launch import argument_tables as tables
from upshift.runtime.launch.argument_tables import FLAG, FLOAT, INT, LIST, SWITCH, TEXT, WORD, Argument
from upshift.runtime.launch.arguments import (
    arguments_in,
    fields_in,
    installed_arguments,
    installed_fields,
    installed_version,
)
from upshift.runtime.launch.launchers import LAUNCHERS, Launcher

ROOT = Path(__file__).parents[4]
FILE = Path(tables.__file__)
GONE = {"mpirun_ccl"}
"""Arguments of older versions, which are refused too."""
SCRIPT = {"training_script", "training_script_args"}

HEADS = {"accelerate": "# -- accelerate launch\n", "torchrun": "# -- torchrun\n"}
"""The lines under which each table stands."""
_FIELDS = '''{}_FIELDS: Final = {!r}
"""What a configuration file of this version may say."""'''
UPDATE = "UPDATE_TABLES=1 make test ARGS=tests/unit/runtime/launch/test_argument_tables.py"


def _parser(launcher: str) -> argparse.ArgumentParser:
    """The parser that is installed, with all that its module imports."""
    pytest.importorskip("torch")
    if launcher == "torchrun":
        return importlib.import_module("torch.distributed.run").get_args_parser()  # type: ignore[no-any-return]
    pytest.importorskip("accelerate")
    return importlib.import_module("accelerate.commands.launch").launch_command_parser()  # type: ignore[no-any-return]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Argument]]:
    seen = {"help"}
    for action in parser._actions:
        if action.option_strings and action.dest not in seen:
            seen.add(action.dest)
            yield action.dest, _argument(action)


def _argument(action: argparse.Action) -> Argument:
    named = getattr(action.type, "__name__", None)
    kind = {"int": INT, "float": FLOAT, "bool": SWITCH, "str_to_bool": SWITCH}.get(str(named), TEXT)
    default: Any = action.default
    if type(action).__name__ == "_AppendAction" or str(named).endswith("_list"):
        kind = LIST
    words = (action.help or "").lower()
    if kind == TEXT and (default in ("true", "false") or "(true|false)" in words):
        kind = WORD if "either boolean" in words else SWITCH
    if kind == SWITCH and isinstance(default, str):
        default = default == "true"
    if action.nargs == 0:
        kind, default = FLAG, False
    return Argument(kind, default, tuple(action.choices or ()))


def _written(launcher: str, found: dict[str, Argument], version: str) -> str:
    rows = []
    for name, argument in found.items():
        row = f'    "{name}": Argument({argument.kind.upper()}'
        if argument.default is not None or argument.choices:
            row += f", {argument.default!r}"
        rows.append(row + (f", {argument.choices!r})," if argument.choices else "),"))
    day, name = datetime.now(timezone.utc).date().isoformat(), launcher.upper()
    text = "\n".join(
        [
            "",
            f'{name}_VERSION: Final = "{version}"',
            f'{name}_READ: Final = "{day}"',
            '"""The day on which the parser of this version was read."""',
            "",
            f"{name}_ARGUMENTS: Final[Mapping[str, Argument]] = {{",
            *rows,
            "}",
            "",
            *(_FIELDS.format(name, installed_fields()).splitlines() if launcher == "accelerate" else ()),
            "",
        ]
    )
    before, head, after = FILE.read_text(encoding="utf-8").partition(HEADS[launcher])
    _, mark, rest = after.partition("\n# -- ")
    command = [sys.executable, "-m", "ruff", "format", "-"]
    text = before + head + text + ("\n" + mark if mark else "") + rest
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("launcher", HEADS)
def test_the_table_is_what_the_parser_of_its_version_takes(launcher: str) -> None:
    found, version = dict(_arguments(_parser(launcher))), installed_version(launcher)
    assert version is not None
    if os.environ.get("UPDATE_TABLES"):
        FILE.write_text(_written(launcher, found, version), encoding="utf-8")
        importlib.reload(tables)
    if version != getattr(
        tables, f"{launcher.upper()}_VERSION"
    ):  # a newer one was installed: then its source is what counts, below
        assert installed_arguments(launcher).keys() == found.keys(), UPDATE
    else:
        assert dict(getattr(tables, f"{launcher.upper()}_ARGUMENTS")) == found, UPDATE


@pytest.mark.parametrize("launcher", HEADS)
def test_reading_the_source_finds_what_the_parser_takes(launcher: str) -> None:
    found, read = dict(_arguments(_parser(launcher))), installed_arguments(launcher)
    assert list(read) == list(found)
    for name, argument in found.items():
        # What is computed, as choices that come from another module, is not read: then any value is taken.
        assert read[name].kind == argument.kind, name
        assert read[name].default in (argument.default, None), name
        assert read[name].choices in (argument.choices, ()), name


def test_the_fields_of_a_configuration_file_are_those_of_its_class() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    found = importlib.import_module("accelerate.commands.config.config_args").ClusterConfig
    assert list(installed_fields()) == list(found.__dataclass_fields__)
    if installed_version("accelerate") == tables.ACCELERATE_VERSION:
        assert installed_fields() == tables.ACCELERATE_FIELDS, UPDATE
    assert list(fields_in("class ClusterConfig(:")) == []


def test_reading_takes_no_import() -> None:
    code = (
        "import sys; from upshift.runtime.launch.arguments import *;"
        "[(installed_version(n), installed_arguments(n)) for n in ('accelerate', 'torchrun')];"
        "print(sorted({'torch', 'accelerate', 'argparse', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_source_that_cannot_be_read_has_no_arguments() -> None:
    assert dict(arguments_in("def launch_command_parser(:", "launch_command_parser")) == {}
    assert dict(arguments_in("def other(p): p.add_argument('--x')", "launch_command_parser")) == {}


def test_forms_of_arguments_are_read() -> None:
    source = """
def make():
    parser.add_argument("--a-number", "-a", type=int, default=int(1e3))
    group.add_argument("--flag", action="store_true")
    group.add_argument("--told", type=str, default="true", help="x")
    group.add_argument("--asked", type=str, help="Decides Whether (true|false) to do it. " "More.")
    group.add_argument("--chosen", type=str, choices=["one", "two"])
    group.add_argument("--computed", type=str, choices=[x.lower() for x in NAMES])
    group.add_argument("--other", dest="called", action="append")
    group.add_argument("script", type=str)
"""
    assert dict(arguments_in(source, "make")) == {
        "a_number": Argument(INT, 1000),
        "flag": Argument(FLAG, False),
        "told": Argument(SWITCH, True),
        "asked": Argument(SWITCH),
        "chosen": Argument(TEXT, None, ("one", "two")),
        "computed": Argument(TEXT),
        "called": Argument(LIST),
    }


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=str)
def test_what_is_said_of_arguments_is_of_ones_that_there_are(launcher: Launcher) -> None:
    assert launcher.done.keys() <= launcher.arguments.keys()
    assert launcher.refused.keys() - SCRIPT - GONE <= launcher.arguments.keys()
    assert not launcher.done.keys() & launcher.refused.keys()


def test_the_page_has_every_argument_and_what_becomes_of_it() -> None:
    spec = importlib.util.spec_from_file_location("launchers", ROOT / "docs/plugins/launchers.py")
    assert spec is not None and spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    shown = plugin.on_page_markdown((ROOT / "docs/reference/launch.md").read_text(encoding="utf-8"))
    for launcher in LAUNCHERS.values():
        assert all(f"| `{name}` | " in shown for name in launcher.arguments)
        of_today = (refused for name, refused in launcher.refused.items() if name not in GONE)
        assert all(f"**refused.** {refused.why}" in shown for refused in of_today)
    assert "| `mixed_precision` | `'no'`, `'fp16'`, `'bf16'`, `'fp8'` | handed on |" in shown
    assert "| `fsdp_version` | `'1'`, `'2'` | handed on, with `use_fsdp=True` |" in shown
    assert "<!-- arguments" not in shown
