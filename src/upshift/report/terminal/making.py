"""How far an image is that is being made, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from upshift.model.settings.sizes import format_size
from upshift.report.human import duration
from upshift.report.terminal.layout import cut

if TYPE_CHECKING:
    from upshift.images.base import Progress
    from upshift.report.progress import ImageChange

_LONGEST = 160
"""Columns of what happens: a command of a build may be as long as a page; what fails says why at its end."""
_NAMED = 3
"""Steps that an image is called by."""


def image_of(steps: Sequence[str]) -> str:
    """What an image is called, by the steps that run in it: ``image of train, score and 2 more``."""
    more = len(steps) - _NAMED
    return f"image of {', '.join(steps[:_NAMED])}" + (f" and {more:,} more" if more > 0 else "")


def making(progress: Progress) -> str:
    """What happens now, with bytes where they are known: ``pushing · torch 2.1.0: 34 MB of 120 MB``."""
    from upshift.images.reference import shortened  # a run without images does not need it

    said = cut(shortened(progress.text.partition("\n")[0].strip()), _LONGEST)
    verb = _VERBS.get(progress.stage)
    if verb is not None:
        said = f"{verb} · {said}"
    if progress.total:
        return f"{said}: {format_size(progress.done or 0)} of {format_size(progress.total)}"
    return f"{said}: {format_size(progress.done)}" if progress.done else said


def ending(change: ImageChange) -> str:
    """A line for an image that is made, or could not be."""
    from upshift.images.reference import shortened

    took = "" if change.seconds is None else f" {_TOOK[change.status]} {duration(change.seconds)}"
    name = f": {shortened(change.name)}" if change.name else ""
    return f"{image_of(change.steps)}: {change.status}{took}{name}"


_VERBS = {
    "resolve": "resolving",
    "install": "installing",
    "pack": "packing",
    "push": "pushing",
    "pull": "pulling",
}
"""What a stage is called; a line of a build speaks for itself."""
_TOOK = {"made": "in", "failed": "after"}


_AGAIN = 12


class Pace:
    """Decides what is told of an image where each line stays: a new stage at once, the rest now and then."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._spoke: dict[tuple[str, ...], tuple[str, str, float]] = {}

    def due(self, change: ImageChange, now: float) -> bool:
        """Whether this is to be told at this time, in seconds of any clock."""
        stage = "" if change.progress is None else change.progress.stage
        words = "" if change.progress is None else making(change.progress)
        if change.steps in self._spoke:
            before, said, when = self._spoke[change.steps]
            pause = self._interval * (_AGAIN if words == said else 1)
            if before == stage and now - when < pause:
                return False
        self._spoke[change.steps] = (stage, words, now)
        return True
