"""The four records in a person's words: what was asked, granted, seen and used, and the verdict on them.

Each record becomes the same lines in the same order (CPUs, memory, GPUs, …), so that side by side
they can be compared at a glance. A verdict says what a step needs, in at most one line.

A GPU that broke while the step had it is told of first, however short the step was. Else nothing is
said of a step that ran for less than :data:`LEAST_SECONDS`, nor where all is well:

=====================  ==================================================================================
is said                where
=====================  ==================================================================================
GPU lost               its driver could not reach it any more
GPU memory errors      it has counted errors that it could not correct
GPUs not used          no GPU, or not all of them, was ever busier than :data:`IDLE` percent
GPUs used in part      together they were busy for less than :data:`GPU_SHARE` of what was asked for
all idle               for more than :data:`IDLE_SHARE` of the time
the data loader        for most of that time about one CPU was at 100 %
GPU memory             less than :data:`MEMORY_SHARE` of it was used, and an amount was asked for
memory                 less than :data:`MEMORY_SHARE` of it was used, and 1 GB less; or hardly any was left
CPUs                   less than :data:`CPU_SHARE` of them, and one CPU less, were used
=====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import IDLE, ONE_CPU, Device, Hardware, one_cpu
from upshift.report.human import DASH, between, count, listed, many, number, of_its_own, processes

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
    from upshift.runtime.accelerators.matching import admits  # devices, which few runs have

    fitting = [gpu for gpu in gpus if gpu.vendor is None or admits(wanted, gpu)]
    return len(fitting) >= wanted.count


def _range(kind: str, known: Sequence[Hardware]) -> str:
    """The least and the most, for amounts; for devices what they are; empty where that would say nothing."""
    if kind == "gpu":
        texts = {_gpus_of_any_number(h) for h in known if h.gpus is not None}
        return texts.pop() if len(texts) == 1 else ""
    if kind == "cpu":
        cpus = [h.cpu_count for h in known if h.cpu_count is not None]
        return f"{between(cpus, number)} CPU"
    if kind == "memory":
        return between([h.memory for h in known if h.memory is not None], format_size)
    return ""


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
    return _listing(hardware.gpus, numbered=listed) if hardware.gpus else NO_GPU


def _gpus_of_any_number(hardware: Hardware) -> str:
    return _listing(hardware.gpus) if hardware.gpus else _gpus(hardware)


def _listing(gpus: Sequence[Device], **more: Any) -> str:
    from upshift.runtime.accelerators.matching import listing  # devices, which few runs have

    return listing(gpus, memory=True, **more)


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
        return f"{between(means, number)} CPU mean" if means else ""
    if kind == "memory":
        peaks = [v for h in known if (v := _detail(h, "memory_peak", h.memory)) is not None]
        return f"{between(peaks, of_its_own)} peak" if peaks else ""
    if kind == "gpu":
        return ", ".join(_used_gpus([h for h in known if h.gpus]))
    return ""


def _used_gpus(known: Sequence[Hardware]) -> Iterator[str]:
    means = [v for h in known if (v := _detail(h, "gpu_mean")) is not None]
    if means:
        yield f"{between(means, number)} GPU mean"
    peaks = [max(gpu.details.get("own_memory_peak") or 0 for gpu in h.gpus or ()) for h in known]
    if any(peaks):
        each = " on one" if any(len(h.gpus or ()) > 1 for h in known) else ""
        yield f"{between(peaks, format_size)} peak{each}"


def _detail(hardware: Hardware, name: str, otherwise: float | None = None) -> float | None:
    value: Any = hardware.details.get(name)
    return value if isinstance(value, (int, float)) else otherwise


BROKEN = "broken"
"""Kind of what is said of a GPU whose results are not to be trusted."""
OFF_THE_BUS, MEMORY_ERRORS = 79, (48, 94, 95)
"""Xid events: 'GPU has fallen off the bus'; 'double bit ECC error', 'contained' and 'uncontained memory
error' (NVIDIA, 'Xid errors')."""
LEAST_SECONDS = 10.0
"""Seconds that a step has to run to be judged."""
GPU_SHARE = 0.7
IDLE_SHARE = 0.2
MEMORY_SHARE = 0.25
MEMORY_LEFT = 0.05
"""Share of the memory that is hardly any, as what is left."""
MEMORY_WORTH = 1_000_000_000
"""Bytes that are worth a word."""
CPU_SHARE = 0.5

