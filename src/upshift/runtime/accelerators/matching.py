"""A request against the devices that there are: which would do, which are best, and what is short."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Device, Model
from upshift.runtime.accelerators.vendor import Inventory

if TYPE_CHECKING:
    from upshift.model.settings.accelerator import Wanted

Links = Iterable[tuple[str, ...]]
"""Pairs of devices, by uuid, that a link of their own joins."""


@attrs.frozen(kw_only=True)
class Lack:
    """How far the devices fall short of a request, for people."""

    asked: str  # ``"8 × H100"``, ``"2 × NVIDIA L4"``
    got: str
    why: str  # ``"this machine has 2 × NVIDIA L4"``

    def __str__(self) -> str:
        return f"asked {self.asked}, gets {self.got}: {self.why}"


@attrs.frozen(kw_only=True)
class Match:
    """The devices that satisfy a request, or what is missing."""

    # devices that would do, the best set first. Each stands for every set of devices of the same models. If
    # none would do, one set: what there is instead, perhaps nothing.
    sets: tuple[tuple[Device, ...], ...]
    lack: Lack | None = None  # why that is less than the request; None: it is not


def match(request: ResourceSettings, inventories: Sequence[Inventory]) -> Match:
    """What these devices are for a request that asks for some.

    Of several alternatives the first one comes first, and in it the devices of one model, those with
    the most memory before others. Devices of several models are taken where no model has enough. What
    is granted instead of what there is not is of the same vendor, since a program that was written for
    one vendor's devices does not run on another's.
    """
    devices = [device for inventory in inventories for device in inventory.devices]
    links = [link for inventory in inventories for link in inventory.links]
    wanted = request.alternatives
    sets = [found for one in wanted for found in _sets(one, devices, links)]
    if sets:
        return Match(sets=tuple(dict.fromkeys(sets)))
    instead = _instead(wanted, devices, links)
    problems = [problem for inventory in inventories for problem in inventory.problems]
    return Match(
        sets=(instead,),
        lack=Lack(
            asked=" or ".join(map(str, wanted)),
            got=listing(instead),
            why="; ".join([_there_is(inventories), *problems]),
        ),
    )


def _there_is(inventories: Sequence[Inventory]) -> str:
    """What this machine has, and what of that a variable hides."""
    devices = [device for inventory in inventories for device in inventory.devices]
    hidden = [device for inventory in inventories for device in inventory.hidden]
    if not devices and not hidden and any(inventory.unknown for inventory in inventories):
        return "what this machine has is unknown"
    text = f"this machine has {listing([*devices, *hidden], memory=True)}"
    by = " and ".join(i.hidden_by for i in inventories if i.hidden_by is not None)
    return f"{text}, of which {by} of this shell shows {listing(devices)}" if by else text


def choose(like: Sequence[Device], among: Iterable[Device], links: Links) -> tuple[Device, ...] | None:
    """As many of each model as ``like`` has; None: there are not enough.

    Of a model those that are linked with each other come first, then those with low numbers.
    """
    by_model = _by_model(among)
    chosen: list[Device] = []
    for model, count in Counter(device.sort for device in like).items():
        found = by_model.get(model, [])
        if len(found) < count:
            return None
        chosen += _neighbours(found, count, links)
    return tuple(sorted(chosen, key=_place))


def listing(
    devices: Sequence[Device],
    *,
    memory: bool = False,
    numbered: Callable[[Sequence[int]], str] | None = None,
) -> str:
    """``2 × NVIDIA L4``, or ``none``; with ``memory`` also how much each has.

    With ``numbered``, which puts numbers into words, also which they are: ``2 × NVIDIA L4 (0-1)``.
    """
    parts = []
    for found in _by_model(devices).values():
        sizes = {device.memory for device in found}
        each = f", {format_size(found[0].memory)}" if memory and len(sizes) == 1 and found[0].memory else ""
        each += " each" if each and len(found) > 1 else ""
        numbers = list(dict.fromkeys(device.index for device in found if device.index is not None))
        told = bool(numbers) and (len(numbers) == len(found) or bool(found[0].partition))
        which = f" ({numbered(numbers)})" if numbered is not None and told else ""
        parts.append(f"{len(found)} × {called(found[0])}{which}{each}")
    return " and ".join(parts) or "none"


def called(device: Device) -> str:
    """What a device is called: its model, and of a slice its profile."""
    name = device.model or device.kind or (f"{device.vendor} device" if device.vendor else "GPU")
    return f"{name}/{device.partition}" if device.partition else name


def _sets(wanted: Wanted, devices: Sequence[Device], links: Links) -> Iterator[tuple[Device, ...]]:
    """Sets of devices that satisfy one alternative, the best first."""
    fitting = [device for device in devices if admits(wanted, device)]
    if len(fitting) < wanted.count or (wanted.topology and not _is_slice(wanted, fitting)):
        return
    groups = sorted(_by_model(fitting).values(), key=_rank)
    enough = [group for group in groups if len(group) >= wanted.count]
    for group in enough:
        yield tuple(_neighbours(group, wanted.count, links))
    if not enough:
        yield tuple(sorted([d for group in groups for d in group][: wanted.count], key=_place))


def admits(wanted: Wanted, device: Device) -> bool:
    """Whether a device is of the sort that is wanted."""
    return wanted.admits(
        vendor=device.vendor,
        model=device.model,
        kind=device.kind,
        memory=device.memory,
        partition=device.partition,
    )


def _is_slice(wanted: Wanted, fitting: Sequence[Device]) -> bool:
    """Whether these chips are the slice that was asked for: part of a larger one has other links."""
    return len(fitting) == math.prod(int(side) for side in (wanted.topology or "1").split("x"))


def _instead(wanted: Sequence[Wanted], devices: Sequence[Device], links: Links) -> tuple[Device, ...]:
    """The closest match if no alternative is satisfied."""
    best: list[Device] = []
    for one in wanted:
        fitting = [device for device in devices if admits(one, device)]
        if len(fitting) > len(best):
            best = fitting[: one.count]
    if not best and wanted:
        vendor = wanted[0].vendor
        others = [device for device in devices if vendor in (None, device.vendor)]
        groups = sorted(_by_model(others).values(), key=lambda of: (bool(of[0].partition), *_rank(of)))
        if groups:
            count = 1 if wanted[0].partition else wanted[0].count  # no slice is more than a device
            return tuple(_neighbours(groups[0], min(count, len(groups[0])), links))
    return tuple(best)


def _neighbours(group: Sequence[Device], count: int, links: Links) -> list[Device]:
    """The devices that have the most links with each other, found greedily from each of them."""
    ordered = sorted(group, key=_place)
    if count >= len(ordered):
        return ordered[:count]
    joined = {frozenset(link) for link in links}

    def degree(device: Device, others: Iterable[Device]) -> int:
        return sum(frozenset((device.uuid, other.uuid)) in joined for other in others)

    best, most = ordered[:count], -1
    for first in ordered:
        chosen, total = [first], 0
        while len(chosen) < count:
            left = [device for device in ordered if device not in chosen]
            nearest = max(left, key=lambda device: degree(device, chosen))  # the first of equals
            total += degree(nearest, chosen)
            chosen.append(nearest)
        if total > most:
            best, most = sorted(chosen, key=_place), total
    return best


def _by_model(devices: Iterable[Device]) -> dict[Model, list[Device]]:
    groups: dict[Model, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.sort, []).append(device)
    return groups


def _rank(group: Sequence[Device]) -> tuple[int, tuple[int, str]]:
    return -(group[0].memory or 0), _place(group[0])


def _place(device: Device) -> tuple[int, str]:
    return (device.index or 0, device.uuid or "")
