"""The part of the catalog that numbers what steps make, and tags it; and the record of that in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from upshift.model.spec.codec import from_json, to_json
from upshift.runs.catalog.database import Database, Transaction, upsert
from upshift.runs.catalog.rows import Addresses, VersionRow
from upshift.runtime.storage.store import Store

_RECORD = "versions.json"
_COLUMNS = tuple(field.name for field in attrs.fields(VersionRow))
_PUT = upsert("versions", "pipeline, step, number", _COLUMNS, fixed=3)
_MADE = """
    SELECT run, item, store, made_run, made_step, made_item, attempt FROM (
        SELECT t.run, t.item, r.store, r.started,
            ifnull(json_extract(t.origin, '$[0]'), t.run) AS made_run,
            ifnull(json_extract(t.origin, '$[1]'), t.step) AS made_step,
            CASE WHEN t.origin IS NULL THEN t.item
                ELSE CAST(json_extract(t.origin, '$[2]') AS INTEGER) END AS made_item,
            ifnull(CAST(json_extract(t.origin, '$[3]') AS INTEGER), (
                SELECT max(number) FROM attempts a WHERE a.run = t.run AND a.step = t.step
                AND ifnull(a.item, -1) = ifnull(t.item, -1) AND a.status = 'completed'
            )) AS attempt
        FROM tasks t JOIN runs r ON r.id = t.run
        WHERE r.pipeline = ? AND t.step = ? AND t.status = 'completed'
    ) AS made
    WHERE attempt IS NOT NULL
    ORDER BY started, run, ifnull(item, -1)
