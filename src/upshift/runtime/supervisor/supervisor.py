"""Supervises attempts, one or many, on one event loop."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from upshift.model.spec import Failure, Hardware, TaskId, TaskResult, TaskSpec
from upshift.runtime import marks
from upshift.runtime.confine import Starter
from upshift.runtime.loop import Loop
from upshift.runtime.proc import Consumed
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.attempt import AttemptWatcher, SupervisedAttempt
from upshift.runtime.supervisor.device_queue import DeviceQueue
from upshift.runtime.supervisor.members import Overflow
from upshift.runtime.supervisor.node_runtime import Machine
from upshift.runtime.usercode import SOURCES, Sources

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor
    from upshift.runtime.supervisor.device_pool import Grant
    from upshift.runtime.supervisor.nodes import Nodes


class Supervisor:
    """The attempts that run under this process."""

    def __init__(
        self,
        name: str,
        *,
        loop: Loop,
        watcher: AttemptWatcher,
        overflow: Overflow | None = None,
        host: str | None = None,
    ) -> None:
        self._by_pid: dict[int, SupervisedAttempt] = {}
        self._lasting: list[SupervisedAttempt] = []
        self._loop = loop
        self._watcher = watcher
        self._overflow = overflow
        self.machine = Machine(name, lambda: self.accelerators, host=host)
        self.mark = marks.make(name)
        """The descriptor that marks what is forked below; :mod:`upshift.runtime.marks`."""
        self._claimed: set[tuple[str, str]] = set()
        self._sources: dict[tuple[str, str], Sources] = {}
        self._accelerators: DeviceMonitor | None = None
        self.devices = DeviceQueue(loop, lambda: self.accelerators)

    @property
    def accelerators(self) -> DeviceMonitor:
        """The devices of this machine; nobody watches them before ``want()`` is called."""
        if self._accelerators is None:
            from upshift.runtime.supervisor.device_monitor import (
                DeviceMonitor,  # what no task needs is not imported
            )

            self._accelerators = DeviceMonitor(self._loop)
        return self._accelerators

    @property
    def kin(self) -> set[int]:
        """Children of this process that belong to no attempt."""
        return self._accelerators.pids() if self._accelerators is not None else set()

    def close(self) -> None:
        """Stop what was started beside the attempts."""
        if self._accelerators is not None:
            self._accelerators.close()
        os.close(self.mark)

    @property
    def attempts(self) -> list[SupervisedAttempt]:
        """Those that have no result yet."""
        return [attempt for attempt in self._lasting if not attempt.over]

    @property
    def busy(self) -> bool:
        """Whether a step process is left, here or on another node, be its attempt over or not."""
        return bool(self.lasting)

    @property
    def lasting(self) -> list[TaskSpec]:
        """The tasks of which a step process is left."""
        self._lasting = [attempt for attempt in self._lasting if not attempt.released]
        return [attempt.spec for attempt in self._lasting]

    def start(
        self,
        spec: TaskSpec,
        store: Store,
        starter: Starter,
        secrets: Mapping[str, str] | None = None,
        grant: Grant | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        """Start an attempt. The watcher hears of it from now on."""
        run = (store.address, spec.task.run)
        if run not in self._claimed:  # it may outlive the engine that says so, too
            store.claim_run(spec.task.run)
            self._claimed.add(run)
        if grant is not None and grant.devices is not None and spec.granted is not None:
            granted = attrs.evolve(spec.granted, gpus=grant.devices)
            spec = attrs.evolve(spec, granted=granted, degraded=spec.degraded or grant.less)
        attempt = SupervisedAttempt(
            spec,
            store=store,
            loop=self._loop,
            starter=starter,
            watcher=self._watcher,
            machine=self.machine,
            grant=grant,
            secrets=secrets or {},
            sources=self._sources_of(store, spec),
            nodes=nodes,
            overflow=self._overflow,
        )
        self._lasting.append(attempt)
        self._by_pid |= dict.fromkeys(attempt.pids, attempt)

    def _sources_of(self, store: Store, spec: TaskSpec) -> Sources:
        """The source files of a run, as its engine saw them before its first task; none of a package's."""
        run = spec.task.run
        if spec.code.package is not None:
            return Sources({})
        known = self._sources.get((store.address, run))
        if known is None:
            record = store.read_record(run, SOURCES)
            known = self._sources[store.address, run] = Sources({} if record is None else json.loads(record))
        return known

    def refuse(self, spec: TaskSpec, store: Store, failure: Failure) -> None:
        """Record that an attempt ended before it could start."""
        now = time.time()
        store.create_result(
            TaskResult(
                task=spec.task,
                attempt=spec.attempt,
                status="cancelled" if failure.reason == "cancelled" else "failed",
                failure=failure,
                started=now,
                ended=now,
                node=self.machine.facts["host"],
                backend=spec.backend,
                image=spec.image,
                asked=Hardware.asked(spec.request, spec.launch),
                key=spec.key,
                degraded=spec.degraded,
            )
        )

    def exited(self, pid: int, status: int, consumed: Consumed) -> None:
        """A step process has ended."""
        attempt = self._by_pid.pop(pid, None)
        if attempt is not None:
            attempt.exited(pid, status, consumed)

    def cancel(self, task: TaskId, attempt: int, grace: float, why: Failure | None = None) -> None:
        """Stop an attempt, if it still runs; ``why`` where nobody of the run has asked for it."""
        for running in self.attempts:
            if (running.spec.task, running.spec.attempt) == (task, attempt):
                running.cancel(grace, why)
