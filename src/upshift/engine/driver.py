"""Drives a walk: hands ready tasks to backends, and tells the walk what became of them.

::

    walk ── ready ──► admit ── reused ─────────────────────────────► completed ──► walk
                        └───► queue ── room ──► submit ──► backend
    backend ── events ──► inbox ──► end ──► retry, after a pause ──► queue
                                     └────► completed, failed ─────► walk

One thread. It waits for one thing only, the inbox, and after each batch of events submits what can
start before it writes down what happened: see :mod:`upshift.engine.journal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.base import Ended, Event, Job, Started, Waiting
from upshift.engine import RunOptions
from upshift.engine.building import Building
from upshift.engine.control import Command, stopping_line
from upshift.engine.journal import Decisions, Journal, Shortfalls, over
from upshift.engine.offers import GrantPlan
from upshift.engine.recovery import Admission, Made
from upshift.engine.reuse import lost_producers
from upshift.engine.schedule import Clock, Timers
from upshift.engine.specs import Specs
from upshift.engine.targets import AttemptState, OpenTarget, Verdict, cancel, reader_of, too_many, verdict_on
from upshift.engine.tasks import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, TaskState, task_inputs
from upshift.engine.walk import ROUNDS, Walk
from upshift.errors import BackendError, BlobDamaged, BlobMissing
from upshift.model.settings.sizes import parse_span
from upshift.model.spec.task import Failure, TaskId, TaskResult, Value
from upshift.report import TaskChange
from upshift.report.human import in_words
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.checkpoints import discard
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.engine.replanning import Debugged

BATCH = 1000
"""How many jobs are handed over at once, where a backend queues them itself."""
_PATIENCE = 20.0
"""Seconds in which what is stopped has ended, where the run cannot go on."""


@attrs.define(kw_only=True, eq=False)
class Driver:
    """Drives one walk to its end."""

    walk: Walk
    plans: Mapping[str, GrantPlan]  # what each step gets, by the name of its definition
    places: tuple[OpenTarget, ...]
    store: Store
    specs: Specs
    admission: Admission
    journal: Journal
    clock: Clock
    inbox: SimpleQueue[Any]
    building: Building
    project: str
    options: RunOptions
    submitted: Callable[[], None]  # called once something was submitted, and again: threads may start now
    debugged: Debugged | None = None
    first_failure: tuple[TaskId, Failure, int] | None = attrs.field(init=False, default=None)
    """The task that failed first, why, and in which attempt."""
    _decisions: Decisions = attrs.field(init=False)
    _shortfalls: Shortfalls = attrs.field(init=False)
    _replanned: dict[TaskState, GrantPlan] = attrs.field(init=False, factory=dict)
    """Of tasks that ran out of memory."""
    _timers: Timers = attrs.field(init=False)
    _submits: int = attrs.field(init=False, default=0)
    _stopping: str | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._decisions = Decisions(self.walk, self.journal, self.admission.recovery.surplus)
        self._shortfalls = Shortfalls(self.walk, self.plans)
        self._timers = Timers(self.clock)

    def run(self) -> str:
        """Drive the walk to its end; gives the status of the run."""
        for attempt in self.admission.recovery.watch_all():
            self.journal.attempt(attempt)
        self.walk.start()
        self._advance()
        while not self._done():
            self._wait()
            self._advance()
        if self.walk.went_well:
            return COMPLETED
        return CANCELLED if self._stopping == CANCELLED else FAILED

    def abandon(self, *, elsewhere: bool = True) -> None:
        """Stop what runs, because the run cannot go on, and wait until it has ended."""
        places = [p for p in self.places if elsewhere or not p.backend.capabilities.remote]
        self._cancel([attempt for place in places for attempt in place.jobs.values()], None)
        deadline = self.clock.monotonic() + _PATIENCE
        while any(place.jobs for place in places):
            item = self.clock.wait(self.inbox, deadline)
            if item is None:
                return
            if isinstance(item, tuple) and isinstance(item[1], Ended):
                item[0].jobs.pop(item[1].handle, None)

    def finish(self) -> None:
        """Take what other threads of the engine still had to say."""
        while not self.inbox.empty():
            item = self.inbox.get()
            if callable(item):
                item()

    def _done(self) -> bool:
        if not self.walk.finished:
            return False
        # What is left are jobs of an earlier engine that no task of this run asks for.
        left = self._jobs
        self._cancel([attempt for attempt in left if not attempt.cancelled], None)
        return not left

    @property
    def _jobs(self) -> list[AttemptState]:
        """What backends have now."""
        return [attempt for place in self.places for attempt in place.jobs.values()]

    def _advance(self) -> None:
        self._note_decisions()
        while self.walk.ready:
            while self.walk.ready:
                self._admit(self.walk.ready.popleft())
            self._launch()
        self._launch()
        for task in self.admission.explain():
            if task.status == RUNNING:  # submitted; nobody has said yet that it started
                self.journal.task(task, status=PENDING)
        for line in self._shortfalls.lines():
            self.journal.notice(line)
        if self.building.start() or self._submits:
            self.submitted()
        self._note_decisions()
        self.journal.write()

    # From ready to submitted

    def _admit(self, task: TaskState) -> None:
        """Take the task's result from where it is already, or queue it."""
        inputs = self._inputs_of(task)
        if inputs is None:
            return
        found = self.admission.of(
            task,
            inputs[0],
            standard=self._plan_of(task).standard,
            debugged=self._is_debugged(task),
            now=self.clock.now(),
        )
        if found is None:
            self._queue(task)
        elif isinstance(found, Made):
            self._has(task, found.result)
        else:
            self._take_over(task, found.attempt, same=found.same)

    def _inputs_of(self, task: TaskState) -> tuple[dict[str, Value], bool] | None:
        """As :func:`task_inputs`; None: one of them is lost, and made again."""
        try:
            return task_inputs(task, self.walk.nodes, partial(artifacts.items_of, store=self.store))
        except (BlobMissing, BlobDamaged) as error:
            self._make_again(task, Failure(reason="infrastructure", message=str(error)))
            return None

    def _queue(self, task: TaskState) -> None:
        if self._is_debugged(task) or not self.building.hold(task, self._image_made):
            plan = self._plan_of(task)
            plan.place.queue.add(task, plan.demand)

    def _image_made(self, task: TaskState, failure: Failure | None) -> None:
        if task.status != PENDING:  # the run was stopped meanwhile
            return
        if failure is None:
            self._queue(task)
        else:
            self.walk.failed(task, failure)

    def _has(self, task: TaskState, result: TaskResult) -> None:
        """The task has a result that was there already."""
        if result.degraded:
            self._shortfalls.reused(task.node.node.step)
        self._decisions.changes[task] = TaskChange(
            task=self.journal.id(task),
            status=COMPLETED,
            cached=True,
            granted=result.granted,
            used=result.used,
        )
        self.walk.completed(task, result.outputs, degraded=result.degraded)

    def _take_over(self, task: TaskState, attempt: AttemptState, *, same: bool) -> None:
        """Wait for a job that an earlier engine submitted; it is stopped if it is not the same work."""
        attempt.task = task
        self.walk.began(task)
        self.journal.attempt(attempt)
        self.journal.task(task)
        if same:
            self.journal.running(attempt, since=attempt.started)
        else:
            task.cache_reason = "the attempt that was running is of other code or inputs"
            self._cancel([attempt], None)

    def _launch(self) -> None:
        """Submit as much as there is room for."""
        for place in self.places:
            while attempts := self._next_attempts(place):
                self._submit(place, attempts)

    def _next_attempts(self, place: OpenTarget) -> list[AttemptState]:
        """What starts now on a place: one after the other where they start at once, else a list of them."""
        found: list[AttemptState] = []
        inline = self.debugged is not None and self.debugged.plan.place is place
        most = 1 if place.queue.room.one_machine or inline else BATCH
        while len(found) < most and self._has_room(len(found)) and (taken := place.queue.take()) is not None:
            attempt = self._attempt(*taken)
            if attempt is not None:
                found.append(attempt)
        return found

    def _has_room(self, more: int) -> bool:
        """Whether another task may run beside those that do, and so many more."""
        most = self.options.max_workers
        return most is None or len(self._jobs) + more < most

    def _attempt(self, task: TaskState, demand: Any) -> AttemptState | None:
        """The next attempt of a task, with its spec in the store; None: an input has to be made again."""
        plan = self._plan_of(task)
        place = plan.place
        task_id = self.journal.id(task)
        found = self._inputs_of(task)
        if found is None:
            place.queue.room.give_back(demand)
            return None
        inputs, tainted = found
        task.attempts += 1
        debugged = self._is_debugged(task)
        spec = self.specs.make(
            task,
            task_id,
            task.attempts,
            inputs,
            plan,
            degraded=tainted or plan.degraded,
            image=None if debugged else self.building.image_of(task.node.node.step),
        )
        self.store.write_spec(spec)
        attempt = AttemptState(task, spec, place, "", demand, reader_of(self.store, spec))
        self.walk.began(task)
        if debugged:  # it is over when it has been submitted
            self._note_decisions()
            self.journal.running(attempt)
            self.journal.write()
        return attempt

    def _submit(self, place: OpenTarget, attempts: list[AttemptState]) -> None:
        paths = [self.store.spec_path(attempt.task_id, attempt.number) for attempt in attempts]
        jobs = [Job(spec=a.spec, spec_path=path) for a, path in zip(attempts, paths, strict=True)]
        for attempt, handle in zip(attempts, place.backend.submit(jobs), strict=True):
            task = attempt.task
            assert task is not None  # it was made for one
            if isinstance(handle, BackendError):
                place.queue.room.give_back(attempt.demand)
                failure = Failure(reason="infrastructure", message=handle.what, fix=handle.fix)
                self._end(attempt, task, Verdict(None, failure))
                continue
            attempt.handle = handle
            place.jobs[handle] = attempt
            self._submits += 1
            if not self._is_debugged(task):
                self._shortfalls.began(task.node.node.step)
            self.journal.attempt(attempt)
            self.journal.task(task, status=PENDING)

    # Events

    def _wait(self) -> None:
        inbox = self.inbox
        try:
            item = self.clock.wait(inbox, self._timers.next)
        except KeyboardInterrupt:
            item = Command.INTERRUPT
        while item is not None:
            self._take(item)
            try:
                item = inbox.get_nowait()
            except Empty:
                item = None
        self._timers.ring()

    def _take(self, item: Any) -> None:
        if isinstance(item, tuple):
            self._hear(*item)
        elif isinstance(item, Command):
            self._cancel_run(item)
        else:
            item()

    def _hear(self, place: OpenTarget, event: Event) -> None:
        attempt = place.jobs.get(event.handle)
        if attempt is None:  # it was told twice, or of a job that is not ours
            return
        if isinstance(event, Ended):
            del place.jobs[event.handle]
            attempt.wait_for_devices(False)
            place.queue.room.give_back(attempt.demand)
            attempt.ended = event
            verdict = verdict_on(attempt, event, self.store)
            if attempt.given_up is not None and verdict.failure is not None:
                verdict = Verdict(verdict.result, attempt.given_up)
            if attempt.task is None:  # a job of an earlier engine; its task may ask for it yet
                self.journal.attempt(attempt, verdict, ended=self.clock.now())
            else:
                self._end(attempt, attempt.task, verdict)
        elif isinstance(event, Started):
            attempt.wait_for_devices(False)
            attempt.started = self.clock.now()
            attempt.node = event.node
            self.journal.attempt(attempt)
            if attempt.task is not None:
                self.journal.task(attempt.task)
                if not self._is_debugged(attempt.task):
                    self.journal.running(attempt)
        elif isinstance(event, Waiting):
            attempt.wait_for_devices(True)
            attempt.why = event.why
            self.journal.attempt(attempt)
            self.journal.notice(event.why, attempt.task_id)
            if event.hopeless:
                self._wait_no_more(attempt, f"it would wait for ever: {event.why}")
            elif not attempt.overdue:
                attempt.overdue = True
                within = attempt.place.target.start_within
                self._timers.after(parse_span(within), partial(self._is_overdue, attempt, within))
        else:
            self.journal.hear(attempt, event)

    def _is_overdue(self, attempt: AttemptState, within: str) -> None:
        self._wait_no_more(attempt, f"after {within} it still waits: {attempt.why}")

    def _wait_no_more(self, attempt: AttemptState, why: str) -> None:
        """Refuse what waits to start, unless it has begun."""
        if attempt.give_up(why, self.store):
            self._cancel([attempt], 0.0)
            attempt.cancelled = False  # nothing takes its place

    def _end(self, attempt: AttemptState, task: TaskState, verdict: Verdict) -> None:
        """The attempt is over. What that means for its task."""
        now = self.clock.now()
        result, failure = verdict.result, verdict.failure
        if attempt.cancelled and self._stopping is None:  # it was of other work
            self.walk.again(task)
            self._queue(task)
        elif failure is not None:
            self._fail(attempt, task, failure, over(attempt, verdict, now=now))
        elif result is not None:
            change = self._decisions.changes[task] = over(attempt, verdict, now=now)
            many = too_many(task, result, self.options.max_splits)
            if many is not None:
                self._decisions.changes[task] = attrs.evolve(change, status=FAILED, failure=many)
                self._give_up(task, many, attempt.number)
            else:
                discard(self.store, result, wait=False)
                self.walk.completed(task, result.outputs, degraded=result.degraded)
        self.journal.printed(attempt, end=True)
        for line in in_words(result.gaps if result is not None else ()):
            self.journal.notice(line, attempt.task_id)
        self.journal.attempt(attempt, verdict, ended=now)

    def _fail(self, attempt: AttemptState, task: TaskState, failure: Failure, change: TaskChange) -> None:
        """An attempt has failed: there is another one, or the task has failed with it."""
        if self._stopping is not None and failure.reason == "cancelled":
            self._decisions.changes[task] = change
            self.walk.cancelled(task)
            return
        if failure.lost and self._make_again(task, failure):
            return
        self._decisions.changes[task] = change
        task.failures += 1
        retry = task.node.definition.settings.retry_policy
        again = retry.again(failure.reason, task.failures) and not self._is_debugged(task)
        if self._stopping is None and again:
            self._retry(task, failure, change)
        elif not self._caught(task, failure):
            self._give_up(task, failure, attempt.number)

    def _retry(self, task: TaskState, failure: Failure, change: TaskChange) -> None:
        from upshift.engine.replanning import replanned  # few tasks are tried again

        retry, plan = task.node.definition.settings.retry_policy, self._plan_of(task)
        pause = retry.pause(task.failures)
        newer, changes = replanned(plan, task.node.definition, failure, project=self.project)
        if newer is not plan:
            self._replanned[task] = newer
        self._decisions.changes[task] = attrs.evolve(
            change,
            status=PENDING,
            retry_in=pause,
            retry=task.failures,
            retries=retry.times,
            retry_with=", ".join(changes) or None,
        )
        self.walk.again(task)
        self._timers.after(pause, partial(self._queue, task))

    def _caught(self, task: TaskState, failure: Failure) -> bool:
        """Whether the flow goes on all the same: the next attempt says that this one has failed."""
        catch = task.node.definition.settings.catch
        if catch is None or task.caught is not None or self._stopping is not None:
            return False
        task.caught = failure
        told = self._decisions.changes[task]
        self._decisions.changes[task] = attrs.evolve(told, status=PENDING, retry_in=0.0)
        self.walk.again(task)
        self._queue(task)
        return True

    def _give_up(self, task: TaskState, failure: Failure, attempt: int) -> None:
        self._note_failure(task, failure, attempt)
        self.walk.failed(task, failure)
        if not self.options.keep_going:
            self._stop(FAILED)

    def _note_failure(self, task: TaskState, failure: Failure, attempt: int) -> None:
        if self.first_failure is None:
            self.first_failure = (self.journal.id(task), failure, attempt)

    def _make_again(self, task: TaskState, failure: Failure) -> bool:
        """Let the producers of what the task could not read run again, and then the task."""
        if self._stopping is not None:
            return False
        makers = lost_producers(task, self.walk.nodes, failure.lost, self.store)
        if makers and task.rounds < ROUNDS:
            self.journal.notice(f"{task}: an input is lost; {_names(makers)} again", self.journal.id(task))
            self.walk.remake(task, makers)
            return True
        if not failure.lost:
            self._give_up(task, failure, task.attempts + 1)
        return False

    # Stopping

    def _stop(self, status: str) -> None:
        self._stopping = status
        self.walk.stop()
        self._timers.clear()
        for place in self.places:
            place.queue.clear()
        self._cancel(self._jobs, None)

    def _cancel_run(self, command: Command) -> None:
        jobs = self._jobs
        images = self.building.unfinished
        self.journal.notice(stopping_line(jobs, command, again=self._stopping is not None, images=images))
        if self._stopping is None:
            self._stop(CANCELLED)
        else:
            self._cancel(jobs, 0.0)

    def _cancel(self, attempts: list[AttemptState], grace: float | None) -> None:
        for some, error in cancel(attempts, grace):
            names = ", ".join(str(attempt.task_id) for attempt in some)
            self.journal.notice(f"{names} cannot be cancelled: {error.what}", some[0].task_id)

    def _note_decisions(self) -> None:
        while refused := self._decisions.write():  # the first of them may stop the walk, which decides more
            for task, failure in refused:  # before it could be submitted
                task.attempts += 1
                self.journal.refused(task, failure, self._plan_of(task).place, ended=self.clock.now())
                self._note_failure(task, failure, task.attempts)
                if self._stopping is None and not self.options.keep_going:
                    self._stop(FAILED)

    def _is_debugged(self, task: TaskState) -> bool:
        return self.debugged is not None and self.debugged.holds(task)

    def _plan_of(self, task: TaskState) -> GrantPlan:
        if self.debugged is not None and self._is_debugged(task):
            return self.debugged.plan
        return self._replanned.get(task) or self.plans[task.node.node.step]


def _names(tasks: list[TaskState]) -> str:
    names = ", ".join(str(task) for task in tasks[:3])
    return f"{names}{', …' if len(tasks) > 3 else ''} run{'s' if len(tasks) == 1 else ''}"
