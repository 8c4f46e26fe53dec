"""The accelerators of this machine as one supervisor sees them: which are free, who has the others.

A lock decides who has a device, and names a process. A note in ``UPSHIFT_HOME`` says which task of which
run that process has taken it for. It counts only as long as the lock is that process's, so nobody has to
remove it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.model.configuration import home, make_folder
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Device, Model
from upshift.model.spec.task import TaskId, TaskSpec
from upshift.runtime import marks, proc
from upshift.runtime.accelerators import locks
from upshift.runtime.accelerators.locks import Hold, key
from upshift.runtime.accelerators.matching import Lack, Links, Match, choose, match
from upshift.runtime.accelerators.vendor import Inventory, Reading
from upshift.runtime.accelerators.vendors import environment
from upshift.runtime.storage.files import replacing

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor


class Grant:
    """The devices of one attempt."""

    def __init__(
        self,
        *,
        devices: tuple[Device, ...] | None = None,
        environment: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
        hold: Hold | None = None,
        less: bool = False,
        given_back: Callable[[], None] = lambda: None,
    ) -> None:
        self.devices = devices
        self.waited = 0.0
        """Seconds that the attempt has waited for it."""
        self.further: tuple[Grant, ...] = ()
        """What the further nodes of the task get, where these are on this machine, too."""
        self.environment = environment or {}
        self.remarks = tuple(remarks)
        self.less = less
        self._hold = hold
        self._given_back = given_back

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the step process has to keep open to hold the devices too."""
        return self._hold.descriptors if self._hold is not None else ()

    def hand_over(self) -> None:
        """Let go of the locks, for another process that takes them now and has them as long as it lives.

        The devices count as this grant's until :meth:`give_back`.
        """
        if self._hold is not None:
            self._hold.give_back()

    def give_back(self) -> None:
        """Nothing of the attempt runs any more, on any node."""
        for one in self.further:
            one.give_back()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.give_back()
            self._given_back()


