"""Where the processes of a task are, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from upshift.model.spec import Stack


def listed(ranks: Iterable[int]) -> str:
    """Ranks in words: ``rank 3``, ``ranks 0-2 and 5``."""
    known = sorted(set(ranks))
    parts: list[str] = []
    for _, group in groupby(enumerate(known), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        parts.extend([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))
    text = parts[-1] if len(parts) < 2 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"rank {text}" if len(known) == 1 else f"ranks {text}"


def whereabouts(stacks: Sequence[Stack]) -> str:
    """What each of them waits for and where, those at one place together; empty: nothing is known.

    First come those that do not say it.

    ``ranks 0-2 wait in all_reduce (train.py:14), rank 3 is at data.py:9``
    """
    places: dict[tuple[str | None, ...], list[int]] = {}
    for stack in sorted(stacks, key=lambda stack: (stack.silent is None, stack.rank)):
        place = (stack.silent, stack.waits, stack.where)
        if any(place):
            places.setdefault(place, []).append(stack.rank)
    return ", ".join(_told(ranks, *place) for place, ranks in places.items())


def _told(ranks: Sequence[int], silent: str | None, waits: str | None, where: str | None) -> str:
    one = len(ranks) == 1
    at = f" ({where})" if where else ""
    if silent is not None:
        return f"{listed(ranks)} {'does' if one else 'do'} not answer: {silent}{at}"
    if waits is None:
        return f"{listed(ranks)} {'is' if one else 'are'} at {where}"
    if waits == "sleep":
        return f"{listed(ranks)} {'sleeps' if one else 'sleep'}{at}"
    return (
        f"{listed(ranks)} {'waits' if one else 'wait'} {'in' if waits.isidentifier() else 'for'} {waits}{at}"
    )
