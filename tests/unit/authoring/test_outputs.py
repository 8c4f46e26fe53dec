"""How many outputs a step has, and what they are called."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import pytest

from upshift import GraphError
from upshift.authoring.signatures import output_names

if TYPE_CHECKING:
    from nowhere import Model

Pair = tuple[int, str]


class Point(NamedTuple):
    x: int
    y: int


def none() -> None: ...
def without(): ...  # type: ignore[no-untyped-def]
def one() -> int: ...  # type: ignore[empty-body]
def two() -> tuple[int, str]: ...  # type: ignore[empty-body]
def old() -> typing.Tuple[int, str]: ...  # type: ignore[empty-body]  # noqa: UP006
def alias() -> Pair: ...  # type: ignore[empty-body]
def bare() -> tuple: ...  # type: ignore[empty-body,type-arg]
def endless() -> tuple[int, ...]: ...  # type: ignore[empty-body]
def alone() -> tuple[int]: ...  # type: ignore[empty-body]
def maybe() -> tuple[int, int] | None: ...
def named_tuple() -> Point: ...  # type: ignore[empty-body]
def annotated() -> Annotated[int, "accuracy"]: ...  # type: ignore[empty-body]
def whole() -> Annotated[tuple[int, int], "pair"]: ...  # type: ignore[empty-body]
def mixed() -> tuple[Annotated[int, 5, "first"], int, Annotated[str, 3]]: ...  # type: ignore[empty-body]
def unknown() -> Model: ...
def unknown_two() -> tuple[Model, Annotated[Model, "best"]]: ...
def unknown_old() -> typing.Tuple[typing.Annotated[Model, "best"], int]: ...  # noqa: UP006
def unknown_endless() -> tuple[Model, ...]: ...
def unknown_named() -> Annotated[Model, "best"]: ...


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (none, ["output"]),
        (without, ["output"]),
        (one, ["output"]),
        (two, ["output_0", "output_1"]),
        (old, ["output_0", "output_1"]),
        (alias, ["output_0", "output_1"]),
        (bare, ["output"]),
        (endless, ["output"]),
        (alone, ["output"]),
        (maybe, ["output"]),
        (named_tuple, ["output"]),
        (annotated, ["accuracy"]),
        (whole, ["pair"]),
        (mixed, ["first", "output_1", "output_2"]),
        (unknown, ["output"]),
        (unknown_two, ["output_0", "best"]),
        (unknown_old, ["best", "output_1"]),
        (unknown_endless, ["output"]),
        (unknown_named, ["best"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_outputs_are_named_by_the_annotation(function: Any, names: list[str]) -> None:
    assert list(output_names(function)) == names


def test_annotations_may_use_names_of_the_enclosing_function() -> None:
    local = tuple[int, int]

    def function() -> local:  # type: ignore[valid-type]
        return 1, len(str(local))

    assert output_names(function) == ("output_0", "output_1")


def test_two_outputs_of_one_name_are_refused() -> None:
    def function() -> tuple[Annotated[int, "a"], Annotated[int, "a"]]:
        return 1, 2

    with pytest.raises(GraphError, match="'function' has two outputs named 'a'") as caught:
        output_names(function)
    assert "test_outputs.py:" in str(caught.value)


def test_a_name_that_cannot_be_one_is_refused() -> None:
    def function() -> Annotated[int, "a/b"]:
        return 1

    with pytest.raises(GraphError, match="'a/b' cannot be the name of an output"):
        output_names(function)
