"""Progress bars on their way to a log: lines that are drawn again and again are kept once in a while.

A terminal shows of such a line only what was drawn last. A log that kept every frame would grow
without bound, and one that kept what moves the cursor could not be read line by line. So what may
still be drawn again is held as *rows*, as a terminal has it, and the log gets

* lines, once nothing can change them any more,
* now and then a frame of the rows as they are, for those who watch.

A frame begins at a carriage return, as on a terminal; the last one counts (:func:`last_frames`). Where
several lines are drawn at once, as by nested bars, a frame of a line that has not ended holds all of them.

Text without carriage returns and cursor movements passes as it is, and at once. So what moves up into a
line that ended in an earlier write finds it gone already: the new text is one line more.
"""

from __future__ import annotations

import re

ROW = b" \x1f "
"""Between the lines that one frame holds: ASCII's unit separator, which a terminal does not show."""
ROWS = 64
"""Rows that may be drawn again; what is further up has ended."""
_LONGEST = 1 << 16
"""Bytes of a line after which its beginning is let go of: a bar is not that long."""
_MOVES = re.compile(rb"\r|\x1b\[[0-9;]{0,16}[ABEFGJK]")
_TOKEN = re.compile(rb"\r?\n|\r|\x1b\[([0-9;]{0,16})([ABEFGJK])|[^\r\n\x1b]+|\x1b")
_BEGUN = re.compile(rb"\x1b(?:\[[0-9;]{0,16})?\Z")
"""What may become a movement when more is read."""


def last_frames(text: bytes) -> bytes:
    """Of each line of a log the last frame; ``\\r\\n`` is a line end."""
    if b"\r" not in text:
        return text
    return b"\n".join(
        [line if b"\r" not in line else line.rstrip(b"\r").rpartition(b"\r")[2] for line in text.split(b"\n")]
    )


class ProgressBars:
    """Turns what is printed into what the log gets.

    Of each row above the cursor it is settled that it has ended when the cursor has been below it for
    a whole interval: who draws several rows goes down and comes back at once.
    """

    def __init__(self) -> None:
        self._rows: list[bytes | None] = [b""]  # None: it is in the log already
        self._at = 0
        self._returned = False  # the current row has been drawn, and is drawn again
        self._fresh = True  # the cursor is in the first column: what comes next replaces the row
        self._rested = 0  # where the cursor was when settle() was called, or came back to since
        self._begun = b""
        self._shown = b""  # the last frame of the log's last line
        self._open = False  # that line has a beginning

    def feed(self, data: bytes) -> bytes:
        """What the log gets of this at once."""
        if self._begun:
            data, self._begun = self._begun + data, b""
        if b"\x1b" in data[-18:] and (begun := _BEGUN.search(data, max(len(data) - 18, 0))):
            data, self._begun = data[: begun.start()], begun[0]
        if not self._plain:
            return self._draw(data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if (b"\r" in data or b"\x1b" in data) and (move := _MOVES.search(data)):
            before = data.rfind(b"\n", 0, move.start()) + 1
            return self._pass(data[:before]) + self._draw(data[before:])
        return self._pass(data)

    @property
    def unsettled(self) -> bool:
        """Whether the log lacks something that is held here."""
        return self._at > 0 or self._frame() != self._shown

    def frame(self) -> bytes:
        """What the log gets so that its last line says what the rows say now."""
        return self._show(self._frame())

    def settle(self) -> bytes:
        """What has ended; to be called at intervals while there is something unsettled."""
        out = self._end_rows(min(self._rested, self._at))
        self._rested = self._at
        return out

    def end(self) -> bytes:
        """What is left, when nothing will be printed any more."""
        out = b""
        if self._begun:
            begun, self._begun = self._begun, b""
            out = self._pass(begun) if self._plain else self._draw(begun)
        drawn = len(self._rows)
        while drawn > 1 and not (self._rows[drawn - 1] or b"").strip():
            drawn -= 1
        if drawn < len(self._rows):
            return out + self._end_rows(drawn) + self._show(b"")  # what was erased since it was shown
        return out + self._end_rows(drawn - 1) + self.frame()

    @property
    def _plain(self) -> bool:
        return len(self._rows) == 1 and not self._returned

    def _pass(self, data: bytes) -> bytes:
        """Text that nothing draws over."""
        _, newline, rest = data.rpartition(b"\n")
        row = rest if newline else (self._rows[0] or b"") + rest
        if self._shown != self._rows[0]:  # the row was held back while others were drawn
            data = self._show(self._rows[0] or b"") + data
        self._open = bool(row) or (self._open and not newline)
        self._rows[0] = self._shown = row if len(row) <= _LONGEST else b""
        self._fresh = not row
        return data

    def _draw(self, data: bytes) -> bytes:
        out = b""
        for token in _TOKEN.finditer(data):
            text = token[0]
            kind = token[2]
            if kind is not None:
                self._move(kind, int(token[1].rpartition(b";")[2] or b"0"))
            elif text == b"\r":
                self._return()
            elif text in (b"\n", b"\r\n"):
                out += self._down()
            else:
                row = text if self._fresh else (self._rows[self._at] or b"") + text
                self._rows[self._at] = row
                self._fresh = False
                if len(row) > _LONGEST:
                    out += self._let_go()
        return out

    def _return(self) -> None:
        self._fresh = self._returned = True

    def _down(self) -> bytes:
        """Move down one line, as a line feed does."""
        was_plain = self._plain
        self._at += 1
        if self._at < len(self._rows):
            self._return()
            return b""
        self._rows.append(b"")
        self._fresh, self._returned = True, False
        if was_plain:
            return self._end_rows(1)
        return self._end_rows(len(self._rows) - ROWS)

    def _move(self, kind: bytes, number: int) -> None:
        if kind in b"AF":
            self._up(max(number, 1))
        elif kind in b"BE":
            self._at = min(self._at + max(number, 1), len(self._rows) - 1)
        if kind in b"JK":
            if kind == b"J":
                del self._rows[self._at + 1 :]
            if self._fresh or number == 2:
                self._rows[self._at] = b""
        self._returned = True
        if kind in b"EF" or (kind == b"G" and number <= 1):
            self._fresh = True

    def _up(self, number: int) -> None:
        missing = min(number - self._at, ROWS - len(self._rows))
        if missing > 0:
            self._rows[:0] = [None] * missing
            self._at += missing
            self._rested += missing
        self._at = max(self._at - number, 0)
        self._rested = min(self._rested, self._at)

    def _frame(self) -> bytes:
        if len(self._rows) == 1:
            return self._rows[0] or b""
        return ROW.join([row.strip() for row in self._rows if row is not None and row.strip()])

    def _show(self, frame: bytes) -> bytes:
        """Make this the last line of the log."""
        shown, self._shown = self._shown, frame
        if frame == shown:
            return b""
        if self._open and (not shown or not frame.startswith(shown)):
            return b"\r" + (frame or b" ")
        self._open = True
        return frame[len(shown) :]

    def _end_rows(self, number: int) -> bytes:
        """The first rows have ended."""
        if number <= 0:
            return b""
        out = b""
        for row in self._rows[:number]:
            if row is not None:
                out += self._show(row) + b"\n"
                self._shown, self._open = b"", False
        del self._rows[:number]
        self._at -= number
        self._rested = max(self._rested - number, 0)
        return out

    def _let_go(self) -> bytes:
        """The current row is too long to be drawn again: it goes on as plain text."""
        del self._rows[self._at + 1 :]
        out = self._end_rows(self._at) + self.frame()
        self._rows, self._shown = [b""], b""
        self._fresh, self._returned = True, False
        return out
