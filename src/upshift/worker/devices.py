"""Lets the attempts of one supervisor wait for the accelerators that they were promised.

::

    ask ──► nothing to do with devices ──────────────────────────────► ready
      └───► the stock is known ──► it has what is asked for, locked ──► ready
                     └───────────────────────┴──► tried again, explained, given up

Nobody tells when a lock has come free or another program has left a device, so what waits is tried
again a few times a second, with each reading of the devices, and when a task of this supervisor ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from upshift.accelerators.root import lock_folder
from upshift.errors import UpshiftError
from upshift.spec.task import Failure, TaskSpec
from upshift.worker.loop import Loop, Timer

if TYPE_CHECKING:  # what no task needs is not imported
    from upshift.worker.accelerators import Accelerators
    from upshift.worker.stock import Grant, Stock

Ready = Callable[["Grant | None"], None]
Tell = Callable[[str], None]
Refuse = Callable[[Failure], None]

ENFORCED = "supervisor"
"""Value of ``granted.details["enforced_by"]`` where it is for the supervisor to see to the grant."""
WAIT = 86_400.0
"""Seconds that a task waits for devices, unless it is told otherwise."""
RETRY = 0.25
"""Seconds between two looks whether what somebody waits for has come free."""
QUIET = 1.0
"""Seconds that a task waits without a word: the task before it may be about to let go."""
REPEAT = 10.0
"""Seconds after which the reason for waiting is looked at again."""


class _Asking:
    """A task that waits."""

    explain: Timer
    give_up: Timer
    said: str | None = None

    def __init__(self, spec: TaskSpec, ready: Ready, tell: Tell, refuse: Refuse, *, share: bool) -> None:
        self.spec = spec
        self.ready = ready
        self.tell = tell
        self.refuse = refuse
        self.share = share


class Devices:
    """Where the attempts of one supervisor get their devices."""

    def __init__(self, loop: Loop, accelerators: Callable[[], Accelerators]) -> None:
        self._loop = loop
        self._accelerators = accelerators
        self._engine = os.getppid()
        self._stock: Stock | None = None
        self._asking: list[_Asking] = []
        self._retry: Timer | None = None
        self._stop_listening: Callable[[], None] | None = None

    @property
    def asking(self) -> list[TaskSpec]:
        """The tasks that wait."""
        return [asking.spec for asking in self._asking]

    def ask(
        self,
        spec: TaskSpec,
        *,
        ready: Ready,
        tell: Tell,
        refuse: Refuse,
        wait: float = WAIT,
        share: bool = False,
    ) -> None:
        """Ask for the devices that a task was promised.

        Parameters
        ----------
        spec
            The task.
        ready
            Takes what it gets, now if nothing stands in the way; None: it has nothing to do with devices.
        tell
            Takes the reason for waiting, in words, whenever that is another one.
        refuse
            Takes why it gets nothing.
        wait
            Seconds until it gives up.
        share
            Whether it takes devices that programs outside Upshift work with, instead of waiting for these.
        """
        granted = spec.granted
        own = granted is not None and granted.details.get("enforced_by") == ENFORCED
        promised = granted.gpus if granted is not None and own else None
        if promised == () or spec.request.gpu_count == 0:
            ready(_nothing(spec))
        elif promised or (own and self._others_have_some()):
            asking = _Asking(spec, ready, tell, refuse, share=share)
            asking.explain = self._loop.after(QUIET, lambda: self._explain(asking))
            asking.give_up = self._loop.after(wait, lambda: self._give_up(asking, wait))
            self._asking.append(asking)
            self._watch()
        else:
            ready(None)

    def cancel(self, spec: TaskSpec) -> None:
        """The task does not wait any more, if it did."""
        for asking in self._asking:
            if asking.spec is spec:
                self._forget(asking)
                asking.refuse(Failure(reason="cancelled", message="cancelled while it waited for devices"))
                return

    def forget(self) -> None:
        """Nobody waits any more, and nobody wants to know why."""
        for asking in list(self._asking):
            self._forget(asking)

    def _others_have_some(self) -> bool:
        """Whether a task that did not ask must be kept from devices of others."""
        if not os.path.isdir(lock_folder()):  # nobody has ever had one, on this machine
            return False
        from upshift.accelerators import locks, vendors

        return bool(vendors.present()) and locks.any_held()

    def _watch(self) -> None:
        accelerators = self._accelerators()
        if self._stock is None:
            from upshift.worker.stock import Stock

            self._stock = Stock(accelerators, engine=self._engine, returned=self._returned)
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
        if self._stock is not None and self._stock.known:
            for asking in list(self._asking):
                if asking in self._asking:  # a task before it may have had it withdrawn
                    self._try(asking, self._stock)
        if self._asking:
            self._retry = self._loop.after(RETRY, self._look)
        elif self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _try(self, asking: _Asking, stock: Stock) -> None:
        spec = asking.spec
        try:
            if spec.granted is None or spec.granted.gpus is None:
                grant: Grant | None = stock.rest(spec.environment)
            else:
                grant = stock.take(spec, share=asking.share)
        except UpshiftError as error:
            self._forget(asking)
            asking.refuse(Failure(reason="infrastructure", message=error.in_short, fix=error.fix))
            return
        if grant is not None:
            self._forget(asking)
            asking.ready(grant)

    def _explain(self, asking: _Asking) -> None:
        """Say why a task still waits, where that is not what was said before."""
        asking.explain = self._loop.after(REPEAT, lambda: self._explain(asking))
        why = self._why(asking)
        if why != asking.said:
            asking.said = why
            asking.tell(why)

    def _why(self, asking: _Asking) -> str:
        assert self._stock is not None  # since the first one asked
        try:
            return self._stock.why(asking.spec)
        except UpshiftError as error:
            return f"waits for devices: {error.in_short}"

    def _give_up(self, asking: _Asking, wait: float) -> None:
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
    from upshift.accelerators.vendors import environment
    from upshift.worker.stock import Grant

    return Grant(devices=(), environment=environment((), spec.environment))


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
