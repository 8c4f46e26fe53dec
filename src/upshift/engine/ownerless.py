"""Runs that no engine works on: why one that was submitted does not, and how such a run is cancelled.

A submitted engine waits, or is lost: then its target is asked, and what it says is recorded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue

import attrs

from upshift.backends.base import INLINE, Backend, Ended, Event, Job
from upshift.backends.engines import Engines
from upshift.backends.registry import open_backend
from upshift.backends.scheduler import State
from upshift.engine.control import ask
from upshift.engine.recovery import is_at, take_over
from upshift.engine.targets import fence, rejoin
from upshift.engine.tasks import CANCELLED, PENDING, RUNNING
from upshift.errors import BackendError, RunOwned, StoreError, StoreUnavailable, UpshiftError
from upshift.model.configuration import UNCONFIGURED, Configuration, Target
from upshift.model.spec.codec import to_json
from upshift.model.spec.task import Failure, TaskId
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import INTERRUPTED, ORCHESTRATOR, known_run, open_catalog
from upshift.runs.catalog.rebuild import record_ending
from upshift.runs.catalog.rows import AttemptRow, Detached, RunRow, TaskRow, awaits_engine
from upshift.runs.lease import BEAT, Lease, ask_to_cancel, held, here, owner
from upshift.runtime.storage.store import Store, open_store

_SUBMITTING = 60.0
"""Seconds for which an engine that nobody knows may be about to be submitted, or to begin."""


def settle(rows: Iterable[RunRow], catalog: Catalog, configuration: Configuration) -> None:
    """Record why submitted engines do not work on these runs, as they stand."""
    for row in rows:
        engine = Detached.of(row)
        if engine is None or engine.lost is not None or row.status not in ("pending", INTERRUPTED):
            continue
        with contextlib.suppress(UpshiftError):  # it is asked again
            why = _why_lost(row, engine, configuration)
            if why is not None and not held(row.id, row.store):
                store = open_store(row.store, **configuration.store_options)
                with Lease(row.id, row.store) as lease:
                    now = take_over(row.id, catalog, store)
                    if Detached.of(now) == engine and now.ended is None:
                        record_lost(now, catalog, store, lease, why)


def withdraw(row: RunRow, configuration: Configuration) -> None:
    """Take the engine back that a run waits for; one that begins all the same leaves the run alone."""
    engine = Detached.of(row)
    if engine is not None and engine.target is not None:
        with contextlib.suppress(UpshiftError), _opened(configuration.target(engine.target), row) as engines:
            if engines is not None:
                engines.withdraw(engine.name)


def record_refused(run: str, token: str, error: UpshiftError, configuration: Configuration) -> None:
    """Record why an engine does not begin with its run, if it is that which the run waits for."""
    with contextlib.closing(open_catalog(configuration)) as catalog, contextlib.suppress(UpshiftError):
        row = known_run(run, catalog, configuration)
        store = open_store(row.store, **configuration.store_options)
        with Lease(row.id, row.store) as lease:
            row = take_over(row.id, catalog, store)
            engine = Detached.of(row)
            if awaits_engine(row) and engine is not None and engine.token == token:
                row = attrs.evolve(row, source={**row.source, "engine": here()})  # for other catalogs to see
                record_lost(row, catalog, store, lease, f"it was refused: {error.in_short}")


def record_lost(row: RunRow, catalog: Catalog, store: Store, lease: Lease, why: str) -> None:
    """Record why its engine does not work on a run."""
    from upshift.runs.publishing import published  # starts threads, for a bucket only

    engine = Detached.of(row)
    assert engine is not None
    with published(store, row.id, lease):
        source = {**row.source, **attrs.evolve(engine, lost=why).source()}
        row = attrs.evolve(row, source=source)
        store.write_record(row.id, "run.json", to_json(row))
        catalog.add_run(row)


def confirm_free(row: RunRow, configuration: Configuration) -> None:
    """Refuse to work on a run that waits for its engine. Raises ``RunOwned``."""
    engine = Detached.of(row)
    if engine is None or not awaits_engine(row) or _why_lost(row, engine, configuration) is not None:
        return
    raise RunOwned(
        f"run {row.id} waits for its engine, which was submitted from {engine.host}",
        why=_waits(row, engine, configuration),
        fix=f"Wait until it has ended, or stop it: upshift cancel {row.id}",
    )


def _waits(row: RunRow, engine: Detached, configuration: Configuration) -> str | None:
    known = _known(row, engine, configuration)
    if known is None:
        return None
    where, state = known
    return f"It is {where}, which {'waits' if state.phase == 'pending' else 'begins'}" + (
        f": {state.why}." if state.why else "."
    )


def _why_lost(row: RunRow, engine: Detached, configuration: Configuration) -> str | None:
    """Why the engine does not work on the run, which nobody does; None: it may be about to, or is not known.

    Raises ``UpshiftError`` where the target cannot be asked from here.
    """
    late = time.time() - engine.since > _SUBMITTING
    if engine.target is None:
        return f"its process on {engine.host} has ended" if late or row.status == INTERRUPTED else None
    known = _known(row, engine, configuration)
    if known is None:
        return f"target {engine.target!r} knows it no more" if late else None
    where, state = known
    if state.phase == "ended" or state.hopeless:
        return f"{where}: {state.message or state.why or 'it ended'}"
    return None


def _known(row: RunRow, engine: Detached, configuration: Configuration) -> tuple[str, State] | None:
    if engine.target is None:
        return None
    with _opened(configuration.target(engine.target), row) as engines:
        return None if engines is None else engines.state(engine.name)


@contextlib.contextmanager
def _opened(target: Target, row: RunRow) -> Iterator[Engines | None]:
    backend = open_backend(target, store=row.store, sink=lambda event: None)
    try:
        yield getattr(backend, "engines", None)
    finally:
        backend.close()


_UNFINISHED = (PENDING, RUNNING)


_KILLED_AFTER = 60.0
"""Seconds in which a killed task has ended, and its backend has said so."""


def cancel(ref: str, configuration: Configuration) -> str:
    """Stop a run; completed steps are kept. Gives a sentence for the user."""
    from upshift.runs.publishing import published  # an engine cancels no run without one

    with contextlib.closing(open_catalog(configuration)) as catalog:
        row = known_run(ref, catalog, configuration)
        if ORCHESTRATOR in row.source and row.status in _UNFINISHED:
            from upshift.engine import tool_runs  # engines do all other runs

            return tool_runs.cancel(row, configuration)
        try:
            with Lease(row.id, row.store) as lease:
                store = open_store(row.store, **configuration.store_options)
                row = take_over(row.id, catalog, store)
                if row.status not in _UNFINISHED:
                    return _ended(row)
                with published(store, row.id, lease):
                    stopped = _cancel_ownerless(row, configuration, catalog)
                if awaits_engine(row):
                    withdraw(row, configuration)
                    return f"run {row.id} is cancelled: its engine had not begun"
                left = f", {stopped} of its tasks still ran and were stopped" if stopped else ""
                return f"run {row.id} is cancelled: no engine was at work on it any more{left}"
        except RunOwned:
            engine = owner(row.id, row.store)
            if "socket" not in engine:  # another cancel is at work, or the engine has just begun or ended
                raise
            if ask(engine["socket"], "cancel") is None:
                ask_to_cancel(row.id, row.store)
                return f"run {row.id} is asked to stop: its engine on {engine['host']} looks every {BEAT:g} s"
            return f"run {row.id} is being cancelled"
        except StoreUnavailable:  # of a home that can only be read
            if row.status in _UNFINISHED:
                raise
            return _ended(row)


def _ended(row: RunRow) -> str:
    return f"run {row.id} has ended already: {row.status}"


def _cancel_ownerless(row: RunRow, configuration: Configuration, catalog: Catalog) -> int:
    store = open_store(row.store, **configuration.store_options)
    attempts = _unfinished(row, catalog, store)
    stopped = _stop_jobs(row, attempts, store, configuration) if attempts else 0
    now = max(row.started, time.time())  # the clock may have been set back since
    ended = []
    for attempt in attempts:
        result = store.read_result(attempt.task, attempt.number)
        if result is None:
            fence(store, attempt.task, attempt.number)
        failure = result.failure if result else Failure(reason="cancelled", message="the run was cancelled")
        ended.append(
            attrs.evolve(
                attempt,
                status=result.status if result else CANCELLED,
                reason=failure.reason if failure else None,
                ended=result.ended if result else now,
                result=result,
                failure=None if result else failure,
            )
        )
    status = {attempt.task: attempt.status for attempt in ended}
    known = {task.task: task for task in catalog.tasks(row.id)}
    unknown = [TaskRow(task=task, status=PENDING) for task in status if task not in known]
    tasks = [
        attrs.evolve(task, status=status.get(task.task, CANCELLED))
        for task in (*known.values(), *unknown)
        if task.status in _UNFINISHED
    ]
    catalog.record(tasks, ended)
    record_ending(attrs.evolve(row, status=CANCELLED, ended=now), catalog, store)
    catalog.update_run(row.id, status=CANCELLED, ended=now)
    return stopped


def _unfinished(row: RunRow, catalog: Catalog, store: Store) -> list[AttemptRow]:
    """The attempts that may still run, also those that the engine was killed before it recorded."""
    recorded = catalog.attempts(row.id)
    known = {(attempt.task, attempt.number) for attempt in recorded}
    return [attempt for attempt in recorded if attempt.status in _UNFINISHED] + [
        AttemptRow(
            task=spec.task, number=spec.attempt, status=PENDING, target=spec.target, backend=spec.backend
        )
        for spec in store.unfinished(row.id)
        if spec.backend is not None and (spec.task, spec.attempt) not in known
    ]


def _stop_jobs(row: RunRow, attempts: list[AttemptRow], store: Store, configuration: Configuration) -> int:
    """Stop what still runs of these attempts, and wait for its end; returns how many these were."""
    inbox: SimpleQueue[tuple[str, Event]] = SimpleQueue()
    targets = _targets(row, attempts, configuration)
    at: dict[str, list[tuple[Job, str | None]]] = {}
    for attempt in attempts:
        target = targets.get((attempt.task, attempt.number))
        path = store.spec_path(attempt.task, attempt.number)
        with contextlib.suppress(StoreError):  # it was never submitted
            if target is not None:
                job = Job(spec=store.read_spec(path), spec_path=path)
                at.setdefault(target.name, []).append((job, attempt.handle))
    backends: list[Backend] = []
    grace = 0.0
    running: set[tuple[str, str]] = set()  # a handle is unique within a backend only
    try:
        for name, jobs in at.items():
            sink = partial(_tell, inbox, name)
            backend = open_backend(configuration.target(name), store=row.store, sink=sink)
            backends.append(backend)
            for (job, _), (handle, ended) in zip(jobs, rejoin(backend, jobs, store), strict=True):
                if handle is not None and ended is None:
                    running.add((name, handle))
                    backend.cancel([handle], grace=job.spec.settings.grace_period)
                    grace = max(grace, job.spec.settings.grace_period)
        stopped = len(running)
        deadline = time.monotonic() + grace + _KILLED_AFTER
        while running:
            try:
                name, event = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise BackendError(
                    f"{len(running)} of {stopped} tasks of run {row.id} were stopped and have not ended",
                    why=f"They were given {grace:g} seconds, and then killed, {_KILLED_AFTER:g} seconds ago.",
                    fix=f"See what they do (upshift show {row.id}), and run this again.",
                ) from None
            if isinstance(event, Ended):
                running.discard((name, event.handle))
        return stopped
    finally:
        for backend in backends:
            backend.close()


def _tell(inbox: SimpleQueue[tuple[str, Event]], target: str, event: Event) -> None:
    inbox.put((target, event))


def _targets(
    row: RunRow, attempts: list[AttemptRow], configuration: Configuration
) -> dict[tuple[TaskId, int], Target]:
    """The target that each attempt was given to; of one that ran in the engine itself there is none."""
    own = [row.target, *configuration.targets, *UNCONFIGURED]
    found: dict[tuple[TaskId, int], Target] = {}
    for attempt in attempts:
        if attempt.backend == INLINE:
            continue
        names = [attempt.target] if attempt.target is not None else own
        target = next((t for t in map(configuration.target, names) if is_at(attempt, t)), None)
        if target is not None:
            found[attempt.task, attempt.number] = target
    return found
