"""Writing to streams that may be closed or lack characters, without ending the run."""

from __future__ import annotations

import re
from typing import TextIO

_COLOURS = r"\x1b\[[0-9;:]*m"
_COMMANDS = (
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # of a terminal: to move, to clear, to switch modes
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # with a text: titles, links, the clipboard
    r"|\x1b[^\n]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_CONTROLS = re.compile(f"({_COLOURS})|{_COMMANDS}")  # ECMA-48, and xterm's control sequences


def cleaned(text: str) -> str:
    """A text without what would make a terminal do anything but show it, in its colours."""
    return _CONTROLS.sub(lambda found: found[1] or "", text)


class Outlet:
    """A stream that goes silent when its reader is gone, instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.gone = False
        self._terminal = stream.isatty()

    def write(self, text: str) -> None:
        """Write and flush ``text``, :func:`cleaned` for a terminal."""
        self.draw(cleaned(text) if self._terminal else text)

    def draw(self, text: str) -> None:
        """Write text with control sequences; characters that the stream lacks are escaped."""
        if self.gone:
            return
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            self.stream.flush()
        except (OSError, ValueError):  # the pipe is broken, the terminal hung up, the file is closed
            self.gone = True


def shows(stream: TextIO, characters: str) -> bool:
    """Whether the encoding of ``stream`` has these characters."""
    try:
        characters.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def label(task: str, *, screen: bool) -> str:
    """What a line that a task printed begins with."""
    return f"{task} │ " if screen else f"[{task}] "
