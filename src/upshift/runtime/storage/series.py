"""The usage of an attempt over time: one small file that is whole at every instant.

A line of JSON is a header, an object, or a sample, an array with a number or null for each column of
the header above it. A new header may come at any time: when something is known for the first time. A
column of which nothing is ever known is in no header.

An hour is kept sample by sample. After that the samples are merged two by two, whenever there are as many
again: a series of ten hours has one for each sixteen seconds. What they will be merged to is made as they
come, so that a supervisor with many other things to do never stands still for it. A long series is
compressed (gzip) once the attempt is over.

::

    {"version": 1, "started": 1763738882.5, "columns": ["time", "cpu", "memory", "gpu.0.busy", …],
     "gpus": [{"uuid": "GPU-…", "model": "NVIDIA H100", "memory": 85899345920}]}
    [1.0, 0.98, 52428800, 87, …]
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from upshift.model.spec.hardware import Device, Hardware
from upshift.model.spec.telemetry import Gap
from upshift.runtime.storage.files import create, hand_on, temporary

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
    "processes": "processes",  # on the device that are not the step's, as far as they can be seen
}
"""Columns of each device, ``gpu.NUMBER.NAME``, with their units. Null: the device does not tell."""

SAMPLES = 3600
"""Samples of a series, at most."""
LARGE = 1 << 16
"""Bytes of a series that is worth compressing."""

Number = float | int | None
_NUMBERS = (int, float)
_VALUES = frozenset({int, float, type(None)})
_LARGE = 1e300
"""More than any of these numbers is."""


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
    """The line of a sample; the first value is its time."""
    time, *others = values
    return f"[{','.join((f'{time:.2f}', *map(_short, others)))}]\n"


def _short(value: Number) -> str:
    """Four significant digits, which is more than any of these readings is good for."""
    if value is None or not math.isfinite(value):
        return "null"
    text = f"{value:.4g}"
    if "e+" not in text:
        return text
    return min(f"{float(text):.0f}", text.replace("e+0", "e").replace("e+", "e"), key=len)


class _Level:
    """The lines of a series in which each sample stands for several, as they will be in the file.

    Attributes
    ----------
    text
        The lines that are not in the file yet.
    samples
        How many there are.
    single
        A sample that waits for the next one, to be merged with it.
    """

    def __init__(self) -> None:
        self.text = bytearray()
        self.samples = 0
        self.single: Mapping[str, Number] | None = None
        self._columns: list[str] = []

    def add(self, values: Mapping[str, Number], started: float, gpus: Sequence[Mapping[str, Any]]) -> None:
        """One more sample, with a header above it where one is needed."""
        new = [name for name, value in values.items() if value is not None and name not in self._columns]
        if new:
            self._columns += new
            self.text += header(started, self._columns, gpus).encode("ascii")
        self.text += sample([values.get(name) for name in self._columns]).encode("ascii")
        self.samples += 1

    def paired(self, values: Mapping[str, Number]) -> Mapping[str, Number] | None:
        """The sample before it and this one as one; None: there is none to be merged with."""
        if self.single is None:
            self.single = values
            return None
        merged, self.single = _merge([self.single, values]), None
        return merged


class SeriesWriter:
    """Writes a series, each sample as it comes.

    Attributes
    ----------
    samples
        How many lines of samples there are.
    gap
        Why the file could not be written to, and since when: it ends there. None: it could.
    """

    def __init__(
        self,
        path: Path,  # the file; it is made with the first sample
        started: float,  # when the attempt started, in seconds since the epoch
        gpus: Sequence[Mapping[str, Any]] = (),  # as in :class:`Series`
        *,
        temporaries: str,  # a folder of the same file system, for files that are not complete yet
        most: int = SAMPLES,  # samples after which they are merged two by two
    ) -> None:
        self.samples = 0
        self.gap: Gap | None = None
        self._path = path
        self._started = started
        self._gpus = gpus
        self._temporaries = temporaries
        self._most = most
        self._levels = [_Level()]  # the first of them is in the file
        self._merged = 1
        self._pending: list[Mapping[str, Number]] = []
        self._bytes = 0
        self._file: int | None = None
        self._at = 0.0  # of the last sample

    def write(self, values: Mapping[str, Number]) -> None:
        """Add a sample, by column; ``"time"`` is always there. What cannot be written is left out."""
        if self.gap is not None:
            return
        self._pending.append(values)
        if len(self._pending) < self._merged:
            return
        values, self._pending = _merge(self._pending), []
        self._at = values["time"] or 0.0
        try:
            self._add(values)
            if self.samples >= self._most and self._levels[0].single is None:
                self._thin()
        except OSError as error:  # the disk is full
            self._lose(error)

    @property
    def name(self) -> str | None:
        """The name of the file; None: there is none yet."""
        return self._path.name if self.samples else None

    def close(self) -> None:
        """Write nothing more, and compress what is large."""
        try:
            self._close()
        except OSError as error:  # what an NFS client could not send
            self._lose(error)
        if self._bytes > LARGE and self.gap is None:
            import gzip  # most series are small

            self._bytes = 0
            with contextlib.suppress(OSError):
                self._replace(gzip.compress(self._path.read_bytes(), compresslevel=1, mtime=0))

    def _lose(self, error: OSError) -> None:
        self.gap = self.gap or Gap(
            what="samples",
            path=str(self._path),
            why=os.strerror(error.errno or errno.EIO),
            since=round(self._at, 3),
        )
        self._levels.clear()

    def _add(self, values: Mapping[str, Number]) -> None:
        self._levels[0].add(values, self._started, self._gpus)
        self._put(self._levels[0])
        level, merged = 0, self._levels[0].paired(values)
        while merged is not None:
            level += 1
            if level == len(self._levels):
                self._levels.append(_Level())
            self._levels[level].add(merged, self._started, self._gpus)
            merged = self._levels[level].paired(merged)

    def _put(self, level: _Level) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.samples = level.samples
        self._bytes += len(level.text)
        while level.text:
            del level.text[: os.write(self._file, level.text)]
        hand_on(self._file)

    def _thin(self) -> None:
        """Have half as many samples: those to which they were merged."""
        del self._levels[0]
        self._merged *= 2
        self.samples, self._bytes = self._levels[0].samples, len(self._levels[0].text)
        self._close()
        self._replace(self._levels[0].text)
        self._levels[0].text.clear()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _replace(self, data: bytes | bytearray) -> None:
        name = temporary(self._temporaries)
        with open(create(name, mode=0o644), "wb") as file:
            file.write(data)
        os.replace(name, self._path)


def _merge(samples: Sequence[Mapping[str, Number]]) -> Mapping[str, Number]:
    """One sample for several: the last time, the mean of amounts, the most of what is counted."""
    if len(samples) == 1:
        return samples[0]
    merged: dict[str, Number] = {}
    for name in dict.fromkeys(name for values in samples for name in values):
        known = [value for values in samples if (value := values.get(name)) is not None]
        merged[name] = _MERGED.get(name.rpartition(".")[2], _mean)(known) if known else None
    return merged


def _mean(values: Sequence[float | int]) -> float | int:
    return sum(values) / len(values)


_MERGED: Mapping[str, Callable[[Sequence[float | int]], float | int]] = {
    "time": max,
    "ecc_errors": max,
    "xid": max,
    "processes": max,
}


def read_series(path: Path, *, tail: int | None = None) -> Series | None:
    """The series in a file; None where there is none. A line that is torn or strange is left out.

    Parameters
    ----------
    path
        The file.
    tail
        Read so many bytes at the end of it; None: all. The end of a series that is compressed is all of it.
    """
    if tail is not None:
        last = _read(_lines(path, tail))
        if last is not None:
            return last
    return _read(_lines(path))


def given(granted: Hardware | None, series: Series | None) -> Hardware | None:
    """A grant of models and numbers of devices, with those that the attempt really has, by its samples."""
    if granted is None or series is None or not series.gpus:
        return granted
    names = ("uuid", "vendor", "index", "model", "memory", "partition")
    fields: list[dict[str, Any]] = [{name: gpu.get(name) for name in names} for gpu in series.gpus]
    like = {device.model: device for device in granted.gpus or ()}
    devices = (attrs.evolve(like.get(known["model"], Device()), **known) for known in fields)
    return attrs.evolve(granted, gpus=tuple(devices))


def _read(lines: Iterator[Any]) -> Series | None:
    columns: dict[str, list[Number]] = {}
    gpus: tuple[Mapping[str, Any], ...] = ()
    started, names, count = 0.0, (), 0  # type: float, tuple[str, ...], int
    for line in lines:
        if isinstance(line, dict):
            names = _names(line.get("columns"))
            started = started or _started(line.get("started"))
            found = _gpus(line.get("gpus"))
            gpus = found if len(found) >= len(gpus) else gpus
            for name in names:
                columns.setdefault(name, [None] * count)
        elif isinstance(line, list) and names and len(line) == len(names) and _is_sample(line):
            for name, value in zip(names, line, strict=True):
                columns[name].append(value)
            count += 1
            for values in columns.values():
                if len(values) < count:
                    values.append(None)
    return Series(started=started, columns=columns, gpus=gpus) if count else None


def _names(columns: object) -> tuple[str, ...]:
    """The names in a header; none: it is strange, and the samples below it mean nothing."""
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        return ()
    return tuple(columns) if columns[:1] == ["time"] and len(set(columns)) == len(columns) else ()


def _started(value: object) -> float:
    return float(value) if type(value) in _NUMBERS and 0 < value < _LARGE else 0.0  # type: ignore


def _gpus(value: object) -> tuple[Mapping[str, Any], ...]:
    """The devices in a header, each with what makes sense of it: texts, and numbers of some fields."""
    if not isinstance(value, list) or not all(isinstance(gpu, dict) for gpu in value):
        return ()
    return tuple({name: said for name, said in gpu.items() if _is_field(name, said)} for gpu in value)


def _is_field(name: str, said: object) -> bool:
    if name in ("index", "memory"):
        return type(said) is int and 0 <= said < _LARGE
    return isinstance(said, str)


def _is_sample(line: Sequence[Any]) -> bool:
    """Whether all are numbers that can be reckoned with, or null; the time is a number."""
    if line[0] is None or not _VALUES.issuperset(map(type, line)):
        return False
    return all(value is None or -_LARGE < value < _LARGE for value in line)


def _lines(path: Path, tail: int | None = None) -> Iterator[Any]:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        for line in _unpacked(raw) if packed else _ends(raw, tail):
            with contextlib.suppress(ValueError, RecursionError):  # torn, or no JSON
                yield json.loads(line)


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    import gzip
    import zlib

    with contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error):  # as far as it is whole
        yield from gzip.GzipFile(fileobj=file)


def _ends(file: BinaryIO, tail: int | None) -> Iterator[bytes]:
    """The lines of a file; of a long one those of its end, and before them the headers of its beginning."""
    size = os.fstat(file.fileno()).st_size
    if tail is not None and size > 2 * tail:
        yield from (line for line in file.read(tail).splitlines() if line.startswith(b"{"))
        file.seek(size - tail)
        file.readline()  # a part of a line
    yield from file
