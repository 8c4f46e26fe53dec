"""How another process reaches the engine of a run: a socket in ``UPSHIFT_HOME/engines``.

A request is one line, the answer another. ``ping`` is answered with ``pong``; ``cancel`` cancels the run.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from upshift.errors import StoreUnavailable
from upshift.model.home import home, make_folder
from upshift.runtime import forks, sockets

_PATIENCE = 10.0


def socket_path(run: str) -> Path:
    """The socket of the engine that owns a run."""
    return home() / "engines" / f"{run}.sock"


def ask(run: str, request: str) -> str | None:
    """What the engine of a run answers; None: there is none.

    Parameters
    ----------
    run
        Id of the run.
    request
        ``"ping"`` or ``"cancel"``.
    """
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

    Parameters
    ----------
    run
        Id of the run, whose lease this process has.
    cancel
        Cancels the run; called from another thread.
    """

    def __init__(self, run: str, cancel: Callable[[], None]) -> None:
        self._path = socket_path(run)
        self._cancel = cancel
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
