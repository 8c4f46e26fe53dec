"""Order, cycles and longest paths of graphs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.errors import GraphError
from upshift.model.graph import (
    Collection,
    Constant,
    FromStep,
    Node,
    expansion,
    needs,
    ordered,
    remaining_path,
)
from upshift.model.spec import Artifact


def node(name: str, *needed: str, **fields: object) -> Node:
    return Node(name=name, step="f", inputs={n: FromStep(node=n) for n in needed}, **fields)  # type: ignore[arg-type]


def test_a_node_needs_what_it_gets_what_it_comes_after_and_its_condition() -> None:
    nested = Collection(items=(Collection(form="tuple", items=(FromStep(node="deep"),)),))
    found = needs(
        Node(
            name="x",
            step="f",
            inputs={"a": FromStep(node="data"), "b": nested},
            after=("before",),
            when=FromStep(node="flag"),
        )
    )
    assert found == {"data", "deep", "before", "flag"}


def test_an_order_that_is_right_already_is_kept() -> None:
    nodes = [node("b"), node("a"), node("c", "a", "b")]
    assert ordered(nodes) == tuple(nodes)


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_each_node_comes_after_what_it_needs(size: int, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"n{i}" for i in range(size)]
    nodes = [
        node(name, *chance.sample(names[:i], k=chance.randint(0, min(i, 3)))) for i, name in enumerate(names)
    ]
    chance.shuffle(nodes)
    seen: set[str] = set()
    for current in ordered(nodes):
        assert needs(current) <= seen
        seen.add(current.name)
    assert len(seen) == size


def test_a_cycle_is_shown_as_it_goes_round_with_the_users_line() -> None:
    nodes = [node("start"), node("a", "start", "c", location="flow.py:3"), node("b", "a"), node("c", "b")]
    with pytest.raises(GraphError) as caught:
        ordered(nodes)
    assert "a needs c needs b needs a" in str(caught.value)
    assert "fix:" in str(caught.value)


def test_what_is_not_in_the_pipeline_cannot_be_needed() -> None:
    with pytest.raises(GraphError, match="a needs ghost, which is not in the pipeline"):
        ordered([node("a", "ghost")])


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match="two nodes are named 'a'"):
        ordered([node("a"), node("a")])


def test_a_chain_that_is_deeper_than_pythons_stack_is_ordered() -> None:
    nodes = [node("n0"), *(node(f"n{i}", f"n{i - 1}") for i in range(1, 5000))]
    assert ordered(reversed(nodes)) == tuple(nodes)
    assert remaining_path(nodes)["n0"] == 5000


def test_the_remaining_path_is_the_longest_one() -> None:
    nodes = ordered([node("a"), node("b", "a"), node("c", "b"), node("d", "a")])
    assert remaining_path(nodes) == {"a": 3, "b": 2, "c": 1, "d": 1}


def list_of(items: int | None) -> Constant:
    return Constant(artifact=Artifact(digest="d:1", serializer="items", type="list", bytes=1, items=items))


def test_what_a_mapped_node_waits_for_is_told_apart() -> None:
    nodes = {
        "single": node("single"),
        "many": Node(name="many", step="f", inputs={"x": list_of(3)}, over=("x",)),
        "whole": node("whole"),
    }
    mapped = Node(
        name="m",
        step="f",
        inputs={
            "a": FromStep(node="single"),
            "b": FromStep(node="many"),
            "c": Collection(items=(FromStep(node="whole"),)),
            "d": list_of(1),
            "e": FromStep(node="whole"),
        },
        over=("a", "b", "c", "d"),
        after=("single",),
    )
    found = expansion(mapped, nodes.__getitem__)
    assert found.gates == {"single", "whole"}
    assert set(found.lists) == {"a", "d"}
    assert found.peers == ("many",)
    assert set(found.static) == {"c"}


def test_a_value_without_items_cannot_be_mapped_over() -> None:
    with pytest.raises(GraphError, match="m is mapped over a, which is not a list") as caught:
        expansion(
            Node(name="m", step="f", inputs={"a": list_of(None)}, over=("a",), location="f.py:2"),
            {}.__getitem__,
        )
    assert "f.py:2" in str(caught.value)
    assert "unmapped" in str(caught.value)
