"""Starting, planning or exporting a run: the configuration, the store and the graph, handed to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from upshift.authoring.callee import named
from upshift.authoring.composing.definitions import code_of, file_of, places_of
from upshift.authoring.options import checked_tags
from upshift.backends.registry import capabilities_of, open_backend
from upshift.code.fingerprint import look_up
from upshift.engine import RunOptions
from upshift.engine.run import execute
from upshift.errors import GraphError, NotFound, UpshiftError, UsageError
from upshift.model.configuration import load_configuration, recordable, working_folder
from upshift.model.spec.codec import encode
from upshift.report import make_progress
from upshift.runtime import usercode
from upshift.runtime.shadowing import advice
from upshift.runtime.storage.store import open_direct, open_store
from upshift.runtime.tracebacks import raised_by, user_line, user_text

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.options import PipelineOptions
    from upshift.images.base import Announce
    from upshift.model.configuration import Configuration
    from upshift.model.graph import Graph
    from upshift.report import Progress
    from upshift.report.views.plan import Plan
    from upshift.runs.history.runs import Run
    from upshift.runtime.storage.store import Store


class Runnable(Protocol):
    """A pipeline, a function or a flow, as far as a run of it goes."""

    callee: Callee
    options: PipelineOptions

    @property
    def name(self) -> str: ...

    def build(self, arguments: Mapping[str, object], store: Store) -> Graph: ...


def start(
    pipeline: Runnable,
    arguments: Mapping[str, object],
    *,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Run[Any]:
    """Run a pipeline with these arguments.

    Raises
    ------
    UpshiftError
        Before anything has run; or RunFailed, with ``.run``.
    """
    asked = options or RunOptions()
    settled, configuration, store = prepared(pipeline, asked, runs=True)
    with store.claims.held():
        graph = pipeline.build(arguments, store)
        with watched(progress) as watcher:
            told = told_of(pipeline)
            told["source"] |= {} if settled.origin is None else {"origin": settled.origin}
            return do_run(graph, told, asked, settled, configuration, watcher)


def told_of(pipeline: Runnable) -> dict[str, Any]:
    """What the engine is told of a pipeline's code: ``code``, ``source`` and ``code_named``."""
    function = pipeline.callee.function
    return {
        "code": code_of(function),
        "source": source_of(pipeline),
        "code_named": look_up(*places_of(function)),
    }


def do_run(
    graph: Graph,
    told: Mapping[str, Any],
    asked: RunOptions,
    settled: RunOptions,
    configuration: Configuration,
    progress: Progress,
) -> Run[Any]:
    """Have a run done, or finished.

    Parameters
    ----------
    graph, told
        The graph, and what the engine is told of the code: see :func:`told_of`. ``resume`` in it is the run
        that is finished.
    asked, settled
        The options as the user gave them, and with what the pipeline said.
    """
    return _executor_of(settled, configuration)(
        graph,
        configuration=configuration,
        options=settled,
        progress=progress,
        **{**told, "source": {**told["source"], "run": remembered(asked, settled)}},
    )


def _executor_of(options: RunOptions, configuration: Configuration) -> Callable[..., Run[Any]]:
    """What does a run: an engine in this process, what submits one, or what has a tool do all of it."""
    if by_tool(configuration, options.target):
        from upshift.engine import orchestrated

        return orchestrated.execute
    if not options.detach:
        return execute
    from upshift.engine.detached import submit

    if options.debug is not None:
        raise UsageError(
            "--detach and --debug exclude each other",
            why="A step that is debugged runs in this process.",
            fix="Leave one of them out.",
        )
    return submit


def plan(
    pipeline: Runnable,
    arguments: Mapping[str, object],
    *,
    options: RunOptions,
    announce: Announce | None = None,
    scripts: bool = False,
) -> Plan:
    """What :func:`start` would do with the same arguments; nothing runs, and no run is recorded.

    With ``scripts`` its steps have what their targets would be given, too. Composing saves plain values that
    are too large to travel in a record, as it does for a run. They are what the run would save, under the
    same names, so that they are not there twice.

    Raises
    ------
    UpshiftError
        As for :func:`composed`.
    """
    from upshift.engine.forecast import make_plan

    with composed(pipeline, arguments, options) as (graph, options, configuration):
        return make_plan(
            graph,
            configuration=configuration,
            options=options,
            announce=announce,
            scripts=scripts,
            **told_of(pipeline),
        )


@contextmanager
def composed(
    pipeline: Runnable, arguments: Mapping[str, object], options: RunOptions
) -> Iterator[tuple[Graph, RunOptions, Configuration]]:
    """The graph of a pipeline that is looked at and not run, while its values are kept in the store.

    Raises
    ------
    UpshiftError
        The pipeline cannot be composed, or the configuration is wrong. An exception of the pipeline
        function itself is a GraphError, with the user's own traceback in it.
    """
    options, configuration, store = prepared(pipeline, options)
    with store.claims.held():
        with as_graph_errors(pipeline):
            graph = pipeline.build(arguments, store)
        yield graph, options, configuration


