"""``upshift logs``: what the steps of a run printed, and print while it runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shlex
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from upshift.cli import echo
from upshift.cli.selection import chosen, found, log_files, refuse_rank, selected
from upshift.errors import NotFound, UsageError
from upshift.model.spec.task import TaskId
from upshift.report.human import count, in_words, on_rank
from upshift.report.terminal import cleaned, label
from upshift.runs.catalog.opening import ORCHESTRATOR, open_catalog
from upshift.runs.catalog.rows import Detached
from upshift.runs.history.runs import Run, get_run
from upshift.runs.publishing import elsewhere
from upshift.runtime.storage.files import exists
from upshift.runtime.storage.store import open_store
from upshift.runtime.supervisor.progress_bars import last_frames

if TYPE_CHECKING:
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task

_FAILURES = 5
"""Kinds of failure whose tracebacks are shown."""
_PATIENCE = 2.0
"""Seconds without any event after which everything is looked at anyway: a file that another machine writes to
a shared folder raises no event here, nor does the end of an engine."""
_LAST_WORDS = 1.0
"""Seconds that an engine has to print how its run ended, once that is on record."""
_ASK = 10.0
"""Seconds between two questions to a target whether a run's engine still waits there."""
_LOG = re.compile(r"(\d+)\.(\d+)\.(?:rank(\d+)\.)?log")
_UNFINISHED = ("pending", "running")
_LONGEST = 1 << 20
"""Bytes of a line without end after which it is printed as it is."""


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="[STEP[INDEX]]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue until the run, or the step, is over.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Default: the last one.")
@click.option(
    "--engine", is_flag=True, help="Show the output of a detached run's engine instead of its steps'."
)
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="Only this rank of several processes.")
def logs(
    run: str, step: str | None, follow: bool, attempt: int | None, rank: int | None, engine: bool
) -> None:
    """Print the output of the steps of a run.

    STEP is a step, or one task of a mapped step, as in 'train[3]'. A reused task has the output of the
    original task. With several tasks, lines begin with the name of the task; with several processes in one
    task, with the rank. --rank prints one process unchanged. The reason for a failure comes last, on standard
    error.
    """
    one = found(run)
    if engine:
        if step is not None or attempt is not None or rank is not None:
            raise UsageError("--engine is about no step", fix=f"upshift logs {run} --engine")
        _follow_engine(one, follow=follow)
        return
    steps, index = selected(one, step)
    if rank is not None:
        refuse_rank(one, steps, index, rank)
    single = step is not None and (index is not None or not steps[0].mapped)
    merged = _Merged(sys.stdout, named=not single)
    follows = follow and (one.interrupted or one.status in _UNFINISHED)
    if follows:
        with contextlib.closing(_Inotify()) as watch:
            _Follower(one, [s.name for s in steps], index, attempt, merged, rank, watch).follow()
        one = found(one.id)
    else:
        if one.interrupted or one.status == "running":
            _bring(one)
        for name, path in log_files(one, steps, index, attempt, rank):
            merged.copy(name, path)
    _tell_of_gaps(one, steps, index, attempt, rank)
    _tell_of_failures(one, steps, index, attempt, rank)
    if attempt is None and not follows:
        _tell_of_others(one, [task for s in steps for task in s.tasks if index in (None, task.index)])


def _bring(run: Run) -> None:
    """Have here what nodes of a run of another machine have told of their logs by now."""
    news = elsewhere(open_store(run.row.store), run.id)
    if news is None:
        return
    news.hear(now=True)
    if news.problem is not None:
        echo(f"{news.problem.what}: {news.problem.why or 'it does not answer'}; shown as it was", err=True)


def _tell_of_gaps(
    run: Run, steps: list[Step], index: int | None, attempt: int | None, rank: int | None
) -> None:
    """Say which logs are incomplete, and why."""
    for task, one in chosen(run, [step.name for step in steps], index, attempt):
        gaps = [gap for gap in one.gaps if gap.what == "log" and gap.rank == rank]
        lines = list(in_words(gaps))
        if one.status == "failed" and one.row.result is None and one.error is not None:
            lines.append(f"the log may end early: it has left no result: {one.error.in_a_line}")
        for line in lines:
            echo(f"{task.row.task}: {line}", err=True)


def _tell_of_failures(
    run: Run, steps: list[Step], index: int | None, attempt: int | None, rank: int | None
) -> None:
    """Say why attempts failed, with the traceback; equal failures are told once."""
    alike: dict[tuple[str, str, str], list[tuple[Task, Attempt]]] = {}
    for task, one in chosen(run, [step.name for step in steps], index, attempt):
        error = one.error
        told = one.row.result is None  # with what is missing of its log
        if one.status == "failed" and error is not None and not told and rank in (None, error.rank):
            place = (task.row.task.step, error.reason, error.where or error.message)
            alike.setdefault(place, []).append((task, one))
    for (task, one), *others in list(alike.values())[:_FAILURES]:
        error = one.error
        assert error is not None
        more = f", and {count(len(others), 'other task')} alike" if others else ""
        lines = [f"{task.row.task} failed{on_rank(error)} ({error.reason}){more}: {error.in_a_line}"]
        lines += [f"    {line}" for line in (error.traceback or "").rstrip().splitlines()]
        echo("\n".join(lines), err=True)
    if len(alike) > _FAILURES:
        echo(f"… and {len(alike) - _FAILURES:,} more: upshift show {run.id}", err=True)


