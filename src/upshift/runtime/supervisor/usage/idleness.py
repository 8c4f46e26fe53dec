"""Steps whose GPUs stand idle: how long they have, and what to do about it."""

from __future__ import annotations

import attrs

from upshift.model.spec.task import Failure

IDLE = 5.0
"""Percent: a GPU that is less busy than this is idle."""
ONE_CPU = (0.85, 1.25)
"""CPUs in use, from and to, where one thread works and nothing else does."""
_WAITING = 0.1
"""CPUs in use below which the step waits for something else."""


def one_cpu(cpus: float) -> bool:
    """Whether exactly about one CPU is busy."""
    return ONE_CPU[0] <= cpus <= ONE_CPU[1]


@attrs.define
class Idleness:
    """How long all GPUs of a step have been idle at a stretch. Times at which nothing is known do not count.

    Parameters
    ----------
    seconds
        So long they have.
    cpu_seconds
        CPU time of the step's processes meanwhile.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, seconds: float, cpus: float, idle: bool | None) -> None:
        """For so many seconds so many CPUs were in use, and all GPUs were idle; None: nobody knows."""
        if idle:
            self.seconds += seconds
            self.cpu_seconds += cpus * seconds
        elif idle is False:
            self.seconds = self.cpu_seconds = 0.0

    def failure(self, gpus: int, timeout: float) -> Failure:
        """Why a step that has been idle for so long is stopped."""
        cpus = self.cpu_seconds / self.seconds if self.seconds else 0.0
        them = "its GPU was" if gpus == 1 else f"all of its {gpus} GPUs were"
        return Failure(
            reason="hang",
            message=f"{them} idle for {self.seconds:.0f} s, while its processes used {cpus:.2g} CPUs "
            f"(gpu_idle_timeout is {timeout:g} s)",
            fix=_advice(cpus),
        )


def _advice(cpus: float) -> str:
    if cpus < _WAITING:
        why = "It waits for something else: the network, a lock, another process; see its log."
    elif one_cpu(cpus):
        why = "One thread prepares the data: give the data loader more workers, or do that in a step before."
    else:
        why = "The CPUs prepare the data: do that in a step before, which needs no GPU."
    return f"{why} Where such a pause is in order, set a longer gpu_idle_timeout."
