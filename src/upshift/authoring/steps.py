"""A step: a function that a pipeline is composed of.

A :class:`Step` never changes. ``with_options``, ``after`` and ``when`` give changed copies, so that
they can be chained: ``train.with_options(retries=2).after(ready).map(fold=[0, 1, 2])``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from upshift.authoring.callee import (
    Callee,
    checked_function,
    drawn,
    look_like,
    missing_attribute,
    reduced,
    refused_on_pipeline,
    tell_of_one_process,
    written,
)
from upshift.authoring.composing.placeholders import Inlined, Placeholder, call_each, split
from upshift.authoring.composing.scope import current_scope
from upshift.authoring.options import Settings, StepOptions, checked_keywords, identifier, settings_said
from upshift.errors import GraphError, MisuseError, user_location
from upshift.model.checks import checked_flag, shown
from upshift.model.settings.retry import Retry
from upshift.model.settings.step import Seconds
from upshift.runtime.step.context import plain_calls

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
F = TypeVar("F", bound=Callable[..., Any])


class Step(Generic[P, R]):
    """A function that a pipeline is composed of. Make one with :func:`step`.

    Called inside a pipeline, it gives a placeholder of its result, or a tuple of them; the types
    that editors and type checkers see are those of the result. Called anywhere else, it calls the
    function.
    """

    __upshift_kind__ = "step"

    def __new__(cls, *given: Any, **options: Any) -> Any:
        """``Step("Training/RUN/train")`` is a step of a run, as in Metaflow."""
        if given and isinstance(given[0], str):
            from upshift.runs.history.outputs import found

            return found(given[0], "step")
        return super().__new__(cls)

    def __init__(
        self,
        callee: Callee,
        options: StepOptions,
        waits_for: tuple[Placeholder, ...] = (),
        condition: Placeholder | None = None,
    ) -> None:
        self.callee = callee
        self.options = options
        self.waits_for = waits_for
        self.condition = condition
        look_like(self, callee.function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bind = getattr(owner, "__upshift_bind__", None)  # of a flow, whose methods are steps
        return self if bind is None else bind(self, instance)

    @property
    def name(self) -> str:
        """Its name in a run."""
        return self.options.name or self.callee.function.__name__

    @property
    def __upshift_function__(self) -> Callable[P, R]:
        return self.callee.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        scope = current_scope()
        if scope is None:
            self._refuse_placeholders(args, kwargs)
            tell_of_one_process(self.callee.function, self.options.launch)
            with plain_calls:
                return self.callee.function(*args, **kwargs)  # type: ignore[no-any-return]
        bound = self.callee.signature.bind(args, kwargs)
        return scope.composition.add(self, bound, scope.options)  # type: ignore[no-any-return]

    @overload
    def map(self: Step[P, tuple[A, B]], *args: Any, **kwargs: Any) -> tuple[list[A], list[B]]: ...
    @overload
    def map(self: Step[P, tuple[A, B, C]], *args: Any, **kwargs: Any) -> tuple[list[A], list[B], list[C]]: ...
    @overload
    def map(
        self: Step[P, tuple[A, B, C, D]], *args: Any, **kwargs: Any
    ) -> tuple[list[A], list[B], list[C], list[D]]: ...
    @overload
    def map(self, *args: Any, **kwargs: Any) -> list[R]: ...
    def map(self, *args: Any, **kwargs: Any) -> Any:
        """One task for each item; the result is the list of results, of several outputs a list each.

        Lists, tuples, ranges and step results are mapped, zipped together. Any other value is
        passed whole, and so is ``unmapped(x)``.

        Raises
        ------
        GraphError
            Nothing is mapped, lists are of unequal length, or the call does not fit the function.
        """
        mapped, whole = split(self.name, self.callee.signature.bind(args, kwargs))
        scope = current_scope()
        if scope is None:
            self._refuse_placeholders(args, kwargs)
            tell_of_one_process(self.callee.function, self.options.launch)
            return call_each(self.callee.function, len(self.callee.outputs), mapped, whole)
        return scope.composition.add_mapped(self, mapped, whole, scope.options)

    def after(self, *others: object) -> Step[P, R]:
        """A copy that starts when ``others`` have ended, without data between them.

        Parameters
        ----------
        others
            Results of steps or pipelines, or lists of them.

        Raises
        ------
        GraphError
            One of them is no result of a step.
        """
        if current_scope() is None:
            return self  # what was called before has ended
        found = tuple(p for other in others for p in self._results_in(other))
        return self._replace(waits_for=(*self.waits_for, *found))

    def when(self, flag: bool) -> Step[P, R]:
        """A copy that runs only if another step's boolean result is true, else it is skipped.

        Whatever needs a result of a skipped step is skipped as well.

        Raises
        ------
        GraphError
            The flag is no result of a step, or the step has a condition already.
        """
        given: object = flag
        if isinstance(given, Inlined):
            given = given.output
        problem = fix = None
        if type(given) is not Placeholder:
            problem = f"takes the result of a step, and gets {shown(given)}"
            fix = "A value that is there already can be tested with a plain `if`."
        elif given._mapped:
            problem = f"takes one boolean, and {given._source.node!r} is mapped: its result is a list"
            fix = "Reduce the list to one boolean in a step."
        elif self.condition is not None:
            problem = "is used twice on one step"
            fix = "Join the two conditions in a step that returns a bool."
        if problem:
            raise GraphError(f"{self.name}.when {problem}", where=user_location(), fix=fix)
        return self._replace(condition=given)

    @checked_keywords("with_options")
    def with_options(
        self,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        retries: int | Retry | None = None,
        timeout: Seconds | None = None,
        grace: Seconds | None = None,
        cache: bool | None = None,
        cache_expires: Seconds | None = None,
        secrets: Mapping[str, str] | None = None,
        on: str | None = None,
        clear_cache: bool | None = None,
        gpu_idle_timeout: Seconds | None = None,
    ) -> Step[P, R]:
        """A changed copy; the parameters are those of :func:`step`, and replace what was said before.

        Raises
        ------
        SettingsError
            An option is unknown, or its value is invalid.
        """
        settled = settings_said(
            "with_options",
            settings=settings,
            retries=retries,
            timeout=timeout,
            grace=grace,
            cache=cache,
            cache_expires=cache_expires,
            secrets=secrets,
            on=on,
            clear_cache=clear_cache,
            gpu_idle_timeout=gpu_idle_timeout,
        )
        newer = StepOptions(name=identifier("with_options", name), settings=settled)
        return self._replace(options=self.options.replaced(newer))

    if not TYPE_CHECKING:  # else type checkers take every attribute for one that is there

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"<step {written(self)}>"

    def _repr_html_(self) -> str:
        return drawn(self)

    def __reduce__(self) -> Any:
        return reduced(self)

    def _replace(self, **changes: Any) -> Step[P, R]:
        same = {name: getattr(self, name) for name in ("callee", "options", "waits_for", "condition")}
        return Step(**{**same, **changes})

    def _results_in(self, other: object) -> list[Placeholder]:
        if type(other) is Placeholder:
            return [other]
        if isinstance(other, Inlined):
            return list(other.results)
        if isinstance(other, (list, tuple)):
            return [placeholder for item in other for placeholder in self._results_in(item)]
        called = isinstance(other, Step)
        raise GraphError(
            f"{self.name}.after takes results of steps, and gets {shown(other)}",
            where=user_location(),
            fix=f"Call it first: {self.name}.after({other.name}(…))."  # type: ignore[attr-defined]
            if called
            else "Pass what a call of a step in this pipeline gave.",
        )

    def _refuse_placeholders(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if type(value) is Placeholder:
                raise GraphError(
                    f"step {self.name!r} gets the result of step {value._source.node!r} outside a pipeline",
                    where=user_location(),
                    why="A placeholder means something only while the pipeline that made it is composed.",
                    fix="Call both steps in one pipeline function, in its own thread.",
                )


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    settings: Settings | None = None,
    retries: int | Retry | None = None,
    timeout: Seconds | None = None,
    grace: Seconds | None = None,
    cache: bool | None = None,
    cache_expires: Seconds | None = None,
    secrets: Mapping[str, str] | None = None,
    on: str | None = None,
    clear_cache: bool | None = None,
    gpu_idle_timeout: Seconds | None = None,
    start: bool = False,
    end: bool = False,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...
@checked_keywords("@step")
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    settings: Settings | None = None,
    retries: int | Retry | None = None,
    timeout: Seconds | None = None,
    grace: Seconds | None = None,
    cache: bool | None = None,
    cache_expires: Seconds | None = None,
    secrets: Mapping[str, str] | None = None,
    on: str | None = None,
    clear_cache: bool | None = None,
    gpu_idle_timeout: Seconds | None = None,
    start: bool = False,
    end: bool = False,
) -> Any:
    """Make a function a step of pipelines. Used bare, or with options.

    Parameters
    ----------
    name
        Its name in a run; default: the function's.
    settings
        ``{"resources": ResourceSettings(…), "docker": DockerSettings(…)}``, or dictionaries of
        their fields.
    retries
        How often it is tried again, or a :class:`~upshift.config.Retry`.
    timeout
        Seconds, or a ``datetime.timedelta``, after which it is stopped.
    grace
        Seconds, or a ``datetime.timedelta``, between SIGTERM and SIGKILL when it is stopped; default: 10.
    cache
        Whether a result may be reused; default: yes.
    cache_expires
        Seconds, or a ``datetime.timedelta``, after which a result is not reused any more.
    secrets
        Environment variables that only this step gets, each with the source of its value:
        ``"env:NAME"``, a variable where the run is started, or ``"file:PATH"``, relative to the
        project. The values are recorded nowhere, and masked in what the step prints.
    on
        The target or backend of this step; default: the run's.
    clear_cache
        Whether memory is cleaned up before the step is called, as :func:`upshift.cleanup_memory` does.
    gpu_idle_timeout
        Seconds, or a ``datetime.timedelta``, after which the step is stopped if all of its GPUs have
        been idle so long; default: never.
    start, end
        Whether it is the first or the last step of a :class:`FlowSpec`; default: the one that is called
        ``start`` or ``end``.

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    GraphError
        It is not a plain function.
    """
    settled = settings_said(
        "@step",
        settings=settings,
        retries=retries,
        timeout=timeout,
        grace=grace,
        cache=cache,
        cache_expires=cache_expires,
        secrets=secrets,
        on=on,
        clear_cache=clear_cache,
        gpu_idle_timeout=gpu_idle_timeout,
    )
    ends = {"start": checked_flag("@step", "start", start), "end": checked_flag("@step", "end", end)}
    flow = {name: True for name, said in ends.items() if said}
    options = StepOptions(name=identifier("@step", name), settings=settled, flow=flow)

    def decorate(function: Callable[..., Any]) -> Step[Any, Any]:
        plain = checked_function(without_guard(function), "step", options.name)
        merged = options
        for other in options_to_come(function):
            merged = merged.beside(other)
        return Step(Callee(plain, "step"), merged)

    return decorate if function is None else decorate(function)


def add_options(target: F, options: StepOptions) -> F:
    """A step that has these options too; of a plain function, one that has them for the ``@step`` above.

    Raises
    ------
    GraphError
        The target can be no step.
    """
    if isinstance(target, Step):
        return target._replace(options=target.options.beside(options))  # type: ignore[return-value]
    return with_options_to_come(target, options)  # type: ignore[return-value]


def adding(options: StepOptions) -> Callable[[F], F]:
    """The decorator that has :func:`add_options` add these."""

    def decorate(target: F) -> F:
        return add_options(target, options)

    return decorate


_OPTIONS = "__upshift_options__"
"""Where they are. ``functools.wraps`` of another decorator takes them along, up to ``@step``."""


def with_options_to_come(function: Any, options: StepOptions) -> Callable[..., Any]:
    """A function that is called like this one, and has options for the ``@step`` above.

    It is not a step yet: while a pipeline is composed, where it would work at once, it is not called.

    Raises
    ------
    GraphError
        It can be no step.
    """
    if getattr(type(function), "__upshift_kind__", None) == "pipeline":
        raise refused_on_pipeline(function.name)
    plain = checked_function(function, "step", "any")
    made = plain if _is_ours(plain) else _guarded(plain)
    setattr(made, _OPTIONS, (*options_to_come(made), options))
    return made


def options_to_come(function: Any) -> tuple[StepOptions, ...]:
    """What decorators have left on a function, the lowest first."""
    return getattr(function, _OPTIONS, ())


def without_guard(function: Any) -> Any:
    """The function as the user wrote it."""
    return function.__upshift_function__ if _is_ours(function) else function


def _is_ours(function: Any) -> bool:
    return getattr(function, "__globals__", None) is globals()


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def pending(*args: Any, **kwargs: Any) -> Any:
        if current_scope() is not None:
            raise MisuseError(
                f"{function.__name__} is called in a pipeline, and is not a step",
                where=user_location(),
                why="It has decorators of a step, but not @step: it would work here and now.",
                fix=f"Put @step above it: {Callee(function, 'step').location}.",
            )
        for options in options_to_come(pending):
            tell_of_one_process(function, options.launch)
        return function(*args, **kwargs)

    pending.__upshift_function__ = function  # type: ignore[attr-defined]
    return pending
