"""``<!-- backends -->`` becomes what each backend declares, ``<!-- promises -->`` what is tested on each."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from upshift.backends.base import Capabilities
from upshift.backends.registry import backend_names, capabilities_of
from upshift.config import ResourceSettings
from upshift.model.configuration import Target

_YES, _NO = "yes", "–"
_TESTS = Path(__file__).parents[2] / "tests"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    for place, table in (("<!-- backends -->", _declared), ("<!-- promises -->", _promises)):
        if place in markdown:
            markdown = markdown.replace(place, table())
    return markdown


def _declared() -> str:
    backends = {name: capabilities_of(Target(name=name, backend=name)) for name in backend_names()}
    return _table(backends, _rows(backends.values()))


def _promises() -> str:
    """The tests of the contract suite, with the backends that each of them runs on."""
    sys.path[:0] = [str(_TESTS), str(_TESTS / "contract")]
    kit = import_module("contract_kit")
    shown = [*kit.REAL, *kit.BUCKETS]
    rows = [row for suite in kit.SUITES for row in _tested(suite, shown, kit.BACKENDS)]
    return _table(shown, rows)


def _tested(suite: str, shown: Iterable[str], usual: Iterable[str]) -> Iterable[list[str]]:
    """The tests of a module of that suite, as they stand there."""
    rows = []
    for name, test in inspect.getmembers(import_module(suite), inspect.isfunction):
        if not name.startswith("test_") or not {"ground", "watched"} & set(
            inspect.signature(test).parameters
        ):
            continue
        marks = {mark.args[0]: mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.args[1:]}
        tested = marks.get("ground", usual)
        words = name.removeprefix("test_").replace("_", " ").replace(" mb ", " MB ")
        rows.append((inspect.getsourcelines(test)[1], words[0].upper() + words[1:], tested))
    return [[words, *(_YES if one in tested else _NO for one in shown)] for _, words, tested in sorted(rows)]


def _table(backends: Iterable[str], rows: Iterable[list[str]]) -> str:
    heads = ["", *(f"`{name}`" for name in backends)]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows(backends: Iterable[Capabilities]) -> Iterable[list[str]]:
    backends = tuple(backends)
    for field in attrs.fields(ResourceSettings):
        if field.name.startswith("_"):
            continue
        yield [f"`{field.name}`", *(_YES if field.name in one.fields else _NO for one in backends)]
    yield ["runs steps in the image that they ask for", *(_YES if one.images else _NO for one in backends)]
    yield [
        "its nodes read and write a [store in a bucket](../how-to/stores.md) themselves",
        *(_YES if one.buckets else _NO for one in backends),
    ]
    yield [
        "sources of [secrets](../how-to/secrets.md)",
        *(", ".join(f"`{scheme}:`" for scheme in sorted(one.secrets)) or _NO for one in backends),
    ]
    yield [
        "refuses what it cannot grant in full, unless told otherwise",
        *(_YES if one.strict else _NO for one in backends),
    ]
