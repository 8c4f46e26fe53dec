"""Which CPUs a task is pinned to."""

from __future__ import annotations

import math
import os


class CpuSet:
    """The CPUs that this process may use, lent to tasks: the least used ones first."""

    def __init__(self) -> None:
        self._lent = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0)

    def take(self, count: float) -> tuple[int, ...]:
        """As many CPUs as ``count``, rounded up; all of them where there are fewer."""
        chosen = sorted(sorted(self._lent, key=lambda cpu: self._lent[cpu])[: math.ceil(count)])
        for cpu in chosen:
            self._lent[cpu] += 1
        return tuple(chosen)

    def give_back(self, cpus: tuple[int, ...]) -> None:
        """Return what was taken."""
        for cpu in cpus:
            self._lent[cpu] -= 1
