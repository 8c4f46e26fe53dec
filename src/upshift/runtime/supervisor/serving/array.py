"""One element of a job array: its own task, and then those of elements that have not started.

Beside the specs of an array is a list of them (:func:`pack`). Each task is claimed by whoever begins it, so
that many short tasks share the start of an interpreter, and a long one has a job of its own: an element goes
on for a moment only, and only where the step before has completed. An element whose task has been taken by
another one leaves, so that the engine may withdraw it at any time.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an element that has nothing to do leaves before it is imported
    from upshift.runtime.storage.store import Store

SPEC = ".spec.json"
_AMONG = 32
"""Of so many of the last tasks one is taken by chance: elements start from the first one on."""


def pack(specs: Mapping[int, str], *, share: float) -> bytes:
    """The list of an array: file names of specs by element; ``share``: seconds in which it takes another."""
    return json.dumps({"share": share, "specs": specs}).encode()


def unpack(content: bytes) -> dict[int, str]:
    """The specs of a list by element."""
    return {int(number): name for number, name in json.loads(content)["specs"].items()}


class Element:
    """The element of this number, of the array whose list is at a path relative to the store."""

    def __init__(self, store: Store, relative: str, number: int) -> None:
        self.number = number
        self._store = store
        self._list = relative
        self._folder = os.path.dirname(relative)
        self._began = time.monotonic()
        content = store.read_array(relative)
        self._share = float(json.loads(content)["share"])
        self._specs = unpack(content)
        self._first = True
        self._taken: set[str] | None = None  # claims that are known, where to look for them is a request

    def candidates(self) -> Iterator[str]:
        """Specs of tasks that may be claimed now, the best first: at first only its own."""
        if self._first:
            self._first = False
            yield f"{self._folder}/{self._specs[self.number]}"
            return
        while time.monotonic() - self._began <= self._share:
            if self._taken is None or not self._store.direct:
                self._taken = set(self._store.names_beside(self._list))
            free = [number for number, name in self._specs.items() if _claim(name) not in self._taken]
            if not free:
                return
            name = self._specs[random.choice(sorted(free)[-_AMONG:])]
            self._taken.add(_claim(name))
            yield f"{self._folder}/{name}"
            self._taken = None  # somebody was faster, and may be with others, too


def is_taken(path: str, number: int) -> bool:
    """Whether somebody has the task of an element already; quick to find out, or unknown in a bucket."""
    if "://" in path:
        return False
    with open(path, "rb") as file:
        name = unpack(file.read())[number]
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
