"""How a run is stopped: by Ctrl-C, or from another process with :func:`cancel`, also if its engine is gone.

The engine listens on a socket in its ``UPSHIFT_HOME/engines``, where a request is one line and the answer
another. ``ping`` is answered with ``pong``; ``cancel`` cancels the run. The lease of the run says where
that socket is; who cannot reach it, because the engine is on another machine, asks through the lease.
"""

from __future__ import annotations

import contextlib
import enum
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

import attrs

from upshift.backends.base import Ended, Job
from upshift.backends.registry import open_backend
from upshift.engine.ownerless import withdraw
from upshift.engine.recovery import is_at, take_over
from upshift.engine.targets import AttemptState, fence, rejoin
from upshift.engine.tasks import CANCELLED, PENDING, RUNNING
from upshift.errors import BackendError, LeaseLost, RunOwned, StoreError, StoreUnavailable, UsageError
from upshift.model.configuration import UNCONFIGURED, Configuration, Target
from upshift.model.home import home, make_folder
from upshift.model.spec.task import Failure, TaskId
from upshift.report.human import count, delay
from upshift.report.terminal.tally import image_of
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.detached import awaits_engine
from upshift.runs.catalog.endings import record_ending
from upshift.runs.catalog.rebuild import known_run, open_catalog
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runs.catalog.standing import ORCHESTRATOR
from upshift.runs.stores.lease import BEAT, Lease, ask_to_cancel, owner
from upshift.runtime import forks, sockets
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.backends.base import Backend, Event


class Command(enum.Enum):
    """What others put into the inbox, beside the events of backends and what is to be called."""

    CANCEL = "cancel"
    """Stop the run, as another process asks. The second one stops it without grace."""
    INTERRUPT = "interrupt"
    """The same, from whoever sits before the run: Ctrl-C."""


def stopping_line(
    jobs: list[AttemptState], command: Command, *, again: bool, images: Sequence[Sequence[str]] = ()
) -> str:
    """What becomes of these jobs, in a line for whoever asked for it."""
    if again:
        return f"killing {count(len(jobs), 'task')}"
    asked = "stopping" if command is Command.INTERRUPT else "stopping, as upshift cancel asks"
    running = [attempt for attempt in jobs if not attempt.waits]
    if not running:
        waiting = (
            f"; {count(len(jobs), 'task')} that waited for devices {_are(jobs)} not started" if jobs else ""
        )
        given_up = "".join(f"; {image_of(steps)} is given up" for steps in images)
        return f"{asked}: nothing runs{waiting}{given_up}"
    grace = max(attempt.spec.settings.grace_period for attempt in running)
    them = "it" if len(running) == 1 else "them"
    line = f"{asked}: {count(len(running), 'task')} {_are(running)} being ended (up to {delay(grace)})"
    return line + (f"; press Ctrl-C again to kill {them}" if command is Command.INTERRUPT else "")


def _are(jobs: list[AttemptState]) -> str:
    return "is" if len(jobs) == 1 else "are"


@contextlib.contextmanager
def interrupts(tell: Callable[[], None], number: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Call ``tell`` at each SIGINT, instead of raising ``KeyboardInterrupt`` wherever the engine is.

    ``tell`` runs between any two instructions, so it may only do what is safe there:
    ``SimpleQueue.put`` is. Outside the main thread nothing changes: Python delivers signals to that
    thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        tell()

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)


_PATIENCE = 10.0


def socket_path(run: str) -> Path:
    """The socket of the engine that owns a run."""
    return home() / "engines" / f"{run}.sock"


