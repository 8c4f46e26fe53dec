"""Constants whose parts all lead to each other, such as the tables of a database."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
from fingerprint_projects import Project, fresh_project

from upshift.code.fingerprint import values
from upshift.code.fingerprint.pieces import code_digest
from upshift.code.fingerprint.values import value_digest

project = pytest.fixture(fresh_project)

TABLES = """
class Column:
    def __init__(self, name, table): self.name, self.table = name, table
    def shown(self): return self.name
class Table:
    def __init__(self, name, schema):
        self.name, self.schema = name, schema
        self.columns = {f"c{n}": Column(f"c{n}", self) for n in range(5)}
        schema.tables[name] = self
        self.others = set(schema.tables.values())
class Schema:
    def __init__(self): self.tables = {}
schema = Schema()
tables = [Table(f"t{n}", schema) for n in range(40)]
first, last = tables[0], tables[-1]
"""
STEP = "from tables import first\ndef step(x): return first.schema.tables['t39'].columns['c2'].shown()\n"


CHANGES = (
    ("range(40)", "range(41)"),
    ('f"c{n}", self)', 'f"d{n}", self)'),
    ("return self.name", "return 1"),
    ("first, last =", "tables[-1].columns['c2'].name = 'other'\nfirst, last ="),
    ("first, last =", "tables[7].others.discard(schema.tables['t3'])\nfirst, last ="),
    ("first, last =", "a, b = tables[7:9]\na.columns, b.columns = b.columns, a.columns\nfirst, last ="),
)


def test_a_change_anywhere_in_it_counts(project: Project) -> None:
    before = project.fingerprint({"pipe.py": STEP, "tables.py": TABLES})
    assert project.fingerprint({"pipe.py": STEP, "tables.py": TABLES}) == before
    for old, new in CHANGES:
        assert old in TABLES
        after = project.fingerprint({"pipe.py": STEP, "tables.py": TABLES.replace(old, new, 1)})
        assert after != before, new


def test_code_in_it_counts_for_each_constant_that_leads_there(project: Project) -> None:
    step = "from tables import first, last\ndef step(x): return first.name\ndef other(x): return last.name\n"
    found = [
        project.fingerprint({"pipe.py": step, "tables.py": text}, name)
        for text in (TABLES, TABLES.replace("return self.name", "return 1"))
        for name in ("pipe.step", "pipe.other")
    ]
    assert found[0] != found[2]
    assert found[1] != found[3]


class Part:
    """Something that refers to others."""


def test_a_long_chain_is_looked_at_to_its_end() -> None:
    def chain(end: int) -> list[Any]:
        found: list[Any] = [end]
        for _ in range(10 * sys.getrecursionlimit()):
            found = [found]
        return found

    one, same, other = (value_digest(chain(end), str, bool) for end in (1, 1, 2))
    assert one == same and one.complete
    assert one.digest != other.digest


def ring(marked: int, *, sets: bool = False) -> Part:
    parts = [Part() for _ in range(1000)]
    for at, part in enumerate(parts):
        others = [parts[at - 1], parts[(at + 1) % len(parts)]]
        vars(part).update(mark=at == marked, others=set(others) if sets else others)
    return parts[0]


def seen(value: object) -> values.ValueDigest:
    return value_digest(value, str, lambda _: False)


def test_a_change_far_away_counts() -> None:
    assert seen(ring(400)) == seen(ring(400)) and seen(ring(400)).complete
    assert seen(ring(400)).digest != seen(ring(401)).digest


def test_a_set_of_objects_that_look_the_same_by_themselves_is_not_taken_as_known() -> None:
    assert not seen(ring(400, sets=True)).complete and seen(ring(400, sets=True)).hides


def test_plain_data_of_any_size_is_complete() -> None:
    data = [(n, {"a": [n]}) for n in range(values.LARGEST)]
    seen = value_digest(data, str, bool)
    assert seen.complete and not seen.hides
    data[-1][1]["a"][0] += 1
    assert value_digest(data, str, bool).digest != seen.digest


def test_numbers_that_python_refuses_to_print_are_told_apart() -> None:
    digests = {seen((10**5000 + n, "a")).digest for n in (0, 0, 1)}
    assert len(digests) == 2
    made = {code_digest(compile(f"x = (0x{'f' * 4000}{n}, 1)", "x", "exec")) for n in (0, 0, 1)}
    assert len(made) == 2


def test_a_set_that_somebody_adds_to_meanwhile_is_written_as_it_was() -> None:
    class Item:
        def __init__(self, known: Any) -> None:
            self.known = known

        def __reduce__(self) -> tuple[Any, ...]:
            self.known.add(Item(set()))  # as another thread would, between two items
            return (str, ("item",))

    for known in (set(), weakref.WeakSet()):
        kept = [Item(known), Item(known)]
        known.update(kept)
        assert value_digest(known, str, lambda function: False).unordered
