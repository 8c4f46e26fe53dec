"""Following the logs of a run that goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from upshift.cli.inotify import Watch
from upshift.cli.merged import Merged
from upshift.cli.output import echo
from upshift.cli.selection import log_files
from upshift.model.configuration import load_configuration
from upshift.model.spec.task import TaskId
from upshift.runs.catalog import open_catalog
from upshift.runs.history import Run, get_run
from upshift.runtime.storage.store import open_store

PATIENCE = 2.0
"""Seconds without any event after which everything is looked at anyway: files that another machine
writes to a shared folder raise no events here, nor does an engine that is killed."""
_LOG = re.compile(r"(\d+)\.(\d+)\.(?:rank(\d+)\.)?log")
_UNFINISHED = ("pending", "running")


def follow(
    run: Run,
    steps: Sequence[str],
    index: int | None,
    attempt: int | None,
    merged: Merged,
    rank: int | None = None,
) -> None:
    """Print lines as they are printed, until the steps, or the run, are over.

    Parameters
    ----------
    run
        The run.
    steps
        Names of the steps.
    index, attempt
        Only this task of a mapped step, only this attempt; None: all of them.
    merged
        Where to print.
    rank
        Only this one of several processes; None: all of them, line by line.
    """
    follower = _Follower(run, steps, index, attempt, merged, rank)
    try:
        follower.follow()
    finally:
        follower.watch.close()


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
        self.watch = Watch()
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

    def follow(self) -> None:
        if self._tasks is None:
            return
        self._see(self._tasks.parent)
        self._see(open_catalog(load_configuration()).path.parent)
        self._show_reused()
        self._look_at_everything()
        while self._goes_on():
            changed = self.watch.wait(PATIENCE)
            self._look_for_folders()
            for path in changed:
                self._look_at(path)
            if not changed and not self._look_at_everything() and self._run.interrupted:
                echo(
                    f"Run {self._run.id} is not over, but its engine is gone. "
                    f"To finish it: upshift resume {self._run.id}",
                    err=True,
                )
                return
        self._look_at_everything()
        for path, name in self._names.items():
            self._merged.finish(name, path)
        self._show_reused()

    def _goes_on(self) -> bool:
        self._run = get_run(self._run.id)
        # What still ran when its engine was killed goes on to its end, and prints.
        return self._run.interrupted or any(
            self._run.by_name[name].status in _UNFINISHED for name in self._steps.values()
        )

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
            if folder.is_dir():
                for path in sorted(folder.iterdir()):
                    grown = self._look_at(path) or grown
        return grown

    def _look_for_folders(self) -> None:
        assert self._tasks is not None
        for folder in (self._tasks, *self._steps):
            if folder not in self._watched and folder.is_dir():
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
