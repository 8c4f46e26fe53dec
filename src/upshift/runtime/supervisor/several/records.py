"""The records of a task on several nodes: one of each, with what is known of every node in its details.

Numbers of a record are per node, as in all records: of what was used the most that any node did. What adds up
(CPU seconds, bytes) is added up in the details. Devices say by themselves on which node they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec import Device, Hardware

if TYPE_CHECKING:
    from upshift.runtime.supervisor.several.nodes import Remote

_SUMS = ("cpu_seconds", "disk_read", "disk_written", "network_received", "network_sent", "samples")
_MOST = ("seconds", "cpu_mean", "cpu_peak", "memory_peak", "memory_mean")
_FACTS = ("cpus", "memory_limit", "waited")


def granted(own: Hardware, name: str, others: Mapping[Remote, Hardware]) -> Hardware:
    """What all nodes were granted."""
    each = _each(own, name, others)
    gpus = None if own.gpus is None else _devices(each)
    nodes = [
        {"node": number, "host": host, **{fact: one.details[fact] for fact in _FACTS if fact in one.details}}
        for number, host, one in each
    ]
    return attrs.evolve(own, gpus=gpus, nodes=len(each), details={**own.details, "by_node": nodes})


def seen(own: Hardware, name: str, remotes: Sequence[Remote]) -> Hardware:
    """What was found on all nodes. Of the others' devices that is what their supervisors have found."""
    gpus = own.gpus
    others = [device for remote in remotes for device in _on(remote.number, remote.devices)]
    if gpus is not None or others:
        gpus = (*(gpus or ()), *others)
    first = {key: own.details[key] for key in ("platform", "python", "cgroup") if key in own.details}
    nodes = [
        {"node": 0, **first, "host": name},
        *({"node": r.number, **r.facts, "host": r.name} for r in remotes),
    ]
    return attrs.evolve(own, gpus=gpus, nodes=len(remotes) + 1, details={**own.details, "by_node": nodes})


def used(own: Hardware, name: str, others: Mapping[Remote, Hardware]) -> Hardware:
    """What was used on all nodes."""
    each = _each(own, name, others)
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


def _each(own: Hardware, name: str, others: Mapping[Remote, Hardware]) -> list[tuple[int, str, Hardware]]:
    return [(0, name, own), *((remote.number, remote.name, record) for remote, record in others.items())]


def _most(values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _devices(each: Sequence[tuple[int, str, Hardware]]) -> tuple[Device, ...]:
    return tuple(device for number, _, one in each for device in _on(number, one.gpus))


def _on(node: int, devices: Sequence[Device] | None) -> tuple[Device, ...]:
    return tuple(attrs.evolve(device, node=node) for device in devices or ())
