"""A run that a tool does by itself, seen from outside: how it is, its end on request, its end on record.

The tool starts pods, and each records what it does (:mod:`upshift.engine.one_step`). The last one records the
end. It never starts if the run is terminated, and not once more if the run is retried: then whoever looks at
the run next records its end, as the tool tells it.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator

from upshift.backends.orchestrator import Gone, Orchestrator, Standing
from upshift.backends.registry import open_backend
from upshift.backends.scheduler import NotNow
from upshift.engine.exported import Order
from upshift.engine.one_step import OneStep
from upshift.engine.tasks import CANCELLED, FAILED
from upshift.errors import BackendError, UpshiftError
from upshift.model.configuration import Configuration, Target
from upshift.model.home import user_name
from upshift.model.spec.codec import from_json
from upshift.model.spec.task import Failure
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rebuild import bring_in
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.catalog.standing import ORCHESTRATOR
from upshift.runtime.storage.store import Store, open_direct, open_store

_STOPPED = "stopped.json"
"""The record of a run that says who has asked for its end."""


def is_tools(row: RunRow) -> bool:
    """Whether a tool does the run, and no engine of Upshift's."""
    return ORCHESTRATOR in row.source


@contextlib.contextmanager
def opened(target: Target, store: str) -> Iterator[Orchestrator]:
    """The tool of a target.

    Raises
    ------
    BackendError
        Its backend has none that can be asked.
    """
    backend = open_backend(target, store=store, sink=lambda event: None)
    try:
        tool: Orchestrator | None = getattr(backend, "orchestrator", None)
        if tool is None:
            raise BackendError(f"runs of backend {target.backend} cannot be asked about from here")
        yield tool
    finally:
        backend.close()


def opened_for(row: RunRow, configuration: Configuration) -> contextlib.AbstractContextManager[Orchestrator]:
    """The tool that does a run."""
    target = configuration.target(row.target)
    return opened(target, configuration.store_address(target))


class ToolRun:
    """The records of such a run, in the bucket.

    Parameters
    ----------
    run
        Its id.
    store
        The store, as this machine follows it.
    """

    def __init__(self, run: str, store: Store) -> None:
        self.id = run
        self.store = store
        self._direct = open_direct(store.name, durability=store.durability, verify=store.verify)

    @classmethod
    def of(cls, row: RunRow, configuration: Configuration) -> ToolRun:
        """That of a row of the catalog."""
        return cls(row.id, open_store(row.store, **configuration.store_options))

    def row(self) -> RunRow:
        """The record of the run, as the bucket has it now."""
        self.store.bring_run(self.id)
        content = self.store.read_record(self.id, "run.json")
        assert content is not None  # whoever submitted the run has written it, or its first pod
        return from_json(RunRow, content)

    @property
    def order(self) -> Order:
        """What was exported."""
        return from_json(Order, bytes(self.store.read(self._digest)))

    @property
    def _digest(self) -> str:
        digest: str = self.row().source[ORCHESTRATOR]["order"]
        return digest

    @property
    def _step(self) -> OneStep:
        return OneStep(self.order, self._digest, self._direct, self.id)

    def reopen(self) -> None:
        """Record that it goes on."""
        self._step.begin(None)

    def stopped_by(self) -> str | None:
        """Who has asked for its end by ``upshift cancel``; None: nobody."""
        content = self._direct.read_record(self.id, _STOPPED)
        said = {} if content is None else json.loads(content)
        return f"{said['user']} on {said['host']}" if said else None

    def stop(self, tool: Orchestrator) -> None:
        """Have the tool end it; it is on record who asked for that."""
        who = {"user": user_name(), "host": socket.gethostname()}
        self._direct.write_record(self.id, _STOPPED, json.dumps(who).encode())
        tool.stop(self.id)

    def record_end(self, standing: Standing, tool: Orchestrator) -> None:
        """Record how it ended, where its own pods have not, or do not know why."""
        status = self.row().status
        if status in UNFINISHED or (standing.phase == FAILED and status == CANCELLED):
            self._step.end(self._lost(standing, tool))

    def _lost(self, standing: Standing, tool: Orchestrator) -> Failure | None:
        """What became of tasks that have left no result."""
        if standing.phase == CANCELLED:
            by = self.stopped_by()
            whose = f"{by} cancelled it" if by else standing.message or f"it was terminated in {tool.title}"
            return Failure(reason=CANCELLED, message=whose)
        if standing.phase != FAILED:
            return None
        said = [f"{name}: {text}" for name, text in _words(tool, self.id)]
        why = "; ".join(said) or standing.message or "its pod never started, or has gone without a result"
        return Failure(reason="infrastructure", message=f"{tool.title}: {why}")


def _words(tool: Orchestrator, run: str) -> Iterable[tuple[str, str]]:
    try:
        return tool.words(run)
    except NotNow:
        return ()


def deleted(tool: Orchestrator) -> Standing:
    """How a run stands that the tool has forgotten."""
    return Standing(phase=CANCELLED, message=f"it was deleted in {tool.title}")


def settle(rows: Iterable[RunRow], catalog: Catalog, configuration: Configuration) -> None:
    """Of runs that tools do and that are not over on record, record the end where the tool knows it."""
    away: set[str] = set()  # targets that are not asked a second time
    for row in rows:
        if not is_tools(row) or row.status not in UNFINISHED or row.target in away:
            continue
        try:
            run = ToolRun.of(row, configuration)
            with opened_for(row, configuration) as tool:
                try:
                    standing = tool.standing(row.id)
                except Gone:
                    if "at" not in row.source[ORCHESTRATOR]:  # it may be one of another Kubeflow
                        continue
                    standing = deleted(tool)
                if standing.over:
                    run.record_end(standing, tool)
                    bring_in(row.id, catalog, run.store)
        except (UpshiftError, NotNow):  # whoever looks next asks again
            away.add(row.target)


def cancel(row: RunRow, configuration: Configuration) -> str:
    """Have the tool end a run. Gives a sentence for the user."""
    with opened_for(row, configuration) as tool:
        try:
            ToolRun.of(row, configuration).stop(tool)
        except Gone:
            raise _unknown(row, tool) from None
        except NotNow as error:
            raise BackendError(str(error), fix="Try again when it answers.") from None
        return f"run {row.id} is being terminated in {tool.title}"


def _unknown(row: RunRow, tool: Orchestrator) -> BackendError:
    where = row.source[ORCHESTRATOR].get("at")
    return BackendError(
        f"{tool.title} knows no run {row.id}",
        why="It was deleted there." if where else "It was deleted there, or is one of another installation.",
        fix=f"See what is left of it: upshift show {row.id}",
    )


def confirm_known(row: RunRow, tool: Orchestrator) -> Standing:
    """How a run is in its tool, which has to know it and to answer. Raises ``BackendError``."""
    try:
        return tool.standing(row.id)
    except Gone:
        raise _unknown(row, tool) from None
    except NotNow as error:
        raise BackendError(str(error), fix="Try again when it answers.") from None
