"""What ``upshift.log`` takes and refuses, and what it says where no step runs."""

from __future__ import annotations

import decimal
import enum
import fractions
import json
import math
import os
from collections.abc import Iterator

import numpy as np
import pytest

import upshift
from upshift.errors import SettingsError, UsageError
from upshift.runtime.messages import PIPE_BUF, channel
from upshift.runtime.step.metrics import LONGEST_NAME, LONGEST_TEXT
from upshift.runtime.storage.metrics import from_json


class Level(enum.IntEnum):
    HIGH = 3


class Strange:
    def item(self) -> float:
        raise RuntimeError("a Tensor with 5 elements cannot be converted to Scalar")


class Heard:
    """The supervisor's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def lines(self) -> list[bytes]:
        return os.read(self._descriptor, 1 << 16).splitlines(keepends=True)

    def points(self) -> list[tuple[dict[str, object], object]]:
        """Values by name, and the step, of each line."""
        found = []
        for line in self.lines():
            names, (_, step, *values) = json.loads(line, parse_constant=refuse)["metric"]
            found.append((dict(zip(names, map(from_json, values), strict=True)), step))
        return found


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture
def heard() -> Iterator[Heard]:
    """A channel that is open, as in a step."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    channel.open(theirs)
    yield Heard(ours)
    channel.close()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.25, 0.25),
        (3, 3),
        (-0.0, -0.0),
        (True, True),
        ("warm-up", "warm-up"),
        ('"],\t[\n', '"],\t[\n'),
        (1e-300, 1e-300),
        (2**80, 2.0**80),
        (Level.HIGH, 3),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (np.str_("a"), "a"),
        (decimal.Decimal("0.5"), 0.5),
        (fractions.Fraction(1, 4), 0.25),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_a_number_a_boolean_or_a_text_is_kept(heard: Heard, value: object, kept: object) -> None:
    upshift.log(step=1, x=value)
    ((values, step),) = heard.points()
    assert (values, step) == ({"x": kept}, 1)
    assert type(values["x"]) is type(kept)


@pytest.mark.parametrize("nan", [math.nan, np.float32("nan"), np.array(math.nan)])
def test_what_is_no_number_is_kept_as_that(heard: Heard, nan: object) -> None:
    upshift.log(x=nan)
    ((values, step),) = heard.points()
    assert isinstance(values["x"], float) and math.isnan(values["x"]) and step is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "is None"),
        ([1, 2], "is of type list"),
        (np.zeros((3, 2)), r"is of type ndarray and shape \(3, 2\)"),
        (1 + 2j, "is of type complex"),
        (object(), "is of type object"),
        (Strange(), "is of type Strange"),
        (10**400, "is an integer of 1329 bits"),
        ("x" * 5000, "is a text of 5,000 characters"),
        (b"bytes", "is of type bytes"),
        (np.datetime64("2026-01-01"), "is of type datetime64"),
    ],
)
def test_anything_else_is_refused_by_name(heard: Heard, value: object, words: str) -> None:
    with pytest.raises(SettingsError, match=f"the metric 'loss' {words}") as refused:
        upshift.log(accuracy=1.0, loss=value)
    assert refused.value.where is not None and "test_logged_values.py" in refused.value.where
    assert refused.value.fix is not None


@pytest.mark.parametrize("step", ["1", True, math.nan, math.inf, -(10**400), [1], object()])
def test_a_step_that_counts_nothing_is_refused(heard: Heard, step: object) -> None:
    with pytest.raises(SettingsError, match=r"^upshift\.log\(\): step is "):
        upshift.log(step=step, loss=1.0)  # type: ignore[arg-type]


def test_how_large_a_step_is_that_is_refused_is_said(heard: Heard) -> None:
    with pytest.raises(SettingsError, match=r"step is an integer of 1329 bits"):
        upshift.log(step=10**400, loss=1.0)


@pytest.mark.parametrize("step", [7, 7.5, np.int64(7), np.float32(7.5), None, 10**30])
def test_a_step_is_any_number(heard: Heard, step: float) -> None:
    upshift.log(step=step, loss=1.0)
    assert heard.points()[0][1] == step


def test_names_that_are_no_identifiers_come_in_a_mapping(heard: Heard) -> None:
    upshift.log({"val/loss": 0.5, "step": 3}, step=1, lr=0.1)
    upshift.log({})
    assert heard.points() == [({"val/loss": 0.5, "step": 3, "lr": 0.1}, 1)]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 201, 5, "\ud800"])
def test_a_name_that_cannot_be_shown_is_refused(heard: Heard, name: str) -> None:
    with pytest.raises(SettingsError, match="a metric cannot be called"):
        upshift.log({name: 1.0})


def test_a_call_that_says_nothing_or_something_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="got no metric"):
        upshift.log(step=3)
    with pytest.raises(SettingsError, match="'loss' is given twice"):
        upshift.log({"loss": 1.0}, loss=2.0)
    with pytest.raises(SettingsError, match="takes values by name, and got the text 'started'"):
        upshift.log("started")  # type: ignore[arg-type]


def test_a_call_with_very_many_metrics_is_said_in_several_lines(heard: Heard) -> None:
    upshift.log({f"layer {i} / norm": i / 7 for i in range(500)}, step=2)
    lines = heard.lines()
    assert len(lines) > 1 and all(len(line) <= PIPE_BUF for line in lines)
    names = [name for line in lines for name in json.loads(line)["metric"][0]]
    assert names == [f"layer {i} / norm" for i in range(500)]


def test_the_longest_text_and_name_fit_into_one_line(heard: Heard) -> None:
    upshift.log({"\N{GRINNING FACE}" * 200: "\x01" * 480, "b": "\N{GRINNING FACE}" * 720, "c": 1})
    assert all(len(line) <= PIPE_BUF for line in heard.lines())


def test_where_no_step_runs_a_call_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    upshift.log(step=120, loss=0.23149, done=False, phase="warm-up")
    upshift.log(big=123456.789, n=1_000_000, bad=math.nan)
    assert capsys.readouterr().out == (
        "loss 0.2315, done false, phase warm-up (step 120)\nbig 123,457, n 1,000,000, bad NaN\n"
    )


def test_where_nobody_can_read_it_a_call_works_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    upshift.log(loss=1.0)


def test_the_longest_text_and_name_and_step_fit_into_one_line(heard: Heard) -> None:
    name, text = "😀" * LONGEST_NAME, '"' * (LONGEST_TEXT // 2 - 1)
    upshift.log({name: text}, step=10**308)
    assert heard.points() == [({name: text}, 10**308)]
