"""What became of an engine that was submitted for a run and does not work on it: it waits, or is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

import attrs

from upshift.backends.engines import Engines
from upshift.backends.registry import open_backend
from upshift.backends.scheduler import State
from upshift.engine.recovery import take_over
from upshift.errors import RunOwned, UpshiftError
from upshift.model.configuration import Configuration, Target
from upshift.model.spec.codec import to_json
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.detached import Detached, awaits_engine
from upshift.runs.catalog.rebuild import known_run, open_catalog
from upshift.runs.catalog.rows import RunRow
from upshift.runs.catalog.standing import INTERRUPTED
from upshift.runs.stores.lease import Lease, held, here
from upshift.runtime.storage.store import Store, open_store

_SUBMITTING = 60.0
"""Seconds for which an engine that nobody knows may be about to be submitted, or to begin."""


def settle(rows: Iterable[RunRow], catalog: Catalog, configuration: Configuration) -> None:
    """Find out of runs whose engines were submitted why these do not work on them, and record it.

    Parameters
    ----------
    rows
        Runs as they stand: of those that wait for an engine, or were interrupted, its target is asked.
    """
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
    from upshift.runs.stores.publishing import published  # starts threads, for a bucket only

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

    Raises
    ------
    UpshiftError
        The target cannot be asked from here.
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
