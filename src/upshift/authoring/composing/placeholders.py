"""What calls return where nothing has run; and which arguments of ``.map`` are mapped, which passed whole.

:class:`Placeholder`: the result of a step, while the pipeline is composed. There is no value yet, so any use
as one is an error at the user's line. It cannot see ``x is None``, ``isinstance(x, …)`` and ``type(x)``:
Python asks no method of ``x`` for these.

:class:`Inlined`: the same for a pipeline that is called inside another one.

:class:`Inert`: a run, while a worker imports the user's module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from upshift.errors import GraphError, user_location
from upshift.model.checks import MOST_TASKS

if TYPE_CHECKING:
    from upshift.model.graph import FromStep


T = TypeVar("T")

_IN_A_STEP = (
    "Do this inside a step, which gets the value: write a function with @step and pass the result to it."
)
_BRANCH = (
    "To run a step only if a result is true: other.when(flag)(…), where the step that gives `flag` returns"
    " a bool. Or branch inside a step, which gets the value."
)
_ITERATE = (
    "To unpack several outputs, annotate the step with `-> tuple[A, B]`. To run a step for each item of"
    " a list: other.map(items)."
)
_UNPACK_HINT = (
    "To use one item, pass the result to a step that picks it, or annotate the step with `-> tuple[A, B]`."
)


class Placeholder:
    """The result of a step that has not run yet.

    Parameters
    ----------
    source
        The output that it stands for.
    owner
        The composition that it belongs to.
    mapped
        Whether it is the list of a mapped step's results.
    """

    __slots__ = ("_mapped", "_owner", "_source")
    _mapped: bool
    _owner: object
    _source: FromStep

    def __init__(self, source: FromStep, owner: object, mapped: bool) -> None:
        set_slot = object.__setattr__
        set_slot(self, "_source", source)
        set_slot(self, "_owner", owner)
        set_slot(self, "_mapped", mapped)

    def __repr__(self) -> str:
        return f"<the result of step {self._source.node!r}, not run yet>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # Python and debuggers look for optional protocols this way
        if name in ("after", "when", "map", "with_options"):
            step = self._source.node
            raise _no_value(
                self, f"has no .{name}", f"It belongs to the step, before the call: {step}.{name}(…)"
            )
        raise _no_value(self, f"has no attribute {name!r} yet", _IN_A_STEP)

    def __reduce__(self) -> NoReturn:
        raise _no_value(
            self,
            "cannot be part of this value",
            "Step results are found in lists, tuples and dictionaries; to use one inside any other"
            " object, pass it as a separate argument.",
        )


def _no_value(placeholder: Placeholder, what: str, fix: str) -> GraphError:
    return GraphError(
        f"the result of step {placeholder._source.node!r} {what}",
        where=user_location(),
        why="While the pipeline is composed no step has run: its results are placeholders.",
        fix=fix,
    )


def _refusal(what: str, fix: str) -> Callable[..., NoReturn]:
    def refuse(self: Placeholder, *args: object, **kwargs: object) -> NoReturn:
        raise _no_value(self, what, fix)

    return refuse


_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow"
_OPERATORS = f"{_ARITHMETIC} lshift rshift and or xor"
_REFLECTED = " ".join(f"r{name}" for name in _OPERATORS.split())
_IN_PLACE = " ".join(f"i{name}" for name in _OPERATORS.split() if name != "divmod")
_REFUSALS = {
    "cannot be tested for truth": ("bool", _BRANCH),
    "cannot be compared": (
        "eq ne lt le gt ge",
        "Compare inside a step that returns a bool, and use other.when(flag).",
    ),
    "cannot be iterated or unpacked": ("iter reversed aiter", _ITERATE),
    "cannot be indexed": ("getitem setitem delitem", _UNPACK_HINT),
    "has no length yet": ("len", _IN_A_STEP),
    "cannot be searched with `in`": ("contains", _IN_A_STEP),
    "is not a number yet": ("int float complex index round trunc floor ceil", _IN_A_STEP),
    "is not text yet": (
        "str format bytes fspath",
        "Print it, or use it in text, inside a step that gets the value.",
    ),
    "cannot be calculated with": (
        f"{_OPERATORS} {_REFLECTED} {_IN_PLACE} neg pos abs invert",
        _IN_A_STEP,
    ),
    "cannot be called": ("call", _IN_A_STEP),
    "cannot be used with `with`": ("enter exit aenter aexit", _IN_A_STEP),
    "cannot be awaited": ("await", _IN_A_STEP),
    "cannot become an array": ("array", _IN_A_STEP),
    "cannot be changed": ("setattr delattr", _IN_A_STEP),
}
for _what, (_methods, _fix) in _REFUSALS.items():
    for _method in _methods.split():
        setattr(Placeholder, f"__{_method}__", _refusal(_what, _fix))
Placeholder.__hash__ = object.__hash__  # type: ignore[method-assign]


class Unmapped(Generic[T]):
    """A value that ``.map`` passes whole to each task."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"unmapped({self.value!r})"


