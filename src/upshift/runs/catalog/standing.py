"""How a run stands: as it is recorded, unless its engine was killed before it could record the end.

A run that is recorded as running and whose lease nobody holds is *interrupted*. People read that word;
the status of such a run, in JSON and in Python, is ``cancelled``: it was stopped before its end, though
nothing of it failed. That it has no time of its end tells it from one that was stopped in order. So is a run
whose engine was submitted and is known never to have begun.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from upshift.errors import NotFound
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rows import Detached, RunRow
from upshift.runs.lease import held

ORCHESTRATOR = "orchestrator"
"""Under this name the source of a row says whose the run is, where no engine of Upshift's works on it."""
INTERRUPTED = "interrupted"
"""Status of the row of such a run; no record has it."""


def standing(rows: Iterable[RunRow], catalog: Catalog) -> list[RunRow]:
    """The rows of runs as these stand. Leases are asked for those only that are recorded as running."""
    return [_standing(row, catalog) if row.status in ("pending", "running") else row for row in rows]


def plain_status(row: RunRow) -> str:
    """The status in the words of the records: ``cancelled`` for a run that is interrupted."""
    return "cancelled" if row.status == INTERRUPTED else row.status


def _standing(row: RunRow, catalog: Catalog) -> RunRow:
    if row.status == "pending":  # nobody has a lease yet
        engine = Detached.of(row)
        return row if engine is None or engine.lost is None else attrs.evolve(row, status=INTERRUPTED)
    if ORCHESTRATOR in row.source or _owned(row):
        return row
    # An engine records the end before it gives the lease up: so the row that was read may be older.
    try:
        now = catalog.run(row.id)
    except NotFound:  # it was removed meanwhile
        return row
    over = now.status != "running" or _owned(now)
    return now if over else attrs.evolve(now, status=INTERRUPTED)


def _owned(row: RunRow) -> bool:
    return held(row.id, row.store)
