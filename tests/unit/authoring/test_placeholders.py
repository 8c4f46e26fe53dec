"""A step's result, used as a value while the pipeline is composed, is refused at the user's line."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from upshift import GraphError, pipeline, step
from upshift.model.graph import Graph

Compose = Callable[..., Graph]


@step
def load() -> Any: ...


@step
def use(x: Any = None, y: Any = None) -> Any: ...


def _loop(x: Any) -> None:
    for _ in x:
        pass


def _unpack(x: Any) -> None:
    _a, _b = x


def _with(x: Any) -> None:
    with x:
        pass


def _assign(x: Any) -> None:
    x.weight = 1


def _put(x: Any) -> None:
    x[0] = 1


def _grow(x: Any) -> None:
    x += 1


USES: dict[str, tuple[Callable[[Any], object], str]] = {
    "if": (lambda x: 1 if x else 2, ".when(flag)"),
    "not": (lambda x: not x, ".when(flag)"),
    "==": (lambda x: x == 1, "Compare inside a step"),
    "!=": (lambda x: x != 1, "Compare inside a step"),
    "<": (lambda x: x < 1, "Compare inside a step"),
    "1 >": (lambda x: 1 > x, "Compare inside a step"),  # noqa: SIM300
    "in": (lambda x: 1 in x, "inside a step"),
    "in a list": (lambda x: x in [1, 2], "Compare inside a step"),
    "int": (int, "inside a step"),
    "float": (float, "inside a step"),
    "range": (range, "inside a step"),
    "round": (round, "inside a step"),
    "ceil": (math.ceil, "inside a step"),
    "sqrt": (math.sqrt, "inside a step"),
    "+": (lambda x: x + 1, "inside a step"),
    "1 +": (lambda x: 1 + x, "inside a step"),
    "+=": (_grow, "inside a step"),
    "@": (lambda x: x @ x, "inside a step"),
    "**": (lambda x: x**2, "inside a step"),
    "//": (lambda x: 7 // x, "inside a step"),
    "divmod": (lambda x: divmod(7, x), "inside a step"),
    "-": (lambda x: -x, "inside a step"),
    "|": (lambda x: x | {}, "inside a step"),
    "sum": (lambda x: sum([x, x]), "inside a step"),
    "len": (len, "inside a step"),
    "[0]": (lambda x: x[0], "-> tuple[A, B]"),
    "[0] =": (_put, "-> tuple[A, B]"),
    "for": (_loop, ".map(items)"),
    "unpack": (_unpack, "-> tuple[A, B]"),
    "list": (list, ".map(items)"),
    "*": (lambda x: use(*x), ".map(items)"),
    "attribute": (lambda x: x.shape, "inside a step"),
    "method": (lambda x: x.mean(), "inside a step"),
    "attribute =": (_assign, "inside a step"),
    "call": (lambda x: x(1), "inside a step"),
    "str": (str, "inside a step"),
    "f-string": (lambda x: f"{x:.3f}", "inside a step"),
    "print": (print, "inside a step"),
    "path": (os.fspath, "inside a step"),
    "open": (open, "inside a step"),
    "bytes": (bytes, "inside a step"),
    "with": (_with, "inside a step"),
    "numpy": (np.mean, "inside a step"),
    "asarray": (np.asarray, "inside a step"),
    "pickle": (pickle.dumps, "a separate argument"),
    "copy": (copy.deepcopy, "a separate argument"),
    "set": (lambda x: use({x}), "Use a list"),
    "key": (lambda x: use({1: x}), "Use strings as keys"),
    ".after on a result": (lambda x: x.after(x), "load.after(…)"),
    ".when on a result": (lambda x: x.when(x), "load.when(…)"),
}


@pytest.mark.parametrize("name", USES)
def test_a_result_is_no_value_yet(compose: Compose, name: str) -> None:
    use_it, remedy = USES[name]

    @pipeline
    def mistaken() -> None:
        use_it(load())

    with pytest.raises(GraphError) as caught:
        compose(mistaken)
    message = str(caught.value)
    assert remedy in message
    assert "test_placeholders.py:" in message
    assert isinstance(caught.value, TypeError)


def test_a_branch_names_step_line_and_remedy(compose: Compose) -> None:
    @pipeline
    def branching() -> None:
        model = load()
        if model:
            use(model)

    with pytest.raises(GraphError) as caught:
        compose(branching)
    line = branching.callee.function.__code__.co_firstlineno + 3
    assert "the result of step 'load' cannot be tested for truth" in str(caught.value)
    assert f"test_placeholders.py:{line}" in str(caught.value)
    assert "other.when(flag)(…)" in str(caught.value)


def test_a_result_can_be_shown_by_a_debugger(compose: Compose) -> None:
    shown: list[str] = []

    @pipeline
    def looking() -> None:
        shown.append(repr(load()))
        shown.append(str([load()]))

    compose(looking)
    assert shown == [
        "<the result of step 'load', not run yet>",
        "[<the result of step 'load_2', not run yet>]",
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: use.when(True)(x), ["use.when takes the result of a step, and gets True", "plain `if`"]),
        (lambda x: use.when(use.map([1, 2]))(x), ["takes one boolean", "'use' is mapped"]),
        (lambda x: use.when(x).when(x)(x), ["use.when is used twice", "Join the two conditions"]),
        (lambda x: use.after(load)(x), ["use.after takes results of steps", "use.after(load(…))"]),
        (lambda x: use.after(3)(x), ["use.after takes results of steps, and gets 3"]),
        (lambda x: use(load), ["the argument 'x' is the step 'load' itself", "Call it: load()."]),
        (lambda x: use(other), ["the argument 'x' is the pipeline 'other' itself"]),
        (lambda x: _inner().status, ["pipeline '_inner', inside another one, has no .status", "use .output"]),
        (lambda x: 1 if _inner() else 2, ["cannot be tested for truth", "step.when(flag)"]),
        (lambda x: [*_inner()], ["returned one value, and cannot be unpacked"]),
    ],
)
def test_other_mistakes_name_the_remedy(
    compose: Compose, call: Callable[[Any], object], words: list[str]
) -> None:
    @pipeline
    def mistaken() -> None:
        call(load())

    with pytest.raises(GraphError) as caught:
        compose(mistaken)
    for word in [*words, "test_placeholders.py:"]:
        assert word in str(caught.value)


@pipeline
def other() -> None: ...


@pipeline
def _inner() -> Any:
    return load()
