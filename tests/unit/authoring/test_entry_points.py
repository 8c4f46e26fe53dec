"""What a step process is told to call: by name where that leads to the function, else by value."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from upshift import NotSerializable, Step, step
from upshift.authoring.composing.definitions import entry_point
from upshift.runtime import usercode
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
SOURCE = """
from upshift import step

@step
def count(n: int) -> int:
    return 0 if n == 0 else helper(n)

@step
def helper(n):
    return 1 + count(n - 1)
"""


def doubled(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def wrapper(x: int) -> int:
        return 2 * function(x)

    return wrapper


@step
def decorated(x: int) -> int:
    return x


@step
@doubled
def wrapped(x: int) -> int:
    return x


class Holder:
    @step
    def held(x: int) -> int:  # type: ignore[misc]  # noqa: N805
        return x


@pytest.mark.parametrize("one", [decorated, decorated.with_options(retries=1), wrapped, Holder.held])
def test_a_function_of_a_module_travels_by_name(one: Step[[int], int], store: Store) -> None:
    entry = entry_point(one.callee.function, store)
    assert entry.module == __name__
    assert entry.payload is None
    assert usercode.resolve(sys.modules[__name__], entry.qualname) is one.callee.function


def test_a_closure_travels_by_value(store: Store) -> None:
    factor = 3

    @step
    def scaled(x: int) -> int:
        return factor * x

    entry = entry_point(scaled.callee.function, store)
    assert entry.python == MINOR
    assert entry.payload is not None
    function = artifacts.load(entry.payload, store)
    assert not isinstance(function, Step)
    assert callable(function)
    assert function(2) == 6


def test_a_name_that_means_something_else_by_now_travels_by_value(store: Store) -> None:
    older = decorated.callee.function

    def other(x: int) -> int:
        return -x

    other.__qualname__ = "decorated"
    assert entry_point(older, store).payload is None
    assert entry_point(other, store).payload is not None


def test_main_counts_as_the_module_that_its_file_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    exec(SOURCE, main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(usercode, "main_module_name", lambda: "package.training")
    entry = entry_point(main.count.callee.function, store)
    assert (entry.module, entry.qualname, entry.payload) == ("package.training", "count", None)


def test_what_only_a_script_defines_travels_by_value(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "def always(): ...\n"
        "if __name__ == '__main__':\n"
        "    def guarded(): ...\n"
        "    def also(): ...\n"
        "def after(): ...\n"
    )
    main = ModuleType("__main__")
    main.__file__ = str(file)
    exec(compile(file.read_text(), str(file), "exec"), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    payloads = {
        name: entry_point(getattr(main, name), store).payload
        for name in ("always", "guarded", "also", "after")
    }
    assert [name for name, payload in payloads.items() if payload is not None] == ["guarded", "also"]


def test_functions_of_a_notebook_travel_by_value_with_the_steps_that_they_use(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    exec(SOURCE, main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    entry = entry_point(main.count.callee.function, store)
    assert entry.module == "notebook"
    assert entry.python == MINOR
    assert entry.payload is not None
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    function = artifacts.load(entry.payload, store)
    assert callable(function)
    assert function(4) == 4


def test_a_function_that_cannot_travel_names_what_keeps_it(store: Store) -> None:
    lock = threading.Lock()

    def locked() -> None:
        lock.acquire()

    with pytest.raises(NotSerializable) as caught:
        entry_point(locked, store)
    assert "locked" in str(caught.value)
