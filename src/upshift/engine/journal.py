"""What the engine writes down, and what it tells: collected while it works, done when it has a moment.

The next task is submitted before the last one is committed, which is what keeps the time between two
steps of a chain short. It is safe because the store decides what is done, and the catalog is its index:

* The **spec** of an attempt is written before the attempt is submitted. An engine that is killed
  after that leaves a spec without a recorded handle, and the next engine asks the backend for the job
  by its task and attempt (:meth:`Backend.attach` with an empty handle). So a job that runs is found,
  and no task is run by two attempts at once.
* The **result** is written by the supervisor, once. An engine that is killed before it commits a
  completed task finds the result in the store again.

So all that a lost batch costs is a second look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from upshift.engine.attempts import Attempt, Verdict
from upshift.engine.tasks import PENDING, RUNNING, NodeState, Task
from upshift.model.spec.task import TaskId
from upshift.model.spec.telemetry import MetricValue
from upshift.report.progress import ImageChange, Progress, TaskChange
from upshift.runs.catalog import AttemptRow, Catalog, TaskRow


class Journal:
    """The catalog's rows and the progress of one run.

    Parameters
    ----------
    run
        Id of the run.
    catalog, progress
        Who is told.
    """

    def __init__(self, run: str, catalog: Catalog, progress: Progress) -> None:
        self._run = run
        self._catalog = catalog
        self._progress = progress
        self._tasks: dict[TaskId, TaskRow] = {}
        self._attempts: dict[tuple[TaskId, int], AttemptRow] = {}
        self._news: list[Callable[[], None]] = []

    def id(self, task: Task) -> TaskId:
        """The task's name in all records."""
        return TaskId(run=self._run, step=task.node.node.name, index=task.index)

    def task(self, task: Task, *, status: str | None = None) -> None:
        """The task stands like this now."""
        self.row(
            TaskRow(
                task=self.id(task),
                status=status or task.status,
                cached=task.cached,
                cache_reason=task.cache_reason,
                key=task.key,
                origin=task.origin,
            )
        )

    def row(self, row: TaskRow) -> None:
        """A task stands like this now."""
        self._tasks[row.task] = row

    def attempt(
        self, attempt: Attempt, verdict: Verdict | None = None, *, ended: float | None = None
    ) -> None:
        """The attempt stands like this now."""
        result = verdict.result if verdict else None
        failure = verdict.failure if verdict else None
        self.attempt_row(
            AttemptRow(
                task=attempt.task_id,
                number=attempt.number,
                status=verdict.status if verdict else (RUNNING if attempt.started is not None else PENDING),
                reason=failure.reason if failure else None,
                target=attempt.place.target.name,
                backend=attempt.place.backend.name,
                handle=attempt.handle,
                node=(result.node if result else None) or attempt.node,
                started=(result.started if result else None) or attempt.started,
                ended=(result.ended if result else None) or ended,
                result=result,
                failure=None if result else failure,
                waits=None if verdict or attempt.started is not None else attempt.why,
            )
        )

    def attempt_row(self, row: AttemptRow) -> None:
        """An attempt stands like this now."""
        self._attempts[row.task, row.number] = row

    def forget(self, tasks: list[TaskId]) -> None:
        """There are no such tasks any more."""
        if tasks:
            self._catalog.forget(tasks)

    def tell(self, change: TaskChange) -> None:
        """Show that a task has another status."""
        self._news.append(lambda: self._progress.task_changed(change))

    def sized(self, state: NodeState) -> None:
        """Show how many tasks a step has."""
        assert state.length is not None
        name, length = state.node.name, state.length
        self._news.append(lambda: self._progress.step_sized(name, length))

    def image(self, change: ImageChange) -> None:
        """Show how far an image is."""
        self._news.append(lambda: self._progress.image_changed(change))

    def notice(self, text: str, task: TaskId | None = None) -> None:
        """Show a line."""
        self._news.append(lambda: self._progress.notice(text, task=task))

    def printed(self, attempt: Attempt, *, size: int | None = None, end: bool = False) -> None:
        """Show what the attempt has printed."""
        progress, task, log = self._progress, attempt.task_id, attempt.log

        def show() -> None:
            before = log.unfinished
            log.read(lambda text: progress.output(task, text), size=size, end=end)
            if log.unfinished != before:
                progress.unfinished(task, log.unfinished)

        self._news.append(show)

    def logged(self, attempt: Attempt, values: Mapping[str, MetricValue], step: float | None) -> None:
        """Show the newest values of the attempt's metrics."""
        self._news.append(lambda: self._progress.logged(attempt.task_id, values, step))

    def write(self) -> None:
        """Commit everything that is new, in one transaction, and show it."""
        if self._tasks or self._attempts:
            tasks, attempts = self._tasks, self._attempts
            self._tasks, self._attempts = {}, {}
            self._catalog.record(tasks.values(), attempts.values())
        news, self._news = self._news, []
        for show in news:
            show()


def over(attempt: Attempt, verdict: Verdict, *, now: float) -> TaskChange:
    """What to show of an attempt that is over, and the task with it."""
    result = verdict.result
    started = (result.started if result else None) or attempt.started
    ended = (result.ended if result else None) or now
    return TaskChange(
        task=attempt.task_id,
        status=verdict.status,
        attempt=attempt.number,
        seconds=None if started is None else max(0.0, ended - started),
        asked=result.asked if result else None,
        granted=(result.granted if result else None) or attempt.spec.granted,
        used=result.used if result else None,
        metrics=result.metrics if result else {},
        failure=verdict.failure,
    )
