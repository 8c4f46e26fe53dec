"""A step that returns something else than its annotation says is told, and nothing more."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypeVar, Union

import numpy as np
import pytest

from upshift.runtime.messages import tell
from upshift.runtime.step.remarks import on_types

T = TypeVar("T")
Point = namedtuple("Point", "x y")


def said(hint: Any, *values: object, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a step with this annotation that returned these outputs."""

    def step() -> None: ...

    step.__annotations__["return"] = hint
    tell(on_types(step, "train[2]", values))
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("hint", "value", "shown"),
    [
        (int, "x", "int, and returned str"),
        (int, None, "int, and returned NoneType"),
        (int, 1.5, "int, and returned float"),
        ("int", "x", "int, and returned str"),
        (float, "1", "float, and returned str"),
        (float, np.zeros(3), "float, and returned numpy.ndarray"),
        (str, Path("a"), "str, and returned pathlib"),
        (bool, 1, "bool, and returned int"),
        (bytes, "x", "bytes, and returned str"),
        (list, (1, 2), "list, and returned tuple"),
        (list[int], None, "list[int], and returned NoneType"),
        (dict[str, int], [1], "dict[str, int], and returned list"),
        (tuple[int, ...], [1], "tuple[int, ...], and returned list"),
        (set, [1], "set, and returned list"),
        (Optional[int], "x", ""),  # noqa: UP045
        (int | None, "x", "int | None, and returned str"),
        (Annotated[int, "count"], "x", "int, and returned str"),
        (None, 3, "None, and returned int"),
    ],
)
def test_a_clear_contradiction_is_told(
    hint: Any, value: object, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(hint, value, capsys=capsys)
    assert text.startswith(f"upshift: train[2] is annotated to return {shown}")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, True),
        (int, np.int64(3)),
        (float, 3),
        (float, np.float32(3)),
        (float, Fraction(1, 3)),
        (bool, np.bool_(True)),
        (str, np.str_("x")),
        (bytes, bytearray(b"x")),
        (list, []),
        (list[int], ["not looked into"]),
        (dict, OrderedDict()),
        (dict[str, int], defaultdict(int)),
        (tuple, Point(1, 2)),
        (set, frozenset({1})),
        (Optional[int], None),  # noqa: UP045
        (Union[int, str], "x"),
        (int | None, 3),
        (None, None),
        (Any, "x"),
        (Decimal, "x"),
        (Literal["a"], "b"),
        (T, "x"),
        (object, 1),
        ("Unknown", "x"),
        (Annotated[float, "score"], 1),
    ],
)
def test_what_may_be_meant_is_left_alone(
    hint: Any, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(hint, value, capsys=capsys) == ""


def test_each_of_several_outputs_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(tuple[int, Annotated[str, "name"]], "x", 3, capsys=capsys)
    assert "return int as output 1, and returned str\n" in text
    assert "return str as output 2, and returned int\n" in text


def test_a_function_without_an_annotation_promises_nothing() -> None:
    def step():  # type: ignore[no-untyped-def]
        return 3

    assert [*on_types(step, "step", [3]), *on_types(len, "step", [3])] == []
