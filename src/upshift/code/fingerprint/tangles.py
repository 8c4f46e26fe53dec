"""The digest of values whose parts refer to each other too often to be written out as a tree.

A part that others share is written out with each of them, so that sixty tables of a database that know each
other would never come to an end. Here each object is looked at once, by itself, and what it refers to is left
open. Objects that lead back to each other are then told apart by colours: the colour of an object is the
digest of its own text with the colours of what it refers to, in rounds, until no more of them differ (the
refinement of Weisfeiler and Leman). The digest of an object has its colour and those of all objects that lead
back to it, so it is the same wherever one begins, and in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import attrs

from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.values import Seen, Writer, type_name

ROUNDS = 100
"""At most. Where colours still part then, along a chain of equal objects, the digest is not complete."""


@attrs.define(eq=False)
class _Object:
    """One object by itself.

    Parameters
    ----------
    value
        The object, which is kept: others shall not get its ``id``.
    text
        What is written of it: texts, ``id`` of others, and sets of such.
    references
        ``id`` of the objects that it refers to.
    code
        Functions, classes and modules in it.
    complete, hides
        As in :class:`Seen`.
    digest
        Of it and all that it leads to, once that is known.
    """

    value: Any
    text: list[Any]
    references: list[int]
    code: list[Any]
    complete: bool
    hides: bool
    digest: str | None = None


class Tangle:
    """Objects that were looked at; those that several values lead to are looked at once.

    Parameters
    ----------
    is_own
        Whether a method was written in the project.
    """

    def __init__(self, is_own: Callable[[FunctionType], bool]) -> None:
        self._is_own = is_own
        self._objects: dict[int, _Object] = {}

    def seen(self, value: object, follow: Callable[[Any], str]) -> Seen:
        """What a value looks like; see :func:`~upshift.code.fingerprint.values.value_digest`."""
        self._look(value, follow)
        for circle in self._circles(id(value)):
            self._digest(circle)
        reached = [self._objects[one] for one in self._reached(id(value))]
        for code in {id(code): code for each in reached for code in each.code}.values():
            follow(code)
        digest = self._objects[id(value)].digest
        assert digest is not None
        complete = all(each.complete for each in reached)
        return Seen(digest, complete=complete, hides=any(each.hides for each in reached))

    def _look(self, value: object, follow: Callable[[Any], str]) -> None:
        pending = [value]
        while pending:
            one = pending.pop()
            if id(one) in self._objects:
                continue
            look = _Look(follow, self._is_own)
            try:
                look.write_parts(one)
            except RecursionError:  # of its own way to say what it is
                look = _Look(follow, self._is_own)
                look.tokens = [type_name(one)]
                look.complete, look.hides = False, True
            self._objects[id(one)] = _Object(
                one, look.tokens, [id(part) for part in look.parts], look.code, look.complete, look.hides
            )
            pending += look.parts

    def _reached(self, start: int) -> Iterable[int]:
        found = {start: None}
        pending = [start]
        while pending:
            for below in self._objects[pending.pop()].references:
                if below not in found:
                    found[below] = None
                    pending.append(below)
        return found

    def _circles(self, start: int) -> Iterator[list[int]]:
        """Objects without a digest that lead back to each other, those that others lead to first (Tarjan)."""
        number: dict[int, int] = {}
        lowest: dict[int, int] = {}
        path: list[int] = []
        on_path: set[int] = set()
        pending: list[tuple[int, Iterator[int]]] = []

        def enter(one: int) -> None:
            number[one] = lowest[one] = len(number)
            path.append(one)
            on_path.add(one)
            pending.append((one, iter(self._objects[one].references)))

        if self._objects[start].digest is None:
            enter(start)
        while pending:
            one, below = pending[-1]
            for other in below:
                if other in on_path:
                    lowest[one] = min(lowest[one], number[other])
                elif other not in number and self._objects[other].digest is None:
                    enter(other)
                    break
            else:
                pending.pop()
                if pending:
                    above = pending[-1][0]
                    lowest[above] = min(lowest[above], lowest[one])
                if lowest[one] == number[one]:
                    circle = [path.pop()]
                    while circle[-1] != one:
                        circle.append(path.pop())
                    on_path.difference_update(circle)
                    yield circle

    def _digest(self, circle: list[int]) -> None:
        """Give objects that lead back to each other their digests."""
        if len(circle) == 1 and circle[0] not in self._objects[circle[0]].references:
            alone = self._objects[circle[0]]
            alone.digest = combined(self._text(alone.text, {}))
            return
        colours = dict.fromkeys(circle, "")
        different = 0
        for _ in range(ROUNDS):
            colours = {one: combined(self._text(self._objects[one].text, colours)) for one in circle}
            if len({*colours.values()}) == different:
                break
            different = len({*colours.values()})
        else:
            for one in circle:
                self._objects[one].complete, self._objects[one].hides = False, True
        everything = combined(sorted(colours.values()))
        for one in circle:
            self._objects[one].digest = combined([colours[one], everything])

    def _text(self, text: list[Any], colours: dict[int, str]) -> Iterator[str]:
        for part in text:
            if type(part) is str:
                yield part
            elif type(part) is int:
                yield colours[part] if part in colours else str(self._objects[part].digest)
            else:
                name, items = part
                yield f"{name} {sorted(combined(self._text(item, colours)) for item in items)}"


class _Look(Writer):
    """Writes out one object, and leaves open what it refers to."""

    def __init__(self, follow: Callable[[Any], str], is_own: Callable[[FunctionType], bool]) -> None:
        self.parts: list[Any] = []
        self.code: list[Any] = []

        def note(code: Any) -> str:
            self.code.append(code)
            return follow(code)

        super().__init__(note, is_own)

    def part(self, kind: type, value: Any) -> None:
        self.parts.append(value)
        self.tokens.append(id(value))

    def write_set(self, name: str, items: list[list[Any]]) -> None:
        self.tokens.append((name, items))