class DevicePool:
    """The devices of this machine, and who holds them."""

    def __init__(self, accelerators: DeviceMonitor, *, engine: int, returned: Callable[[], None]) -> None:
        self._accelerators = accelerators
        self._tell_returned = returned
        self._engine = engine
        self._found: dict[str, Inventory] = {}
        self._mine: dict[str, str] = {}
        self._returned: dict[str, float] = {}
        self._littered: dict[str, list[int]] = {}

    @property
    def known(self) -> bool:
        """Whether every vendor has said what there is, and how busy it is; or has failed to."""
        latest = self._accelerators.latest
        return self._accelerators.known and all(snapshot.read for snapshot in latest)

    # -- handing out ------------------------------------------------------------------------------

    def rest(self, own: Mapping[str, str] | None = None) -> Grant:
        """For a task that did not ask: what nobody has."""
        devices = [device for inventory in self._inventories() for device in inventory.devices]
        # Twice: who takes several devices has one for an instant, and gives it back if another is taken.
        free = [device for device in devices if locks.free(device) or locks.free(device)]
        return Grant(environment=environment(free, own)) if len(free) < len(devices) else Grant()

    def lack(self, spec: TaskSpec) -> Lack | None:
        """How far all devices, held or free, fall short of what a task was promised; None: they do not."""
        found = match(spec.request, self._inventories())
        return found.lack if _is_less(found, spec) else None

    def take(self, spec: TaskSpec, *, share: bool, less: bool = False, nodes: int = 1) -> Grant | None:
        """What a task was promised on each of its nodes here; None: there is not enough at the moment.

        Nobody has a part of what he needs while he waits for the rest of it: two could wait for each other.
        """
        inventories = self._inventories()
        found = match(spec.request, inventories)
        lack = found.lack if _is_less(found, spec) else None
        if lack is not None:
            if not less:
                return None
            if not found.sets[0]:
                return Grant(
                    devices=(), environment=environment((), spec.environment), remarks=(str(lack),), less=True
                )
        links = [link for inventory in inventories for link in inventory.links]
        devices = (device for inventory in inventories for device in inventory.devices)
        free = [device for device in devices if key(device) not in self._mine and locks.free(device)]
        trouble = [(device, words) for device in free if (words := self._trouble(device))]
        troubled = {key(device) for device, _ in trouble}
        idle = [device for device in free if key(device) not in troubled]
        quiet = [device for device in idle if not self._in_use(device)]
        for among in (quiet, idle, free) if share else (quiet, idle):
            for like in found.sets if nodes == 1 else _shared(found, spec):
                holds = self._hold(like, among, links, nodes)
                if holds:
                    first, *further = [self._grant(spec, hold, trouble, lack) for hold in holds]
                    first.further = tuple(further)
                    return first
        return None

    def _hold(self, like: Sequence[Device], among: Sequence[Device], links: Links, nodes: int) -> list[Hold]:
        """Devices for each of so many nodes; for none, if there are not enough for all."""
        holds: list[Hold] = []
        try:
            for _ in range(nodes):
                chosen = choose(like, among, links)
                hold = locks.hold(chosen) if chosen else None
                if hold is None or self._is_littered(hold):
                    break
                holds.append(hold)
                among = [device for device in among if device not in hold.devices]
        finally:
            if len(holds) < nodes:
                for hold in holds:
                    hold.give_back()
        return holds if len(holds) == nodes else []

    def _grant(
        self, spec: TaskSpec, hold: Hold, trouble: Sequence[tuple[Device, str]], lack: Lack | None
    ) -> Grant:
        names = set(map(key, hold.devices))
        self._mine |= dict.fromkeys(names, str(spec.task))
        note(names, spec.task)
        return Grant(
            devices=hold.devices,
            environment={
                **environment(hold.devices),
                locks.HELD: hold.names,
                locks.TAKER: marks.identity(),
            },
            remarks=[
                *([] if lack is None else [str(lack)]),
                *_sentences(
                    (d, words + ("; this step works beside it" if key(d) in names else ", and avoided"))
                    for d, words in trouble
                ),
            ],
            hold=hold,
            less=lack is not None,
            given_back=lambda: self._came_back(names),
        )

    def _came_back(self, names: Iterable[str]) -> None:
        for name in names:
            self._mine.pop(name, None)
            self._returned[name] = time.monotonic()
        self._tell_returned()

    def _is_littered(self, hold: Hold) -> bool:
        """Whether a step whose supervisor was killed has left processes there.

        They are killed. The devices go back until these processes are gone.
        """
        left = locks.end_left_behind(hold.devices)
        for device in hold.devices:
            self._littered.pop(key(device), None)
            if left:
                self._littered[key(device)] = left
        if left:
            hold.give_back()
        return bool(left)

    # -- who has the others -----------------------------------------------------------------------

    def why(self, spec: TaskSpec, *, nodes: int = 1) -> str:
        """Why a task has to wait, in words. What dead supervisors have left in its way is killed."""
        wanted = " or ".join(map(str, spec.request.alternatives)) or "the devices to be known"
        wanted += f" on each of {nodes} nodes" if nodes > 1 else ""
        inventories = self._inventories()
        found = match(spec.request, inventories)
        if self._accelerators.known and found.lack is not None and _is_less(found, spec):
            reason = found.lack.why
        elif not self.known:
            reason = "the driver has not answered yet"
        else:
            devices = [device for inventory in inventories for device in inventory.devices]
            reasons = _sentences((d, words) for d in devices if (words := self._taken(d)))
            reason = "; ".join(reasons[:4]) + ("; …" if len(reasons) > 4 else "")
        return f"waits for {wanted}: {reason or 'what is free is not enough'}"

    def _taken(self, device: Device) -> str | None:
        """Who holds a device; None: nobody."""
        if key(device) in self._mine:
            return f"is held by {self._mine[key(device)]}"
        if not locks.free(device):
            left = locks.end_orphans(device)
            taker = locks.holder(device)
            return held_by(taker, left, noted(key(device), taker))
        littered = self._littered.get(key(device))
        return held_by(None, littered) if littered else self._trouble(device)

    def _trouble(self, device: Device) -> str | None:
        """Why a device that nobody holds had better not be handed out."""
        reading = self._accelerators.readings.get(device.uuid or "")
        if reading is None:
            return None
        vendors = (s for s in self._accelerators.latest if s.inventory.vendor == device.vendor)
        old = max((snapshot.at for snapshot in vendors), default=0.0) < self._returned.get(key(device), 0.0)
        return _foreign(device, reading, ours=self._ours, old=old)

    def _in_use(self, device: Device) -> bool:
        """Whether any program works with it, and be it one of ours that did not ask for a device."""
        reading = self._accelerators.readings.get(device.uuid or "")
        return reading is not None and any(os.path.exists(f"/proc/{pid}") for pid in reading.processes)

    def _ours(self) -> set[int]:
        """This supervisor's processes, and its engine's: a notebook may have a device open itself."""
        alive = os.getppid() == self._engine
        return set(proc.tree(self._engine if alive else os.getpid()))

    def _inventories(self) -> list[Inventory]:
        """What each vendor said last, though its library may have crashed since. What is lost is left out."""
        for snapshot in self._accelerators.latest:
            self._found[snapshot.inventory.vendor] = snapshot.inventory
        failed = {inventory.vendor: inventory for inventory in self._accelerators.inventories}
        return [self._without_lost(inventory) for inventory in (failed | self._found).values()]

    def _without_lost(self, inventory: Inventory) -> Inventory:
        readings = self._accelerators.readings
        lost = [
            (device, f"is out of order: {reading.problem}")
            for device in inventory.devices
            if (reading := readings.get(device.uuid or "")) is not None and reading.problem is not None
        ]
        if not lost:
            return inventory
        return attrs.evolve(
            inventory,
            devices=tuple(device for device in inventory.devices if device not in [d for d, _ in lost]),
            problems=(*inventory.problems, *_sentences(lost)),
        )


