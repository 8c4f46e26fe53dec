"""Where containers get their devices: what a supervisor does for its steps, done in the engine.

Which devices a container gets has to be known before it starts. So the engine waits for them and takes
their locks, on a thread of its own; the supervisor in the container takes the locks over, and has them as
long as it lives.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from upshift.model.spec.hardware import SUPERVISOR, enforced
from upshift.model.spec.task import Failure, TaskSpec
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.devices.queue import DeviceQueue, Ready, Refuse, Tell
from upshift.runtime.supervisor.forkable import OWN_THREAD_PREFIX

if TYPE_CHECKING:
    from upshift.runtime.supervisor.devices.pool import Grant


class DeviceBroker:
    """Hands out the accelerators of this machine. Nothing is started before somebody asks."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asking: dict[str, tuple[TaskSpec, Refuse]] = {}
        self._devices: DeviceQueue | None = None
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._open = True

    def ask(
        self,
        name: str,  # who asks, for :meth:`cancel`
        spec: TaskSpec,
        *,
        ready: Ready,
        tell: Tell,
        refuse: Refuse,
        wait: float,
        share: bool,
    ) -> None:
        """As :meth:`.DeviceQueue.ask` of the supervisor; what it is given runs on the broker's thread.

        If that raises anything, whoever waits then is refused.
        """
        if self._thread is None:
            self._start()
        assert spec.granted is not None
        details = {**spec.granted.details, **enforced(SUPERVISOR)}
        spec = attrs.evolve(spec, granted=attrs.evolve(spec.granted, details=details))

        def served(grant: Grant | None) -> None:
            self._asking.pop(name, None)
            ready(grant)

        def refused(failure: Failure) -> None:
            if self._asking.pop(name, None) is not None:
                refuse(failure)

        def begin() -> None:
            assert self._devices is not None
            self._asking[name] = spec, refused
            self._devices.ask(spec, ready=served, tell=tell, refuse=refused, wait=wait, share=share)

        self.call(begin)

    def cancel(self, name: str) -> None:
        """Whoever asked does not wait any more, if so; it is told by ``refuse``."""

        def stop() -> None:
            if self._devices is not None and name in self._asking:
                self._devices.cancel(self._asking[name][0])

        self.call(stop)

    def call(self, what: Callable[[], None]) -> None:
        """Do something on the broker's thread."""
        if self._thread is None:
            return
        self._calls.put(what)
        os.write(self._wake, b".")

    def close(self) -> None:
        """Nobody waits any more."""
        if self._thread is None:
            return
        self.call(partial(setattr, self, "_open", False))
        self._thread.join()
        self._thread = None
        os.close(self._wake)

    def _start(self) -> None:
        reader, self._wake = os.pipe()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(reader, ready), name=f"{OWN_THREAD_PREFIX}devices", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _serve(self, reader: int, ready: threading.Event) -> None:
        from upshift.runtime.supervisor.devices.monitor import DeviceMonitor

        loop = Loop().confined(self._failed)
        accelerators = DeviceMonitor(loop)
        self._devices = DeviceQueue(loop, lambda: accelerators, engine=os.getpid())
        loop.watch(reader, lambda: self._hear(reader))
        ready.set()
        while self._open:
            loop.turn()
        self._devices.forget()
        accelerators.close()
        loop.abandon()

    def _hear(self, reader: int) -> None:
        os.read(reader, 1 << 10)
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            try:
                call()
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Nobody is to wait for ever because of it, and the next one who asks is to be served."""
        if self._devices is not None:
            self._devices.forget()
        for _, refuse in list(self._asking.values()):
            refuse(Failure(reason="infrastructure", message=f"devices cannot be handed out: {error}"))


class LentDevices:
    """What a broker gave to a container."""

    def __init__(
        self,
        grant: Grant,  # what it gave, on its own thread
        broker: DeviceBroker,
    ) -> None:
        self._grant = grant
        self._broker = broker

    @property
    def grant(self) -> Grant:
        """The devices, as the pool has granted them."""
        return self._grant

    def hand_over(self) -> None:
        """The supervisor in the container takes the locks now."""
        self._grant.hand_over()

    def give_back(self) -> None:
        """The container is gone."""
        self._broker.call(self._grant.give_back)