def export(
    pipeline: Runnable,
    arguments: Mapping[str, object],
    tool: str,
    *,
    options: RunOptions,
    announce: Announce,
) -> str:
    """A pipeline in the form of a tool; what its tasks need is put into the bucket of the target.

    Raises
    ------
    UpshiftError
        The tool cannot express something of it, or a target, an image or a secret is not there.
    """
    from upshift.engine.exported import TOOLS

    usercode.adopt_main()
    configuration = load_configuration()
    options = merged(pipeline, options)
    options = attrs.evolve(options, target=options.target or _only_target(configuration, tool))
    target = configuration.target(options.target)
    address = configuration.store_address(target)
    open_backend(target, store=address, sink=lambda event: None).close()  # before the bucket is asked
    store = _store_itself(address, configuration)
    with store.claims.held():
        with as_graph_errors(pipeline):
            graph = pipeline.build(arguments, store)
        return TOOLS[tool](
            graph,
            code=code_of(pipeline.callee.function),
            source=source_of(pipeline),
            configuration=configuration,
            options=options,
            store=store,
            announce=announce,
        ).text


def _only_target(configuration: Configuration, backend: str) -> str:
    found = [target.name for target in configuration.targets.values() if target.backend == backend]
    if len(found) == 1:
        return found[0]
    raise NotFound(
        f"{'several targets have' if found else 'no target has'} the backend {backend}",
        why=", ".join(found) or None,
        fix="Name one: --on TARGET."
        if found
        else f'Add one to upshift.toml: [targets.NAME] with backend = "{backend}" and '
        'store = "s3://team/upshift".',
    )


def prepared(
    pipeline: Runnable, options: RunOptions, *, runs: bool = False
) -> tuple[RunOptions, Configuration, Store]:
    """How and where a pipeline is to be run, before its graph is built; ``runs``: not only planned."""
    usercode.adopt_main()  # before values are saved: their classes must be those that a worker knows
    options = merged(pipeline, options)
    configuration = load_configuration()
    address = configuration.store_address(configuration.target(options.target))
    if not runs or not by_tool(configuration, options.target):
        return options, configuration, open_store(address, **configuration.store_options)
    from upshift.engine.tool_runs import opened  # other targets have no tool

    with opened(configuration.target(options.target), address) as tool:
        tool.confirm()  # before the bucket is asked, and images are made
    return options, configuration, _store_itself(address, configuration)


def _store_itself(address: str, configuration: Configuration) -> Store:
    """The store that a tool's own tasks see, ready for their records."""
    store = open_direct(address, **configuration.store_options)
    if store.replica is not None:
        store.replica.prepare()
    return store


def by_tool(configuration: Configuration, target: str | None) -> bool:
    """Whether a target's tool runs whole pipelines by itself."""
    return not capabilities_of(configuration.target(target)).steps


@contextmanager
def watched(progress: Progress | None) -> Iterator[Progress]:
    """The given progress; without one, one on the terminal, closed at the end."""
    if progress is not None:
        yield progress
        return
    with closing(make_progress()) as own:
        yield own


@contextmanager
def as_graph_errors(pipeline: Runnable) -> Iterator[None]:
    """What the pipeline's own function raises becomes an error with the user's traceback in it.

    Raises
    ------
    GraphError
    """
    try:
        yield
    except UpshiftError:
        raise
    except Exception as error:
        if not raised_by(error, pipeline.callee.function.__code__):
            raise
        said = str(error).partition("\n")[0]
        raise GraphError(
            f"pipeline {pipeline.name!r} raised {type(error).__name__}{': ' if said else ''}{said}",
            where=user_line(error) or pipeline.callee.location,
            why=user_text(error),
            fix=advice(error),
        ) from None


def merged(pipeline: Runnable, options: RunOptions) -> RunOptions:
    """The options of a run, with the pipeline's own where they say nothing."""
    own = pipeline.options
    return attrs.evolve(
        options,
        target=options.target or own.steps.on,
        strict=own.strict if options.strict is None else options.strict,
        keep_going=_continues(own.on_failure) if options.keep_going is None else options.keep_going,
        tags=tuple(dict.fromkeys((*own.tags, *checked_tags("--tag", options.tags)))),
    )


def _continues(on_failure: str | None) -> bool | None:
    return None if on_failure is None else on_failure == "continue"


def remembered(asked: RunOptions, settled: RunOptions) -> dict[str, Any]:
    """The options of a run, for whoever resumes it.

    Parameters
    ----------
    asked
        As the user gave them: what they leave open is for the pipeline to say, as it is then.
    settled
        With what the pipeline said: for a graph that is taken as it was recorded.
    """
    return {
        kind: encode(attrs.evolve(o, debug=None, detach=False))
        for kind, o in (("asked", asked), ("settled", settled))
    }


def source_of(pipeline: Runnable) -> dict[str, Any]:
    """Where to find the pipeline again, to resume a run of it.

    Returns
    -------
    dict
        ``file``: absolute path, None in a notebook. ``pipeline``: attribute of the module, None
        where it has none. ``cwd``: the working folder. ``options``: those of a changed copy.
        ``code``: where the code is, as JSON of :class:`~upshift.model.spec.task.Code`.
    """
    function = pipeline.callee.function
    file = file_of(function)
    known = named(function.__module__, function.__qualname__)
    known = getattr(known, "__upshift_pipeline__", known)
    original = known if getattr(known, "callee", None) is pipeline.callee else None
    return {
        "file": None if file is None else recordable(file),
        "pipeline": function.__qualname__ if original is not None else None,
        "cwd": recordable(working_folder()),
        "options": encode(pipeline.options) if original not in (None, pipeline) else None,
        "code": encode(code_of(function)),
    }