Records = Mapping[str, "Hardware | None"]
"""The four records of an attempt, by name; those that are not known may be missing."""


class Remark(NamedTuple):
    """One line of advice or warning about a step."""

    kind: str  # what it is about: the same for tasks of which the same is said with other figures
    text: str  # in words


def verdict(records: Records) -> str | None:
    """What the step needs, from its records; None: there is nothing to say."""
    return "; ".join(finding.text for finding in findings(records)) or None


def findings(records: Records) -> Sequence[Remark]:
    """Everything that there is to say, what costs most first."""
    asked, used = records.get("asked"), records.get("used")
    if used is None:
        return ()
    broken = [Remark(BROKEN, text) for gpu in used.gpus or () if (text := _broken(gpu))]
    if asked is None or (_detail(used, "seconds") or 0.0) < LEAST_SECONDS:
        return broken
    return [*broken, *(finding for judge in _JUDGES for finding in judge(asked, used))]


class Verdicts:
    """What is said of the tasks of one step together: of one of them, and of how many it holds."""

    def __init__(self) -> None:
        self._judged = 0
        self._alike: dict[tuple[str, ...], int] = {}
        self._example: dict[tuple[str, ...], tuple[float, str, str]] = {}

    def add(self, task: str, records: Records) -> None:
        """Take another task or attempt into account."""
        self._judged += 1
        found = findings(records)
        if not found:
            return
        kinds = tuple(finding.kind for finding in found)
        self._alike[kinds] = self._alike.get(kinds, 0) + 1
        used = records["used"]
        seconds = (_detail(used, "seconds") if used else None) or 0.0
        if seconds > self._example.get(kinds, (-1.0, "", ""))[0]:
            self._example[kinds] = seconds, task, "; ".join(finding.text for finding in found)

    def line(self) -> str | None:
        """What holds for most of them, with the figures of the longest; None: nothing.

        What broke is said though it was only one of them that met it.
        """
        if not self._alike:
            return None
        kinds = max(self._alike, key=lambda kinds: (BROKEN in kinds, self._alike[kinds]))
        _, task, text = self._example[kinds]
        if self._judged == 1:
            return text
        return f"{text} ({task}; so did {self._alike[kinds]:,} of {self._judged:,} tasks)"


def _broken(gpu: Device) -> str | None:
    """A warning if a GPU broke and its results cannot be trusted."""
    xids = [event for event in gpu.details.get("xids") or () if isinstance(event, Mapping)]
    fallen = [event for event in xids if event.get("code") == OFF_THE_BUS]
    if fallen or gpu.details.get("problem"):
        event = fallen[0] if fallen else xids[-1] if xids else None
        at = gpu.details.get("lost_at") or (event or {}).get("at")
        when = f" at {at:.1f} s" if isinstance(at, (int, float)) else ""
        why = f" (Xid {event['code']})" if event else f" ({gpu.details['problem']})"
        return f"{_numbers([gpu])} was lost{when}{why}: do not trust what it computed after that"
    corrupt = [event for event in xids if event.get("code") in MEMORY_ERRORS]
    errors = gpu.details.get("ecc_errors") or 0
    if not errors and not corrupt:
        return None
    what = "an uncorrected memory error" if errors < 2 else f"{errors:,} uncorrected memory errors"
    why = f" (Xid {corrupt[0]['code']}, at {corrupt[0]['at']:.1f} s)" if corrupt else ""
    return f"{_numbers([gpu])} had {what}{why}: do not trust what it computed"


