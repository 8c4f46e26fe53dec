"""A pipeline: a function that composes steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from upshift.authoring.callee import (
    Callee,
    checked_function,
    drawn,
    look_like,
    missing_attribute,
    reduced,
    written,
)
from upshift.authoring.composing.placeholders import Inert
from upshift.authoring.composing.scope import current_scope
from upshift.authoring.options import (
    PipelineOptions,
    Settings,
    checked_keywords,
    checked_tags,
    identifier,
    settings_said,
)
from upshift.errors import UpshiftError, user_frames
from upshift.model.checks import bad_value, checked_flag
from upshift.model.settings.retry import Retry

if TYPE_CHECKING:
    from upshift.engine import RunOptions
    from upshift.model.graph import Graph
    from upshift.report import Progress
    from upshift.runs.history.runs import Run
    from upshift.runtime.storage.store import Store

P = ParamSpec("P")
R = TypeVar("R")


class Pipeline(Generic[P, R]):
    """A function that composes steps. Make one with :func:`pipeline`.

    Called, it runs, and gives the :class:`~upshift.runs.history.runs.Run`. Called inside another
    pipeline, its steps become steps of that one; ``.output`` is what its function returned there,
    and the call itself may be passed on, returned or unpacked as well.
    """

    __upshift_kind__ = "pipeline"

    def __init__(self, callee: Callee, options: PipelineOptions) -> None:
        self.callee = callee
        self.options = options
        look_like(self, callee.function)

    @property
    def name(self) -> str:
        """Its name in the list of runs."""
        return self.options.name or self.callee.function.__name__

    @property
    def __upshift_function__(self) -> Callable[P, R]:
        return self.callee.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Run the pipeline.

        Raises
        ------
        RunFailed
            A step failed; ``.run`` of the error is the run.
        UpshiftError
            Something is wrong with the pipeline, a request or the configuration; nothing has run.
        """
        scope = current_scope()
        if scope is not None:
            from upshift.authoring.composing.graph import inline

            return cast("Run[R]", inline(self.name, self.callee, self.options, scope, args, kwargs))
        from upshift.runtime import usercode

        if usercode.loading() or usercode.imported_by_a_child(sys._getframe(1)):
            usercode.ignore_call()
            return cast("Run[R]", Inert())
        try:
            return self._start(args, kwargs)
        except Exception as error:
            from upshift.runtime.tracebacks import raised_by

            # What a person reads is the way through their own code. A bug in Upshift stays whole.
            if isinstance(error, UpshiftError) or raised_by(error, self.callee.function.__code__):
                error.__traceback__ = user_frames(error.__traceback__)
                if sys.version_info < (3, 11):
                    raise error  # a bare raise would show the traceback as it was
            raise

    def _start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run[R]:
        try:
            from upshift.authoring.running import start

            return start(self, self.callee.signature.bind(args, kwargs))
        except (ImportError, AttributeError) as error:
            from upshift.runtime.shadowing import load_error
            from upshift.runtime.tracebacks import raised_by

            known = None if raised_by(error, self.callee.function.__code__) else load_error(error)
            if known is None:
                raise
            raise known from None

    def run(
        self,
        arguments: Mapping[str, object] | None = None,
        *,
        options: RunOptions | None = None,
        progress: Progress | None = None,
        **named: object,
    ) -> Run[R]:
        """Run the pipeline; what ``upshift run`` does.

        Parameters
        ----------
        arguments
            By parameter. A plain call, ``training(lr=0.1)``, takes them by name, and :meth:`run` does not.
        options
            How to run it. What is not said there is as the pipeline has it.
        progress
            Who watches; default: the terminal.

        Raises
        ------
        UpshiftError
            As when it is called. An exception of the pipeline function itself is a GraphError here,
            with the user's own traceback in it.
        """
        from upshift.authoring.running import as_graph_errors, start

        if named or not isinstance(arguments, (Mapping, type(None))):
            raise self.callee.signature.by_name(arguments, named)
        with as_graph_errors(self):
            return start(self, arguments or {}, options=options, progress=progress)

    def build(self, arguments: Mapping[str, object], store: Store) -> Graph:
        """The graph for these arguments.

        Parameters
        ----------
        arguments
            By parameter.
        store
            Where plain values go, and functions that travel by value.

        Raises
        ------
        GraphError
            The pipeline cannot be composed as written.
        NotSerializable
            An argument, or a plain value in the pipeline, cannot be saved.
        """
        from upshift.authoring.composing.graph import compose

        return compose(self.name, self.callee, self.options, arguments, store)

    @checked_keywords("with_options")
    def with_options(
        self,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        retries: int | Retry | None = None,
        secrets: Mapping[str, str] | None = None,
        cache: bool | None = None,
        on: str | None = None,
        tags: str | Iterable[str] = (),
        on_failure: str | None = None,
        strict: bool | None = None,
        keep_going: bool | None = None,
    ) -> Pipeline[P, R]:
        """A changed copy; the parameters are those of :func:`pipeline`, and replace what was said before.

        Parameters
        ----------
        keep_going
            ``on_failure="continue"`` in one word, as on the command line.

        Raises
        ------
        SettingsError
            An option is unknown, or its value is invalid.
        """
        if checked_flag("with_options", "keep_going", keep_going) is not None:
            on_failure = "continue" if keep_going else "stop"
        newer = _options(
            "with_options", name, settings, retries, secrets, cache, on, tags, on_failure, strict
        )
        return self.changed(self.options.replaced(newer))

    def changed(self, options: PipelineOptions) -> Pipeline[P, R]:
        """A copy that has these options instead of its own."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.options = options
        return made

    if not TYPE_CHECKING:  # else type checkers take every attribute for one that is there

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"<pipeline {written(self)}>"

    def _repr_html_(self) -> str:
        from upshift.authoring.composing.graph import sketch

        return drawn(self, sketch(self.callee, self.build))

    def __reduce__(self) -> Any:
        return reduced(self)


@overload
def pipeline(function: Callable[P, R], /) -> Pipeline[P, R]: ...
@overload
def pipeline(
    *,
    name: str | None = None,
    settings: Settings | None = None,
    retries: int | Retry | None = None,
    secrets: Mapping[str, str] | None = None,
    cache: bool | None = None,
    on: str | None = None,
    tags: str | Iterable[str] = (),
    on_failure: str | None = None,
    strict: bool | None = None,
) -> Callable[[Callable[P, R]], Pipeline[P, R]]: ...
@checked_keywords("@pipeline")
def pipeline(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    settings: Settings | None = None,
    retries: int | Retry | None = None,
    secrets: Mapping[str, str] | None = None,
    cache: bool | None = None,
    on: str | None = None,
    tags: str | Iterable[str] = (),
    on_failure: str | None = None,
    strict: bool | None = None,
) -> Any:
    """Make a function a pipeline. Used bare, or with options.

    Parameters
    ----------
    name
        Its name in the list of runs; default: the function's.
    settings
        What holds for each of its steps that says nothing itself; as for :func:`~upshift.step`.
    retries
        Likewise.
    cache
        Likewise.
    secrets
        Secrets that each of its steps gets, beside its own; as for :func:`~upshift.step`.
    on
        The target or backend where it runs.
    tags
        Words to find its runs by.
    on_failure
        ``"stop"`` (the default), or ``"continue"`` with what does not depend on the step that failed.
    strict
        Whether a request that cannot be granted in full is refused; default: as each backend has it.

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    GraphError
        It is not a plain function.
    """
    options = _options("@pipeline", name, settings, retries, secrets, cache, on, tags, on_failure, strict)

    def decorate(function: Callable[..., Any]) -> Pipeline[Any, Any]:
        return Pipeline(Callee(checked_function(function, "pipeline", options.name), "pipeline"), options)

    return decorate if function is None else decorate(function)


def _options(
    owner: str,
    name: str | None,
    settings: Settings | None,
    retries: int | Retry | None,
    secrets: Mapping[str, str] | None,
    cache: bool | None,
    on: str | None,
    tags: str | Iterable[str],
    on_failure: str | None,
    strict: bool | None,
) -> PipelineOptions:
    if on_failure is not None and (not isinstance(on_failure, str) or on_failure not in ("stop", "continue")):
        raise bad_value(owner, "on_failure", on_failure, '"stop" or "continue"')
    return PipelineOptions(
        name=identifier(owner, name),
        tags=checked_tags(owner, tags),
        on_failure=on_failure,
        strict=checked_flag(owner, "strict", strict),
        steps=settings_said(owner, settings=settings, retries=retries, secrets=secrets, cache=cache, on=on),
    )
