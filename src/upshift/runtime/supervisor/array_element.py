"""One element of a job array: its own task, and then those of elements that have not started.

Beside the specs of an array is a list of them (:mod:`upshift.runtime.storage.records`). Each task is
claimed by whoever begins it, so that many short tasks share the start of an interpreter, and a long one has a
job of its own: an element goes on for a moment only, and only where the step before has completed. An element
whose task has been taken by another one leaves, so that the engine may withdraw it at any time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from upshift.runtime.storage.records import unpack_array

if TYPE_CHECKING:  # an element that has nothing to do leaves before it is imported
    from upshift.runtime.storage.store import Store

SPEC = ".spec.json"
_SPREAD = 0.6180339887
"""Of the tasks that are free an element takes the one at this multiple of its number, without the whole part.
Multiples of the golden ratio lie far from each other, so that elements rarely want the same one."""
_LOOKING = 32
"""Elements of an array in a bucket that look for further tasks, at most: so many share the rest."""


class Element:
    """The element of this number, of the array whose list is at a path relative to the store.

    In a folder, it looks before each further task, and takes any that is free.

    In a bucket, a look at what is free is a request, and so is a claim that is lost. There only the first
    elements look, once each, and take their share of what is free: those that are left have elements of
    their own, which begin as others leave. No two that look may take the same task, so a claim is lost to
    the task's own element only. That bounds the requests, whoever comes first. Of N tasks, each takes four:
    claim, result, bulletin, and its reading. If R of them are run by their own elements, L of which look,
    there are further

    * up to N lists that are read, one by each element that starts,
    * up to N - R claims that are lost by elements whose tasks others have taken,
    * L looks, and up to R - L claims that are lost to elements that began just before and do not look,

    which is 6 N in all.
    """

    def __init__(self, store: Store, relative: str, number: int) -> None:
        self.number = number
        self._store = store
        self._path_of_list = relative
        self._folder = os.path.dirname(relative)
        self._began = time.monotonic()
        self._list = unpack_array(store.read_array(relative))
        self._first = True
        self._further: list[str] | None = None  # specs that it may take yet, where a look is a request

    def claim(self) -> str | None:
        """The spec of its next task, which is claimed: at first only its own. None: it has nothing to do."""
        if self._first:
            self._first = False
            own = self._list.names[self.number]
            return self._path(own) if self._is_mine(own) else None
        return self._claim_of_share() if self._store.direct else self._claim_any()

    def _claim_any(self) -> str | None:
        while self._has_time():
            free = self._free(self._list.names.keys(), self._there())
            if not free:
                return None
            name = free[int(len(free) * (self.number * _SPREAD % 1))]
            if self._is_mine(name):
                return self._path(name)
        return None

    def _claim_of_share(self) -> str | None:
        if self._further is None:
            self._further = self._look()
        if not self._further or not self._has_time():
            return None
        name = self._further.pop(0)
        if self._is_mine(name):
            return self._path(name)
        self._further.clear()  # its own element has begun: there are others enough
        return None

    def _look(self) -> list[str]:
        """What it may take of the tasks that nobody else looks for: as many as each element at work would."""
        order = sorted(self._list.names)
        place, looking = order.index(self.number), min(_LOOKING, len(order) // 2)
        if place >= looking:
            return []
        there = self._there()
        taken = [name for name in self._list.names.values() if _claim(name) in there]
        at_work = sum(_result(name) not in there for name in taken)
        return self._free(order[place + looking :: looking], there)[
            : (len(order) - len(taken)) // (at_work + 1)
        ]

    def _free(self, elements: Iterable[int], there: Collection[str]) -> list[str]:
        names = [self._list.names[number] for number in sorted(elements)]
        return [name for name in names if _claim(name) not in there]

    def _there(self) -> Collection[str]:
        return set(self._store.names_beside(self._path_of_list))

    def _has_time(self) -> bool:
        return time.monotonic() - self._began <= self._list.share

    def _is_mine(self, name: str) -> bool:
        if not self._store.claim_spec(self._path(name), by=claim_of(self.number)):
            return False
        if name in self._list.specs:
            self._store.keep_spec(self._path(name), self._list.specs[name])
        return True

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def is_taken(path: str, number: int) -> bool:
    """Whether somebody has the task of an element already; quick to find out, or unknown in a bucket."""
    if "://" in path:
        return False
    with open(path, "rb") as file:
        name = unpack_array(file.read()).names[number]
    return os.path.exists(os.path.join(os.path.dirname(path), _claim(name)))


def claim_of(element: int | None) -> str:
    """Who claims an attempt: a supervisor on this node."""
    text = f"its supervisor on {os.uname().nodename}"
    return text if element is None else f"{text}, element {element}"


def element_in(claim: str) -> int | None:
    """The element that has made a claim; None: it was somebody else."""
    found = re.search(r", element (\d+)$", claim.strip())
    return None if found is None else int(found[1])


def _claim(spec: str) -> str:
    return spec.removesuffix(SPEC) + ".claim"


def _result(spec: str) -> str:
    return spec.removesuffix(SPEC) + ".result.json"
