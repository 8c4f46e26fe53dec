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
from typing import TYPE_CHECKING

from upshift.runtime.storage.records import unpack_array

if TYPE_CHECKING:  # an element that has nothing to do leaves before it is imported
    from upshift.runtime.storage.store import Store

SPEC = ".spec.json"
_SPREAD = 0.6180339887
"""Of the tasks that are free an element takes the one at this multiple of its number, without the whole part.
Multiples of the golden ratio lie far from each other, so that elements rarely want the same one."""


class Element:
    """The element of this number, of the array whose list is at a path relative to the store.

    In a bucket, a look at what is free is a request, and so is a claim that is lost. There an element looks
    once, and takes its share of what is free: those that are left have elements of their own, which begin as
    others leave. Schedulers start elements in order: those of the second half would find little, and do not
    look.
    """

    def __init__(self, store: Store, relative: str, number: int) -> None:
        self.number = number
        self._store = store
        self._path_of_list = relative
        self._folder = os.path.dirname(relative)
        self._began = time.monotonic()
        self._list = unpack_array(store.read_array(relative))
        self._first = True
        self._taken: set[str] = set()  # claims as they were seen last
        self._turns: int | None = None  # further tasks that it takes, where a look is a request

    def claim(self) -> str | None:
        """The spec of its next task, which is claimed: at first only its own. None: it has nothing to do."""
        if self._first:
            self._first = False
            own = self._list.names[self.number]
            return self._path(own) if self._is_mine(own) else None
        shared = self._store.direct
        if (
            shared
            and self._turns is None
            and self.number >= sorted(self._list.names)[len(self._list.names) // 2]
        ):
            return None
        while time.monotonic() - self._began <= self._list.share:
            if not shared or self._turns is None:
                self._look()
            free = [name for _, name in sorted(self._list.names.items()) if _claim(name) not in self._taken]
            if not free or (shared and not self._turns):
                return None
            name = free[int(len(free) * (self.number * _SPREAD % 1))]
            self._taken.add(_claim(name))
            self._turns = (self._turns or 0) - 1
            if self._is_mine(name):
                return self._path(name)
            if shared:  # somebody was faster: there are others enough
                return None
        return None

    def _look(self) -> None:
        """See which tasks are free, and how many of them each element at work takes."""
        there = set(self._store.names_beside(self._path_of_list))
        names = self._list.names.values()
        self._taken = {_claim(name) for name in names} & there
        at_work = sum(_result(name) not in there for name in names if _claim(name) in self._taken)
        self._turns = (len(names) - len(self._taken)) // (at_work + 1)

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
