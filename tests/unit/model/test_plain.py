"""Values as plain JSON: whole configurations, and nothing of what would say nothing."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import enum
import json
import types
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import pydantic
import pytest

from upshift.model.plain import UNKNOWN, changes, flat, has_parts, plain_of, words


class Color(enum.Enum):
    RED = "#f00"


@dataclasses.dataclass
class Optimizer:
    lr: float = 0.1
    token: str = dataclasses.field(default="secret", repr=False)
    steps: int = dataclasses.field(default=0, init=False)


@attrs.frozen
class Net:
    depths: list[int]
    _width: int = 3
    optimizer: Optimizer = attrs.field(factory=Optimizer)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    rate: float = 0.5
    key: pydantic.SecretStr = pydantic.SecretStr("secret")
    hidden: str = pydantic.Field("secret", repr=False)


class Shape(NamedTuple):
    width: int
    height: int = 2


class Broken:
    def __repr__(self) -> str:
        raise ValueError


HERE = __name__
OPTIMIZER = {"$type": f"{HERE}.Optimizer", "lr": 0.1, "token": {"$type": "str"}}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Optimizer(), OPTIMIZER),
        (Net([1, 2]), {"$type": f"{HERE}.Net", "depths": [1, 2], "width": 3, "optimizer": OPTIMIZER}),
        (
            Model(extra=1),  # type: ignore[call-arg]
            {
                "$type": f"{HERE}.Model",
                "rate": 0.5,
                "key": {"$type": "pydantic.types.SecretStr"},
                "hidden": {"$type": "str"},
                "extra": 1,
            },
        ),
        (Shape(1), {"$type": f"{HERE}.Shape", "width": 1, "height": 2}),
        (argparse.Namespace(lr=0.1), {"$type": "argparse.Namespace", "lr": 0.1}),
        (types.SimpleNamespace(lr=0.1), {"$type": "types.SimpleNamespace", "lr": 0.1}),
        ({Color.RED: 1, 2: {"a": None}}, {"RED": 1, "2": {"a": None}}),
        ((1, "a", True), [1, "a", True]),
        ({3, 1, 2}, [1, 2, 3]),
        (Color.RED, "RED"),
        ([Path("a/b.csv"), Decimal("0.10")], ["a/b.csv", "0.10"]),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.timedelta(minutes=1), 60.0),
        ([float("nan"), float("inf"), -float("inf")], ["NaN", "Infinity", "-Infinity"]),
        ((np.float32(0.5), np.int64(3), np.bool_(True)), [0.5, 3, True]),
        ([1, np.eye(2)], [1, {"$type": "numpy.ndarray"}]),
        ([1, len], [1, {"$type": "builtin_function_or_method", "$text": "len"}]),
        ([1, Optimizer], [1, {"$type": "type", "$text": "Optimizer"}]),
        ([1, np.dtype("int8")], [1, {"$type": "numpy.dtypes.Int8DType"}]),
        ([1, b"xyz"], [1, {"$type": "bytes", "$text": "<3 bytes>"}]),
        ([1, Broken()], UNKNOWN),
        ((np.eye(2), np.eye(2)), UNKNOWN),
        (np.eye(2), UNKNOWN),
    ],
)  # fmt: skip
def test_a_value_has_a_plain_form(value: Any, plain: Any) -> None:
    assert plain_of(value) == plain
    if plain is not UNKNOWN:
        json.dumps(plain, allow_nan=False)


def test_what_is_long_is_told_by_its_length_and_what_is_deep_by_its_type() -> None:
    assert plain_of({"a": 1, "b": range(3), "c": list(range(10_000))})["c"] == {
        "$type": "list",
        "$text": "<10,000 items>",
    }
    itself: list[Any] = [1]
    itself.append(itself)
    assert len(json.dumps(plain_of(itself))) < 1_000
    assert len(json.dumps(plain_of([Net([1, 2])] * 150, most=200))) < 20_000


def test_only_what_may_say_something_is_looked_into() -> None:
    assert all(map(has_parts, [Optimizer(), Net([]), Model(), Shape(1), Color.RED, (1,), {}, np.float64(1)]))
    assert not any(map(has_parts, [np.eye(2), object(), Broken()]))


def test_fields_have_dotted_names() -> None:
    plain = plain_of({"net": Net([1, 2]), "stages": [Shape(1), Shape(3)], "empty": {}, "none": None})
    assert flat(plain) == {
        "net.depths": [1, 2],
        "net.width": 3,
        "net.optimizer.lr": 0.1,
        "net.optimizer.token": {"$type": "str"},
        "stages.0.width": 1,
        "stages.0.height": 2,
        "stages.1.width": 3,
        "stages.1.height": 2,
        "empty": {},
        "none": None,
    }
    assert flat(0.1, "lr") == {"lr": 0.1}


def test_a_plain_form_is_told_in_a_line() -> None:
    assert words(plain_of(Net([1]))) == "Net(depths=[1], width=3, optimizer=Optimizer(lr=0.1, token=<str>))"
    assert words(plain_of({"a": [True, None, "x"], "f": len})) == "{'a': [True, None, 'x'], 'f': len}"


def test_what_changed_is_named_by_field() -> None:
    before, now = plain_of(Net([1], optimizer=Optimizer(0.1))), plain_of(Net([2], optimizer=Optimizer(1.0)))
    assert list(changes(before, now, "net")) == [
        ("net.depths", [1], [2]),
        ("net.optimizer.lr", 0.1, 1.0),
    ]
    assert list(changes({"a": 1}, {"a": True, "b": 2}, "d")) == [("d.a", 1, True), ("d.b", UNKNOWN, 2)]
