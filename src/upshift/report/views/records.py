"""The four records in a person's words: what was asked, granted, seen and used, line by line.

Each record becomes the same lines in the same order (CPUs, memory, GPUs, …), so that side by side
they can be compared at a glance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Device, Hardware
from upshift.report.human import DASH, count, listed, many, number, of_its_own, processes
from upshift.runtime.accelerators.matching import admits, listing

if TYPE_CHECKING:
    from upshift.model.settings.accelerator import Wanted

RECORDS = ("asked", "granted", "seen", "used")
SHORT = " !"
"""Ends a grant that is less than was asked for."""
NO_GPU = "no GPU"
ONE_NODE = "1 node"
SAME = "same"
"""What is seen of devices where that is what was granted."""
_ROWS = ("cpu", "memory", "gpu", "disk", "shared memory", "nodes", "processes")


def brief(granted: Hardware | None) -> str:
    """A grant in half a line, for a run that goes on: ``4 processes · 2 CPU · 4 GB · no GPU``."""
    if granted is None:
        return ""
    texts = (many(granted), _cpus(granted), _memory(granted), _gpus(granted))
    return " · ".join(filter(None, texts))


def side_by_side(attempts: Sequence[Mapping[str, Hardware | None]]) -> list[tuple[str, str, str, str]]:
    """The records of one attempt, or of the attempts of many tasks together."""
    rows = []
    for kind in _ROWS:
        row = [_together(kind, name, [a.get(name) for a in attempts]) for name in RECORDS]
        if set(row) <= {"", NO_GPU} and not row[0]:
            continue  # nobody asked for one, and there is none
        if set(row) <= {"", ONE_NODE}:
            continue  # which goes without saying
        if kind == "gpu" and row[2] == row[1] not in ("", NO_GPU):
            row[2] = SAME
        if any(_falls_short(kind, attempt) for attempt in attempts):
            row[1] = (row[1] or DASH) + SHORT
        rows.append(tuple(cell or DASH for cell in row))
    return rows  # type: ignore[return-value]


def _together(kind: str, record: str, hardware: Iterable[Hardware | None]) -> str:
    known = [h for h in hardware if h is not None]
    if record == "used":
        return _used(kind, known)
    words = _asked_gpus if (kind, record) == ("gpu", "asked") else _GIVEN[kind]
    texts = list(dict.fromkeys(filter(None, (words(h) for h in known))))
    if len(texts) < 2:
        return texts[0] if texts else ""
    return _range(kind, known) or f"{texts[0]} … {texts[-1]}"


def _falls_short(kind: str, attempt: Mapping[str, Hardware | None]) -> bool:
    asked, granted = attempt.get("asked"), attempt.get("granted")
    if asked is None or granted is None:
        return False
    if kind == "gpu":
        return bool(asked.gpus) and not any(_meets(granted.gpus or (), one) for one in _alternatives(asked))
    wanted, got = _AMOUNT[kind](asked), _AMOUNT[kind](granted)
    if wanted is not None and asked.nodes and kind in ("nodes", "processes"):
        wanted = wanted * asked.details.get("least_nodes", asked.nodes) / asked.nodes
    return wanted is not None and (got or 0) < wanted


def _meets(gpus: Sequence[Device], wanted: Wanted) -> bool:
    """Whether these are what was asked for, as far as they are known."""
    fitting = [gpu for gpu in gpus if gpu.vendor is None or admits(wanted, gpu)]
    return len(fitting) >= wanted.count


def _range(kind: str, known: Sequence[Hardware]) -> str:
    """The least and the most, for amounts; for devices what they are; empty where that would say nothing."""
    if kind == "gpu":
        texts = {_gpus_of_any_number(h) for h in known if h.gpus is not None}
        return texts.pop() if len(texts) == 1 else ""
    if kind == "cpu":
        cpus = [h.cpu_count for h in known if h.cpu_count is not None]
        return f"{_between(cpus, number)} CPU"
    if kind == "memory":
        return _between([h.memory for h in known if h.memory is not None], format_size)
    return ""


def _between(values: Sequence[float], words: Callable[[float], str]) -> str:
    low, high = words(min(values)), words(max(values))
    if low == high:
        return low
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low}{DASH}{high}"


def _cpus(hardware: Hardware) -> str:
    if hardware.cpu_count is None:
        return ""
    pinned = hardware.details.get("cpus")
    return f"{number(hardware.cpu_count)} CPU" + (f" ({listed(pinned)})" if pinned else "")


def _memory(hardware: Hardware) -> str:
    return "" if hardware.memory is None else format_size(hardware.memory)


def _gpus(hardware: Hardware) -> str:
    if hardware.gpus is None:
        return ""
    return listing(hardware.gpus, memory=True, numbered=listed) if hardware.gpus else NO_GPU


def _gpus_of_any_number(hardware: Hardware) -> str:
    return listing(hardware.gpus, memory=True) if hardware.gpus else _gpus(hardware)


def _asked_gpus(hardware: Hardware) -> str:
    return " or ".join(map(str, _alternatives(hardware))) if hardware.gpus else _gpus(hardware)


def _alternatives(asked: Hardware) -> list[Wanted]:
    """What would satisfy a request for accelerators, the best first."""
    from upshift.model.settings.accelerator import Wanted
    from upshift.model.settings.kinds import kind_of_model  # the catalogue, which few runs need

    several = asked.details.get("alternatives")
    if several:
        return [Wanted.from_json(one) for one in several]
    gpus = asked.gpus or ()
    first = gpus[0]
    return [
        Wanted(
            count=len(gpus),
            name=first.model,
            kind=kind_of_model(first.kind),
            vendor=first.vendor,
            memory=first.memory,
            partition=first.partition,
        )
    ]


def _disk(hardware: Hardware) -> str:
    return "" if hardware.disk is None else f"{format_size(hardware.disk)} disk"


def _shared_memory(hardware: Hardware) -> str:
    return "" if hardware.shared_memory is None else f"{format_size(hardware.shared_memory)} shm"


def _nodes(hardware: Hardware) -> str:
    if hardware.nodes is None:
        return ""
    least = hardware.details.get("least_nodes")
    words = ONE_NODE if hardware.nodes == 1 else count(hardware.nodes, "node")
    return words if least is None else f"{least} to {words}"


_GIVEN: Mapping[str, Callable[[Hardware], str]] = {
    "cpu": _cpus,
    "memory": _memory,
    "gpu": _gpus,
    "disk": _disk,
    "shared memory": _shared_memory,
    "nodes": _nodes,
    "processes": lambda hardware: many(attrs.evolve(hardware, nodes=None)),
}


_AMOUNT: Mapping[str, Callable[[Hardware], float | None]] = {
    "cpu": lambda hardware: hardware.cpu_count,
    "memory": lambda hardware: hardware.memory,
    "disk": lambda hardware: hardware.disk,
    "shared memory": lambda hardware: hardware.shared_memory,
    "nodes": lambda hardware: hardware.nodes,
    "processes": processes,
}


def _used(kind: str, known: Sequence[Hardware]) -> str:
    if kind == "cpu":
        means = [v for h in known if (v := _detail(h, "cpu_mean", h.cpu_count)) is not None]
        return f"{_between(means, number)} CPU mean" if means else ""
    if kind == "memory":
        peaks = [v for h in known if (v := _detail(h, "memory_peak", h.memory)) is not None]
        return f"{_between(peaks, of_its_own)} peak" if peaks else ""
    if kind == "gpu":
        return ", ".join(_used_gpus([h for h in known if h.gpus]))
    return ""


def _used_gpus(known: Sequence[Hardware]) -> Iterator[str]:
    means = [v for h in known if (v := _detail(h, "gpu_mean", None)) is not None]
    if means:
        yield f"{_between(means, number)} GPU mean"
    peaks = [max(gpu.details.get("own_memory_peak") or 0 for gpu in h.gpus or ()) for h in known]
    if any(peaks):
        each = " on one" if any(len(h.gpus or ()) > 1 for h in known) else ""
        yield f"{_between(peaks, format_size)} peak{each}"


def _detail(hardware: Hardware, name: str, otherwise: float | None) -> float | None:
    value: Any = hardware.details.get(name)
    return value if isinstance(value, (int, float)) else otherwise
