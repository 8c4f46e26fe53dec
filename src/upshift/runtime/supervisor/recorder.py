"""What a step logs and shows, written down by its supervisor as it comes, so that it survives the step."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.model.spec import Card, MetricSummary, decode, to_json
from upshift.model.spec.telemetry import standing
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.masking import Mask
from upshift.runtime.messages import AFTER, BEFORE, BETWEEN, FARTHEST, LARGE
from upshift.runtime.storage import metrics
from upshift.runtime.storage.files import hand_on, write_all
from upshift.runtime.storage.metrics import Summaries, newest
from upshift.runtime.supervisor.logs import Loss, Losses

QUIET = 0.25
"""Seconds between two notices that metrics have new values."""
SHOWN = 6
"""Metrics that a notice tells of."""
_KNOWN = 1000
"""Sets of names whose header is remembered."""
_NUMBERS = (int, float)
_NONSENSE = (ValueError, RecursionError)
"""What parsing a text raises that is not valid JSON, or was not meant to be read."""


class Recorder:
    """Files of an attempt's metrics and cards, and what is known of them in short.

    When a file cannot be written (the disk is full), the step goes on, and what it says then is not in the
    file; of metrics the summaries know all the same.
    """

    def __init__(
        self,
        loop: Loop,  # for notices, which come at most every :data:`QUIET` seconds
        metrics_path: Path,
        cards_path: Path,
        *,
        origin: float,
        losses: Losses,
        mask: Mask | None,
        news: Callable[[float | None, Mapping[str, Any]], None],
    ) -> None:
        self.cards: list[Card] = []
        self._loop = loop
        self._mask = mask
        self._news = news
        self._origin = origin
        self._points = _File(metrics_path, losses.of("metrics", metrics_path))
        self._cards = _File(cards_path, losses.of("cards", cards_path))
        self._summaries = Summaries()
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._names: dict[int, list[str]] = {}
        self._heads = 0
        self._new_heads = b""  # which go with the next points, or those after them if there is no room
        self._first: int | None = None
        self._step: float | None = None
        self._pause: Timer | None = None
        self._stale = False

    def logged(self, lines: list[bytes], rank: int = 0) -> None:
        """Calls of ``upshift.log``, as they were sent; what is no such line is left out, and that alone."""
        points: list[bytes] = []
        for line in lines:
            names, _, point = line[len(BEFORE) : -len(AFTER)].partition(BETWEEN)
            at, _, rest = point[1:].partition(b",")
            with contextlib.suppress(*_NONSENSE):  # somebody else has written to the pipe
                number = self._numbers.get((rank, names))
                if number is None:
                    self._keep(points, rank)
                    points = []
                    number = self._head(names, rank)
                points.append(b"[%d,%.3f,%s" % (number, float(at) - self._origin, rest))
        self._keep(points, rank)
        self._tell()

    def shown(self, content: Mapping[str, Any], rank: int = 0) -> None:
        """A card, as it was sent."""
        card = decode(Card, content)
        card = attrs.evolve(card, at=round(card.at - self._origin, 3), rank=rank)
        self.cards = [*standing((*self.cards, card))]
        self._cards.append(to_json(card) + b"\n")

    def hand_on(self) -> None:
        """Flush what was written, so that other machines see it."""
        self._points.hand_on()
        self._cards.hand_on()

    def close(self) -> Mapping[str, MetricSummary]:
        """Nothing more comes. Gives the metrics in short, by name."""
        if self._pause is not None:
            self._pause.cancel()
        self._points.close()
        self._cards.close()
        return self._summaries.by_name()

    def _head(self, text: bytes, rank: int) -> int:
        """The number of a set of names that is new for a rank."""
        found = json.loads(text)
        if not isinstance(found, list) or set(map(type, found)) != {str}:
            raise ValueError(text)
        names = [self._mask.text(name) if self._mask else name for name in found]
        if len(self._numbers) == _KNOWN:
            self._numbers.clear()
            self._names.clear()
        self._new_heads += metrics.header(names, rank)
        number = self._numbers[rank, text] = self._heads
        self._names[number] = names
        self._heads += 1
        return number

    def _keep(self, points: list[bytes], rank: int) -> None:
        if not points:
            return
        parsed = self._parsed(points)
        if parsed is None:  # one of them at least is none
            for text in points if len(points) > 1 else ():
                self._keep([text], rank)
            return
        if self._mask is not None:
            for place, point in enumerate(parsed):
                if any(type(value) is str for value in point):
                    parsed[place] = [self._masked(value) for value in point]
                    points[place] = json.dumps(parsed[place], separators=(",", ":")).encode()
        if self._points.append(b"\n".join(points) + b"\n", after=self._new_heads):
            self._new_heads = b""
        self._summaries.add(parsed, self._names, rank=rank)
        if self._first is None or rank <= self._first:  # as with the values that are told
            self._first, self._step = rank, parsed[-1][2]
        self._stale = True

    def _parsed(self, points: list[bytes]) -> list[list[Any]] | None:
        """The points, if each text is one, with as many values as its header has names."""
        try:
            parsed: list[list[Any]] = json.loads(b"[" + b",".join(points) + b"]")
        except _NONSENSE:
            return None
        whole = len(parsed) == len(points) and all(map(self._is_point, parsed))
        return parsed if whole else None

    def _is_point(self, found: Any) -> bool:
        if type(found) is not list or len(found) < 4 or type(found[0]) is not int:
            return False
        step = found[2]
        return (
            len(found) == 3 + len(self._names.get(found[0], ()))
            and (step is None or (type(step) in _NUMBERS and -FARTHEST <= step <= FARTHEST))
            and all(map(_is_plain, found[3:]))
        )

    def _masked(self, value: Any) -> Any:
        return self._mask.text(value) if self._mask and type(value) is str else value

    def _tell(self) -> None:
        if self._pause is None and self._stale:
            self._stale = False
            self._pause = self._loop.after(QUIET, self._rested)
            self._news(self._step, newest(self._summaries.by_name(SHOWN)))

    def _rested(self) -> None:
        self._pause = None
        self._tell()


def _is_plain(value: Any) -> bool:
    """Whether this is a value as ``upshift.log`` sends it."""
    kind = type(value)
    if kind is float:
        return value - value == 0.0  # type: ignore[no-any-return]  # finite
    return kind is str or kind is bool or (kind is int and -LARGE < value < LARGE)


class _File:
    """Grows at its end, by whole lines; made when there is the first one."""

    def __init__(self, path: Path, loss: Loss) -> None:
        self._path = path
        self._loss = loss
        self._size = 0
        self._sent = 0
        self._descriptor: int | None = None

    def append(self, lines: bytes, *, after: bytes = b"") -> bool:
        """Write lines, after others that they need; False: neither can be written."""
        text = after + lines
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o644)
            if self._loss.missing:
                os.ftruncate(self._descriptor, self._size)  # half of a line may be there
            write_all(self._descriptor, memoryview(text))
        except OSError as error:
            self._loss.add(len(lines), error)
            return False
        self._size += len(text)
        self._loss.over()
        return True

    def hand_on(self) -> None:
        if self._descriptor is not None and self._sent != self._size:
            with self._noted():
                hand_on(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            with self._noted():
                os.close(self._descriptor)
            self._descriptor = None

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Count what an NFS client could not send as lost."""
        try:
            yield
        except OSError as error:
            self._loss.add(self._size - self._sent, error)
        self._sent = self._size
