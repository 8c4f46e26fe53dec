"""``.map``: what is mapped, what is passed whole, what is refused."""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional, Protocol, TypedDict

import numpy as np
import pytest

from upshift import GraphError, pipeline, step, unmapped
from upshift.model.graph import Collection, FromStep, Graph, Node

Compose = Callable[..., Graph]
Point = namedtuple("Point", "x y")


@step
def numbers(n: int = 3) -> list[int]:
    return list(range(n))


@step
def add(a: Any, b: Any = 1, *rest: Any, **more: Any) -> Any:
    return a


@step
def both(x: Any) -> tuple[Any, Any]:
    return x, x


def mapped(compose: Compose, call: Callable[[], object]) -> Node:
    """The last node of a pipeline that does this."""

    @pipeline
    def mapping() -> Any:
        return call()

    return compose(mapping).nodes[-1]


def length(node: Node, name: str) -> int:
    source = node.inputs[name]
    assert isinstance(source, Collection)
    return len(source.items)


@pytest.mark.parametrize("items", [[1, 2, 3], (1, 2, 3), range(3)])
def test_lists_tuples_and_ranges_are_mapped(compose: Compose, items: Any) -> None:
    node = mapped(compose, lambda: add.map(items))
    assert node.over == ("a",)
    assert length(node, "a") == 3


@pytest.mark.parametrize(
    "whole", ["text", {"a": 1}, 5, None, Point(1, 2), {1, 2}, b"bytes", unmapped([1, 2])]
)
def test_everything_else_is_passed_whole(compose: Compose, whole: Any) -> None:
    node = mapped(compose, lambda: add.map([1, 2, 3], whole))
    assert node.over == ("a",)


def test_lists_are_zipped(compose: Compose) -> None:
    node = mapped(compose, lambda: add.map(a=[1, 2], b=(3, 4), c=range(2)))
    assert node.over == ("a", "b", "c")


def test_extra_positional_arguments_are_mapped_too(compose: Compose) -> None:
    assert mapped(compose, lambda: add.map([1, 2], 5, [3, 4])).over == ("a", "*0")


def test_a_list_of_no_items(compose: Compose) -> None:
    node = mapped(compose, lambda: add.map([]))
    assert node.mapped
    assert length(node, "a") == 0


def test_a_list_of_results_is_mapped(compose: Compose) -> None:
    node = mapped(compose, lambda: add.map([add(1), add(2), 3]))
    source = node.inputs["a"]
    assert isinstance(source, Collection)
    assert source.items[:2] == (FromStep(node="add"), FromStep(node="add_2"))


def test_a_result_that_is_mapped_over_is_saved_item_by_item(compose: Compose) -> None:
    @pipeline
    def over_results() -> None:
        left, right = both(1)
        add.map(left, unmapped(right))
        add.map(numbers())
        numbers()

    first, _, second, _, third = compose(over_results).nodes
    assert (first.by_item, second.by_item, third.by_item) == (("output_0",), ("output",), ())


def test_mapping_the_result_of_a_mapped_step_goes_item_by_item(compose: Compose) -> None:
    @pipeline
    def nested() -> Any:
        return add.map(add.map(numbers()))

    _, first, second = compose(nested).nodes
    assert second.inputs["a"] == FromStep(node="add")
    assert first.by_item == ()
    assert second.over == ("a",)


def test_several_outputs_of_a_mapped_step_are_lists_of_their_own(compose: Compose) -> None:
    @pipeline
    def lists() -> Any:
        left, right = both.map([1, 2])
        return add(left, right)

    node = compose(lists).nodes[-1]
    assert node.inputs == {
        "a": FromStep(node="both", output="output_0"),
        "b": FromStep(node="both", output="output_1"),
    }
    assert not node.mapped


def test_the_list_of_a_nested_pipeline_is_mapped(compose: Compose) -> None:
    @pipeline
    def inner() -> Any:
        return numbers()

    @pipeline
    def outer() -> Any:
        return add.map(inner())

    assert compose(outer).nodes[-1].inputs["a"] == FromStep(node="numbers")


def test_ten_thousand_items_are_one_node(compose: Compose) -> None:
    node = mapped(compose, lambda: add.map([f"item {n}" for n in range(10_000)]))
    assert length(node, "a") == 10_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: add.map([1, 2], [1, 2, 3]),
            ["lists of unequal length", "'a' has 2 items, 'b' has 3 items", "unmapped(…)"],
        ),
        (lambda: add.map(5, "text"), ["nothing to map", "'a' is an int, 'b' is a str", "call add(…)"]),
        (lambda: add.map(unmapped([1])), ["nothing to map", "'a' is a list"]),
        (lambda: add.map(), ["is missing the argument 'a'"]),
        (lambda: add.map(n for n in [1]), ["'a' is a generator, which can be read once only", "a=list(…)"]),
        (lambda: add.map(zip([1], [2], strict=True)), ["'a' is a zip"]),
        (lambda: numbers.map(m=[1]), ["has no argument 'm'", "Arguments: n."]),
    ],
)
def test_what_cannot_be_mapped_is_refused_at_the_users_line(
    compose: Compose, call: Callable[[], object], words: list[str]
) -> None:
    with pytest.raises(GraphError) as caught:
        mapped(compose, call)
    for word in [*words, "test_mapping.py:"]:
        assert word in str(caught.value)
    with pytest.raises(GraphError):  # outside a pipeline as well
        call()


