"""Following the logs of a run that goes on: files that change, by Linux' inotify, merged line by line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from upshift.cli.output import echo
from upshift.cli.selection import found, log_files
from upshift.errors import NotFound
from upshift.model.configuration import load_configuration
from upshift.model.spec.task import TaskId
from upshift.report.terminal.streams import cleaned, label
from upshift.runs.catalog.rebuild import open_catalog
from upshift.runs.catalog.rows import Detached
from upshift.runs.catalog.standing import ORCHESTRATOR
from upshift.runs.history.runs import Run, get_run
from upshift.runs.stores.elsewhere import elsewhere
from upshift.runtime.storage.files import exists
from upshift.runtime.storage.log_text import last_frames
from upshift.runtime.storage.store import open_store

PATIENCE = 2.0
"""Seconds without any event after which everything is looked at anyway: files that another machine
writes to a shared folder raise no events here, nor does an engine that is killed."""
ASK = 10.0
"""Seconds between two questions to a target whether a run's engine still waits there."""
_LOG = re.compile(r"(\d+)\.(\d+)\.(?:rank(\d+)\.)?log")
_UNFINISHED = ("pending", "running")


def follow(
    run: Run,
    steps: Sequence[str],
    index: int | None,  # of a mapped step only this task; None: all of them
    attempt: int | None,
    merged: Merged,
    rank: int | None = None,  # of several processes only this one; None: all of them, line by line
) -> None:
    """Print lines as they are printed, until the steps, or the run, are over."""
    follower = _Follower(run, steps, index, attempt, merged, rank)
    try:
        follower.follow()
    finally:
        follower.watch.close()


def follow_engine(run: Run, *, follow: bool) -> None:
    """Print what the engine of a detached run has printed; ``follow``: and prints, until it has left it."""
    engine = Detached.of(run.row)
    if engine is None:
        raise NotFound(
            f"run {run.id} has no detached engine",
            fix=f"Its engine prints where upshift run was typed. What its steps print: upshift logs {run.id}",
        )
    path, merged = Path(engine.log), Merged(sys.stdout, named=False)
    store = open_store(run.row.store)
    replica = store.replica
    if replica is not None and not path.exists():  # that of another machine
        path = store.root / "runs" / run.id / path.name
    with contextlib.closing(Inotify()) as watch:
        if path.parent.is_dir():
            watch.add(path.parent)
        while True:
            over = not follow or run.status not in _UNFINISHED  # what it printed by then is there
            if replica is not None and replica.is_elsewhere(run.id):
                replica.bring_appended(f"runs/{run.id}/{path.name}")
            if exists(str(path)):
                merged.grow("", path)
            if over:
                break
            watch.wait(PATIENCE)
            run = found(run.id)
    merged.finish("", path)
    if not path.exists():
        lost = f": {engine.lost}" if engine.lost else ", or cannot be seen from here"
        echo(f"its engine has printed nothing yet{lost}", err=True)


class _Follower:
    def __init__(
        self,
        run: Run,
        steps: Sequence[str],
        index: int | None,
        attempt: int | None,
        merged: Merged,
        rank: int | None,
    ) -> None:
        self.watch = Inotify()
        self._run = run
        self._index = index
        self._attempt = attempt
        self._rank = rank
        self._merged = merged
        store = open_store(run.row.store)
        self._steps = {store.log_path(TaskId(run=run.id, step=name), 1).parent: name for name in steps}
        self._tasks = next(iter(self._steps)).parent if self._steps else None
        self._watched: set[Path] = set()
        self._names: dict[Path, str] = {}
        self._reused: set[Path] = set()
        self._ask_at = 0.0
        self._elsewhere = elsewhere(store, run.id)
        self._told = False  # that nothing can be seen of it

    def follow(self) -> None:
        if self._tasks is None:
            return
        self._see(self._tasks.parent)
        if isinstance(catalog := open_catalog(load_configuration()).place, Path):
            self._see(catalog.parent)
        self._show_reused()
        self._look_at_everything()
        while self._goes_on():
            self._hear()
            changed = self.watch.wait(PATIENCE)
            self._look_for_folders()
            for path in changed:
                self._look_at(path)
            if not changed and not self._look_at_everything() and self._is_left():
                echo(
                    f"Run {self._run.id} is not over, but its engine is gone. "
                    f"To finish it: upshift resume {self._run.id}",
                    err=True,
                )
                return
        self._hear(now=True)
        self._look_at_everything()
        for path, name in self._names.items():
            self._merged.finish(name, path)
        self._show_reused()

    def _hear(self, *, now: bool = False) -> None:
        if self._elsewhere is None:
            return
        self._elsewhere.hear(now=now)
        problem = self._elsewhere.problem
        if problem is not None and not self._told:
            echo(f"{problem.what}: {problem.why or 'it does not answer'}; waiting for it", err=True)
        self._told = problem is not None

    def _goes_on(self) -> bool:
        self._run = get_run(self._run.id)
        # What still ran when its engine was killed goes on to its end, and prints.
        return self._run.interrupted or any(
            self._run.by_name[name].status in _UNFINISHED for name in self._steps.values()
        )

    def _is_left(self) -> bool:
        """Whether no engine is at work on the run, nor is going to be."""
        asks = self._run.row.status == "pending" or ORCHESTRATOR in self._run.row.source
        if asks and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK
            self._run = found(self._run.id)
        return self._run.interrupted

    def _show_reused(self) -> None:
        steps = [self._run.by_name[name] for name in self._steps.values()]
        for name, path in log_files(self._run, steps, self._index, self._attempt, self._rank):
            if path.parent not in self._steps and path not in self._reused:
                self._reused.add(path)
                self._merged.copy(name, path)

    def _look_at_everything(self) -> bool:
        self._look_for_folders()
        grown = False
        for folder in self._steps:
            if exists(str(folder)):
                for path in sorted(folder.iterdir()):
                    grown = self._look_at(path) or grown
        return grown

    def _look_for_folders(self) -> None:
        assert self._tasks is not None
        for folder in (self._tasks, *self._steps):
            if folder not in self._watched and exists(str(folder)):
                self._see(folder)
                for path in sorted(folder.iterdir()):  # what was there before the watch
                    self._look_at(path)

    def _see(self, folder: Path) -> None:
        self.watch.add(folder)
        self._watched.add(folder)

    def _look_at(self, path: Path) -> bool:
        step, match = self._steps.get(path.parent), _LOG.fullmatch(path.name)
        if step is None or match is None:
            return False
        index, attempt = int(match[1]), int(match[2])
        if self._index not in (None, index) or self._attempt not in (None, attempt):
            return False
        if match[3] != self._rank_of(step):
            return False
        mapped = self._run.by_name[step].mapped
        name = str(TaskId(run=self._run.id, step=step, index=index if mapped else None))
        self._names[path] = name
        return self._merged.grow(name, path)

    def _rank_of(self, step: str) -> str | None:
        """Which rank's logs of a step are shown; None: those with what all of them print."""
        if self._rank is None or (self._rank == 0 and self._run.by_name[step].launch is None):
            return None
        return str(self._rank)