def unmapped(value: T) -> Unmapped[T]:
    """Pass ``value`` whole to each task of a mapped step, though it is a list or a step's result.

    Examples
    --------
    ``evaluate.map(fold=[0, 1, 2], data=unmapped(train_set))``
    """
    return Unmapped(value)


class Inlined:
    """A pipeline inside another one. There is no run of its own: its steps are steps of the outer.

    Parameters
    ----------
    pipeline
        Its name.
    output
        What its function returned: placeholders, or plain values.
    results
        A placeholder of each of its steps, for ``.after``.
    """

    __slots__ = ("output", "pipeline", "results")

    def __init__(self, pipeline: str, output: Any, results: tuple[Any, ...]) -> None:
        self.pipeline = pipeline
        self.output = output
        self.results = results

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self.output, (tuple, list)):
            raise self._refusal("returned one value, and cannot be unpacked", "Use .output, or pass it on.")
        return iter(self.output)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise self._refusal(
            f"has no .{name} here", "It is part of the pipeline that calls it: use .output, or pass it on."
        )

    def __bool__(self) -> NoReturn:
        raise self._refusal(
            "has not run yet, and cannot be tested for truth",
            "To run a step only if a result is true: step.when(flag)(…).",
        )

    def __repr__(self) -> str:
        return f"<pipeline {self.pipeline!r}, inside another one>"

    def _refusal(self, what: str, fix: str) -> GraphError:
        return GraphError(
            f"pipeline {self.pipeline!r}, inside another one, {what}", where=user_location(), fix=fix
        )


class Inert:
    """Stands for a run that did not take place; whatever is done with it does nothing.

    A worker imports the user's module. A pipeline that the module calls at its top level does not
    run there, and what the module then does with the run (``print(run.output)``) must not fail.
    """

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # Python looks for optional protocols this way
        return self

    def __getitem__(self, key: object) -> Inert:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Inert:
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return float("nan")

    def __repr__(self) -> str:
        return "(not run)"

    def __format__(self, specification: str) -> str:
        return "(not run)"


def _same(self: Inert, *others: object) -> Inert:
    return self


def _never(self: Inert, other: object) -> bool:
    return False


def _define(names: str, method: Callable[..., object]) -> None:
    for name in names.split():
        setattr(Inert, f"__{name}__", method)


_define(_ARITHMETIC, _same)
_define(" ".join(f"r{name}" for name in _ARITHMETIC.split()), _same)
_define("neg pos abs round", _same)
_define("lt le gt ge", _never)


_LISTS = (list, tuple, range)


