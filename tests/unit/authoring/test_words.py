"""A value in a few words: what a person recognizes, whatever it is and however large."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upshift import External
from upshift.authoring.composing.graph import in_words


class Color(enum.Enum):
    RED = "#f00"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    token: str = dataclasses.field(default="secret", repr=False)


class Broken:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.1, "0.1"),
        (None, "None"),
        ("two words", "'two words'"),
        ((1, "a"), "(1, 'a')"),
        ({"lr": [1, 2]}, "{'lr': [1, 2]}"),
        (Color.RED, "Color.RED"),
        ([Level.HIGH], "[Level.HIGH]"),
        (Path("data/train.csv"), "Path('data/train.csv')"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (Config(0.2), "Config(lr=0.2)"),
        (Config, "Config"),
        (External("/data", version="3"), "External(uri='/data', version='3')"),
        (object(), "<object object>"),
        (Broken(), "<Broken instance>"),
        (np.arange(3), "array([0, 1, 2])"),
        (np.eye(2), None),
        ("x" * 100, "'" + "x" * 58 + "…"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, …"),
    ],
)
def test_a_value_is_told_in_a_line(value: Any, words: str | None) -> None:
    assert in_words(value) == words
