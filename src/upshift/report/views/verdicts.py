"""What a step needs, judged by what it asked for and what it used: at most one line.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import IDLE, ONE_CPU, Device, Hardware, one_cpu
from upshift.report.human import number, of_its_own

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


def _detail(hardware: Hardware, name: str) -> float | None:
    value: Any = hardware.details.get(name)
    return value if isinstance(value, (int, float)) else None
