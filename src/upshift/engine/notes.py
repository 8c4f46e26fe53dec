"""What a walk has decided, written down and shown: see :mod:`upshift.engine.journal`."""

from __future__ import annotations

from upshift.engine.inputs import why_skipped
from upshift.engine.tasks import CANCELLED, FAILED, PENDING, RUNNING, SKIPPED, Task
from upshift.engine.work import Work
from upshift.model.spec.task import Failure
from upshift.report.progress import TaskChange
from upshift.runs.catalog import TaskRow


class Notes:
    """The decisions of one walk.

    Attributes
    ----------
    changes
        What to show of a task whose change is known from elsewhere: from its attempt, or its reuse.
    """

    def __init__(self, work: Work) -> None:
        self.changes: dict[Task, TaskChange] = {}
        self._walk = work.walk
        self._journal = work.journal
        self._leftovers = work.leftovers

    def write(self) -> list[tuple[Task, Failure]]:
        """Record and show what the walk has decided since the last time.

        Returns
        -------
        list
            Tasks that failed before they could be submitted, and why.
        """
        self._sized()
        refused = self._changed()
        self._closed()
        return refused

    def _sized(self) -> None:
        for state in self._walk.sized:
            self._journal.sized(state)
            if state.node.mapped:
                self._journal.forget(self._leftovers.surplus(state.node.name, len(state.tasks)))
            for task in state.tasks:
                if task.status == PENDING:
                    self._journal.task(task)
        self._walk.sized.clear()

    def _changed(self) -> list[tuple[Task, Failure]]:
        refused = []
        for task in self._walk.changed:
            change = self.changes.pop(task, None)
            if task.status == RUNNING:
                continue
            if task.status == SKIPPED:
                task.cache_reason = why_skipped(task, self._walk.nodes)
            self._journal.task(task)
            if change is None and task.status != PENDING:
                change = TaskChange(
                    task=self._journal.id(task),
                    status=task.status,
                    failure=task.failure,
                    skipped=task.cache_reason if task.status == SKIPPED else None,
                )
                if task.status == FAILED and task.failure is not None:
                    refused.append((task, task.failure))
            if change is not None:
                self._journal.tell(change)
        self._walk.changed.clear()
        return refused

    def _closed(self) -> None:
        for state in self._walk.closed:
            lone, status = Task(state, None), state.ended or CANCELLED
            skipped = why_skipped(lone, self._walk.nodes) if status == SKIPPED else None
            row = TaskRow(task=self._journal.id(lone), status=status, cache_reason=skipped)
            if skipped is not None:
                self._journal.row(row)
            self._journal.tell(TaskChange(task=row.task, status=status, skipped=skipped))
        self._walk.closed.clear()
