"""Where a ready task's result is taken from before anything is submitted: :class:`Admission`.

A result may be there already, of another run or of this one before its engine was killed; a job of
that engine may still be at it; or there is none, and the task has to run.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from upshift.engine.attempts import Attempt
from upshift.engine.journal import Journal
from upshift.engine.keys import Keys, debugged_key
from upshift.engine.leftovers import Leftovers
from upshift.engine.reuse import Hit, Reuse
from upshift.engine.shortcomings import Standard
from upshift.engine.tasks import Task
from upshift.model.spec.artifact import Value
from upshift.model.spec.task import TaskResult
from upshift.runtime.storage.checkpoints import discard
from upshift.runtime.storage.store import Store


@attrs.frozen
class Made:
    """The task's result is there."""

    result: TaskResult


@attrs.frozen
class Running:
    """An earlier engine's job is at the task; ``same``: it does the work that is asked for now."""

    attempt: Attempt
    same: bool


@attrs.define(eq=False)
class Admission:
    """Looks where a task's result may be, and notes on the task what was found."""

    _keys: Keys
    _reuse: Reuse
    _leftovers: Leftovers
    _journal: Journal
    _store: Store
    _unexplained: list[tuple[Task, Mapping[str, Value]]] = attrs.field(init=False, factory=list)
    _twins: dict[str, dict[Task, int]] = attrs.field(init=False, factory=dict)

    def of(
        self, task: Task, inputs: Mapping[str, Value], *, standard: Standard, debugged: bool, now: float
    ) -> Made | Running | None:
        """What there is of a task with these inputs, by this standard; None: it has to run."""
        key = self._keys.key(task.node, inputs)
        twins = self._twins.setdefault(key, {})
        twin = twins.setdefault(task, len(twins))
        task.key = key = debugged_key(key) if debugged else key
        if task.redone_for is not None:
            task.stream = self._keys.stream(task.node, inputs, twin)
            task.cached, task.origin = False, None
            task.cache_reason = "its result was lost"
            return None
        left = self._left(task, key, strict=standard.strict, debugged=debugged, now=now)
        if left is not None:
            return left
        found = self._reuse.find(task, key, standard, now=now)
        if isinstance(found, Hit):
            made = found.result
            task.cached, task.cache_reason = True, found.reason
            task.origin = (made.task.run, made.task.step, made.task.index, made.attempt)
            return Made(made)
        task.cache_reason = found
        task.stream = self._keys.stream(task.node, inputs, twin)
        if found is None:
            self._unexplained.append((task, inputs))
        return None

    def explain(self) -> list[Task]:
        """Say of the tasks that have to run why they do, where that takes a while to find out; gives them."""
        explained = [task for task, _ in self._unexplained]
        for task, inputs in self._unexplained:
            task.cache_reason = self._reuse.history.why(task, inputs)
        self._unexplained.clear()
        return explained

    def _left(
        self, task: Task, key: str, *, strict: bool, debugged: bool, now: float
    ) -> Made | Running | None:
        """What an earlier engine of this run left of the task."""
        left = self._leftovers.of(self._journal.id(task), key, strict=strict)
        task.attempts = max(task.attempts, left.attempts)
        for attempt, verdict in left.over:
            self._journal.attempt(attempt, verdict, ended=now)
        if left.watched is not None:
            return Running(left.watched, left.same)
        row = left.row
        others = row is not None and row.origin is not None
        if left.result is None or (others and not self._reuse.enabled) or debugged:
            return None
        if row is not None:
            task.cached, task.cache_reason, task.origin = row.cached, row.cache_reason, row.origin
        if not others:  # nothing may have been forked yet, and a thread would be in the way of that
            discard(self._store.address, left.result, wait=True)
        return Made(left.result)