"""
"""What the runs of a pipeline have of a step: run, index, store, and the attempt that made it."""


class VersionRows:
    """Versions of what steps make. A number is never given twice, also when its run was removed."""

    def __init__(self, database: Database, addresses: Addresses) -> None:
        self._database = database
        self._addresses = addresses

    def names(self) -> list[tuple[str, str]]:
        """Pipelines, and steps of theirs that have made something, in alphabetical order."""
        sql = (
            "SELECT DISTINCT r.pipeline, t.step FROM runs r JOIN tasks t ON t.run = r.id "
            "WHERE t.status = 'completed' ORDER BY 1, 2"
        )
        return [(pipeline, step) for pipeline, step in self._database.query(sql)]

    def number(self, pipeline: str, step: str) -> list[VersionRow]:
        """Give every result that has no number yet the next one; gives the rows that have changed."""
        changed = self._unnumbered(pipeline, step, None)
        if changed:
            with self._database.writing() as transaction:
                changed = self._unnumbered(pipeline, step, transaction)
                transaction.executemany(_PUT, map(self._values, changed))
        return changed

    def _unnumbered(self, pipeline: str, step: str, transaction: Transaction | None) -> list[VersionRow]:
        rows = self._read("pipeline = ? AND step = ?", (pipeline, step), transaction)
        known = {(row.run, row.made_step, row.item, row.attempt): row for row in rows}
        number = max((row.number for row in rows), default=0)
        there = {
            run for (run,) in self._query("SELECT id FROM runs WHERE pipeline = ?", (pipeline,), transaction)
        }
        changed: dict[int, VersionRow] = {}
        for holder, index, named, *maker in self._query(_MADE, (pipeline, step), transaction):
            store, old = self._addresses.here(named), known.get(tuple(maker))
            if old is not None and old.holder in there:
                continue
            if old is None:
                number += 1
                run, made_step, item, attempt = maker
                sql = (
                    "SELECT ended FROM attempts "
                    "WHERE run = ? AND step = ? AND ifnull(item, -1) = ifnull(?, -1) AND number = ?"
                )
                ended = self._query(sql, tuple(maker), transaction)
                old = VersionRow(
                    pipeline=pipeline,
                    step=step,
                    number=number,
                    run=run,
                    made_step=made_step,
                    item=item,
                    attempt=attempt,
                    holder=holder,
                    holder_item=index,
                    store=store,
                    made=ended[0][0] if ended else None,
                )
            row = attrs.evolve(old, holder=holder, holder_item=index, store=store)
            known[tuple(maker)] = changed[row.number] = row
        return list(changed.values())

    def of_step(self, pipeline: str, step: str) -> list[VersionRow]:
        """The versions that are still there, by number."""
        return self._read("pipeline = ? AND step = ? AND holder IN (SELECT id FROM runs)", (pipeline, step))

    def as_numbered(self, pipeline: str, step: str) -> list[VersionRow]:
        """What :meth:`of_step` gives once new results have their numbers, without giving them any."""
        new = self._unnumbered(pipeline, step, None)
        rows = {row.number: row for row in (*self.of_step(pipeline, step), *new)}
        return [rows[number] for number in sorted(rows)]

    def of_run(self, run: str) -> list[VersionRow]:
        """The versions that a run was the first to have."""
        return self._read("holder = ?", (run,))

    def tagged_runs(self) -> set[str]:
        """The runs that have a version with a tag."""
        sql = "SELECT DISTINCT holder FROM versions WHERE tags != '[]'"
        return {run for (run,) in self._database.query(sql)}

    def put(self, rows: Iterable[VersionRow]) -> None:
        """Record versions as they are."""
        with self._database.writing() as transaction:
            transaction.executemany(_PUT, map(self._values, rows))

    def tag(self, version: VersionRow, tag: str, *, remove: bool = False) -> list[VersionRow]:
        """Give a version a tag, and take it from the one that had it; gives the rows that have changed."""
        changed = []
        with self._database.writing() as transaction:
            of_step = "pipeline = ? AND step = ?", (version.pipeline, version.step)
            for row in self._read(*of_step, transaction):
                chosen = row.number == version.number
                if chosen and not remove and tag not in row.tags:
                    changed.append(attrs.evolve(row, tags=(*row.tags, tag)))
                elif tag in row.tags and chosen == remove:
                    changed.append(attrs.evolve(row, tags=tuple(one for one in row.tags if one != tag)))
            transaction.executemany(_PUT, map(self._values, changed))
        return changed

    def _read(
        self, condition: str, values: tuple[Any, ...], transaction: Transaction | None = None
    ) -> list[VersionRow]:
        sql = f"SELECT {', '.join(_COLUMNS)} FROM versions WHERE {condition} ORDER BY number"
        found = (dict(zip(_COLUMNS, row, strict=True)) for row in self._query(sql, values, transaction))
        here = self._addresses.here
        return [
            VersionRow(**{**row, "store": here(row["store"]), "tags": tuple(json.loads(row["tags"]))})
            for row in found
        ]

    def _values(self, row: VersionRow) -> tuple[Any, ...]:
        named = attrs.evolve(row, store=self._addresses.there(row.store))
        return (*attrs.astuple(named)[:-1], json.dumps(row.tags))

    def _query(
        self, sql: str, values: tuple[Any, ...], transaction: Transaction | None
    ) -> list[tuple[Any, ...]]:
        return (
            self._database.query(sql, values)
            if transaction is None
            else transaction.execute(sql, values).fetchall()
        )


@attrs.frozen(kw_only=True)
class _Versions:
    """The record of a run: the versions that it was the first to have."""

    versions: tuple[VersionRow, ...] = ()


def record_versions(run: str, versions: Iterable[VersionRow], store: Store) -> None:
    """Write the versions of a run into its records, from which a new catalog gets them."""
    store.write_record(run, _RECORD, to_json(_Versions(versions=tuple(versions))))


def recorded_versions(run: str, store: Store) -> tuple[VersionRow, ...]:
    """The versions that the records of a run have; none, where they cannot be read."""
    content = store.read_record(run, _RECORD)
    try:
        return () if content is None else from_json(_Versions, content).versions
    except ValueError:
        return ()
