"""Whether the processes of a task still get on, or wait for each other for ever.

While one of them prints, logs or saves something, they do. Once all have been silent for a while they are
looked at: where each is, and what CPU time it took. One that is at a place where it was not before gets on;
one that computes does, too, unless it waits for the others: NCCL waits with a busy CPU. Only where several
looks in a row found nothing of that do they hang::

    a sign of life ─────── look ─────── look ─────── look
                   │◀─────────── quiet ─────────────▶│ they hang

What this cannot see: a process that waits in ``.item()`` or ``.backward()`` for a GPU which itself waits for
others looks busy; PyTorch's own watchdog ends that one, after the timeout of its process group. And one that
runs round in a circle gets on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import attrs

LOOKS = 3
"""How often they are looked at before they count as hanging."""
BUSY = 0.01
"""Part of a CPU, at least, of a process that does something. To look ten times a second takes less."""
QUIET = 300.0
"""Seconds without a sign of life after which they hang, where nobody has said how many."""


@attrs.frozen(kw_only=True)
class Look:
    """One process, as it was found."""

    state: Hashable = None  # where it is: what compares equal is the same place; None: it did not say
    for_others: bool = False  # whether it waits for other processes of the task
    cpu_seconds: float | None = None  # what it and its children have taken up to now; None: not known


class Watchdog:
    """Decides; others look, and stop.

    Attributes
    ----------
    alive
        When there was a sign of life.
    hangs
        Whether they do.
    """

    def __init__(
        self,
        quiet: float,  # seconds without a sign of life after which they hang
        now: float,  # when they began, in seconds of any clock
    ) -> None:
        self.quiet = quiet
        self.hangs = False
        self.alive = now
        self._looks = 0
        self._last: Mapping[int, Look] = {}
        self._looked = now
        self._places: dict[int, set[Hashable]] = {}

    @property
    def due(self) -> float:
        """When to look next."""
        if self.hangs:
            return self._looked + self.quiet
        return self.alive + self.quiet * min(self._looks + 1, LOOKS) / LOOKS

    def lived(self, at: float) -> None:
        """There was a sign of life."""
        if at > self.alive:
            self._begin(at)
            self._places = {}

    def looked(self, at: float, looks: Mapping[int, Look]) -> None:
        """Take what was seen of all processes that still run, by rank."""
        if self._last and any(self._gets_on(at, rank, look) for rank, look in looks.items()):
            self._begin(at)
        self._looks += 1
        self._last, self._looked = looks, at
        for rank, look in looks.items():
            if look.state is not None:
                self._places.setdefault(rank, set()).add(look.state)
        self.hangs = bool(looks) and self._looks >= LOOKS and at >= self.alive + self.quiet

    def _begin(self, at: float) -> None:
        self.alive, self._looks, self._last, self.hangs = at, 0, {}, False

    def _gets_on(self, at: float, rank: int, look: Look) -> bool:
        before = self._last.get(rank)
        if before is None:
            return True
        places = self._places.get(rank)
        if places and look.state is not None and look.state not in places:
            return True
        if look.for_others:
            return False
        if look.cpu_seconds is None or before.cpu_seconds is None:
            return True  # nobody can tell
        return look.cpu_seconds - before.cpu_seconds >= BUSY * (at - self._looked)
