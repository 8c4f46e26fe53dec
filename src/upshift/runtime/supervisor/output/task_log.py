"""The log of a task: what its process prints, or the whole lines of all of its processes."""

from __future__ import annotations

from collections.abc import Callable

from upshift.model.spec import Rank, TaskSpec
from upshift.runtime.loop import Loop
from upshift.runtime.masking import Mask
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.output.logs import Lines, Log, LogFile
from upshift.runtime.supervisor.output.losses import Losses


class TaskLog:
    """The log of an attempt. Each of several processes has one of its own beside it.

    Parameters
    ----------
    grew
        Told the size of the attempt's log as it grows.
    losses
        Counts what cannot be written.
    mask
        Of the step's secrets.
    """

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        *,
        grew: Callable[[int], None],
        losses: Losses,
        mask: Mask | None,
    ) -> None:
        self.path = store.log_path(spec.task, spec.attempt)
        self._loop = loop
        self._spec = spec
        self._store = store
        self._mask = mask
        self._grew = grew
        self._losses = losses
        self._file = LogFile(loop, self.path, grew, losses.of("log", self.path))
        self._files = [self._file]
        self._lines: list[Lines] = []
        self._own = Log(loop, self._file.append, mask=mask)

    @property
    def size(self) -> int:
        """Bytes of the attempt's log."""
        return self._file.size

    def of(self, rank: Rank | None) -> Log:
        """What takes the output of a process; None: the only one."""
        if rank is None:
            return self._own
        path = self._store.rank_log_path(self._spec.task, self._spec.attempt, rank.rank)
        # What the first one draws is shown while it does so, though no whole line has come of it yet.
        drawn = self._drawn if rank.rank == 0 else lambda size: None
        file = LogFile(self._loop, path, drawn, self._losses.of("log", path, rank.rank))
        lines = Lines(rank.rank, self._file.append)
        self._files.append(file)
        self._lines.append(lines)
        return Log(self._loop, file.append, lines.feed, mask=self._mask)

    def _drawn(self, size: int) -> None:
        self._grew(self._file.size)

    def remark(self, line: str) -> None:
        """Add a line of Upshift's own."""
        self._own.remark(line)

    def settle(self) -> None:
        """Nothing more comes of the processes: a line of one of several that has not ended ends here."""
        for lines in self._lines:
            lines.close()

    def close(self) -> None:
        """Nothing more comes, and nothing is remarked."""
        self._own.close()
        for file in self._files:
            file.close()
