"""The text of a log: lines, and of a line that is drawn again and again (a progress bar) its frames.

A frame begins at a carriage return, as on a terminal; the last one counts. Where several lines are
drawn at once, as by nested bars, a frame of a line that has not ended holds all of them.
"""

from __future__ import annotations

ROW = b" \x1f "
"""Between the lines that one frame holds: ASCII's unit separator, which a terminal does not show."""


def last_frames(text: bytes) -> bytes:
    """Of each line of ``text`` the last frame; ``\\r\\n`` is a line end."""
    if b"\r" not in text:
        return text
    return b"\n".join(
        [line if b"\r" not in line else line.rstrip(b"\r").rpartition(b"\r")[2] for line in text.split(b"\n")]
    )
