"""A page that takes the whole terminal and is drawn again each second, until somebody has seen enough."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from upshift.report.terminal.layout import Page, wants_colour
from upshift.report.terminal.streams import cleaned

INTERVAL = 1.0
"""Seconds between two drawings."""
_QUIT = b"qQ\x03\x04"

Draw = Callable[[Page], Sequence[str]]


def show(draw: Draw) -> None:
    """Draw what ``draw`` gives, until q, Ctrl-C or the end of the terminal; then leave it as it was."""
    with _terminal():
        while True:
            width, height = shutil.get_terminal_size((80, 24))
            found = draw(Page(width, wants_colour(sys.stdout)))
            lines = (f"{cleaned(line)}\x1b[K\r\n" for line in _fitting(found, height - 1))
            _write("\x1b[H" + "".join(lines) + "\x1b[J")
            if _asked_to_end():
                return


def _fitting(lines: Sequence[str], height: int) -> Sequence[str]:
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], f"… {len(lines) - height + 1:,} more lines: upshift top --once"]


def _asked_to_end() -> bool:
    """Wait until it is time to draw again; True: somebody has seen enough."""
    if not sys.stdin.isatty():
        select.select([], [], [], INTERVAL)
        return False
    if not select.select([sys.stdin], [], [], INTERVAL)[0]:
        return False
    typed = os.read(sys.stdin.fileno(), 64)
    return not typed or any(key in _QUIT for key in typed)


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """A screen of its own without a cursor, and keys as they are pressed."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keyboard) if keyboard is not None else None
    handlers = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        _write("\x1b[?1049h\x1b[?25l")
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone
            _write("\x1b[?25h\x1b[?1049l")
        if keyboard is not None and before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
