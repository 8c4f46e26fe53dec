"""Writing to streams that may go away or know few characters. A run does not end because its reader has."""

from __future__ import annotations

from typing import TextIO


class Outlet:
    """A stream that goes silent when its reader is gone, instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.gone = False

    def write(self, text: str) -> None:
        """Write and flush ``text``; characters that the stream cannot show are escaped."""
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