def split(step: str, bound: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that are mapped, and those that are passed whole.

    Lists, tuples, ranges and step results are mapped. Everything else (text, dictionaries, arrays,
    tables, named tuples, …) is one value.

    Parameters
    ----------
    step
        Name of the step, for errors.
    bound
        The arguments by input name.

    Raises
    ------
    GraphError
        Nothing is mapped, several outputs of a step are, lists are of unequal length, or an iterator
        can be read once only.
    """
    mapped: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for name, value in bound.items():
        if type(value) is Inlined:
            value = value.output
        kind = type(value)
        if kind is Unmapped:
            whole[name] = value.value
        elif kind is Placeholder or kind in _LISTS:
            if value is bound[name]:  # a pipeline may well return such a tuple, to be mapped
                _check_one_output(step, name, value)
            mapped[name] = value
        elif hasattr(kind, "__next__"):
            raise GraphError(
                f"{step}.map: {name!r} is {a(kind)}, which can be read once only",
                where=user_location(),
                fix=f"Pass {name}=list(…).",
            )
        else:
            whole[name] = value
    if not mapped:
        raise GraphError(
            f"{step}.map has nothing to map",
            where=user_location(),
            why="Lists, tuples and step results are mapped; "
            + (", ".join(f"{n!r} is {a(type(v))}" for n, v in whole.items()) or "it has no arguments")
            + ".",
            fix=f"Pass a list, or call {step}(…).",
        )
    _check_lengths(step, mapped)
    return mapped, whole


def call_each(
    function: Callable[..., Any], outputs: int, mapped: Mapping[str, Any], whole: Mapping[str, Any]
) -> Any:
    """Call a plain function for each item: what ``.map`` is outside a pipeline.

    Returns
    -------
    list or tuple of lists
        A list of results; of several outputs a list each.
    """
    from upshift.model.spec.calls import bind

    results = []
    for items in zip(*mapped.values(), strict=True):
        args, kwargs = bind(function, {**whole, **dict(zip(mapped, items, strict=True))})
        results.append(function(*args, **kwargs))
    if outputs == 1:
        return results
    return tuple([result[number] for result in results] for number in range(outputs))


def _check_one_output(step: str, name: str, value: Any) -> None:
    """Refuse what a step with several outputs returned, where one of them is meant."""
    if type(value) is not tuple or len(value) < 2 or any(type(item) is not Placeholder for item in value):
        return
    sources = [item._source for item in value]
    outputs = [source.output for source in sources]
    if len({source.node for source in sources}) > 1 or len(set(outputs)) < len(outputs):
        return
    producer = sources[0].node
    unnamed = outputs[0] == "output_0" and len(outputs) <= len(ascii_lowercase)
    names = list(ascii_lowercase[: len(outputs)]) if unnamed else [re.sub(r"\W", "_", o) for o in outputs]
    raise GraphError(
        f"{step}.map: {name!r} is all {len(outputs)} outputs of step {producer!r}: {', '.join(outputs)}",
        where=user_location(),
        why="An output that is a list can be mapped; several outputs are not a list.",
        fix=f"Take them apart: {', '.join(names)} = {producer}(…), then {step}.map({name}={names[0]}).\n"
        f"To map over the outputs themselves: {step}.map({name}=[{', '.join(names)}]).",
    )


def _check_lengths(step: str, mapped: Mapping[str, Any]) -> None:
    lengths = {name: _length(items) for name, items in mapped.items() if type(items) is not Placeholder}
    for name, count in lengths.items():
        if count > MOST_TASKS:
            raise GraphError(
                f"{step}.map: {name!r} has {count:,} items, and a step has at most {MOST_TASKS:,} tasks",
                where=user_location(),
                fix="Give each task several items: map over lists of them.",
            )
    if len(set(lengths.values())) > 1:
        raise GraphError(
            f"{step}.map: lists of unequal length",
            where=user_location(),
            why=", ".join(f"{name!r} has {count} items" for name, count in lengths.items()) + ".",
            fix="Mapped lists are zipped together: make them equally long, or pass one whole: unmapped(…).",
        )


def _length(items: Any) -> int:
    try:
        return len(items)
    except OverflowError:  # a range
        return sys.maxsize


def a(kind: type) -> str:
    """``a dict``, ``an int``."""
    name = kind.__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
