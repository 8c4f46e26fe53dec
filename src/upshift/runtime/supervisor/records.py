"""The records ``granted``, ``seen`` and ``used`` of an attempt, on one node or on several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec import Device, Failure, Framework, Hardware, decode, encode
from upshift.runtime.launch.ranks import cpu_numbers
from upshift.runtime.messages import Diagnosis, Seen
from upshift.runtime.proc import Consumed
from upshift.runtime.supervisor.ends import Gang
from upshift.runtime.supervisor.members import LocalMember, Member
from upshift.runtime.supervisor.node_runtime import NodeRuntime

if TYPE_CHECKING:
    from upshift.runtime.accelerators.vendor import Inventory
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor
    from upshift.runtime.supervisor.nodes import Nodes, RemoteNode


class AttemptRecords:
    """The records of an attempt."""

    def __init__(self, gang: Gang, node_runtime: NodeRuntime, nodes: Nodes | None) -> None:
        self._gang = gang
        self._node_runtime = node_runtime
        self._nodes = nodes

    def verdict(self) -> Failure | None:
        """The failure, if the step went beyond its memory on a node."""
        own = self._node_runtime.verdict(self._peak(0))
        return own if own is not None or self._nodes is None else self._nodes.verdict

    def granted(self) -> Hardware | None:
        """The record ``granted`` of the attempt."""
        own = self._node_runtime.granted()
        return own if own is None or self._nodes is None else _granted_on_all(own, self._nodes)

    def seen(self, observations: Observations, host: Mapping[str, Any], *, by_rank: bool) -> Hardware | None:
        """The record ``seen``; None: the processes were killed before they looked."""
        found = [seen for member in self._on(0) if (seen := member.sight()[0]) is not None]
        if not found:
            return None
        details = {**host, "pid": self._gang.main.pid}
        if by_rank:
            details["ranks"] = [_seen_by(member) for member in self._gang.members]
        record = observations.record(cpu_count=_cpus(found), memory=found[0].memory, details=details)
        return record if self._nodes is None else _seen_on_all(record, self._nodes)

    def used(self, seconds: float, *, by_rank: bool) -> Hardware:
        """The record ``used``, of so many seconds."""
        record = self._node_runtime.used(seconds=seconds, consumed=self._consumed(0), peak=self._peak(0))
        if self._nodes is not None:
            others = {
                remote: remote.record(seconds, self._consumed(remote.number), self._peak(remote.number))
                for remote in self._nodes.remotes
            }
            record = _used_on_all(record, self._nodes, others)
        if not by_rank:
            return record
        ranks = [self._used_by(member) for member in self._gang.members]
        return attrs.evolve(record, details={**record.details, "ranks": ranks})

    def _used_by(self, member: Member) -> dict[str, Any]:
        told = member.outcome.peak if member.outcome is not None else None
        seen = self._node_runtime.peak_of(member.pid) if isinstance(member, LocalMember) else None
        return {
            "rank": member.number,
            "cpu_seconds": round(_consumed_by(member).cpu_seconds, 6) or None,  # 0: its node was lost
            "memory_peak": max((peak for peak in (told, seen) if peak is not None), default=None),
        }

    def _on(self, node: int) -> list[Member]:
        return [one for one in self._gang.members if one.rank is None or one.rank.node == node]

    def _consumed(self, node: int) -> Consumed:
        return Consumed.sum(_consumed_by(one) for one in self._on(node))

    def _peak(self, node: int) -> int | None:
        """Bytes of memory at most, as the processes of a node saw it themselves."""
        peaks = [one.outcome.peak for one in self._on(node) if one.outcome and one.outcome.peak is not None]
        return sum(peaks) if peaks else None


def _consumed_by(member: Member) -> Consumed:
    """What a process has consumed, as the kernel tells at its end, or itself at that of the call."""
    return member.consumed if member.ended or member.outcome is None else member.outcome.consumed


def _cpus(found: Sequence[Seen]) -> int:
    """How many CPUs processes find together: each may have been placed on some of them."""
    sets = [set(cpu_numbers(seen.cpus or "")) for seen in found]
    if all(seen.cpu_count == len(cpus) for seen, cpus in zip(found, sets, strict=True)):
        return len(set().union(*sets))
    return max(seen.cpu_count for seen in found)  # one that is by itself, or a quota, which is all they have


def _seen_by(member: Member) -> dict[str, Any]:
    seen, _ = member.sight()
    found = {"rank": member.number, "host": member.host, "pid": member.pid}
    if member.rank is not None:
        found |= {"node": member.rank.node, "local_rank": member.rank.local_rank}
    return found | {
        "world_size": None if seen is None else seen.world_size,
        "group": None if member.outcome is None else member.outcome.group,
        "device": None if seen is None else seen.device,
        "cpus": None if seen is None else seen.cpus,
        "returned": member.returned,
    }


class Observations:
    """What is found in the course of an attempt; on a machine without devices, frameworks only."""

    def __init__(self, granted: Hardware | None, accelerators: Callable[[], DeviceMonitor]) -> None:
        self._granted: tuple[Device, ...] = (granted.gpus if granted else None) or ()
        self._inventories: tuple[Inventory, ...] = ()
        self._frameworks: list[Framework] = []
        self._diagnosis: Diagnosis | None = None
        self._missed: list[str] = []
        if self._granted:
            watched = accelerators()

            def look() -> None:  # once: what they look like at the start
                self._inventories = watched.inventories

            watched.want(look)

    def framework(self, content: Mapping[str, Any]) -> None:
        """A framework in the step's process sees this: a :class:`~upshift.model.spec.Framework`."""
        self._frameworks.append(decode(Framework, content))

    def diagnosis(self, content: Mapping[str, Any]) -> Failure | None:
        """Why the step must not go on; None: it may."""
        found = decode(Diagnosis, content)
        if found.failure is None:
            self._missed.append(found.framework)
        else:
            self._diagnosis = found
        return found.failure

    @property
    def degraded(self) -> bool:
        """Whether the step goes on though it does not see what it was granted."""
        return bool(self._missed)

    def record(self, *, cpu_count: int, memory: int, details: Mapping[str, Any]) -> Hardware:
        """The record."""
        known = dict(details)
        if self._frameworks:
            known["frameworks"] = [encode(framework) for framework in self._frameworks]
        if self._diagnosis is not None:
            known["diagnosis"] = {"cause": self._diagnosis.cause, "evidence": list(self._diagnosis.evidence)}
        if self._missed:
            known["missed_by"] = list(self._missed)
        vendors = {device.vendor for device in self._granted}
        asked = [inventory for inventory in self._inventories if inventory.vendor in vendors]
        for name in ("driver", "runtime"):
            values = [value for inventory in asked if (value := getattr(inventory, name)) is not None]
            if values:
                known[name] = values[0]
        problems = [problem for inventory in asked for problem in inventory.problems]
        if problems:
            known["problems"] = problems
        return Hardware(cpu_count=cpu_count, memory=memory, nodes=1, gpus=self._gpus(asked), details=known)

    def _gpus(self, asked: list[Inventory]) -> tuple[Device, ...] | None:
        """The granted devices as they were found; None: nobody could say."""
        if not any(inventory.devices for inventory in asked):
            return None
        found = {_which(device): device for inventory in asked for device in inventory.devices}
        return tuple(
            attrs.evolve(found[_which(device)], node=device.node)
            for device in self._granted
            if _which(device) in found
        )


