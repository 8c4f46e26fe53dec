"""The engine's own process as a place to run, one task at a time, so that a debugger reaches the step.

No target names it: ``--debug`` does. While a step runs the engine waits; what other tasks have to say
is heard afterwards.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import attrs

from upshift.backends.base import (
    DEVICES,
    Ask,
    Capabilities,
    Capacity,
    Ended,
    Finding,
    Handle,
    Job,
    Offer,
    Sink,
    Started,
    secrets_of,
)
from upshift.backends.local.offers import offer
from upshift.errors import BackendError
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Hardware
from upshift.model.spec.hardware import Shortfall
from upshift.runtime.storage.store import open_store

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination
    from upshift.runtime.accelerators.vendor import Inventory


class InlineBackend:
    """Runs a task in this very process, as soon as it is submitted."""

    name: ClassVar[str] = "inline"
    capabilities: Capabilities = Capabilities(
        fields=DEVICES,
        secrets=frozenset({"env", "file"}),
        remote=False,
        strict=False,
    )

    def __init__(self, *, sink: Sink) -> None:
        self._sink = sink
        self._left = False

    def capacity(self) -> Capacity | None:
        """Any number: each is over before the next one is submitted."""
        return None

    def offer(self, ask: Ask) -> Offer:
        """The accelerators that were asked for, and of the rest what this process has."""
        request = ask.request
        said = request.explicit()
        of_devices = {name: value for name, value in said.items() if name in self.capabilities.fields}
        inventories: tuple[Inventory, ...] = ()
        if request.gpu_count:
            from upshift.runtime.accelerators.agent import discover

            inventories = discover()
        offered = offer(ResourceSettings(**of_devices), Hardware(), inventories)
        short = tuple(
            Shortfall(
                field=field,
                asked=f"{field}={value}",
                got="what this process has",
                why="a step that is debugged is neither limited nor pinned",
            )
            for field, value in said.items()
            if field not in of_devices
        )
        return attrs.evolve(offered, shortfalls=(*offered.shortfalls, *short))

    def findings(self) -> Iterator[Finding]:
        """Nothing is in the way."""
        yield Finding(name="access", text="it is here")

    def destination(self) -> Destination | None:
        """Steps run in this very process."""
        return None

    def scripts(self, jobs: Sequence[Job]) -> None:
        """It starts jobs itself."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Run them, and return when all are over."""
        return [self._run(job) for job in jobs]

    def _run(self, job: Job) -> Handle | BackendError:
        from upshift.runtime.supervisor.inline import run_inline

        handle = f"{job.spec.task}/{job.spec.attempt}"
        if self._left:  # the engine has not heard of it yet
            self._sink(Ended(handle=handle, reason="cancelled", message="the debugger was left before"))
            return handle
        store = open_store(job.spec.store, **job.spec.store_options)
        try:
            secrets = secrets_of(job.spec)
        except BackendError as error:
            return error
        result = run_inline(job.spec, store, secrets=secrets, stop=False)
        store.create_result(result)
        if result.status == "cancelled":  # who leaves the debugger wants the run to end
            self._left = True
            signal.raise_signal(signal.SIGINT)
        self._sink(Started(handle=handle, node=result.node))
        self._sink(Ended(handle=handle))
        return handle

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Nothing outlives the engine."""
        return {handle: Ended(handle=handle) for handle in jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Nothing outlives the engine."""
        return [None] * len(jobs)

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """Nothing runs while the engine is awake."""

    def close(self) -> None:
        """There is nothing to let go of."""
