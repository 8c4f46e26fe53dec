"""Constants whose parts all lead to each other, such as the tables of a database."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fingerprint_projects import Project, fresh_project
from hypothesis import given
from hypothesis import strategies as st

from upshift.code.fingerprint import values
from upshift.code.fingerprint.tangles import Tangle
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(40)", "range(41)"),
        ('f"c{n}", self)', 'f"d{n}", self)'),
        ("return self.name", "return 1"),
        ("first, last =", "tables[-1].columns['c2'].name = 'other'\nfirst, last ="),
        ("first, last =", "tables[7].others.discard(schema.tables['t3'])\nfirst, last ="),
        ("first, last =", "a, b = tables[7:9]\na.columns, b.columns = b.columns, a.columns\nfirst, last ="),
    ],
)
def test_a_change_anywhere_in_it_counts(project: Project, old: str, new: str) -> None:
    before = project.fingerprint({"pipe.py": STEP, "tables.py": TABLES})
    assert project.fingerprint({"pipe.py": STEP, "tables.py": TABLES}) == before
    assert old in TABLES
    after = project.fingerprint({"pipe.py": STEP, "tables.py": TABLES.replace(old, new, 1)})
    assert after != before


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


Drawn = tuple[list[int], list[list[int]]]
graphs: st.SearchStrategy[Drawn] = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 3), min_size=count, max_size=count),
        st.lists(st.lists(st.integers(0, count - 1), max_size=3), min_size=count, max_size=count),
    )
)


def made(drawn: Drawn) -> list[Part]:
    labels, edges = drawn
    parts = [Part() for _ in labels]
    for part, label, others in zip(parts, labels, edges, strict=True):
        vars(part).update(label=label, others=[parts[other] for other in others])
    return parts


def digests(parts: list[Part], order: range) -> dict[int, str]:
    tangle = Tangle(lambda _: False)
    return {at: tangle.seen(parts[at], lambda code: str(code)).digest for at in order}


@given(graphs)
def test_where_one_begins_makes_no_difference(drawn: Drawn) -> None:
    count = len(drawn[0])
    assert digests(made(drawn), range(count)) == digests(made(drawn), range(count - 1, -1, -1))


@given(graphs, st.data())
def test_what_can_be_reached_counts_and_nothing_else(drawn: Drawn, data: Any) -> None:
    labels, edges = drawn
    changed = data.draw(st.integers(0, len(labels) - 1))
    other = ([*labels[:changed], 9, *labels[changed + 1 :]], edges)
    before, after = (digests(made(one), range(len(labels))) for one in (drawn, other))
    for at in range(len(labels)):
        assert (before[at] != after[at]) is (changed in reached(edges, at))


@given(graphs, st.data())
def test_another_reference_counts(drawn: Drawn, data: Any) -> None:
    labels, edges = list(range(len(drawn[0]))), drawn[1]  # all of them different
    changed = data.draw(st.integers(0, len(labels) - 1))
    to = data.draw(st.lists(st.integers(0, len(labels) - 1), max_size=3).filter(edges[changed].__ne__))
    other = (labels, [*edges[:changed], to, *edges[changed + 1 :]])
    before, after = (digests(made(one), range(len(labels))) for one in ((labels, edges), other))
    for at in range(len(labels)):
        assert (before[at] != after[at]) is (changed in reached(edges, at))


def reached(edges: list[list[int]], start: int) -> set[int]:
    found, pending = {start}, [start]
    while pending:
        for other in edges[pending.pop()]:
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def test_a_long_chain_is_looked_at_to_its_end() -> None:
    def chain(end: int) -> list[Any]:
        found: list[Any] = [end]
        for _ in range(10 * sys.getrecursionlimit()):
            found = [found]
        return found

    one, same, other = (value_digest(chain(end), str, bool) for end in (1, 1, 2))
    assert one == same and one.complete
    assert one.digest != other.digest


def test_equal_objects_that_are_too_many_to_tell_apart_are_not_taken_as_known() -> None:
    def chain(marked: int) -> Part:
        parts = [Part() for _ in range(1000)]
        for at, part in enumerate(parts):
            vars(part).update(mark=at == marked, before=parts[at - 1], after=parts[(at + 1) % len(parts)])
        return parts[0]

    seen = [value_digest(chain(marked), str, lambda _: False) for marked in (400, 450)]
    assert not any(one.complete for one in seen) and all(one.hides for one in seen)


def test_plain_data_of_any_size_is_complete() -> None:
    data = [(n, {"a": [n]}) for n in range(values.LARGEST)]
    seen = value_digest(data, str, bool)
    assert seen.complete and not seen.hides
    data[-1][1]["a"][0] += 1
    assert value_digest(data, str, bool).digest != seen.digest
