"""What a running step tells of itself, beside its result: metrics, cards, checkpoints, what it sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

import attrs

MetricValue = Union[bool, int, float, str]


@attrs.frozen(kw_only=True)
class MetricSummary:
    """A metric over an attempt, in short. Plain JSON: infinities and what is no number are texts there.

    Parameters
    ----------
    last
        The newest value; ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` are numbers.
    step
        The caller's own count (of batches, of epochs) with it; None: not said.
    min, max
        Of the finite numbers; None: there are none.
    count
        Number of values.
    rank, ranks
        Of several processes, whose values these are, and how many have logged such. It is the first one that
        has: rank 0, where that is among them.
    """

    last: MetricValue
    step: float | None = None
    min: float | None = None
    max: float | None = None
    count: int = 1
    rank: int = 0
    ranks: int = 1


@attrs.frozen(kw_only=True)
class Card:
    """One thing to look at: a picture, a table, a text.

    Parameters
    ----------
    title
        For people.
    media
        Media type of the content: ``"image/png"``, ``"image/jpeg"``, ``"image/svg+xml"``, ``"text/html"``,
        ``"text/markdown"``, ``"application/vnd.plotly+json"`` …
    digest, bytes
        The content, a blob; text is UTF-8.
    script
        Digest of a blob with the JavaScript that draws it, one for all cards that need the same.
    at
        Seconds since the attempt started.
    rank
        Which of several processes shows it.
    id
        What it is shown under, apart from others; None: nothing of its own.
    slot
        A later card in the same slot stands for this one, and one without media takes it away; None: in none.
    """

    title: str
    media: str
    digest: str
    bytes: int
    script: str | None = None
    at: float = 0.0
    rank: int = 0
    id: str | None = None
    slot: str | None = None

    @property
    def label(self) -> str:
        """Its title, and what it is shown under."""
        return self.title if self.id is None else f"{self.id}: {self.title}"


def standing(cards: Iterable[Card]) -> tuple[Card, ...]:
    """The cards that no later one stands for, each where the first of its slot was."""
    found: dict[object, Card] = {}
    for number, card in enumerate(cards):
        found[(card.rank, card.slot) if card.slot is not None else (None, number)] = card
    return tuple(card for card in found.values() if card.media)


@attrs.frozen(kw_only=True)
class Framework:
    """What a framework sees of the accelerators, in the step's own process.

    Parameters
    ----------
    name, version
        ``"torch"``, ``"2.13.0+cpu"``.
    built_for
        What it was compiled for: ``"cuda 12.6"``, ``"rocm 6.2"``; None: for no accelerator.
    devices
        How many it sees; None: it could not say.
    architectures
        Compute capabilities that it has kernels for: ``"sm_90"``.
    problem
        Its own words, where asking it failed.
    """

    name: str
    version: str
    built_for: str | None = None
    devices: int | None = None
    architectures: tuple[str, ...] = ()
    problem: str | None = None


@attrs.frozen(kw_only=True)
class Gap:
    """Something of an attempt that is not on record, because a file could not be written.

    Parameters
    ----------
    what
        ``"log"``, ``"metrics"``, ``"cards"`` or ``"samples"`` (of what it used).
    path
        The file.
    why
        In the words of the system.
    since, until
        Seconds after the attempt started: from when, and up to when. None: the file ends there.
    bytes
        How many are missing; None: not known.
    rank
        Whose log it is, where each of several processes has one; None: that of all of them.
    """

    what: str
    path: str
    why: str
    since: float
    until: float | None = None
    bytes: int | None = None
    rank: int | None = None

    @property
    def name(self) -> str:
        """The file in words."""
        if self.what == "log":
            return "the log" if self.rank is None else f"the log of rank {self.rank}"
        return f"the file of {self.what}"


@attrs.frozen(kw_only=True)
class Checkpoints:
    """What an attempt has had of checkpoints: all of it, or what a step tells its supervisor at a time.

    A checkpoint's name is ``ATTEMPT.NUMBER``.

    Parameters
    ----------
    resumed_from
        The one that the step went on from; None: it began from the start.
    saved
        How many were completed.
    newest, bytes
        The last of them, and its size.
    """

    resumed_from: str | None = None
    saved: int = 0
    newest: str | None = None
    bytes: int = 0

    def and_then(self, news: Checkpoints) -> Checkpoints:
        """With what has happened since; several processes may say that the same one is there."""
        if news.newest is not None and self.newest is not None and _order(news.newest) <= _order(self.newest):
            return self
        return Checkpoints(
            resumed_from=self.resumed_from or news.resumed_from,
            saved=self.saved + news.saved,
            newest=news.newest or self.newest,
            bytes=news.bytes if news.newest else self.bytes,
        )


def _order(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))
