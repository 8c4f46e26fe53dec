"""One image while ``upshift image build`` makes it: a line in place on a terminal, lines elsewhere."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from upshift.images.base import NOTE
from upshift.images.reference import shortened
from upshift.report.human import elapsed
from upshift.report.progress import ImageChange
from upshift.report.terminal.images import GLYPHS, finding_lines
from upshift.report.terminal.layout import Page, cut, wants_colour
from upshift.report.terminal.streams import Outlet, cleaned, shows
from upshift.report.terminal.tally import Clock, Pace, ending, image_of, making

if TYPE_CHECKING:
    from upshift.images.base import Finding, Image, Progress

INTERVAL = 5.0
"""Seconds, at least, between two lines on one stage, where lines stay."""
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f]")


class Building:
    """What is said of one image; a context, which leaves the terminal in order."""

    def __init__(self, stream: TextIO, steps: Sequence[str], clock: Clock = time.monotonic) -> None:
        self._outlet = Outlet(stream)
        self._steps = tuple(steps)
        self._clock = clock
        self._began = clock()
        self._terminal = stream.isatty()
        self._page = Page(self._width(), wants_colour(stream))
        self._glyphs = shows(stream, GLYPHS)
        self._pace = Pace(INTERVAL)
        self._now = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="image display", daemon=True)

    def __enter__(self) -> Building:
        if self._terminal:
            self._ticking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if error is not None:
            self._line(ending(self._change("failed")))

    def say(self, text: str) -> None:
        """A line on the image."""
        self._line(f"{image_of(self._steps)}: {text}")

    def found(self, finding: Finding) -> None:
        """What was found of it, but for what is only worth knowing: that is for ``show``."""
        if finding.severity != NOTE:
            self._line("\n".join(finding_lines(finding, self._page, glyphs=self._glyphs)))

    def tell(self, progress: Progress) -> None:
        """Something happens; from any thread."""
        if self._terminal:
            self._now = _CONTROLS.sub("", making(progress))
            self._draw()
            return
        with self._lock:
            due = self._pace.due(self._change("making", progress), self._clock())
        if due:
            self.say(making(progress))

    def made(self, image: Image, *, was_there: bool) -> Image:
        """The image is complete: built now, or found."""
        self._stop()
        if was_there:
            self.say(f"is there: {shortened(image.name or image.reference)}")
        else:
            self._line(ending(self._change("made", name=image.name)))
        return image

    def _change(self, status: str, progress: Progress | None = None, name: str | None = None) -> ImageChange:
        return ImageChange(
            steps=self._steps,
            status=status,
            progress=progress,
            name=name,
            seconds=self._clock() - self._began,
        )

    def _line(self, text: str) -> None:
        with self._lock:
            if self._terminal:
                self._outlet.draw("\r\x1b[K")
            self._outlet.write(f"{text}\n")

    def _tick(self) -> None:
        while not self._over.wait(1.0):  # the line shows seconds that pass
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if not self._over.is_set():
                line = f"{image_of(self._steps)} · {elapsed(self._clock() - self._began)} · {self._now}"
                line = cut(cleaned(line).removesuffix(" · "), self._width() - 1)
                self._outlet.draw(f"\r\x1b[K{line}")

    def _stop(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        if self._terminal:
            self._ticking.join()
            with self._lock:
                self._outlet.draw("\r\x1b[K")

    def _width(self) -> int:
        return shutil.get_terminal_size((100, 0)).columns