def _shared(found: Match, spec: TaskSpec) -> list[tuple[Device, ...]]:
    """What each of several nodes of one machine gets: as many devices as it was promised, and not more."""
    promised = (spec.granted.gpus if spec.granted is not None else None) or ()
    return [like for like in found.sets if len(like) == len(promised)] or [promised]


def _is_less(found: Match, spec: TaskSpec) -> bool:
    """Whether what was found is less than a task was promised, which may be less than it asked for."""
    promised = spec.granted.gpus or () if spec.granted is not None else ()
    missing = Counter(device.sort for device in promised) - Counter(device.sort for device in found.sets[0])
    return found.lack is not None and bool(missing)


MUCH = 0.5
"""Share of a device's memory that counts as use though no process is seen. Drivers and desktops take some."""
_SERVERS = ("nvidia-cuda-mps",)
"""Processes that have a device open on behalf of others, which are listed themselves."""


def _foreign(device: Device, reading: Reading, *, ours: Callable[[], set[int]], old: bool) -> str | None:
    """Say which programs outside Upshift work with a device that no step holds; None: none do.

    What cannot be seen: a program in another container that has not taken much memory yet.
    """
    if reading.problem is not None:
        return f"is out of order: {reading.problem}"
    # A process that has ended since the reading is no trouble.
    alive = {pid: size for pid, size in reading.processes.items() if os.path.exists(f"/proc/{pid}")}
    for pid in sorted(alive.keys() - (ours() if alive else set())):
        if _comm(pid) not in _SERVERS:
            return f"is in use by {process_of(pid, alive[pid])}"
    if not alive and not old and device.memory and (reading.memory or 0) > MUCH * device.memory:
        amount = f"{format_size(reading.memory or 0)} of {format_size(device.memory)}"
        return f"is in use by programs that cannot be seen from here ({amount})"
    return None


def held_by(taker: int | None, left: Sequence[int], task: str | None = None) -> str:
    """Say who has locked a device."""
    if left:
        return f"is being freed from {process_of(left[0])}, which a step has left there"
    if task is not None:
        return f"is held by {task}"
    by = "another run" if taker is None else f"another run ({process_of(taker)})"
    return f"is held by {by}"


def _sentences(said: Iterable[tuple[Device, str]]) -> list[str]:
    """``GPU 0 and GPU 1 (NVIDIA L4) are held by …``: what is the same of several devices is said once."""
    groups: dict[tuple[Model, str], list[str]] = {}
    for device, words in said:
        groups.setdefault((device.sort, words), []).append(_number(device))
    found = []
    for ((_, model, _), words), numbers in groups.items():
        names = " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1]))) + (
            f" ({model})" if model else ""
        )
        found.append(f"{names} {words if len(numbers) == 1 else words.replace('is', 'are', 1)}")
    return found


def name_of(device: Device) -> str:
    """``GPU 0 (NVIDIA L4)``."""
    model = device.sort[1]
    return _number(device) + (f" ({model})" if model else "")


def _number(device: Device) -> str:
    what = "GPU" if device.vendor in (None, "nvidia", "amd", "intel") else "device"
    slice_of = f"slice {device.partition} of " if device.partition else ""
    return f"{slice_of}{what} {device.uuid if device.index is None else device.index}"


def process_of(pid: int, memory: int | None = None) -> str:
    """``process 4242 (python, anna, 3.1 GB)``."""
    known = [_comm(pid), _user(pid), format_size(memory) if memory else None]
    words = ", ".join(filter(None, known))
    return f"process {pid}" + (f" ({words})" if words else "")


def _comm(pid: int) -> str | None:
    text = proc.read(f"/proc/{pid}/comm")
    return text.strip() if text else None


def _user(pid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    except (OSError, KeyError):
        return None


def note(names: Iterable[str], task: TaskId) -> None:
    """This process has taken devices, by the names of their locks, for a task."""
    with contextlib.suppress(OSError):  # then nobody is told more than the lock says
        make_folder(_folder())
        for name in names:
            with replacing(_folder() / name) as draft:
                draft.write_text(f"{os.getpid()} {task.run} {task}", "utf-8")


def noted(name: str, taker: int | None) -> str | None:
    """``train of run 20261121-164606-8yvk``, if that is for whom a process has a device; None: not known."""
    try:
        pid, run, task = (_folder() / name).read_text("utf-8").split(" ", 2)
    except (OSError, ValueError):
        return None
    return f"{task} of run {run}" if pid == str(taker) else None


def _folder() -> Path:
    return home() / "devices"
