"""Lets the attempts of one supervisor wait for the accelerators that they were promised.

::

    ask ──► nothing to do with devices ──────────────────────────────► ready
      ├───► a scheduler has handed them out: are they there? ────────► ready
      └───► the pool is known ──► it has what is asked for, locked ──► ready
                     └───────────────────────┴──► tried again, explained, given up

Nobody tells when a lock has come free or another program has left a device, so what waits is tried
again a few times a second, with each reading of the devices, and when a task of this supervisor ends.

A device that was promised and that the driver does not list any more is lost. It is asked for again, by
processes that load the driver's library anew, and waited for for :data:`LOST` seconds. After that a task
goes on with what is left, which counts as less than it asked for; or fails, if it is strict.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from upshift.errors import UpshiftError
from upshift.model.spec.hardware import SCHEDULER, SUPERVISOR, Device
from upshift.model.spec.task import Failure, TaskSpec
from upshift.runtime.accelerators.files import lock_folder
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.tracebacks import mistake

if TYPE_CHECKING:
    from upshift.model.settings.resources import ResourceSettings
    from upshift.runtime.accelerators.matching import Lack
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor
    from upshift.runtime.supervisor.device_pool import DevicePool, Grant


Ready = Callable[["Grant | None"], None]
Tell = Callable[[str], None]
Refuse = Callable[[Failure], None]

WAIT = 86_400.0
"""Seconds that a task waits for devices, unless it is told otherwise."""
RETRY = 0.25
"""Seconds between two looks whether what somebody waits for has come free."""
VENDORS = 1.0
"""Seconds between two looks whether this machine may have devices at all."""
QUIET = 1.0
"""Seconds that a task waits without a word: the task before it may be about to let go."""
REPEAT = 10.0
"""Seconds after which the reason for waiting is looked at again."""
SAID_AGAIN = (60.0, 300.0, 600.0, 1800.0, 3600.0)
"""Seconds that a task has waited when the same reason is said once more; then each hour."""
LOST = 30.0
"""Seconds that a task waits for a device that is lost: somebody may be about to reset it."""
ASK_AGAIN = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between two questions for lost devices, the first of which is put at once."""
BELIEVED = 60.0
"""Seconds for which the last answer counts: the next task that lacks a device asks again after that."""


class _Asking:
    """A task that waits."""

    explain: Timer
    give_up: Timer
    said: str | None = None
    repeated: int = 0

    def __init__(
        self, spec: TaskSpec, ready: Ready, tell: Tell, refuse: Refuse, *, share: bool, nodes: int
    ) -> None:
        self.spec = spec
        self.ready = ready
        self.tell = tell
        self.refuse = refuse
        self.share = share
        self.nodes = nodes
        self.since = time.monotonic()


