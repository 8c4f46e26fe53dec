"""Pipelines built again: to finish a run, from the code as it is now or as it was recorded; and in pods of
other tools, with the parameters of a run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.options import PipelineOptions
from upshift.authoring.pipelines import Pipeline
from upshift.errors import LoadError, NotFound, UsageError
from upshift.model.checks import checked_flag
from upshift.model.graph import Graph
from upshift.model.spec.codec import decode, from_json
from upshift.model.spec.task import Artifact, Code

if TYPE_CHECKING:
    from upshift.engine import RunOptions
    from upshift.engine.detached import Order
    from upshift.engine.exported import Order as Exported
    from upshift.report import Progress
    from upshift.runs.catalog.rows import RunRow
    from upshift.runs.history.runs import Run
    from upshift.runtime.storage.store import Store


def resume(
    ref: str,
    *,
    same_code: bool = False,
    strict: bool | None = None,
    cache: bool | None = None,
    keep_going: bool | None = None,
) -> Run[Any]:
    """Finish a run: what is done is not run again. A run that is complete stays as it is.

    Parameters
    ----------
    ref
        The run's id, a unique prefix of it, or ``"latest"``.
    same_code
        Whether to use the pipeline as it was recorded; else as it is in its file now, and what
        that changes runs again.
    strict, keep_going
        As for :func:`~upshift.pipeline`; None: as the run was started, or last resumed.
    cache
        Whether results of other runs may be reused; None: likewise. What this run has done itself
        is kept in any case.

    Raises
    ------
    NotFound
        There is no such run.
    RunOwned
        It is running.
    RunFailed
        A step failed.
    """
    from upshift.authoring.running import watched

    for name, value in (
        ("same_code", same_code),
        ("strict", strict),
        ("cache", cache),
        ("keep_going", keep_going),
    ):
        checked_flag("resume", name, value)
    with watched(None) as progress:
        return resume_run(
            ref, same_code=same_code, strict=strict, reuse=cache, keep_going=keep_going, progress=progress
        )


def resume_run(ref: str, *, same_code: bool, progress: Progress, **changes: bool | str | None) -> Run[Any]:
    """Finish a run; what :func:`resume` and ``upshift resume`` both do.

    Parameters
    ----------
    ref, same_code
        As for :func:`resume`.
    progress
        Who watches.
    changes
        Fields of :class:`~upshift.engine.RunOptions` that the user says anew; None: as recorded.
    """
    from upshift.authoring.running import as_graph_errors, do_run, merged, told_of
    from upshift.model.configuration import load_configuration
    from upshift.runs.catalog.opening import ORCHESTRATOR, known_run, open_catalog
    from upshift.runs.catalog.rows import KEY, awaits_engine
    from upshift.runs.history.runs import get_run
    from upshift.runs.publishing import publish_left
    from upshift.runtime.storage.store import open_store

    configuration = load_configuration()
    catalog = open_catalog(configuration)
    try:
        row = known_run(ref, catalog, configuration)
    finally:
        catalog.close()
    if ORCHESTRATOR in row.source:
        from upshift.engine.orchestrated import retry  # other runs have an engine

        detach = bool(changes.pop("detach", None))
        return retry(row, configuration, progress, detach=detach, same_code=same_code, **changes)
    store = open_store(row.store, **configuration.store_options)
    if row.status == "completed":
        publish_left(store, progress.notice)
        progress.notice(f"run {row.id} is already complete; nothing to do")
        return get_run(row.id, configuration)
    with store.claims.held():
        pipeline = None if same_code else pipeline_of(row)
        asked = settled = recorded_options(row, settled=pipeline is None, **changes)
        if pipeline is None:
            graph = recorded_graph(row, store)
            told: dict[str, Any] = {"code": recorded_code(row, package=same_code), "source": row.source}
        else:
            with as_graph_errors(pipeline):
                graph = pipeline.build(_arguments(row, store), store)
            told = told_of(pipeline)
            told["source"]["cwd"] = row.source.get("cwd")
            settled = merged(pipeline, asked)
        if awaits_engine(row):
            from upshift.engine.ownerless import confirm_free

            confirm_free(row, configuration)
        told["source"] = {name: said for name, said in told["source"].items() if name != KEY}
        told["resume"] = row.id
        return do_run(graph, told, asked, settled, configuration, progress)


def resume_detached(order: Order, progress: Progress) -> Run[Any]:
    """Do a run as the engine that was submitted for it: all that it is was recorded then."""
    from upshift.engine.run import execute
    from upshift.runs.catalog.opening import known_run, open_catalog
    from upshift.runtime.storage.store import open_store

    configuration = order.configuration
    with contextlib.closing(open_catalog(configuration)) as catalog:
        row = known_run(order.run, catalog, configuration)
    store = open_store(row.store, **configuration.store_options)
    with store.claims.held():
        return execute(
            recorded_graph(row, store),
            code=recorded_code(row, package=True),
            source=row.source,
            configuration=configuration,
            options=recorded_options(row, settled=True),
            progress=progress,
            resume=row.id,
            detached=order.token,
            made=order.images,
        )


def resume_from(
    pipeline: Pipeline[Any, Any],
    ref: str,
    *,
    again: Sequence[str],
    options: RunOptions,
    progress: Progress,
) -> Run[Any]:
    """A new run with the parameters of an earlier one, which takes over what that has completed.

    Parameters
    ----------
    pipeline
        What is run.
    ref
        The earlier run.
    again
        Steps of which nothing is taken over.
    options, progress
        As for :func:`~upshift.authoring.running.start`.
    """
    from upshift.model.configuration import load_configuration
    from upshift.runs.catalog.opening import open_catalog
    from upshift.runtime.storage.store import open_store

    configuration = load_configuration()
    with contextlib.closing(open_catalog(configuration)) as catalog:
        row = catalog.run(ref)
    if row.pipeline != pipeline.name:
        raise UsageError(f"run {row.id} is one of {row.pipeline}, not of {pipeline.name}")
    arguments = _arguments(row, open_store(row.store, **configuration.store_options))
    options = attrs.evolve(options, origin=row.id, again=tuple(again))
    return pipeline.run(arguments, options=options, progress=progress)


def pipeline_of(row: RunRow) -> Pipeline[Any, Any] | None:
    """The pipeline of a run as it is now; None where no file has it, as in a notebook.

    Raises
    ------
    LoadError, NotFound
        Its file, or the pipeline in it, is gone or broken.
    """
    file = row.source.get("file")
    if file is None or row.source.get("pipeline") is None:
        return None
    try:
        return _loaded(Path(file), row.source)
    except (LoadError, NotFound) as error:
        error.fix = f"{error.fix or 'Put it back.'}\nOr resume with the recorded code: --same-code."
        raise


def _loaded(file: Path, source: Mapping[str, Any]) -> Pipeline[Any, Any]:
    """The pipeline of a recorded source in this file, with the options of its copy."""
    from upshift.authoring.loading import find_pipeline, load_module

    pipeline = find_pipeline(load_module(file), file, source["pipeline"])
    changes = source.get("options")
    return pipeline.changed(decode(PipelineOptions, changes)) if changes else pipeline


def recorded_graph(row: RunRow, store: Store) -> Graph:
    """The graph of a run as it was.

    Raises
    ------
    NotFound
        It is not in the store.
    """
    content = store.read_record(row.id, "graph.json")
    if content is None:
        raise NotFound(
            f"the graph of run {row.id} is not in its store",
            where=row.store,
            fix="Start a new run: this one cannot be resumed.",
        )
    return from_json(Graph, content)


def recorded_code(row: RunRow, *, package: bool) -> Code:
    """Where the code of a run was."""
    code = decode(Code, row.source["code"])
    if package and code.package is None:
        raise NotFound(
            f"the code of run {row.id} was not recorded",
            why=row.source.get("code_lacks") or "The run ended before its code was stored.",
            fix="Use the code as it is now.",
        )
    return code


def recorded_options(row: RunRow, *, settled: bool, **changes: bool | str | None) -> RunOptions:
    """How a run was to be done, with what the user says anew.

    Parameters
    ----------
    row
        The run. One that is older than this record has the usual options.
    settled
        Whether what the pipeline itself said is to be in them.
    changes
        Fields with other values; None: as recorded.
    """
    from upshift.engine import RunOptions

    recorded = row.source.get("run", {}).get("settled" if settled else "asked", {})
    said = {name: value for name, value in changes.items() if value is not None}
    return decode(RunOptions, {**recorded, **said, "target": row.target, "tags": row.tags})


def _arguments(row: RunRow, store: Store) -> dict[str, object]:
    from upshift.runtime.storage.artifacts import load

    return {name: load(decode(Artifact, data), store) for name, data in row.params.items()}


def changed(order: Exported, given: Mapping[str, str]) -> dict[str, str]:
    """Those parameters of a run whose values are not those of the export, as texts."""
    texts = {name: _text(text, order.params[name]) for name, text in given.items()}
    return {name: text for name, text in texts.items() if text != _written(order.params[name])}


def _text(text: str, default: object) -> str:
    """A value as it was given, written as :func:`_written` has it."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return text.lower()
    try:
        value = json.loads(text)
    except ValueError:  # whoever reads it by the annotation says what is wrong
        return text
    if isinstance(default, int) and isinstance(value, float) and value.is_integer():
        value = int(value)  # Kubeflow's numbers are all of one kind
    return _written(float(value) if isinstance(default, float) and type(value) is int else value)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def composed_again(order: Exported, store: Store, given: Mapping[str, str]) -> Graph:
    """The graph with these parameters, from the code that was exported.

    Its nodes are new; what its steps are is as it was exported, but for functions that have no name.

    Raises
    ------
    UpshiftError
        A value is not what its annotation says, or the pipeline cannot be composed with it.
    """
    from upshift.authoring.parameters import parse_params
    from upshift.authoring.running import as_graph_errors
    from upshift.runtime.storage.artifacts import load
    from upshift.runtime.storage.home_folders import unpacked
    from upshift.runtime.usercode import add_paths

    code, name = order.code, order.source.get("pipeline")
    if code.package is None or code.file is None or name is None:
        raise NotFound(
            f"parameters {', '.join(given)} cannot be set",
            why="The pipeline is not defined by a name in a file.",
            fix="Export it with these parameters: upshift export kubeflow -p NAME=VALUE.",
        )
    folder = unpacked(code.package, store)
    add_paths([Path(folder, path) for path in code.paths])
    pipeline = _loaded(Path(folder, code.file), order.source)
    earlier = {param: load(artifact, store) for param, artifact in order.graph.params.items()}
    arguments = parse_params(pipeline, [f"{param}={text}" for param, text in given.items()], None, earlier)
    with as_graph_errors(pipeline):
        graph = pipeline.build(arguments, store)
    places = {node.name: node.location for node in order.graph.nodes}
    return attrs.evolve(
        graph,
        steps={
            step: attrs.evolve(definition, entry=graph.steps[step].entry)
            if step in graph.steps
            else definition
            for step, definition in order.graph.steps.items()
        },
        nodes=tuple(
            attrs.evolve(node, location=places.get(node.name, node.location)) for node in graph.nodes
        ),
    )