def ask(path: str, request: str) -> str | None:
    """What the engine that listens on a socket answers; None: there is none, or it cannot be reached."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            with sockets.address(Path(path)) as address:
                connection.connect(address)
            connection.sendall(request.encode() + b"\n")
            with connection.makefile("rb") as answers:
                return answers.readline().decode().strip() or None
    except OSError:
        return None


class Control:
    """Answers those who ask for a run's engine, and shows them that it lives.

    The socket takes connections as soon as this is made; they are answered from :meth:`start` on,
    which starts a thread. Until then the process can be forked safely.
    """

    def __init__(self, lease: Lease, cancel: Callable[[], None], lost: Callable[[LeaseLost], None]) -> None:
        self._path = socket_path(lease.run)
        self._lease = lease
        self._cancel = cancel  # cancels the run; this and the next one are called from another thread
        self._lost = lost
        self._thread: threading.Thread | None = None
        self._socket = forks.private(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            make_folder(self._path.parent)
            self._path.unlink(missing_ok=True)
            with sockets.address(self._path) as address:
                self._socket.bind(address)
            self._path.chmod(0o600)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise StoreUnavailable(
                f"Upshift cannot keep its state in {self._path.parent}",
                why=error.strerror,
                fix="Free the disk, or set UPSHIFT_HOME to a folder that can be written.",
            ) from None

    def start(self) -> None:
        """Answer from now on."""
        self._lease.start()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="upshift-control", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._path.unlink(missing_ok=True)
        if self._thread is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes poll
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        while True:
            told = ready.poll(BEAT * 1000)
            if any(event & select.POLLHUP for _, event in told):  # closed
                return
            if told:
                self._converse()
            if not self._beat():
                return

    def _converse(self) -> None:
        connection, _ = self._socket.accept()
        with connection, contextlib.suppress(ConnectionError, TimeoutError):
            connection.settimeout(_PATIENCE)
            with connection.makefile("rb") as requests:
                connection.sendall(self._answer(requests.readline(64).strip()) + b"\n")

    def _beat(self) -> bool:
        try:
            self._lease.renew()
        except LeaseLost as error:
            self._lost(error)
            return False
        if self._lease.cancel_asked:
            self._cancel()
        return True

    def _answer(self, request: bytes) -> bytes:
        if request == b"cancel":
            self._cancel()
            return b"cancelling"
        return b"pong" if request == b"ping" else b"unknown request"


_UNFINISHED = (PENDING, RUNNING)
_KILLED_AFTER = 60.0
"""Seconds in which a killed task has ended, and its backend has said so."""


def cancel(ref: str, configuration: Configuration) -> str:
    """Stop a run; what is done is kept. Gives a sentence for the user."""
    from upshift.runs.stores.publishing import published  # an engine cancels no run without one

    with contextlib.closing(open_catalog(configuration)) as catalog:
        row = known_run(ref, catalog, configuration)
        if ORCHESTRATOR in row.source and row.status in _UNFINISHED:
            raise UsageError(
                f"run {row.id} is one of {row.source[ORCHESTRATOR]['name']}, whose pods nobody here can stop",
                fix="Terminate it there.",
            )
        try:
            with Lease(row.id, row.store) as lease:
                store = open_store(row.store, **configuration.store_options)
                row = take_over(row.id, catalog, store)
                if row.status not in _UNFINISHED:
                    return _ended(row)
                with published(store, row.id, lease):
                    stopped = _cancel_ownerless(row, configuration, catalog)
                if awaits_engine(row):
                    withdraw(row, configuration)
                    return f"run {row.id} is cancelled: its engine had not begun"
                left = f", {stopped} of its tasks still ran and were stopped" if stopped else ""
                return f"run {row.id} is cancelled: no engine was at work on it any more{left}"
        except RunOwned:
            engine = owner(row.id, row.store)
            if "socket" not in engine:  # another cancel is at work, or the engine has just begun or ended
                raise
            if ask(engine["socket"], "cancel") is None:
                ask_to_cancel(row.id, row.store)
                return f"run {row.id} is asked to stop: its engine on {engine['host']} looks every {BEAT:g} s"
            return f"run {row.id} is being cancelled"
        except StoreUnavailable:  # of a home that can only be read
            if row.status in _UNFINISHED:
                raise
            return _ended(row)


def _ended(row: RunRow) -> str:
    return f"run {row.id} has ended already: {row.status}"


def _cancel_ownerless(row: RunRow, configuration: Configuration, catalog: Catalog) -> int:
    store = open_store(row.store, **configuration.store_options)
    attempts = _unfinished(row, catalog, store)
    stopped = _stop_jobs(row, attempts, store, configuration) if attempts else 0
    now = max(row.started, time.time())  # the clock may have been set back since
    ended = []
    for attempt in attempts:
        result = store.read_result(attempt.task, attempt.number)
        if result is None:
            fence(store, attempt.task, attempt.number)
        failure = result.failure if result else Failure(reason="cancelled", message="the run was cancelled")
        ended.append(
            attrs.evolve(
                attempt,
                status=result.status if result else CANCELLED,
                reason=failure.reason if failure else None,
                ended=result.ended if result else now,
                result=result,
                failure=None if result else failure,
            )
        )
    status = {attempt.task: attempt.status for attempt in ended}
    known = {task.task: task for task in catalog.tasks(row.id)}
    unknown = [TaskRow(task=task, status=PENDING) for task in status if task not in known]
    tasks = [
        attrs.evolve(task, status=status.get(task.task, CANCELLED))
        for task in (*known.values(), *unknown)
        if task.status in _UNFINISHED
    ]
    catalog.record(tasks, ended)
    record_ending(attrs.evolve(row, status=CANCELLED, ended=now), catalog, store)
    catalog.update_run(row.id, status=CANCELLED, ended=now)
    return stopped


def _unfinished(row: RunRow, catalog: Catalog, store: Store) -> list[AttemptRow]:
    """The attempts that may still run, also those that the engine was killed before it recorded."""
    recorded = catalog.attempts(row.id)
    known = {(attempt.task, attempt.number) for attempt in recorded}
    return [attempt for attempt in recorded if attempt.status in _UNFINISHED] + [
        AttemptRow(
            task=spec.task, number=spec.attempt, status=PENDING, target=spec.target, backend=spec.backend
        )
        for spec in store.unfinished(row.id)
        if spec.backend is not None and (spec.task, spec.attempt) not in known
    ]


def _stop_jobs(row: RunRow, attempts: list[AttemptRow], store: Store, configuration: Configuration) -> int:
    """Stop what still runs of these attempts, and wait for its end; returns how many these were."""
    inbox: SimpleQueue[tuple[str, Event]] = SimpleQueue()
    targets = _targets(row, attempts, configuration)
    at: dict[str, list[tuple[Job, str | None]]] = {}
    for attempt in attempts:
        target = targets.get((attempt.task, attempt.number))
        path = store.spec_path(attempt.task, attempt.number)
        with contextlib.suppress(StoreError):  # it was never submitted
            if target is not None:
                job = Job(spec=store.read_spec(path), spec_path=path)
                at.setdefault(target.name, []).append((job, attempt.handle))
    backends: list[Backend] = []
    grace = 0.0
    running: set[tuple[str, str]] = set()  # a handle is unique within a backend only
    try:
        for name, jobs in at.items():
            sink = partial(_tell, inbox, name)
            backend = open_backend(configuration.target(name), store=row.store, sink=sink)
            backends.append(backend)
            for (job, _), (handle, ended) in zip(jobs, rejoin(backend, jobs, store), strict=True):
                if handle is not None and ended is None:
                    running.add((name, handle))
                    backend.cancel([handle], grace=job.spec.settings.grace_period)
                    grace = max(grace, job.spec.settings.grace_period)
        stopped = len(running)
        deadline = time.monotonic() + grace + _KILLED_AFTER
        while running:
            try:
                name, event = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise BackendError(
                    f"{len(running)} of {stopped} tasks of run {row.id} were stopped and have not ended",
                    why=f"They were given {grace:g} seconds, and then killed, {_KILLED_AFTER:g} seconds ago.",
                    fix=f"See what they do (upshift show {row.id}), and run this again.",
                ) from None
            if isinstance(event, Ended):
                running.discard((name, event.handle))
        return stopped
    finally:
        for backend in backends:
            backend.close()


def _tell(inbox: SimpleQueue[tuple[str, Event]], target: str, event: Event) -> None:
    inbox.put((target, event))


def _targets(
    row: RunRow, attempts: list[AttemptRow], configuration: Configuration
) -> dict[tuple[TaskId, int], Target]:
    """The target that each attempt was given to; of one that ran in the engine itself there is none."""
    from upshift.backends.inline import InlineBackend  # other processes stop nothing that they lost

    own = [row.target, *configuration.targets, *UNCONFIGURED]
    found: dict[tuple[TaskId, int], Target] = {}
    for attempt in attempts:
        if attempt.backend == InlineBackend.name:
            continue
        names = [attempt.target] if attempt.target is not None else own
        target = next((t for t in map(configuration.target, names) if is_at(attempt, t)), None)
        if target is not None:
            found[attempt.task, attempt.number] = target
    return found
