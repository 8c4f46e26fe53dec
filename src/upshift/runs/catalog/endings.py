"""What is written down in the store when a run ends, so that the catalog can be made anew from there.

Results say what became of attempts. The record ``tasks.json`` holds the rest: how each task stands, also
one that was skipped or whose result is that of another run; and attempts that left no result.
"""

from __future__ import annotations

import attrs

from upshift.model.spec.codec import from_json, to_json
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runtime.storage.store import Store

NAME = "tasks.json"


@attrs.frozen(kw_only=True)
class Ending:
    """How the tasks of a run stood when it ended.

    Parameters
    ----------
    tasks
        All of them.
    attempts
        Those that left no result, or of which the backend has said more than that.
    """

    tasks: tuple[TaskRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()


def record_ending(row: RunRow, catalog: Catalog, store: Store) -> None:
    """Write down a run that is over, as the catalog has it.

    Raises
    ------
    StoreUnavailable
    """
    ending = Ending(
        tasks=tuple(catalog.tasks(row.id)), attempts=tuple(catalog.attempts(row.id, without_result=True))
    )
    store.write_record(row.id, NAME, to_json(ending))
    store.write_record(row.id, "run.json", to_json(row))


def read_ending(run: str, store: Store) -> Ending:
    """The tasks of a run when it last ended; none, if it never did."""
    content = store.read_record(run, NAME)
    return Ending() if content is None else from_json(Ending, content)
