"""The usage of an attempt over time: one small file that is whole at every instant.

A line of JSON is a header, an object, or a sample, an array with a number or null for each column of
the header above it. A new header may come at any time: when a device appears or is lost.

::

    {"version": 1, "started": 1763738882.5, "columns": ["time", "cpu", "memory", "gpu.0.busy", …],
     "gpus": [{"uuid": "GPU-…", "model": "NVIDIA H100", "memory": 85899345920}]}
    [1.0, 0.98, 52428800, 87, …]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

VERSION = 1

COLUMNS: Mapping[str, str] = {
    "time": "s",  # since the attempt started, by a clock that never jumps
    "cpu": "CPUs",  # in use by the step's processes
    "memory": "bytes",  # of the step's processes
    "read": "bytes/s",  # from disk, by the step's processes
    "written": "bytes/s",
    "received": "bytes/s",  # by all of the node or container, other than over loopback
    "sent": "bytes/s",
}
"""Columns of the step as a whole, with their units."""

GPU_COLUMNS: Mapping[str, str] = {
    "busy": "%",  # of the time in which a kernel ran
    "memory": "bytes",  # in use on the device, by anybody
    "own_memory": "bytes",  # of it, the step's
    "power": "W",
    "temperature": "°C",
    "clock": "MHz",  # of the multiprocessors
    "memory_clock": "MHz",
    "pcie_received": "bytes/s",
    "pcie_sent": "bytes/s",
    "nvlink_received": "bytes/s",
    "nvlink_sent": "bytes/s",
    "ecc_errors": "errors",  # uncorrected, since the attempt started
    "xid": "code",  # of the newest Xid event since the sample before
    "processes": "processes",  # on the device that are not the step's
}
"""Columns of each device, ``gpu.NUMBER.NAME``, with their units. Null: the device does not tell."""

Number = float | int | None


@attrs.frozen(kw_only=True)
class Series:
    """Samples by column, each as long as ``time``.

    Parameters
    ----------
    started
        When the attempt started, in seconds since the epoch.
    columns
        By name.
    gpus
        uuid, model and memory of each device, in the order of their numbers.
    """

    started: float = 0.0
    columns: Mapping[str, Sequence[Number]] = attrs.field(factory=dict)
    gpus: tuple[Mapping[str, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.columns.get("time", ()))


def header(started: float, columns: Sequence[str], gpus: Sequence[Mapping[str, Any]] = ()) -> str:
    """The line that comes before samples with these columns."""
    fields = {"version": VERSION, "started": started, "columns": list(columns), "gpus": list(gpus)}
    return json.dumps(fields, separators=(",", ":")) + "\n"


def sample(values: Sequence[Number]) -> str:
    """The line of a sample."""
    return json.dumps(list(values), separators=(",", ":")) + "\n"


def read_series(path: Path) -> Series | None:
    """The series in a file; None where there is none. A line that is torn or strange is left out."""
    columns: dict[str, list[Number]] = {}
    gpus: tuple[Mapping[str, Any], ...] = ()
    started, names, count = 0.0, (), 0  # type: float, tuple[str, ...], int
    for line in _lines(path):
        if isinstance(line, dict):
            names = tuple(line.get("columns", ()))
            started = started or line.get("started", 0.0)
            found = tuple(line.get("gpus", ()))
            gpus = found if len(found) >= len(gpus) else gpus
            for name in names:
                columns.setdefault(name, [None] * count)
        elif isinstance(line, list) and len(line) == len(names):
            for name, value in zip(names, line, strict=True):
                columns[name].append(value)
            count += 1
            for values in columns.values():
                if len(values) < count:
                    values.append(None)
    return Series(started=started, columns=columns, gpus=gpus) if count else None


def _lines(path: Path) -> Iterator[Any]:
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                yield json.loads(line)
