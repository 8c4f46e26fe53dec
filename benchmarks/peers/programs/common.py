"""What the programs of all tools share; it runs in each tool's own environment, so it imports none of them.

``python with_TOOL.py MEASURE SIZE`` prints what it found, as JSON, on its last line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Run = Callable[[int, int], Callable[[], Any]]
"""Runs something of so many steps or tasks, which begins with that number; what it returns gives the result,
outside the time that is taken."""

_NOTES = Path.home() / "notes"


def main(**measures: Callable[[int], dict[str, float]]) -> None:
    """Take one measure, as the command line says."""
    name, size = sys.argv[1], int(sys.argv[2])
    found = measures[name](size)
    print()
    print(json.dumps(found), flush=True)


def chain(run: Run, length: int, *, caches: bool) -> dict[str, float]:
    """Seconds of one more step, and of one more cache hit: the difference of two lengths.

    ``run(length, start)`` increments ``start`` so many times, one step after the other.
    """

    def seconds(length: int, start: int) -> float:
        began = time.perf_counter()
        result = run(length, start)
        took = time.perf_counter() - began
        assert result() == start + length, f"{result()} instead of {start + length}"
        return took

    # One that does not count before each that does: for what a process does only once, or still does for
    # the run before.
    found = {}
    for number, name in enumerate(("step", "hit") if caches else ("step",)):
        seconds(1, 3_000_000 + 10 * number)
        short = seconds(1, 2_000_000)
        seconds(1, 4_000_000 + 10 * number)
        found[name] = (seconds(length, 1_000_000) - short) / (length - 1)
    return found


def fan_out(run: Run, tasks: int) -> dict[str, float]:
    """Tasks a second of a whole run: ``run(tasks, start)`` increments so many numbers, from ``start`` on."""
    run(1, 3_000_000)
    began = time.perf_counter()
    result = run(tasks, 1_000_000)
    took = time.perf_counter() - began
    expected = sum(range(1_000_001, 1_000_001 + tasks))
    assert result() == expected, f"{result()} instead of {expected}"
    return {"rate": tasks / took}


def produce(size: int) -> np.ndarray:
    """The array of the producer; to be called in its last line."""
    import numpy as np

    array = np.random.default_rng(0).integers(0, 2**63, size=size // 8, dtype=np.int64)
    note("made", _checksum(array))
    note("returned", time.time())
    return array


def consume(array: np.ndarray) -> None:
    """Read all of it."""
    note("seen", _checksum(array))
    note("read", time.time())


def passed() -> dict[str, float]:
    """Seconds from the producer's last line to the end of reading in the consumer."""
    notes = noted()
    assert notes["made"] == notes["seen"], "the consumer has seen another array"
    return {"pass": notes["read"] - notes["returned"]}


def note(name: str, value: float) -> None:
    """Remember a number, from whatever process a step runs in."""
    with _NOTES.open("a") as file:
        file.write(f"{name} {value!r}\n")


def noted() -> dict[str, float]:
    """The numbers noted last, by name."""
    lines = _NOTES.read_text().splitlines()
    return {name: json.loads(value) for name, _, value in (line.partition(" ") for line in lines)}


def _checksum(array: np.ndarray) -> int:
    return int(array[0]) ^ int(array[-1]) ^ int(array.max())
