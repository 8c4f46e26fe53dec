"""What is measured of each tool, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from benchmarks.harness import Effort
from benchmarks.peers.places import Place
from benchmarks.peers.processes import Failed
from benchmarks.peers.tools import Tool

ARRAY = 1 << 30
"""Bytes of the array that is handed on."""

PATIENCE = 40.0
"""Seconds after which a tool gets no further round of a measure."""


@attrs.frozen(kw_only=True)
class Figure:
    """One number of a tool.

    Parameters
    ----------
    name
        How it is kept.
    title, short
        What it is, for a heading; the same for the head of a column.
    unit
        What it is shown in.
    per_unit
        What a value as it is kept (seconds, bytes, a count) is multiplied with to be in that unit.
    at_least
        Whether more is better.
    """

    name: str
    title: str
    short: str
    unit: str
    per_unit: float = 1.0
    at_least: bool = False


@attrs.frozen(kw_only=True)
class Found:
    """What a tool gave for one figure: a value for each round, or why there is none.

    Parameters
    ----------
    values
        In seconds, bytes, tasks a second, or a count.
    of
        How much was done for each value: ``20 steps``; empty where that is the same for all.
    absent
        Why there is no value: the tool has no such thing, or its error.
    failed
        Whether ``absent`` is an error.
    """

    values: Sequence[float] = ()
    of: str = ""
    absent: str = ""
    failed: bool = False

    @property
    def median(self) -> float | None:
        """The median of the rounds; None where there is no value, or none that stands out of the noise."""
        median = statistics.median(self.values) if self.values else None
        return median if median is None or median > 0 else None

    @property
    def said(self) -> str:
        """What stands where there is no median."""
        if self.failed:
            return "failed"
        return "below the noise" if self.values else self.absent


Comparison = Mapping[str, Mapping[str, Found]]
"""What was found, by figure and tool."""


@attrs.frozen(kw_only=True)
class Measure:
    """One measurement, which gives one figure or more.

    Parameters
    ----------
    name, title
        Its name in commands; its heading.
    how
        How it is measured.
    figures
        What it gives.
    rounds
        How often each tool is measured.
    take
        Measures a place once; values by figure.
    of
        How much is done each time.
    """

    name: str
    title: str
    how: str
    figures: Sequence[Figure]
    rounds: int
    take: Callable[[Place, Effort], Mapping[str, float]]
    of: Callable[[Tool, Effort], str] = lambda tool, effort: ""


def compare(
    measure: Measure, places: Sequence[Place], effort: Effort, rounds: int, say: Callable[[str], None]
) -> Comparison:
    """Measure all tools in turns, so that noise meets them alike.

    A tool that has taken ``PATIENCE`` seconds gets no further round; one that has failed, neither.
    ``say`` is told what happens.
    """
    asked = [p for p in places if any(f.name not in p.tool.lacks for f in measure.figures)]
    values: dict[str, list[Mapping[str, float]]] = {place.tool.name: [] for place in asked}
    spent = dict.fromkeys(values, 0.0)
    failures: dict[str, str] = {}
    for number in range(rounds):
        for place in asked:
            name = place.tool.name
            if name in failures or spent[name] > PATIENCE:
                continue
            began = time.perf_counter()
            try:
                values[name].append(measure.take(place, effort))
                told = ", ".join(f"{figure} {value:.4g}" for figure, value in values[name][-1].items())
            except Failed as failure:
                failures[name] = told = str(failure)
            spent[name] += time.perf_counter() - began
            say(f"{measure.name}, round {number + 1} of {rounds}, {name}: {told}")

    def found(figure: Figure, tool: Tool) -> Found:
        if figure.name in tool.lacks:
            return Found(absent=tool.lacks[figure.name])
        if tool.name in failures:
            return Found(absent=failures[tool.name], failed=True)
        return Found(values=[v[figure.name] for v in values[tool.name]], of=measure.of(tool, effort))

    return {f.name: {p.tool.name: found(f, p.tool) for p in places} for f in measure.figures}


def _chain(place: Place, effort: Effort) -> Mapping[str, float]:
    return place.program("chain", _length(place.tool, effort))


def _length(tool: Tool, effort: Effort) -> int:
    return max(3, effort.size(tool.steps))


def _fan_out(place: Place, effort: Effort) -> Mapping[str, float]:
    return place.program("fan_out", _width(place.tool, effort))


def _width(tool: Tool, effort: Effort) -> int:
    return max(4, effort.size(tool.tasks))


def _array(place: Place, effort: Effort) -> Mapping[str, float]:
    return place.program("array", effort.size(ARRAY) // 8 * 8, watch_memory=True)


def _import(place: Place, effort: Effort) -> Mapping[str, float]:
    bare = place.seconds("python", "-c", "pass")
    return {"import": place.seconds("python", "-c", place.tool.imports) - bare}


def _trivial(place: Place, effort: Effort) -> Mapping[str, float]:
    return {"trivial": place.seconds(*place.tool.trivial)}


def _install(place: Place, effort: Effort) -> Mapping[str, float]:
    return {"packages": len(place.installed.packages), "size": place.installed.size}


MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            name="chain",
            title="One more trivial step in a chain, and one more cache hit",
            how="(seconds of a chain of N steps − seconds of a chain of 1) ÷ (N − 1), both run by one "
            "process, each after a run of 1 step that does not count. Each step adds 1 to what the step "
            "before returned, and the end is checked. Cache hits: the same two chains once more, where the "
            "tool uses results again.",
            figures=[
                Figure(name="step", title="One more step in a chain", short="step", unit="ms", per_unit=1e3),
                Figure(name="hit", title="One more cache hit", short="cache hit", unit="ms", per_unit=1e3),
            ],
            rounds=3,
            take=_chain,
            of=lambda tool, effort: f"{_length(tool, effort):,} steps",
        ),
        Measure(
            name="fan_out",
            title="Fan-out of trivial tasks",
            how="Tasks ÷ seconds of the whole run, after a first run of one task that does not count. Each "
            "task adds 1 to its number; the sum of all is checked. How many tasks there are is what the tool "
            "does in seconds rather than minutes.",
            figures=[
                Figure(
                    name="rate",
                    title="Fan-out of trivial tasks",
                    short="fan-out",
                    unit="tasks/s",
                    at_least=True,
                )
            ],
            rounds=3,
            take=_fan_out,
            of=lambda tool, effort: f"{_width(tool, effort):,} tasks",
        ),
        Measure(
            name="array",
            title="A 1 GiB array from one step to the next",
            how="Random 64-bit integers, 1 GiB. The time goes from the last line of the producer to when "
            "the consumer has read all of it, so that a file that is mapped counts when it is read. Memory "
            "is the most that all processes of the run together hold at one time (PSS: shared pages count "
            "once), the producer's array and interpreters included.",
            figures=[
                Figure(name="pass", title="1 GiB array to the next step", short="1 GiB array", unit="s"),
                Figure(
                    name="memory",
                    title="Peak memory with that array",
                    short="memory",
                    unit="GiB",
                    per_unit=2**-30,
                ),
            ],
            rounds=3,
            take=_array,
        ),
        Measure(
            name="import",
            title="Importing",
            how="`python -c` with the line that a pipeline begins with, less `python -c pass` just before.",
            figures=[
                Figure(name="import", title="Import", short="import", unit="ms", per_unit=1e3),
            ],
            rounds=7,
            take=_import,
        ),
        Measure(
            name="trivial",
            title="A run with one trivial step",
            how="The whole command from the shell, interpreter, imports and servers included. The first run "
            "after installing, in which some tools make a database, does not count. Nothing is reused.",
            figures=[
                Figure(name="trivial", title="A run with one trivial step", short="one-step run", unit="s"),
            ],
            rounds=3,
            take=_trivial,
        ),
        Measure(
            name="install",
            title="Installing",
            how="`pip install` into a fresh environment, compiled modules included; pip does not count.",
            figures=[
                Figure(name="packages", title="Packages installed", short="packages", unit=""),
                Figure(name="size", title="Size installed", short="size", unit="MB", per_unit=1e-6),
            ],
            rounds=1,
            take=_install,
        ),
    )
}
