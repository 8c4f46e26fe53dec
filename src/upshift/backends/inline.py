"""The engine's own process as a place to run, one task at a time, so that a debugger reaches the step.

No target names it: ``--debug`` does. While a step runs the engine waits; what other tasks have to say
is heard afterwards.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, ClassVar

import attrs

from upshift.backends.base import Capabilities, Ended, Handle, Job, Offer, Sink, Started, secrets_of
from upshift.backends.local.offers import offer
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
    capabilities: ClassVar[Capabilities] = Capabilities(
        fields=frozenset({"gpu_count", "accelerator", "gpu_memory", "gpu_vendor"}),
        secrets=frozenset({"env", "file"}),
        images=False,
        remote=False,
        strict=False,
    )

    def __init__(self, *, sink: Sink) -> None:
        self._sink = sink
        self._left = False

    def capacity(self) -> Hardware | None:
        """Any number: each is over before the next one is submitted."""
        return None

    def offer(self, request: ResourceSettings) -> Offer:
        """The accelerators that were asked for, and of the rest what this process has."""
        said = request.explicit()
        of_devices = {name: value for name, value in said.items() if name in self.capabilities.fields}
        inventories: tuple[Inventory, ...] = ()
        if request.gpu_count:
            from upshift.runtime.accelerators.discovery import discover

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

    def destination(self) -> Destination | None:
        """Steps run in this very process."""
        return None

    def submit(self, job: Job) -> Handle:
        """Run it, and return when it is over."""
        from upshift.runtime.supervisor.inline import run_inline

        handle = f"{job.spec.task}/{job.spec.attempt}"
        if self._left:  # the engine has not heard of it yet
            self._sink(Ended(handle=handle, reason="cancelled", message="the debugger was left before"))
            return handle
        store = open_store(job.spec.store, **job.spec.store_options)
        result = run_inline(job.spec, store, secrets=secrets_of(job.spec), stop=False)
        store.create_result(result)
        if result.status == "cancelled":  # who leaves the debugger wants the run to end
            self._left = True
            signal.raise_signal(signal.SIGINT)
        self._sink(Started(handle=handle, node=result.node))
        self._sink(Ended(handle=handle))
        return handle

    def attach(self, handle: Handle, job: Job) -> bool:
        """Nothing outlives the engine."""
        return False

    def find(self, job: Job) -> Handle | None:
        """Nothing outlives the engine."""
        return None

    def cancel(self, handle: Handle, *, grace: float) -> None:
        """Nothing runs while the engine is awake."""

    def close(self) -> None:
        """There is nothing to let go of."""
