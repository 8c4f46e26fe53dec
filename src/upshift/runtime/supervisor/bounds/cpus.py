"""Which CPUs a task is pinned to."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence


class CpuSet:
    """The CPUs that this process may use, lent to tasks: the least used ones first."""

    def __init__(self) -> None:
        self._lent = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0)

    def take(self, count: float, near: Sequence[Collection[int]] = ()) -> tuple[int, ...]:
        """As many CPUs as ``count``, rounded up; all of them where there are fewer.

        Of those that are used as little as any, the ones ``near`` each device come first, in turn.
        """
        left, chosen = dict(self._lent), list[int]()
        while left and len(chosen) < math.ceil(count):
            close = near[len(chosen) % len(near)] if near else ()
            chosen.append(min(left, key=lambda cpu: (left[cpu], cpu not in close)))
            del left[chosen[-1]]
        for cpu in chosen:
            self._lent[cpu] += 1
        return tuple(sorted(chosen))

    def give_back(self, cpus: tuple[int, ...]) -> None:
        """Return what was taken."""
        for cpu in cpus:
            self._lent[cpu] -= 1
