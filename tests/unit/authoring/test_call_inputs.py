"""A call, checked, named by input, and turned into a call again."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift import GraphError
from upshift.authoring.signatures import CallSignature
from upshift.model.spec.calls import bind


def plain(a, b=2, *, c, d=4):  # type: ignore[no-untyped-def]
    return a, b, c, d


def extra(a, /, b=2, *rest, c=3, **more):  # type: ignore[no-untyped-def]
    return a, b, rest, c, more


def anything(*rest, **more):  # type: ignore[no-untyped-def]
    return rest, more


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (plain, (1,), {"c": 3}),
        (plain, (1, 5), {"c": 3, "d": 9}),
        (plain, (), {"b": 1, "a": 2, "c": 3}),
        (extra, (1,), {}),
        (extra, (1,), {"a": 7, "z": 8}),
        (extra, (1, 2, 3, 4), {"c": 5, "z": 6}),
        (anything, (), {}),
        (anything, tuple(range(12)), {"self": 1, "function": 2}),
    ],
)
def test_a_call_comes_back_as_it_was(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    inputs = CallSignature(function, "step").bind(args, kwargs)
    again_args, again_kwargs = bind(function, inputs)
    assert function(*again_args, **again_kwargs) == function(*args, **kwargs)


NAMES = st.sampled_from(["a", "b", "c", "d", "z"])


@given(
    st.sampled_from([plain, extra, anything]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(NAMES, st.integers(), max_size=4),
)
def test_a_call_is_refused_exactly_where_python_refuses_it(
    function: Any, args: list[int], kwargs: dict[str, int]
) -> None:
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        with pytest.raises(GraphError):
            CallSignature(function, "step").bind(tuple(args), kwargs)
        return
    again_args, again_kwargs = bind(function, CallSignature(function, "step").bind(tuple(args), kwargs))
    assert function(*again_args, **again_kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"c": 1}, ["is missing the argument 'a'"]),
        ((), {}, ["is missing the arguments 'a', 'c'"]),
        ((1, 2, 3), {"c": 1}, ["takes at most 2 arguments by position, and gets 3", "Pass by name: d=…."]),
        ((1,), {"a": 1, "c": 1}, ["gets the argument 'a' twice"]),
        ((1,), {"bb": 1, "c": 1}, ["has no argument 'bb'", "Did you mean 'b'?"]),
        ((1,), {"zzz": 1, "c": 1}, ["has no argument 'zzz'", "Arguments: a, b, c, d."]),
    ],
)
def test_a_refused_call_shows_the_line_and_the_signature(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(GraphError) as caught:
        CallSignature(plain, "step").bind(args, kwargs)
    message = str(caught.value)
    for word in [*words, "step 'plain'", "It is plain(a, b=2, *, c, d=4)", "test_call_inputs.py:"]:
        assert word in message


def nothing():  # type: ignore[no-untyped-def]
    ...


def one(a):  # type: ignore[no-untyped-def]
    ...


def named(*, a, b=2):  # type: ignore[no-untyped-def]
    ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "what", "fix"),
    [
        (nothing, (1,), {}, "takes no arguments, and gets 1", "Leave the rest out."),
        (one, (1, 2), {}, "takes at most 1 argument, and gets 2", "Leave the rest out."),
        (named, (1,), {}, "takes its arguments by name, and gets 1 by position", "Pass by name: a=…, b=…."),
        (plain, (1, 2, 3), {"c": 1, "d": 1}, "takes at most 2 arguments by position", "Leave the rest out."),
    ],
)
def test_too_many_arguments(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(GraphError) as caught:
        CallSignature(function, "step").bind(args, kwargs)
    assert what in caught.value.what
    assert caught.value.fix == fix


def wrapped(function: Any) -> list[Any]:
    """The function below wrappers as decorators make them, each with the signature of the function."""

    @functools.wraps(function)
    def by_position(*args):  # type: ignore[no-untyped-def]
        return function(*args)

    @functools.wraps(function)
    def other_name(first, *args):  # type: ignore[no-untyped-def]
        return function(first, *args)

    @functools.wraps(function)
    def both(*args, **kwargs):  # type: ignore[no-untyped-def]
        return function(*args, **kwargs)

    @functools.wraps(both)
    def twice(*args):  # type: ignore[no-untyped-def]
        return both(*args)

    return [by_position, other_name, both, twice]


def scaled(a, b=2, c=3):  # type: ignore[no-untyped-def]
    return a, b, c


@given(
    st.integers(0, 3),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(NAMES, st.integers(), max_size=3),
)
def test_what_a_wrapper_takes_by_position_only_is_passed_by_position(
    number: int, args: list[int], kwargs: dict[str, int]
) -> None:
    function = wrapped(scaled)[number]
    try:
        expected = scaled(*args, **kwargs)
    except TypeError:
        with pytest.raises(GraphError):
            CallSignature(function, "step").bind(tuple(args), kwargs)
        return
    again_args, again_kwargs = bind(function, CallSignature(function, "step").bind(tuple(args), kwargs))
    assert function(*again_args, **again_kwargs) == expected


def test_what_a_wrapper_takes_by_no_means_is_refused() -> None:
    by_position, other_name, both, _ = wrapped(plain)
    for function in (by_position, other_name):
        with pytest.raises(GraphError) as caught:
            CallSignature(function, "step").bind((1,), {"c": 3})
        message = str(caught.value)
        assert "step 'plain' cannot get the argument 'c': a decorator's wrapper" in message
        assert "pass both on" in message
    inputs = CallSignature(both, "step").bind((1,), {"c": 3})
    args, kwargs = bind(both, inputs)
    assert both(*args, **kwargs) == (1, 2, 3, 4)


def test_a_parameter_that_is_new_since_the_inputs_were_recorded_keeps_its_default() -> None:
    assert bind(extra, {"a": 1, "*0": 5}) == ((1, 2, 5), {})


def test_a_parameter_that_must_be_passed_by_position_and_has_no_value() -> None:
    with pytest.raises(TypeError, match="missing the argument 'a'"):
        bind(extra, {"b": 1})


def test_only_defaults_that_are_plain_data_are_inputs() -> None:
    nothing = object()

    def function(a=1, b=nothing, c=(1, {"x": [None]}), d=(nothing,)): ...  # type: ignore[no-untyped-def]

    assert CallSignature(function, "step").recorded == {"a": 1, "c": (1, {"x": [None]})}