def _which(device: Device) -> tuple[object, ...]:
    """What tells a device from others on its machine: not every vendor has a uuid for each."""
    return (device.uuid,) if device.uuid is not None else (device.vendor, device.index)


# Of a task on several nodes there is one record of each kind. Its numbers are per node, as in all records:
# the most that any node used. What adds up (CPU seconds, bytes) is added up in the details, and each node
# has a line there. Devices tell by themselves on which node they are.
_SUMS = ("cpu_seconds", "disk_read", "disk_written", "network_received", "network_sent", "samples")
_MOST = ("seconds", "cpu_mean", "cpu_peak", "memory_peak", "memory_mean")
_FACTS = ("cpus", "memory_limit", "waited")


def _granted_on_all(own: Hardware, others: Nodes) -> Hardware:
    known = {remote: remote.granted for remote in others.remotes if remote.granted is not None}
    each = _each(own, others.name, known)
    gpus = None if own.gpus is None else _devices(each)
    nodes = [
        {"node": number, "host": host, **{fact: one.details[fact] for fact in _FACTS if fact in one.details}}
        for number, host, one in each
    ]
    return attrs.evolve(own, gpus=gpus, nodes=len(each), details={**own.details, "by_node": nodes})


def _seen_on_all(own: Hardware, nodes: Nodes) -> Hardware:
    """Of the others' devices that is what their supervisors have found."""
    gpus = own.gpus
    others = [device for remote in nodes.remotes for device in _on(remote.number, remote.devices)]
    if gpus is not None or others:
        gpus = (*(gpus or ()), *others)
    first = {key: own.details[key] for key in ("platform", "python", "cgroup") if key in own.details}
    by_node = [
        {"node": 0, **first, "host": nodes.name},
        *({"node": r.number, **r.facts, "host": r.name} for r in nodes.remotes),
    ]
    return attrs.evolve(own, gpus=gpus, nodes=nodes.count, details={**own.details, "by_node": by_node})


def _used_on_all(own: Hardware, nodes: Nodes, others: Mapping[RemoteNode, Hardware]) -> Hardware:
    each = _each(own, nodes.name, others)
    details: dict[str, Any] = dict(own.details)
    for key in _SUMS:
        known = [one.details[key] for _, _, one in each if one.details.get(key) is not None]
        details[key] = sum(known) if known else None
    for key in _MOST:
        known = [one.details[key] for _, _, one in each if one.details.get(key) is not None]
        details[key] = max(known) if known else None
    details["cpu_seconds"] = round(details["cpu_seconds"] or 0.0, 6)
    details["by_node"] = [
        {"node": number, "host": host, **{key: one.details.get(key) for key in (*_MOST, *_SUMS)}}
        for number, host, one in each
    ]
    return attrs.evolve(
        own,
        cpu_count=_most(one.cpu_count for _, _, one in each),
        memory=_most(one.memory for _, _, one in each),
        gpus=None if all(one.gpus is None for _, _, one in each) else _devices(each),
        nodes=len(each),
        details=details,
    )


def _each(own: Hardware, name: str, others: Mapping[RemoteNode, Hardware]) -> list[tuple[int, str, Hardware]]:
    return [(0, name, own), *((remote.number, remote.name, record) for remote, record in others.items())]


def _most(values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _devices(each: Sequence[tuple[int, str, Hardware]]) -> tuple[Device, ...]:
    return tuple(device for number, _, one in each for device in _on(number, one.gpus))


def _on(node: int, devices: Sequence[Device] | None) -> tuple[Device, ...]:
    return tuple(attrs.evolve(device, node=node) for device in devices or ())
