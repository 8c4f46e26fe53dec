"""Ctrl-C as an event among others, so that it never cuts the engine's own work in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


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
