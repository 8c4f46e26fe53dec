"""A run that a tool does by itself, from its beginning to its end: submitted, followed, and tried again.

::

    here:   checks; images, code and Order into the bucket ─► Orchestrator.submit ─► the run on record
            └─► RunFollower: what pods have recorded       Orchestrator.standing: whether it is over, and why
    there:  each pod records its own task, the last one the end

Nothing here owns the run: whoever follows it may go, and come back on another machine.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from upshift.backends.scheduler import Gone, NotNow, Orchestrator, Standing
from upshift.engine import RunOptions
from upshift.engine.control import Command, interrupts
from upshift.engine.exported import TOOLS
from upshift.engine.keys import CodeNamed
from upshift.engine.one_step import OneStep
from upshift.engine.run import raise_unless_completed
from upshift.engine.tasks import FAILED
from upshift.engine.tool_runs import RunFollower, ToolRun, confirm_known, deleted, opened, opened_for
from upshift.errors import BackendError, NotFound, RunCancelled, StoreUnavailable, UsageError
from upshift.model.configuration import Configuration
from upshift.model.graph import Graph
from upshift.model.spec.codec import from_json
from upshift.model.spec.task import Code, Failure, TaskId
from upshift.report import Progress, TaskChange
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import bring_in, open_catalog
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.history.runs import Run, get_run
from upshift.runs.publishing import elsewhere
from upshift.runtime.storage.store import open_direct, open_store

EVERY = 2.0
"""Seconds between two looks."""
_LONGEST = 30.0
"""Seconds between two questions to a tool that does not answer, at most."""
_QUIET = 5
"""Looks during which no pod has been at work, after which the tool is asked what is waited for."""


def execute(
    graph: Graph,
    *,
    code: Code,
    source: Mapping[str, Any],
    configuration: Configuration,
    options: RunOptions,
    progress: Progress,
    code_named: CodeNamed | None = None,  # nothing is reused
) -> Run:
    """Have a tool that takes runs do a graph, and follow it to its end; with ``detach`` only the former.

    Raises
    ------
    UpshiftError
        It is refused, and nothing runs; or RunFailed, with ``.run``.
    """
    _refuse(options)
    target = configuration.target(options.target)
    address = configuration.store_address(target)
    with opened(target, address) as tool:
        store = open_direct(address, **configuration.store_options)
        with store.claims.held():
            written = TOOLS[target.backend](
                graph,
                code=code,
                source={name: said for name, said in source.items() if name != "run"},
                configuration=configuration,
                options=options,
                store=store,
                announce=progress.notice,
            )
            name = f"{re.sub(r'[^a-zA-Z0-9_.-]+', '-', graph.pipeline)[:60]}-{secrets.token_hex(4)}"
            description = f"Submitted by Upshift from {source.get('file')}"
            run = tool.submit(name, written.documents, description=description)
            link = tool.link(run)
            at = {"at": link or tool.title, "run": name}
            OneStep(written.order, written.digest, store, run).begin(None, submitted=at)
        progress.run_started(run, graph.pipeline, target.name, [node.name for node in graph.nodes])
        progress.notice(f"{tool.title} has it as {name}" + (f": {link}" if link else ""))
        if options.detach:
            progress.notice(f"upshift logs {run} -f follows it, upshift cancel {run} stops it")
            return get_run(run, configuration)
        return _followed(
            ToolRun(run, open_store(address, **configuration.store_options)), tool, configuration, progress
        )


def retry(
    row: RunRow, configuration: Configuration, progress: Progress, *, detach: bool, **changes: Any
) -> Run:
    """Have the tool go on with a run from what has completed, and follow it.

    Raises
    ------
    UpshiftError
        The tool does not know it, or cannot try it again.
    """
    said = [name for name, value in changes.items() if value is not None and value is not False]
    with opened_for(row, configuration) as tool:
        if said:
            raise UsageError(
                f"run {row.id} cannot be resumed with other options",
                why=f"{tool.title} tries again what it was given: the same code, in the same pods.",
                fix="Leave the options out, or start a new run.",
            )
        standing, run = confirm_known(row, tool), ToolRun.of(row, configuration)
        if standing.phase == "completed":
            run.record_end(standing, tool)
            progress.notice(f"run {row.id} is already complete; nothing to do")
            return get_run(row.id, configuration)
        with contextlib.closing(open_catalog(configuration)) as catalog:
            follower = None
            progress.run_started(row.id, row.pipeline, row.target, [node.name for node in _graph(run).nodes])
            if standing.over:
                run.record_end(standing, tool)
            if not detach:
                follower = _Follower(run, tool, catalog, progress, again=standing.over)
            if standing.over:
                try:
                    tool.retry(row.id)
                except NotNow as error:
                    raise BackendError(str(error), fix="Try again when it answers.") from None
                run.reopen()
            if follower is not None:
                return follower.follow()
        progress.notice(f"upshift logs {row.id} -f follows it, upshift cancel {row.id} stops it")
        return get_run(row.id, configuration)


def _refuse(options: RunOptions) -> None:
    for said, option in (
        (options.debug, "--debug"),
        (options.max_workers, "--max-workers"),
        (options.max_splits, "--max-num-splits"),
        (options.origin, "the results of an earlier run"),
    ):
        if said is not None:
            raise UsageError(
                f"target {options.target!r} cannot honour {option}",
                why="It runs the pipeline by itself, and no engine of Upshift's decides what starts when.",
                fix="Leave it out, or choose another target.",
            )


def _graph(run: ToolRun) -> Graph:
    content = run.store.read_record(run.id, "graph.json")
    if content is None:
        raise NotFound(f"the graph of run {run.id} is not in its store", where=run.store.name)
    return from_json(Graph, content)


def _followed(run: ToolRun, tool: Orchestrator, configuration: Configuration, progress: Progress) -> Run:
    with contextlib.closing(open_catalog(configuration)) as catalog:
        return _Follower(run, tool, catalog, progress, again=False).follow()


class _Follower:
    """Follows one run."""

    def __init__(
        self, run: ToolRun, tool: Orchestrator, catalog: Catalog, progress: Progress, *, again: bool
    ) -> None:
        run.row()  # from here on it is one of another machine, of which news are brought
        news = elsewhere(run.store, run.id)
        assert news is not None  # a tool's pods have a bucket
        self._run = run
        self._tool = tool
        self._catalog = catalog
        self._progress = progress
        self._follower = RunFollower(
            run.id,
            _graph(run),
            run.order,
            run.store,
            elsewhere=news,
            catalog=catalog,
            progress=progress,
            again=again,
        )
        if again:  # what is past is seen before anything new comes
            self._follower.look()
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._stop = False  # whether it is to be ended, and the tool has not heard of it
        self._stopped = False
        self._away = 0  # questions that the tool has not answered, one after the other
        self._quiet = 0

    def follow(self) -> Run:
        """Show it until it is over, and say how it ended."""
        with interrupts(lambda: self._inbox.put(Command.INTERRUPT)):
            while not (standing := self._look()).over:
                self._wait()
            return self._end(standing)

    def _look(self) -> Standing:
        """What is new, and how it stands."""
        try:
            self._follower.look()
        except StoreUnavailable as error:
            self._progress.notice(f"{error.what}: {error.why or 'it does not answer'}; waiting for it")
        try:
            if self._stop:
                self._run.stop(self._tool)
                self._stop, self._stopped = False, True
            standing = self._tool.standing(self._run.id)
            self._explain_waiting(standing)
        except Gone:
            return deleted(self._tool)
        except NotNow as error:
            self._away += 1
            if self._away == 1:
                self._progress.notice(f"{error}; the run continues, and Upshift will ask again")
            return Standing(phase="running")
        except BackendError as error:
            error.fix = (
                f"{error.fix or ''}\nThe run continues: upshift logs {self._run.id} -f follows it.".strip()
            )
            raise
        if self._away:
            self._progress.notice(f"{self._tool.title} answers again")
        self._away = 0
        return standing

    def _explain_waiting(self, standing: Standing) -> None:
        """Say what pods wait for, where none is at work."""
        self._quiet = 0 if self._follower.running or standing.over else self._quiet + 1
        if self._quiet and self._quiet % _QUIET == 0:
            for name, text in self._tool.words(self._run.id):
                self._progress.notice(f"{name} waits: {text}")

    def _wait(self) -> None:
        seconds = min(_LONGEST, EVERY * 2 ** min(self._away, 6)) if self._away else EVERY
        try:
            self._inbox.get(timeout=seconds)
        except Empty:
            return
        if self._stop or self._stopped:
            raise RunCancelled(
                f"run {self._run.id} is being terminated in {self._tool.title}, which was not waited for",
                fix=f"See how it ended: upshift show {self._run.id}",
            )
        self._stop = True
        self._progress.notice(
            f"stopping: {self._tool.title} is asked to terminate the run; press Ctrl-C again to leave it"
        )

    def _end(self, standing: Standing) -> Run:
        """Record the end where no pod could, tell it, and raise what it was not completed for."""
        run = self._run
        run.record_end(standing, self._tool)
        with contextlib.suppress(StoreUnavailable):
            self._follower.look()
        bring_in(run.id, self._catalog, run.store)
        row = self._catalog.run(run.id)
        found = Run(row, self._catalog)
        first = self._follower.first_failure or _first_failure(found)
        for task in self._catalog.tasks(run.id):
            if task.status not in UNFINISHED and not self._follower.told(task.task):
                failure = first[1] if first is not None and first[0] == task.task else None
                self._progress.task_changed(TaskChange(task=task.task, status=task.status, failure=failure))
        if row.status == "cancelled" and not self._stopped:
            by = run.stopped_by()
            self._progress.notice(f"{by} has cancelled it" if by else standing.message or _BY_SOMEBODY)
        self._progress.run_ended(row.id, row.status, (row.ended or row.started) - row.started)
        raise_unless_completed(found, row.status, first, self._catalog, run.store, shown=self._progress.shows)
        return found


_BY_SOMEBODY = "it was terminated there, and not by this command or upshift cancel"


def _first_failure(run: Run) -> tuple[TaskId, Failure, int] | None:
    for step in run.steps:
        for task in step.tasks:
            if task.status == FAILED and task.attempts and task.attempts[-1].error is not None:
                return task.row.task, task.attempts[-1].error, task.attempts[-1].number
    return None
