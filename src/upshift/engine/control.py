"""How a running engine is told to stop: by Ctrl-C, by SIGTERM, or by another process through its socket.

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
from queue import SimpleQueue
from types import FrameType
from typing import Any

from upshift.engine.targets import AttemptState
from upshift.errors import EngineStopped, LeaseLost, StoreUnavailable, UpshiftError
from upshift.model.configuration import home, make_folder
from upshift.report.human import count, delay
from upshift.report.terminal.tally import image_of
from upshift.runs.lease import BEAT, Lease
from upshift.runtime import children


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


def leaving_at_sigterm(run: str, inbox: SimpleQueue[Any]) -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM, sent before a job's time limit, end a detached engine without ending its run."""
    told = EngineStopped(
        f"the engine of run {run} was asked to stop, and ends",
        why="Its job was cancelled, or has reached its time limit. Tasks on other machines continue.",
        fix=f"upshift resume {run} continues from the last completed step.",
    )
    return interrupts(lambda: inbox.put(partial(_raise, told)), signal.SIGTERM)


_PATIENCE = 10.0
_PAUSE = 0.5  # seconds, where a connection cannot be taken
"""Seconds in which an engine answers."""


def socket_path(run: str) -> Path:
    """The socket of the engine that owns a run."""
    return home() / "engines" / f"{run}.sock"


def ask(path: str, request: str) -> str | None:
    """What the engine that listens on a socket answers; None: there is none, or it cannot be reached."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            with children.address(Path(path)) as address:
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

    def __init__(self, lease: Lease, inbox: SimpleQueue[Any]) -> None:
        self._path = socket_path(lease.run)
        self._lease = lease
        self._inbox = inbox  # the engine's: what others ask for is told there
        self._thread: threading.Thread | None = None
        self._socket = children.private(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            make_folder(self._path.parent)
            self._path.unlink(missing_ok=True)
            with children.address(self._path) as address:
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
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it has hung up, or no more files may be open
            time.sleep(_PAUSE)
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_PATIENCE)
            with connection.makefile("rb") as requests:
                connection.sendall(self._answer(requests.readline(64).strip()) + b"\n")

    def _beat(self) -> bool:
        try:
            self._lease.renew()
        except LeaseLost as error:
            self._inbox.put(partial(_raise, error))
            return False
        if self._lease.cancel_asked:
            self._inbox.put(Command.CANCEL)
        return True

    def _answer(self, request: bytes) -> bytes:
        if request == b"cancel":
            self._inbox.put(Command.CANCEL)
            return b"cancelling"
        return b"pong" if request == b"ping" else b"unknown request"


def _raise(error: UpshiftError) -> None:
    raise error