_LONGEST = 1 << 20
"""Bytes of a line without end after which it is printed as it is."""


class Merged:
    """Writes the bytes of logs to a stream; of lines that were drawn again and again the last frame."""

    def __init__(self, stream: TextIO, *, named: bool) -> None:
        self._stream = stream  # where to write
        self._named = named  # whether each line begins with the name of its task
        self._screen = stream.isatty()
        self._rests: dict[Path, bytes] = {}
        self._positions: dict[Path, int] = {}

    def copy(self, name: str, path: Path) -> None:
        """Write a whole log; whether it ends with a line feed is as it is, unless lines have names."""
        self.grow(name, path)
        self.finish(name, path, newline=self._named)

    def grow(self, name: str, path: Path) -> bool:
        """Write the lines that the log has got since the last call; False: there are none."""
        grown = False
        with open(path, "rb") as log:
            log.seek(self._positions.get(path, 0))
            while chunk := log.read(_LONGEST):
                grown = True
                self._positions[path] = log.tell()
                whole, end, rest = (self._rests.pop(path, b"") + chunk).rpartition(b"\n")
                rest = last_frames(rest)
                if len(rest) > _LONGEST:
                    whole, end, rest = whole + end + rest, b"\n", b""
                self._rests[path] = rest
                if end:
                    self._write(name, last_frames(whole), end)
        return grown

    def finish(self, name: str, path: Path, *, newline: bool = True) -> None:
        """Write what is left of a log that does not end with a line feed."""
        rest = self._rests.pop(path, b"")
        if rest.strip():  # a bar that was wiped out leaves blanks
            self._write(name, rest, b"\n" if newline else b"")

    def _write(self, name: str, lines: bytes, end: bytes) -> None:
        if self._named:
            prefix = label(name, screen=self._screen).encode()
            lines = b"\n".join([prefix + line for line in lines.split(b"\n")])
        if self._screen:  # bytes that are no UTF-8 stay as they are
            lines = cleaned(lines.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        self._stream.flush()
        self._stream.buffer.write(lines + end)
        self._stream.buffer.flush()


_CLOEXEC = os.O_CLOEXEC
_NONBLOCK = os.O_NONBLOCK
_MODIFY = 0x2
_MOVED_TO = 0x80
_CREATE = 0x100
_EVENT = struct.Struct("iIII")


class Inotify:
    """Watches folders by inotify(7). On a network file system what another machine writes is no event."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.inotify_init1(_CLOEXEC | _NONBLOCK), "inotify")
        self._folders: dict[int, Path] = {}

    def add(self, folder: Path) -> None:
        """Watch what is created, moved or written in a folder, not below it."""
        number = self._libc.inotify_add_watch(
            self._descriptor, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE
        )
        self._folders[self._checked(number, str(folder))] = folder

    def wait(self, seconds: float) -> set[Path]:
        """What has changed since the last call; waits for the first change, at most so many seconds."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return set()
        return set(self._events(os.read(self._descriptor, 1 << 20)))

    def close(self) -> None:
        """Watch nothing more."""
        os.close(self._descriptor)

    def _events(self, data: bytes) -> Iterator[Path]:
        position = 0
        while position < len(data):
            number, _mask, _cookie, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            folder = self._folders.get(number)
            if folder is not None:  # else the queue ran over, and everything is looked at from time to time
                yield folder / os.fsdecode(name)

    @staticmethod
    def _checked(result: int, name: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), name)
        return result
