"""Cancelling a run from another process: :func:`cancel`."""

from __future__ import annotations

import contextlib
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import attrs

from upshift.backends.base import Job
from upshift.backends.registry import open_backend
from upshift.engine.control import ask
from upshift.engine.tasks import CANCELLED, PENDING, RUNNING
from upshift.errors import RunOwned, StoreError
from upshift.model.configuration import UNCONFIGURED, Configuration
from upshift.model.spec.task import Failure
from upshift.runs.catalog import AttemptRow, Catalog, RunRow, TaskRow, open_catalog
from upshift.runs.endings import record_ending
from upshift.runs.lease import Lease
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.backends.base import Backend, Event

_UNFINISHED = (PENDING, RUNNING)


def cancel(ref: str, configuration: Configuration) -> str:
    """Stop a run. What is done is kept.

    Parameters
    ----------
    ref
        The run's id, a unique prefix of it, or ``latest``.
    configuration
        Where the catalog and the targets are.

    Returns
    -------
    str
        A sentence for the user.

    Raises
    ------
    NotFound
        There is no such run.
    RunOwned
        An engine owns the run and does not answer: it is on another machine, or stopped.
    """
    with contextlib.closing(open_catalog(configuration)) as catalog:
        row = catalog.run(ref)
        try:
            with Lease(row.id):
                row = catalog.run(row.id)
                if row.status not in _UNFINISHED:
                    return f"run {row.id} has ended already: {row.status}"
                stopped = _cancel_ownerless(row, configuration, catalog)
                left = f", {stopped} of its tasks still ran and were stopped" if stopped else ""
                return f"run {row.id} is cancelled: no engine was at work on it any more{left}"
        except RunOwned:
            if ask(row.id, "cancel") is None:
                raise
            return f"run {row.id} is being cancelled"


def _cancel_ownerless(row: RunRow, configuration: Configuration, catalog: Catalog) -> int:
    store = open_store(row.store, durability=configuration.durability)
    attempts = _unfinished(row, catalog, store)
    stopped = _stop_jobs(row, attempts, store, configuration) if attempts else set()
    now = time.time()
    ended = []
    for attempt in attempts:
        result = store.read_result(attempt.task, attempt.number)
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
    return len(stopped)


def _unfinished(row: RunRow, catalog: Catalog, store: Store) -> list[AttemptRow]:
    """The attempts that may still run, also those that the engine was killed before it recorded."""
    recorded = catalog.attempts(row.id)
    known = {(attempt.task, attempt.number) for attempt in recorded}
    return [attempt for attempt in recorded if attempt.status in _UNFINISHED] + [
        AttemptRow(task=spec.task, number=spec.attempt, status=PENDING, backend=spec.backend)
        for spec in store.unfinished(row.id)
        if spec.backend is not None and (spec.task, spec.attempt) not in known
    ]


def _stop_jobs(
    row: RunRow, attempts: list[AttemptRow], store: Store, configuration: Configuration
) -> set[str]:
    """Stop what still runs of these attempts, and wait until it has ended."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    target = configuration.target(row.target)
    unconfigured = {name: configuration.target(name) for name in UNCONFIGURED}
    names = {target.name: target, **configuration.targets, **unconfigured}
    backends: dict[str, Backend] = {}
    running: set[str] = set()
    try:
        for candidate in names.values():
            if any(a.backend == candidate.backend for a in attempts) and candidate.backend not in backends:
                backends[candidate.backend] = open_backend(candidate, store=row.store, sink=inbox.put)
        for attempt in attempts:
            backend = backends.get(attempt.backend)
            path = store.spec_path(attempt.task, attempt.number)
            try:
                job = Job(spec=store.read_spec(path), spec_path=path)
            except StoreError:  # it was never submitted
                continue
            handle = attempt.handle or (backend.find(job) if backend else None)
            if backend and handle and backend.attach(handle, job):
                running.add(handle)
                backend.cancel(handle, grace=job.spec.grace)
        stopped = set(running)
        while running:
            event = inbox.get()
            if type(event).__name__ == "Ended":
                running.discard(event.handle)
        return stopped
    finally:
        for backend in backends.values():
            backend.close()