def _tell_of_others(run: Run, tasks: list[Task]) -> None:
    """Say how to see what earlier attempts printed, if there were any."""
    tried = [task for task in tasks if len(task.attempts) > 1]
    if not tried:
        return
    first, *others = tried
    name = str(first.row.task)
    who = f"{name} had {len(first.attempts)} attempts"
    if others:
        who = f"{len(tried):,} tasks had several attempts"
    echo(
        f"{who}; the last one is shown. "
        f"To see another: upshift logs {run.id} {shlex.quote(name)} --attempt {first.attempts[0].number}",
        err=True,
    )


def _follow_engine(run: Run, *, follow: bool) -> None:
    """Print the output of a detached run's engine; with ``follow``, until the run is over."""
    engine = Detached.of(run.row)
    if engine is None:
        raise NotFound(
            f"run {run.id} has no detached engine",
            fix=f"Its engine prints where upshift run was typed. What its steps print: upshift logs {run.id}",
        )
    path, merged = Path(engine.log), _Merged(sys.stdout, named=False)
    store = open_store(run.row.store)
    replica = store.replica
    if replica is not None and not path.exists():  # that of another machine
        path = store.root / "runs" / run.id / path.name
    told = False
    with contextlib.closing(_Inotify()) as watch:
        if path.parent.is_dir():
            watch.add(path.parent)
        while True:
            over = not follow or run.status not in _UNFINISHED
            if replica is not None and replica.is_elsewhere(run.id):
                replica.bring_appended(f"runs/{run.id}/{path.name}")
            if exists(str(path)):
                merged.grow("", path)
            if over and (told or not follow):
                break
            if over:  # how it ended, the engine says once that is on record
                told = True
                time.sleep(_LAST_WORDS)
                continue
            watch.wait(_PATIENCE)
            run = found(run.id)
    merged.finish("", path)
    if not path.exists():
        lost = f": {engine.lost}" if engine.lost else ", or cannot be seen from here"
        echo(f"its engine has printed nothing yet{lost}", err=True)


class _Follower:
    """Prints the output of steps until they end, or the run ends."""

    def __init__(
        self,
        run: Run,
        steps: Sequence[str],
        index: int | None,  # of a mapped step only this task; None: all of them
        attempt: int | None,
        merged: _Merged,
        rank: int | None,  # of several processes only this one; None: all of them, line by line
        watch: _Inotify,
    ) -> None:
        self._watch = watch
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
        self._latest: dict[str, tuple[int, Path]] = {}  # of each task: its last attempt that has printed
        self._reused: set[Path] = set()
        self._ask_at = 0.0
        self._elsewhere = elsewhere(store, run.id)
        self._told = False  # that nothing can be seen of it

    def follow(self) -> None:
        if self._tasks is None:
            return
        if self._elsewhere is None:  # else each look at the bucket, which writes there, would cause the next
            self._see(self._tasks.parent)
            if isinstance(catalog := open_catalog().place, Path):
                self._see(catalog.parent)
        self._show_reused()
        self._look_at_everything()
        while self._goes_on():
            self._hear()
            changed = self._watch.wait(_PATIENCE)
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
        """Whether the run has no engine, and will get none."""
        asks = self._run.row.status == "pending" or ORCHESTRATOR in self._run.row.source
        if asks and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK
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
        self._watch.add(folder)
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
        last, printed = self._latest.get(name, (attempt, path))
        if attempt > last and path.stat().st_size > 0:
            self._merged.finish(name, printed)
            echo(f"{name}: attempt {attempt}", err=True)
        if attempt >= last and path.stat().st_size > 0:
            self._latest[name] = attempt, path
        return self._merged.grow(name, path)

    def _rank_of(self, step: str) -> str | None:
        """The rank whose log of a step is shown; None: the merged log."""
        if self._rank is None or (self._rank == 0 and self._run.by_name[step].launch is None):
            return None
        return str(self._rank)


class _Merged:
    """Writes the bytes of logs to a stream; of redrawn lines, such as progress bars, the last frame."""

    def __init__(self, stream: TextIO, *, named: bool) -> None:
        self._stream = stream  # where to write
        self._named = named  # whether each line begins with the name of its task
        self._screen = stream.isatty()
        self._rests: dict[Path, bytes] = {}
        self._positions: dict[Path, int] = {}

    def copy(self, name: str, path: Path) -> None:
        """Write a whole log; a line feed is added at its end only if lines have names."""
        self.grow(name, path)
        self.finish(name, path, newline=self._named)

    def grow(self, name: str, path: Path) -> bool:
        """Write the new lines of a log; False: there are none."""
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
        """Write the end of a log without a line feed."""
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


class _Inotify:
    """Watches folders by inotify(7), which misses what other machines write to network file systems."""

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
        """The files that changed since the last call; waits at most so many seconds for the first."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return set()
        return set(self._events(os.read(self._descriptor, 1 << 20)))

    def close(self) -> None:
        """Stop watching."""
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