class DeviceQueue:
    """Where the attempts of one supervisor get their devices."""

    def __init__(
        self, loop: Loop, accelerators: Callable[[], DeviceMonitor], *, engine: int | None = None
    ) -> None:
        self._loop = loop
        self._accelerators = accelerators
        self._engine = os.getppid() if engine is None else engine
        self._pool: DevicePool | None = None
        self._asking: list[_Asking] = []
        self._handed_out: list[tuple[TaskSpec, Refuse]] = []
        self._retry: Timer | None = None
        self._lost: dict[ResourceSettings, float] = {}
        self._renewals = 0
        self._renewed = 0.0
        self._stop_listening: Callable[[], None] | None = None
        self._vendors = False
        self._look_for_vendors = 0.0

    @property
    def asking(self) -> list[TaskSpec]:
        """The tasks that wait."""
        return [*(spec for spec, _ in self._handed_out), *(asking.spec for asking in self._asking)]

    def ask(
        self,
        spec: TaskSpec,
        *,
        ready: Ready,
        tell: Tell,
        refuse: Refuse,
        wait: float = WAIT,  # seconds until it gives up
        share: bool = False,
        nodes: int = 1,
    ) -> None:
        """Ask for the devices that a task was promised."""
        granted = spec.granted
        by = None if granted is None else granted.enforced_by("gpus")
        own = by == SUPERVISOR
        promised = granted.gpus if granted is not None and own else None
        if promised == () or spec.request.gpu_count == 0:
            ready(_nothing(spec))
        elif by == SCHEDULER:
            looked_at = (spec, refuse)
            self._handed_out.append(looked_at)
            self._accelerators().want(lambda: self._compare(looked_at, ready))
        elif promised or (own and self._others_have_some()):
            asking = _Asking(spec, ready, tell, refuse, share=share, nodes=nodes)
            asking.explain = self._loop.after(QUIET, lambda: self._explain(asking))
            asking.give_up = self._loop.after(wait, lambda: self._give_up(asking, wait))
            self._asking.append(asking)
            self._watch()
        else:
            ready(None)

    def cancel(self, spec: TaskSpec) -> None:
        """The task does not wait any more, if it did."""
        gone = Failure(reason="cancelled", message="cancelled while it waited for devices")
        for looked_at in self._handed_out:
            if looked_at[0] is spec:
                self._handed_out.remove(looked_at)
                looked_at[1](gone)
                return
        for asking in self._asking:
            if asking.spec is spec:
                self._forget(asking)
                asking.refuse(gone)
                return

    def forget(self) -> None:
        """Nobody waits any more, and nobody wants to know why."""
        self._handed_out.clear()
        for asking in list(self._asking):
            self._forget(asking)

    def _compare(self, looked_at: tuple[TaskSpec, Refuse], ready: Ready) -> None:
        """What a scheduler has handed out has to be there, whatever it says."""
        if looked_at not in self._handed_out:  # it was cancelled meanwhile
            return
        self._handed_out.remove(looked_at)
        spec, refuse = looked_at
        from upshift.runtime.accelerators.matching import match
        from upshift.runtime.supervisor.device_pool import Grant

        inventories = self._accelerators().inventories
        visible = tuple(device for inventory in inventories for device in inventory.devices)
        promised = (spec.granted.gpus if spec.granted is not None else None) or ()
        lack = match(spec.request, inventories).lack if promised else None
        if len(visible) < len(promised) or (lack is not None and not spec.degraded):
            refuse(_not_there(spec, promised, visible, lack))
        else:
            ready(Grant(devices=visible) if visible else None)

    def _others_have_some(self) -> bool:
        """Whether a task that did not ask must be kept from devices of others."""
        if not os.path.isdir(lock_folder()):  # nobody has ever had one, on this machine
            return False
        from upshift.runtime.accelerators import locks, vendors

        now = time.monotonic()
        if now >= self._look_for_vendors:  # not for each of many tasks that take milliseconds
            self._vendors, self._look_for_vendors = bool(vendors.present()), now + VENDORS
        return self._vendors and locks.any_held()

    def _watch(self) -> None:
        accelerators = self._accelerators()
        if self._pool is None:
            from upshift.runtime.supervisor.device_pool import DevicePool

            self._pool = DevicePool(accelerators, engine=self._engine, returned=self._returned)
        if self._stop_listening is None:
            self._stop_listening = accelerators.listen(self._look)
        accelerators.want(self._look)

    def _returned(self) -> None:
        if self._asking:
            self._loop.after(0, self._look)

    def _look(self) -> None:
        """Give what is free to those who wait, in the order in which they came."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for asking in list(self._asking):
            if self._pool is None or not self._pool.known:  # or the driver has just been asked again
                break
            if asking in self._asking:  # a task before it may have had it withdrawn
                self._try(asking, self._pool)
        if self._asking:
            self._retry = self._loop.after(RETRY, self._look)
        elif self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _try(self, asking: _Asking, pool: DevicePool, *, last: bool = False) -> None:
        """Give a task what is free. At the ``last`` try it is done with what is lost."""
        spec = asking.spec
        lack = None
        try:
            if spec.granted is None or spec.granted.gpus is None:
                grant: Grant | None = pool.rest(spec.environment)
            else:
                grant = pool.take(spec, share=asking.share, nodes=asking.nodes)
                lack = pool.lack(spec) if grant is None else None
                if lack is None:
                    self._lost.pop(spec.request, None)
                    self._renewals = self._renewals if self._lost else 0
                elif self._is_final(spec, last=last) and not spec.strict:
                    grant = pool.take(spec, share=asking.share, less=True, nodes=asking.nodes)
        except UpshiftError as error:
            self._forget(asking)
            asking.refuse(Failure(reason="infrastructure", message=error.in_short, fix=error.fix))
            return
        except Exception as error:  # its trouble is its own, and ends none beside it
            self._forget(asking)
            asking.refuse(mistake(error))
            return
        if grant is not None:
            self._forget(asking)
            if grant.less:
                asking.tell(str(lack))
            grant.waited = time.monotonic() - asking.since
            asking.ready(grant)
        elif lack is not None and spec.strict and self._is_final(spec, last=last):
            self._forget(asking)
            asking.refuse(_no_more(spec, lack))

    def _is_final(self, spec: TaskSpec, *, last: bool) -> bool:
        """Whether what is lost stays lost; if not, the driver is asked again when it is time to."""
        now = time.monotonic()
        since = self._lost.setdefault(spec.request, now)
        asked = now - self._renewed if self._renewals else math.inf
        if now - since >= LOST and asked <= BELIEVED:
            return True
        if asked >= ASK_AGAIN[min(max(self._renewals, 1), len(ASK_AGAIN)) - 1]:
            self._renewals += 1
            self._renewed = now
            self._accelerators().renew()
        return last

    def _explain(self, asking: _Asking) -> None:
        """Say why a task still waits, where that is not what was said before, and now and then again."""
        asking.explain = self._loop.after(REPEAT, lambda: self._explain(asking))
        why = self._why(asking)
        waited = time.monotonic() - asking.since
        due = 0
        while waited >= _said_again(due):
            due += 1
        if why != asking.said:
            asking.said = why
            asking.tell(why)
        elif due > asking.repeated:
            asking.tell(f"after {_span(_said_again(due - 1))} it still {why}")
        asking.repeated = due

    def _why(self, asking: _Asking) -> str:
        assert self._pool is not None  # since the first one asked
        try:
            return self._pool.why(asking.spec, nodes=asking.nodes)
        except UpshiftError as error:
            return f"waits for devices: {error.in_short}"

    def _give_up(self, asking: _Asking, wait: float) -> None:
        if self._pool is None or not self._pool.known:  # a driver that is slow to answer has its own limit
            asking.give_up = self._loop.after(RETRY, lambda: self._give_up(asking, wait))
            return
        self._try(asking, self._pool, last=True)
        if asking not in self._asking:
            return
        why = self._why(asking)
        self._forget(asking)
        asking.refuse(
            Failure(
                reason="hardware",
                where=asking.spec.location,
                message=f"after {_span(wait)} it still {why}",
                fix="Ask for less, end what has the devices, or let the target wait longer: "
                'options = { device_wait = "2d" }.',
            )
        )

    def _forget(self, asking: _Asking) -> None:
        self._asking.remove(asking)
        asking.explain.cancel()
        asking.give_up.cancel()


def _nothing(spec: TaskSpec) -> Grant:
    from upshift.runtime.accelerators.vendors import environment
    from upshift.runtime.supervisor.device_pool import Grant

    return Grant(devices=(), environment=environment((), spec.environment))


def _not_there(
    spec: TaskSpec, promised: Sequence[Device], visible: Sequence[Device], lack: Lack | None
) -> Failure:
    count = f"{len(promised)} GPU{'s' * (len(promised) != 1)}"
    return Failure(
        reason="hardware",
        where=spec.location,
        message=f"the scheduler has granted {count} on {os.uname().nodename}, and {len(visible) or 'none'} "
        f"can be seen there{f': {lack.why}' if lack is not None else ''}",
        fix="See what a job sees there: nvidia-smi -L, CUDA_VISIBLE_DEVICES, the devices of its cgroup. "
        "The scheduler's own list of this node's devices may be wrong.",
    )


def _no_more(spec: TaskSpec, lack: Lack) -> Failure:
    return Failure(
        reason="hardware",
        where=spec.location,
        message=f"asked {lack.asked}, and what is left is {lack.got}: {lack.why}",
        fix="Have the device reset, or restart the machine; or continue with what is left: --best-effort.",
    )


def _said_again(number: int) -> float:
    """After how many seconds a reason is said for this time, counted from 0."""
    return SAID_AGAIN[number] if number < len(SAID_AGAIN) else (number - len(SAID_AGAIN) + 2) * SAID_AGAIN[-1]


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