def test_all_outputs_of_a_step_are_no_list_to_map_over(compose: Compose) -> None:
    with pytest.raises(GraphError) as caught:
        mapped(compose, lambda: add.map(a=both(1)))
    error = caught.value
    assert error.what == "add.map: 'a' is all 2 outputs of step 'both': output_0, output_1"
    assert error.where is not None
    assert "test_mapping.py:" in error.where
    assert error.fix is not None
    assert "a, b = both(…), then add.map(a=a)" in error.fix
    with pytest.raises(GraphError, match="outputs of step 'both'"):
        mapped(compose, lambda: add.map([1, 2], both.map([1, 2])))


def test_named_outputs_are_taken_apart_by_their_names(compose: Compose) -> None:
    @step
    def split() -> tuple[Annotated[list[int], "train-set"], Annotated[list[int], "test"]]:
        return [1], [2]

    with pytest.raises(GraphError, match=r"train_set, test = split\(…\)"):
        mapped(compose, lambda: add.map(split()))


def test_outputs_are_mapped_one_by_one_where_that_is_said(compose: Compose) -> None:
    node = mapped(compose, lambda: add.map(list(both(1))))
    assert length(node, "a") == 2
    node = mapped(compose, lambda: add.map((numbers(), numbers())))
    assert length(node, "a") == 2
    node = mapped(compose, lambda: add.map([1, 2], unmapped(both(1))))
    assert node.over == ("a",)

    @pipeline
    def inner() -> Any:
        return both(1)

    assert length(mapped(compose, lambda: add.map(inner())), "a") == 2


class Report(TypedDict):
    loss: float


class Plain:
    pass


class Rows:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> int: ...


class Pair(NamedTuple):
    a: int
    b: int


class Walks(Protocol):
    def __iter__(self) -> Iterator[int]: ...


@pytest.mark.parametrize(
    "kind",
    [
        dict,
        dict[str, int],
        Annotated[dict, "data"],
        Report,
        int,
        str,
        bytes,
        None,
        Plain,
        Path,
        Iterator[int],
        set,
        np.ndarray,
        Rows,
        Pair,
    ],
)
def test_a_result_that_is_plainly_no_list_is_not_mapped_over(compose: Compose, kind: Any) -> None:
    def load() -> Any: ...

    load.__annotations__["return"] = kind
    with pytest.raises(GraphError) as caught:
        mapped(compose, lambda: add.map([1, 2], b=step(load)()))
    error = caught.value
    assert error.what.startswith("add.map: 'b' is the result of step 'load', which gives a")
    assert "test_mapping.py:" in str(error.where)
    assert "b=unmapped(load())" in str(error.fix)
    node = mapped(compose, lambda: add.map([1, 2], b=unmapped(step(load)())))
    assert node.over == ("a",)


def test_each_of_several_outputs_is_looked_at_by_itself(compose: Compose) -> None:
    @step
    def load() -> tuple[Annotated[list[int], "items"], Annotated[dict[str, int], "table"]]:
        return [1], {}

    @pipeline
    def apart(whole: bool) -> None:
        items, table = load()
        add.map(items, unmapped(table) if whole else table)

    assert compose(apart, whole=True).nodes[-1].over == ("a",)
    with pytest.raises(GraphError, match="which gives a dict, no list"):
        compose(apart, whole=False)


@pytest.mark.parametrize(
    "kind",
    [
        *(Any, object, list, list[int], dict | list, Optional[list]),  # noqa: UP045
        *(Iterable[int], Sequence, deque, Walks, "Unknown", "dict | Unknown"),
    ],
)
def test_a_result_that_may_be_a_list_is_mapped_over(compose: Compose, kind: Any) -> None:
    def load() -> Any: ...

    load.__annotations__["return"] = kind
    node = mapped(compose, lambda: add.map([1, 2], step(load)()))
    assert node.over == ("a", "b")


def test_a_result_without_an_annotation_is_mapped_over(compose: Compose) -> None:
    @step
    def load():  # type: ignore[no-untyped-def]
        return [1]

    node = mapped(compose, lambda: add.map([1, 2], load()))
    assert node.over == ("a", "b")