def _of_gpus(asked: Hardware, used: Hardware) -> Iterator[Remark]:
    gpus, mean = used.gpus or (), _detail(used, "gpu_mean")
    if not gpus or mean is None:
        return
    had = _had(asked, len(gpus))
    unused = [gpu for gpu in gpus if (peak := _busiest(gpu)) is not None and peak < IDLE]
    if len(unused) == len(gpus):
        yield Remark("gpus unused", f"{had}, used none")
    elif unused:
        yield Remark(
            "gpus in part", f"{had}, used {len(gpus) - len(unused)}: nothing ran on {_numbers(unused)}"
        )
    elif mean < GPU_SHARE * len(gpus):
        yield Remark("gpus idle", f"{had}, used {mean:.2f} on average{_idle(used, len(gpus))}")


def _idle(used: Hardware, gpus: int) -> str:
    idle, one_thread = _detail(used, "gpu_idle") or 0.0, _detail(used, "gpu_idle_cpu_bound") or 0.0
    if idle < IDLE_SHARE:
        return ""
    who = {1: "", 2: "both "}.get(gpus, "all ")
    why = " while one CPU was at 100 %: the data loader" if one_thread >= idle / 2 else ""
    return f"; {100 * idle:.0f} % of the time {who}idle{why}"


def _of_gpu_memory(asked: Hardware, used: Hardware) -> Iterator[Remark]:
    wanted = max((gpu.memory or 0 for gpu in asked.gpus or ()), default=0)
    peaks = [gpu.details.get("own_memory_peak") for gpu in used.gpus or ()]
    known = [peak for peak in peaks if peak]
    if not wanted or not known or len(known) < len(peaks):
        return
    if max(known) < MEMORY_SHARE * wanted:
        yield Remark(
            "gpu memory", f"asked {format_size(wanted)} of GPU memory, peak {format_size(max(known))}"
        )


def _of_memory(asked: Hardware, used: Hardware) -> Iterator[Remark]:
    wanted, peak = asked.memory, _detail(used, "memory_peak")
    if not wanted or peak is None:
        return
    text = f"asked {format_size(wanted)}, peak {of_its_own(peak)}"
    if peak < MEMORY_SHARE * wanted and wanted - peak >= MEMORY_WORTH:
        yield Remark("memory", text)
    elif (1 - MEMORY_LEFT) * wanted < peak <= wanted:
        yield Remark("memory short", f"{text}: hardly any is left")


def _of_cpus(asked: Hardware, used: Hardware) -> Iterator[Remark]:
    wanted, mean = asked.cpu_count, _detail(used, "cpu_mean")
    if not wanted or mean is None or mean >= CPU_SHARE * wanted or wanted - mean < 1:
        return
    peak = _detail(used, "cpu_peak") or mean
    why = ": one thread" if one_cpu(mean) and peak <= ONE_CPU[1] else " on average"
    yield Remark("cpus", f"asked {number(wanted)} CPUs, used {mean:.1f}{why}")


_JUDGES: Sequence[Callable[[Hardware, Hardware], Iterator[Remark]]] = (
    _of_gpus,
    _of_gpu_memory,
    _of_memory,
    _of_cpus,
)


def _had(asked: Hardware, granted: int) -> str:
    verb = "asked" if len(asked.gpus or ()) == granted else "got"
    return f"{verb} {granted} GPU{'' if granted == 1 else 's'}"


def _busiest(gpu: Device) -> float | None:
    peak = gpu.details.get("busy_peak")
    return peak if isinstance(peak, (int, float)) else None


def _numbers(gpus: Sequence[Device]) -> str:
    names = [str(gpu.index) if gpu.index is not None else gpu.uuid or "?" for gpu in gpus]
    return f"GPU {names[0]}" if len(names) == 1 else f"GPUs {', '.join(names[:-1])} and {names[-1]}"
