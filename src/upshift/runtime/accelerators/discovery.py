"""Which devices this process may use, found out without a risk to it.

Vendors' libraries run in processes of their own, one a vendor, with a deadline. A machine without
device files costs a few looks at paths.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence

from upshift.runtime.accelerators.agent import Agent, AgentFailed, AgentSilent
from upshift.runtime.accelerators.vendor import ROOT, Inventory, Vendor
from upshift.runtime.accelerators.vendors import present
from upshift.runtime.accelerators.words import MAKERS

__all__ = ["DEADLINE", "discover", "present", "unknown"]

DEADLINE = 20.0
"""Seconds that a vendor's library is given by default. A driver without persistence mode takes some
seconds for each GPU that nothing has open."""
ENDING = 5.0
"""Seconds that an agent may take to end when it has stopped talking."""
SLOW = 2.0
"""Seconds after which who waits is told for whom."""
KEPT = 60.0
"""Seconds for which what was found is believed."""

_MATTERS = (
    *(ROOT, "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "TPU_VISIBLE_CHIPS", "ZE_AFFINITY_MASK"),
    "HABANA_VISIBLE_MODULES",
)
"""Variables that change the answer: a notebook may set them between two runs."""
_cache: dict[tuple[object, ...], tuple[float, tuple[Inventory, ...]]] = {}


def discover(
    timeout: float = DEADLINE,  # seconds until a vendor that has not answered counts as unknown
    *,
    vendors: Sequence[Vendor] | None = None,  # whom to ask; None: those that are :func:`present`
    fresh: bool = False,  # ask again, though the answer of less than a minute ago is known
    # is told in words whom it waits for, where that takes more than :data:`SLOW` seconds
    slow: Callable[[str], None] = lambda words: None,
) -> tuple[Inventory, ...]:
    """The devices that this process may use, by vendor. Problems are told in an inventory, never raised."""
    asked = present() if vendors is None else tuple(vendors)
    if not asked:
        return ()
    key = (*(vendor.name for vendor in asked), *map(os.environ.get, _MATTERS))
    known = _cache.get(key)
    if known is None or fresh or time.monotonic() - known[0] > KEPT:
        found = _discover(asked, timeout, slow)
        known = _cache[key] = (time.monotonic(), found)
    return known[1]


def _discover(
    vendors: Sequence[Vendor], timeout: float, slow: Callable[[str], None]
) -> tuple[Inventory, ...]:
    until = time.monotonic() + timeout
    found: dict[str, Inventory] = {}
    agents: list[Agent] = []
    for vendor in vendors:
        try:
            agents.append(Agent(vendor.name, interval=KEPT))
        except OSError as error:
            found[vendor.name] = unknown(vendor.name, f"no process could be started: {error.strerror}")
    for agent in agents:
        found[agent.vendor] = _inventory(agent, until, timeout, slow)
        agent.close()
        agent.reap(1)  # unless it is stuck in the driver
    return tuple(found[vendor.name] for vendor in vendors)


def asking(vendor: str) -> str:
    """What is said to who waits for the answer of a vendor's driver."""
    return f"asking the {MAKERS.get(vendor, vendor)} driver …"


def _inventory(agent: Agent, until: float, timeout: float, slow: Callable[[str], None]) -> Inventory:
    poller = select.poll()
    poller.register(agent.descriptor, select.POLLIN)
    try:
        first = min(SLOW, until - time.monotonic())
        if first > 0 and not poller.poll(first * 1000):
            slow(asking(agent.vendor))
        while agent.latest is None:
            if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
                return unknown(agent.vendor, f"it did not answer within {timeout:g} s")
            agent.receive()
    except AgentSilent:
        return unknown(agent.vendor, agent.end(max(0.0, min(ENDING, until - time.monotonic()))))
    except AgentFailed as error:
        return unknown(agent.vendor, str(error))
    return agent.latest.inventory


def unknown(vendor: str, why: str) -> Inventory:
    """The inventory of a vendor whose devices could not be asked."""
    return Inventory(
        vendor=vendor, problems=(f"{vendor}: its library could not be asked: {why}",), unknown=True
    )
