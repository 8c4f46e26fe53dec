"""What measurements have in common: rows, rounds that take turns, programs in processes of their own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

PROGRAMS = Path(__file__).with_name("programs")


@attrs.frozen(kw_only=True)
class Row:
    """One figure.

    Parameters
    ----------
    what
        What was measured.
    value, unit
        The median.
    target
        What it should be at most (or at least, where ``at_least``); None: it is a floor, or for information.
    at_least
        Whether more is better.
    """

    what: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@attrs.frozen(kw_only=True)
class Report:
    """What one measurement found.

    Parameters
    ----------
    title
        Its heading.
    how
        How each figure was measured.
    rows
        The figures; floors first.
    """

    title: str
    how: str
    rows: Sequence[Row]


@attrs.frozen(kw_only=True)
class Effort:
    """How thorough to be: ``quick`` shows that everything works, and gives rough figures."""

    quick: bool = False

    def rounds(self, usual: int) -> int:
        """Rounds of a measurement."""
        return max(2, usual // 4) if self.quick else usual

    def size(self, usual: int) -> int:
        """Size of what is measured."""
        return usual // 10 if self.quick else usual


class Turns:
    """What each candidate returned, called in turns so that noise meets all of them alike."""

    def __init__(self, rounds: int, **candidates: Callable[[], float]) -> None:
        self._values: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(rounds):
            for name, candidate in candidates.items():
                self._values[name].append(candidate())

    def median(self, name: str) -> float:
        """The median of a candidate."""
        return statistics.median(self._values[name])

    def above(self, name: str, floor: str) -> float:
        """The median of what a candidate took more than another one in the same round."""
        pairs = zip(self._values[name], self._values[floor], strict=True)
        return statistics.median(value - bare for value, bare in pairs)

    def ratio(self, name: str, floor: str) -> float:
        """The median of how many times as long as another one a candidate took in the same round."""
        pairs = zip(self._values[name], self._values[floor], strict=True)
        return statistics.median(value / bare for value, bare in pairs)


def clean_environment() -> dict[str, str]:
    """This environment as a user's shell has it: Python keeps bytecode, and buffers what it prints."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")}


def command_seconds(*command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> float:
    """How long a command takes, from start to end, its output thrown away."""
    environment = {**clean_environment(), **(env or {})}
    start = time.perf_counter()
    subprocess.run(
        command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    return time.perf_counter() - start


def program(name: str, *args: str, home: Path, heavy: bool = False) -> dict[str, Any]:
    """Run ``programs/NAME.py`` in a fresh interpreter; its last line of output is its result, as JSON.

    ``heavy`` has it import scikit-learn and pandas first, if it knows how to.

    Raises
    ------
    RuntimeError
        It failed; what it printed is in the message.
    """
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{name}.py"), *args],
        env={**clean_environment(), "UPSHIFT_HOME": str(home), "BENCH_HEAVY": "1" if heavy else ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"programs/{name}.py failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


@contextmanager
def fresh_home() -> Iterator[Path]:
    """An ``UPSHIFT_HOME`` that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="upshift-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
