"""How a run is reached while it runs: Ctrl-C, and a socket in ``UPSHIFT_HOME/engines`` for other processes.

On the socket a request is one line, the answer another. ``ping`` is answered with ``pong``; ``cancel``
cancels the run.
"""

from __future__ import annotations

import contextlib
import enum
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from upshift.engine.attempts import Attempt
from upshift.errors import StoreUnavailable
from upshift.model.home import home, make_folder
from upshift.report.human import count, delay
from upshift.report.terminal.tally import image_of
from upshift.runtime import forks, sockets


class Command(enum.Enum):
    """What others put into the inbox, beside the events of backends and what is to be called."""

    CANCEL = "cancel"
    """Stop the run, as another process asks. The second one stops it without grace."""
    INTERRUPT = "interrupt"
    """The same, from whoever sits before the run: Ctrl-C."""


def stopping_line(
    jobs: list[Attempt], command: Command, *, again: bool, images: Sequence[Sequence[str]] = ()
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


def _are(jobs: list[Attempt]) -> str:
    return "is" if len(jobs) == 1 else "are"


@contextlib.contextmanager
def interrupts(tell: Callable[[], None]) -> Iterator[None]:
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

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


_PATIENCE = 10.0


def socket_path(run: str) -> Path:
    """The socket of the engine that owns a run."""
    return home() / "engines" / f"{run}.sock"


def ask(run: str, request: str) -> str | None:
    """What the engine of a run answers; None: there is none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            with sockets.address(socket_path(run)) as address:
                connection.connect(address)
            connection.sendall(request.encode() + b"\n")
            with connection.makefile("rb") as answers:
                return answers.readline().decode().strip() or None
    except (FileNotFoundError, ConnectionError, TimeoutError):
        return None


class Control:
    """Answers those who ask for a run's engine.

    The socket takes connections as soon as this is made; they are answered from :meth:`start` on,
    which starts a thread. Until then the process can be forked safely.
    """

    def __init__(self, run: str, cancel: Callable[[], None]) -> None:
        self._path = socket_path(run)
        self._cancel = cancel  # cancels the run; called from another thread
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
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="upshift-control", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._path.unlink(missing_ok=True)
        if self._thread is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(ConnectionError, TimeoutError):
                connection.settimeout(_PATIENCE)
                with connection.makefile("rb") as requests:
                    connection.sendall(self._answer(requests.readline(64).strip()) + b"\n")

    def _answer(self, request: bytes) -> bytes:
        if request == b"cancel":
            self._cancel()
            return b"cancelling"
        return b"pong" if request == b"ping" else b"unknown request"
