"""A decorated function, and how it may be called."""

from __future__ import annotations

import copyreg
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from upshift.errors import GraphError, location, user_location
from upshift.model.checks import method_of_another_tool
from upshift.runtime.messages import tell
from upshift.runtime.step.context import current

if TYPE_CHECKING:
    from upshift.authoring.signatures import CallSignature
    from upshift.model.graph import Graph
    from upshift.runtime.launch.merging import LaunchRequest

_KINDS = (
    (inspect.isasyncgenfunction, "an async generator", "Collect the items in a list and return it."),
    (inspect.iscoroutinefunction, "an async function", "Write a plain one that calls asyncio.run(…)."),
    (inspect.isgeneratorfunction, "a generator", "Collect the items in a list and return it."),
    (inspect.isclass, "a class", "Write a function that makes one and returns it."),
)

_told: set[tuple[object, Callable[..., Any]]] = set()


class Callee:
    """A step's or a pipeline's function.

    Parameters
    ----------
    function
        The plain function.
    kind
        ``"step"`` or ``"pipeline"``.
    """

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self.function = function
        self.kind = kind

    @functools.cached_property
    def signature(self) -> CallSignature:
        """The parameters of the function."""
        # Imported at the first call in a pipeline: a module that only defines steps stays light.
        from upshift.authoring.signatures import CallSignature

        return CallSignature(self.function, self.kind)

    @property
    def code(self) -> tuple[Callable[..., Any], ...]:
        """The functions whose code counts for whether a result may be reused."""
        return (self.function,)

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs, in order."""
        from upshift.authoring.signatures import output_names

        return output_names(self.function)

    @property
    def location(self) -> str:
        """Its ``def``, as ``file:line``."""
        code = inspect.unwrap(self.function).__code__
        return location(code.co_filename, code.co_firstlineno)

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "kind": self.kind}


def checked_function(function: Any, kind: str, name: str | None) -> Callable[..., Any]:
    """The function, if it can be a step or a pipeline.

    Parameters
    ----------
    function
        What was decorated.
    kind
        ``"step"`` or ``"pipeline"``.
    name
        The name it was given, if any.

    Raises
    ------
    GraphError
        It is not a plain function.
    """
    already = getattr(type(function), "__upshift_kind__", None)
    if already is not None:
        fix = (
            "Use .with_options(…) for a changed copy."
            if already == kind
            else f"Leave @{kind} or @{already} out."
        )
        raise _refused(f"{function.name!r} is a {already} already", fix)
    for test, what, fix in _KINDS:
        if test(function):
            raise _refused(f"{function.__name__!r} is {what}, which cannot be a {kind}", fix)
    if isinstance(function, str):
        raise _refused(
            f"@{kind} gets the text {function!r}", f"Pass a name by keyword: @{kind}(name={function!r})."
        )
    if not inspect.isfunction(function):
        raise _refused(
            f"{function!r} is not a plain function, and cannot be a {kind}",
            f"Write a function that calls it: def …, with @{kind} above.",
        )
    if kind == "pipeline" and hasattr(function, "__upshift_options__"):
        raise refused_on_pipeline(function.__name__)
    if function.__name__ == "<lambda>" and name is None:
        raise _refused(
            f"a lambda has no name, and a {kind} needs one", f'Give it one: {kind}(name="…")(lambda …).'
        )
    return function


def refused_on_pipeline(name: str) -> GraphError:
    """The error of decorators of a step that stand above or below ``@pipeline``."""
    return _refused(
        f"{name!r} has decorators of a step, and cannot be a pipeline",
        "Put them above the steps that it calls; @pipeline(…) has options for all of them.",
    )


def tell_of_one_process(function: Callable[..., Any], launch: LaunchRequest | None) -> None:
    """Write into the log, once, that a step with a launcher that a running step calls is one process."""
    if launch is None or not current or (current.step, function) in _told:
        return
    _told.add((current.step, function))
    decorator = launch.meant.decorator
    tell([f"{function.__name__} is called in a step, and runs in its process: {decorator} starts none there"])


def look_like(wrapper: Any, function: Callable[..., Any]) -> None:
    """Give a step or pipeline the name, the text and the signature of its function."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, attribute, getattr(function, attribute))
    wrapper.__wrapped__ = function  # what inspect.signature, help() and editors follow


def written(wrapper: Any) -> str:
    """A step or pipeline with its parameters, and the line where it is defined."""
    call = str(wrapper.callee.signature).removeprefix(wrapper.callee.function.__name__)
    return f"{wrapper.name}{call}, {wrapper.callee.location}"


def drawn(wrapper: Any, graph: Graph | None = None) -> str:
    """How a notebook shows a step or pipeline."""
    from upshift.report.notebook import drawn_definition, html_of

    callee = wrapper.callee
    text = inspect.cleandoc(callee.function.__doc__ or "").partition("\n")[0]
    kind = wrapper.__upshift_kind__
    return html_of(drawn_definition(kind, wrapper.name, str(callee.signature), callee.location, text, graph))


def missing_attribute(wrapper: Any, name: str) -> AttributeError:
    """The error for an attribute that a step or pipeline does not have, but one of another tool has."""
    kind = type(wrapper).__upshift_kind__
    known = method_of_another_tool(kind, name)
    text = f"{type(wrapper).__name__!r} object has no attribute {name!r}"
    if known is not None:
        text += f". {known.format(name=wrapper.__dict__.get('__name__', kind))}"
    return AttributeError(text, name=name, obj=wrapper)


def reduced(wrapper: Any) -> tuple[Any, ...]:
    """How a step or pipeline is pickled: by its name where that leads to it, else by value.

    A function that travels by value may refer to steps of its module; those that are importable
    over there must be the same steps, not copies.
    """
    module, qualname = wrapper.__module__, wrapper.__qualname__
    if module != "__main__" and named(module, qualname) is wrapper:
        return (find, (module, qualname))
    return (copyreg.__newobj__, (type(wrapper),), wrapper.__dict__)  # type: ignore[attr-defined]


def find(module: str, qualname: str) -> Any:
    """A step or pipeline by name, its module imported."""
    return named(importlib.import_module(module).__name__, qualname)


def named(module: str, qualname: str) -> Any:
    """What a module that is imported knows by this name; None: nothing."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _refused(what: str, fix: str) -> GraphError:
    return GraphError(what, where=user_location(), fix=fix)
