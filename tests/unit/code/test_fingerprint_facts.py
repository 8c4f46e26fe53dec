"""What is read from source, and kept of it."""

from __future__ import annotations

import ast

import pytest

from upshift.code.fingerprint.facts import (
    BY_LITERAL,
    REFLECTS,
    Bound,
    Facts,
    Import,
    Use,
    use_of,
    word_of,
)
from upshift.code.fingerprint.parsing import read_facts

SOURCE = '''
import os.path as p
from .near import scale as s
N = 3
@decorated(N)
def f(x=1):
    """Says something."""
    return s(x) + p.sep
class A:
    def m(self): return f()
g = lambda: ...
'''


def test_what_is_kept_is_what_was_read() -> None:
    read = read_facts(SOURCE.encode())
    kept = Facts(bytes(read.packed))

    assert kept.packed == read.packed
    assert [kept.unit(number).qualname for number in range(4)] == ["f", "A.m", "A", "<lambda>"]
    assert kept.unit(0).decorators[0].chain == ("decorated",)
    assert kept.unit(0).digest != kept.unit(0).documented
    assert kept.bound("s") == (Import(1, "near", "scale"),)
    assert kept.bound("f") == (Bound(True, 0),)
    assert kept.bound("N") == (Bound(False, 0),)
    assert kept.bound("absent") == ()
    assert kept.defined == ("f", "A")
    assert [statement.binds for statement in kept.statements] == [("N",), ("g",)]
    assert kept.whole == read.whole
    assert [part.partition("=")[0] for part in kept.whole.split(" ")[1:]] == ["A", "f", ":N", ":g", ""]
    assert kept.units("f", 5) == (0,)
    assert kept.units("A") == (2,)
    assert [kept.unit(number) for number in range(4)] == [read.unit(number) for number in range(4)]


@pytest.mark.parametrize(
    "use",
    [
        (("range",), None, False),
        (("helpers", "scale"), None, True),
        (("é", "x"), (0, "package.module"), True),
        ((), (2, ""), False),
        (("import_module",), BY_LITERAL, False),
        (("f",), (0, "my helpers"), False),
        (("table", "Unit Price"), None, True),
        (("pkg", "sub.f"), None, False),
        (("x", ""), None, False),
        (("x", "=y", "!z", "a\nb"), None, True),
        ((), (0, "!odd"), False),
    ],
)
def test_a_use_is_the_same_after_it_was_written_as_a_word(use: Use) -> None:
    assert use_of(word_of(use)) == use


def test_a_plain_function_is_not_what_a_library_may_have_registered() -> None:
    source = b"def f(): ...\n@made\ndef g(): ...\nclass A: ...\nB = 1\nclass B: ...\nclass C: ...\nC = 2\n"

    assert read_facts(source).defined == ("g", "A", "B")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "pass",
        "...",
        "'text'",
        "if N:\n    pass",
        "if 1: pass",
        "f = lambda: ...",
        "x[...] = -1",
        "global N",
    ],
)
def test_the_smallest_sources_are_read(source: str) -> None:
    assert read_facts(source.encode()).whole


def test_every_operator_name_and_constant_counts() -> None:
    written = [
        *("a + b", "a - b", "a and b", "a or b", "not a", "-a", "~a", "a < b", "a <= b", "a is b", "a in b"),
        *("a", "b", "1", "1.0", "True", "'1'", "b'1'", "None", "...", "1j", "0x10", "[]", "()", "{}"),
    ]
    digests = {expression: read_facts(f"if {expression}: pass".encode()).whole for expression in written}

    assert len(set(digests.values())) == len(written)
    assert read_facts(b"if 16: pass").whole == digests["0x10"]


def test_layout_and_comments_do_not_count() -> None:
    again = "# a comment\n" + SOURCE.replace("x=1", " x = 1 ").replace("N = 3", "N = (3)")

    assert ast.unparse(ast.parse(again)) == ast.unparse(ast.parse(SOURCE))
    assert read_facts(again.encode()).whole == read_facts(SOURCE.encode()).whole


def test_what_decides_on_a_statement_of_a_pipeline_counts_with_it() -> None:
    source = b"""
@pipeline
def p(seed, lr):
    base = seed + 1
    for _ in range(N):
        if base: np.random.seed(base)
    found = {}
    found["a"] = train(lr)
    found.update(x=1)
    return found
"""
    facts = read_facts(source)
    (body,) = facts.bodies.values()
    seeds, trains = body

    assert seeds.acts and seeds.calls == (("np", "random", "seed"),) and seeds.arguments == ("seed",)
    assert set(seeds.words) == {"np.random.seed", "range", "=N"}
    assert not trains.acts and trains.calls == (("train",),) and trains.arguments == ("lr",)
    edited = read_facts(source.replace(b"seed + 1", b"seed + 2")).bodies[0]
    assert edited[0].digest != seeds.digest
    assert edited[1].digest == trains.digest


def test_code_that_may_find_other_code_is_kept_apart_for_each_definition() -> None:
    facts = read_facts(b"""
import pickle
from importlib import import_module as bring
def plain(): return other()
def other(): return bring(NAME)
def load(path): return pickle.load(open(path))
def shown(): return print.__doc__
TOP = bring("x")
""")
    assert facts.dynamic.keys() == {"plain", "other", "load", "shown"}
    assert facts.dynamic["plain"] == facts.dynamic["other"] == (("bring",), 0)
    assert facts.dynamic["shown"] == ((), REFLECTS)
    assert "pickle.load" not in facts.words
