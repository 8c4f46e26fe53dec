"""The catalog anew, from what the stores hold: ``python -m upshift.store.rebuild [STORE …]``.

A run is found by its record ``run.json``, the JSON form of a :class:`~upshift.store.rows.RunRow`;
its attempts by their results. Tasks without a result of their own, since they were skipped or their
result was reused, are in the record ``tasks.json``: the list of the run's
:class:`~upshift.store.rows.TaskRow` when it ended. What no record names is not found again: which
backend made an attempt, and attempts that left no result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.errors import UpshiftError
from upshift.spec.codec import decode, from_json
from upshift.spec.task import TaskId
from upshift.store.catalog import Catalog, catalog_path
from upshift.store.history_records import attempt_of
from upshift.store.rows import AttemptRow, RunRow, TaskRow
from upshift.store.store import Store, open_store

if TYPE_CHECKING:
    from upshift.config.configuration import Configuration


def rebuild(catalog: Catalog, stores: Iterable[Store]) -> int:
    """Record in ``catalog`` every run that the stores hold.

    Parameters
    ----------
    catalog
        Usually an empty one; of runs that it knows the rows are written anew.
    stores
        Where to look.

    Returns
    -------
    int
        The number of runs.
    """
    found = 0
    for store in stores:
        for run in store.runs():
            content = store.read_record(run, "run.json")
            if content is None:
                continue
            catalog.add_run(attrs.evolve(from_json(RunRow, content), store=store.address))
            catalog.record(*_rows(run, store))
            found += 1
    return found


def _rows(run: str, store: Store) -> tuple[list[TaskRow], list[AttemptRow]]:
    results = sorted(store.results(run), key=lambda result: result.attempt)
    tasks: dict[TaskId, TaskRow] = {}
    for result in results:
        tasks[result.task] = TaskRow(task=result.task, status=result.status, key=result.key)
    for data in json.loads(store.read_record(run, "tasks.json") or b"[]"):
        row = decode(TaskRow, data)
        tasks[row.task] = row
    return list(tasks.values()), [attempt_of(result) for result in results]


def replace(configuration: Configuration, addresses: Sequence[str] = ()) -> tuple[int, Path | None]:
    """Put a rebuilt catalog in the place of the one that is configured.

    Parameters
    ----------
    configuration
        Names the catalog, and the stores unless ``addresses`` does.
    addresses
        The stores.

    Returns
    -------
    runs
        How many there are.
    old
        Where the catalog that was there has gone; None where there was none.
    """
    path = catalog_path(configuration.catalog)
    targets = (*configuration.targets.values(), configuration.target("local"))
    addresses = addresses or sorted({configuration.store_address(target) for target in targets})
    draft = Catalog(path.with_name(path.name + ".rebuilding"))
    try:
        found = rebuild(draft, [open_store(address) for address in addresses])
    except BaseException:
        draft.close()
        draft.path.unlink(missing_ok=True)
        raise
    draft.close()
    old = path.with_name(path.name + ".old") if path.exists() else None
    if old is not None:
        for end in ("-wal", "-shm", ""):  # its log first: beside the new file it would be taken for its own
            part = path.with_name(path.name + end)
            if part.exists():
                os.replace(part, old.with_name(old.name + end))
    os.replace(draft.path, path)
    return found, old


def main(arguments: Sequence[str]) -> int:
    """The command; gives its exit code."""
    from upshift.config.configuration import load_configuration

    try:
        found, old = replace(load_configuration(), arguments)
    except UpshiftError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    kept = f" The one before is kept as {old}." if old else ""
    sys.stdout.write(f"The catalog has {found} run{'' if found == 1 else 's'}.{kept}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
