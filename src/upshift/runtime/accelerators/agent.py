"""Which devices there are, and how busy they are, asked in a process of its own for each vendor: the agent.

A library of a driver may hang, crash or print; none of that reaches who wants to know. The process
discovers the vendor's devices and says so, and then reads them every interval, in lines of JSON::

    {"inventory": {"vendor": "nvidia", "devices": […], "driver": "570.86.15", …}}
    {"at": 86400.2, "readings": [{"uuid": "GPU-…", "busy": 97, …}, …]}

It ends when the pipe that it is asked through closes, and with the process that has started it. Who asks
once, with :func:`discover`, sets a deadline. A machine without device files costs a few looks at paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs

from upshift.model.settings.kinds import kind_of_model
from upshift.model.spec import decode, encode
from upshift.runtime.accelerators.files import ROOT, device_root
from upshift.runtime.accelerators.vendor import MAKERS, Inventory, Reading, Vendor
from upshift.runtime.accelerators.vendors import present, vendor_named
from upshift.runtime.children import command
from upshift.runtime.proc import readable

_LONGEST = 1 << 22
"""Bytes of a line, at most."""


class AgentFailed(Exception):
    """An agent has crashed, or talks nonsense; the text says which."""


class AgentSilent(AgentFailed):
    """The agent has closed its pipe, and is soon gone: :meth:`Agent.end` says how it ended."""


@attrs.frozen(kw_only=True)
class Snapshot:
    """The devices of one vendor at one instant."""

    inventory: Inventory  # what there is
    # one for each device that there is or was; none: these devices cannot be read
    readings: tuple[Reading, ...] = ()
    read: bool = False  # whether it was tried; else the readings are about to come
    at: float  # seconds, by the clock of ``time.monotonic``


class Agent:
    """A process that watches the devices of one vendor.

    Raises
    ------
    OSError
        It cannot be started.
    """

    def __init__(
        self,
        vendor: str,
        *,
        interval: float,  # seconds between two snapshots
    ) -> None:
        self.vendor = vendor
        self.latest: Snapshot | None = None
        self.status: int | None = None
        self._text = b""
        self.descriptor, answers = os.pipe()
        asked, self._asking = os.pipe()
        try:
            process = subprocess.Popen(
                command("--accelerator", vendor, str(interval), str(answers), str(os.getpid())),
                stdin=asked,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(answers,),
                start_new_session=True,
            )
        except OSError:
            os.close(self.descriptor)
            os.close(self._asking)
            raise
        finally:
            os.close(asked)
            os.close(answers)
        os.set_blocking(self.descriptor, False)
        self.pid = process.pid
        process.returncode = 0  # it is waited for by reap()

    def every(self, seconds: float) -> None:
        """Change the time between two snapshots, from now on."""
        with contextlib.suppress(OSError):  # it has died, which receive() tells
            os.write(self._asking, f"{seconds}\n".encode())

    def receive(self) -> Snapshot | None:
        """The newest snapshot of what has arrived; None: none has, as a whole. It never waits."""
        try:
            data = os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            return None
        if not data:
            raise AgentSilent("it stopped talking")
        *lines, self._text = (self._text + data).split(b"\n")
        if len(self._text) > _LONGEST:
            raise AgentFailed("what it says does not end")
        news = None
        for line in lines:
            try:
                news = self._understood(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise AgentFailed(f"what it says is invalid: {error!r}") from None
        self.latest = news or self.latest
        return news

    def _understood(self, message: Any) -> Snapshot:
        if "inventory" in message:
            inventory = decode(Inventory, message["inventory"])
            if self.latest is None:
                self.latest = Snapshot(inventory=inventory, at=time.monotonic())
            self.latest = attrs.evolve(self.latest, inventory=inventory)
        elif self.latest is None:
            raise ValueError("readings of unknown devices")
        else:
            readings = tuple(decode(Reading, reading) for reading in message["readings"])
            self.latest = attrs.evolve(self.latest, readings=readings, read=True, at=float(message["at"]))
        return self.latest

    def end(self, seconds: float = 0) -> str:
        """How it has ended, in words; waits so long for that."""
        status = self.reap(seconds)
        if status is None:
            return "it stopped talking"
        if os.WIFSIGNALED(status):
            return f"it was killed by {_signal_name(os.WTERMSIG(status))}"
        return f"it exited with {os.WEXITSTATUS(status)}"

    def close(self) -> None:
        """Kill it. It may be stuck in the driver, and ends when that lets it: :meth:`reap` it then."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        os.close(self.descriptor)
        os.close(self._asking)

    def reap(self, seconds: float = 0) -> int | None:
        """Its wait status; None: it has not ended within this time."""
        if self.status is not None:
            return self.status
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        readable(pidfd, seconds)
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(vendor: str, interval: float, answers: int) -> NoReturn:
    """Be the process of an agent; standard input says how often to read, and ends it."""
    os.set_inheritable(answers, False)
    asked = vendor_named(vendor)
    root = device_root()
    inventory = _known(asked.discover(root))
    _say(answers, {"inventory": encode(inventory)})
    watched = {device.uuid: device for device in inventory.devices}
    due = time.monotonic()
    ill: set[str] = set()
    while True:
        readings = asked.read(root, tuple(watched.values()))
        _say(answers, {"at": time.monotonic(), "readings": [encode(reading) for reading in readings]})
        now_ill = {reading.uuid for reading in readings if reading.problem is not None}
        if now_ill != ill:  # lost, or cut into other slices, or well again
            inventory = _known(asked.discover(root))
            watched |= {device.uuid: device for device in inventory.devices}
            _say(answers, {"inventory": encode(inventory)})
        ill = now_ill
        due = max(due + interval, time.monotonic())
        interval = _pause(due, interval)


def _known(inventory: Inventory) -> Inventory:
    """With what the catalogue says of each device: its kind, and what its driver does not tell."""
    devices = []
    for device in inventory.devices:
        kind = kind_of_model(device.model)
        if kind is not None:
            whole = kind.memory if device.partition is None else None
            device = attrs.evolve(
                device,
                kind=kind.name,
                memory=whole if device.memory is None else device.memory,
                compute_capability=device.compute_capability or kind.capability,
            )
        devices.append(device)
    return attrs.evolve(inventory, devices=tuple(devices))


def _pause(until: float, interval: float) -> float:
    """Wait, and give the interval that is wanted from then on."""
    while (left := until - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0]:
            asked = os.read(0, 4096)
            if not asked:
                sys.exit(0)
            interval = float(asked.split()[-1])
            until = min(until, time.monotonic() + interval)
    return interval


def _say(answers: int, message: Any) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    try:
        while data:
            data = data[os.write(answers, data) :]
    except BrokenPipeError:
        sys.exit(0)


# -- asked once ----------------------------------------------------------------------------------

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
    fresh: bool = False,  # ask again, though the answer of less than a minute ago is known
    # is told in words whom it waits for, where that takes more than :data:`SLOW` seconds
    slow: Callable[[str], None] = lambda words: None,
) -> tuple[Inventory, ...]:
    """The devices that this process may use, by vendor. Problems are told in an inventory, never raised."""
    asked = present()
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
