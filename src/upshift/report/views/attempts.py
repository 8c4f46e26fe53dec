"""One attempt in full: its records, failure, charts, devices and ranks, and what it left in files."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import StoreError
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Device
from upshift.model.spec.task import Failure
from upshift.report.human import (
    DASH,
    because,
    clock,
    count,
    duration,
    elsewhere,
    in_words,
    short_image,
    together,
)
from upshift.report.views.charts import Cell, Chart, Table, gpu_numbers, gpu_usage, known, told, usage
from upshift.report.views.groups import Rows, records_of, since, took
from upshift.runs.history.attempts import Attempt, AttemptRank
from upshift.runs.history.runs import Run
from upshift.runs.history.tasks import Task
from upshift.runtime.storage.series import Series, read_series
from upshift.runtime.storage.store import open_store
from upshift.runtime.supervisor.progress_bars import last_frames

_FULL = 16
"""Ranks whose log and stack are shown; of more, those that failed or are where no other one is come first."""
TAIL = 16_384
"""Bytes of the end of a log."""
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@attrs.frozen(kw_only=True)
class Log:
    """The end of what somebody printed; ``more``: that is not all of it."""

    text: str = ""
    more: bool = False

    def last(self, lines: int) -> Log:
        """The last lines of the log, at most this many."""
        found = self.text.splitlines()
        return self if len(found) <= lines else Log(text="\n".join(found[-lines:]), more=True)


class Evidence:
    """The files of a run's attempts, also of earlier runs in its store. What cannot be read is empty."""

    def __init__(self, run: Run) -> None:
        self._store = open_store(run.row.store)
        self._read: tuple[Attempt | None, int, Series | None] = None, 0, None

    def series(self, attempt: Attempt, node: int = 0) -> Series | None:
        """The usage of an attempt over time, on one node."""
        known, number, _ = self._read
        if known is not attempt or number != node:  # else it has just been read for another part of the view
            self._read = attempt, node, None
            with contextlib.suppress(OSError):
                path = self._store.series_path(attempt.row.task, attempt.number, node)
                self._read = attempt, node, read_series(path)
        return self._read[2]

    def content(self, digest: str, size: int | None = None) -> bytes | None:
        """A blob; None: it is not there, or damaged."""
        with contextlib.suppress(StoreError):
            return bytes(self._store.read(digest, size))
        return None

    def log(self, attempt: Attempt, rank: int | None = None, *, most: int = TAIL) -> Log:
        """The end of its log, or of one of its ranks', without colours."""
        path = self._store.log_path(attempt.row.task, attempt.number)
        if rank is not None:
            path = self._store.rank_log_path(attempt.row.task, attempt.number, rank)
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - most))
                content = file.read(most)
        except OSError:
            return Log()
        if size > most:
            content = content.partition(b"\n")[2] or content
        text = last_frames(content).decode("utf-8", "replace")
        return Log(text=_COLOURS.sub("", text).replace("\x1f", "\n").rstrip("\n"), more=size > most)


@attrs.frozen(kw_only=True)
class FailureView:
    """Why an attempt failed, where, and what to do."""

    message: str
    traceback: str | None
    where: str | None
    rank: str | None
    places: str
    fix: str | None


@attrs.frozen(kw_only=True)
class LogView:
    """The end of what a process printed, and the command that prints all of it."""

    title: str
    text: str
    more: bool
    command: str


@attrs.frozen(kw_only=True)
class RankView:
    """One of several processes: how it ended, where it was when asked, and its own log."""

    rank: int
    status: str
    place: str
    stack: str
    log: LogView


@attrs.frozen(kw_only=True)
class NodeCharts:
    """What one node of a step was used for; the title is empty where there is one."""

    title: str
    charts: Sequence[Chart]


@attrs.frozen(kw_only=True)
class Devices:
    """The accelerators of an attempt: facts of all of them, a row for each, what went wrong, charts."""

    facts: str
    table: Table
    problems: Sequence[str]
    charts: Sequence[Chart]


@attrs.frozen(kw_only=True)
class AttemptView:
    """All that is known of an attempt; ``sampled``: it lasted long enough for charts."""

    number: int
    status: str
    facts: str
    records: Rows
    failure: FailureView | None
    gaps: Sequence[str]
    nodes: Sequence[NodeCharts]
    sampled: bool
    devices: Devices | None
    ranks: Table | None
    each_rank: Sequence[RankView]
    more_ranks: int
    log: LogView


def attempt_view(
    run: Run, task: Task, attempt: Attempt, evidence: Evidence, *, tail: int = TAIL, devices: bool = True
) -> AttemptView:
    """The view, with so many bytes of the log; without ``devices`` these are shown elsewhere."""
    series = evidence.series(attempt)
    ranks = notable(attempt.ranks)
    return AttemptView(
        number=attempt.number,
        status=attempt.status,
        facts=_facts(run, attempt),
        records=records_of([attempt]),
        failure=failure_view(attempt),
        gaps=list(in_words(attempt.gaps)),
        nodes=list(_nodes(attempt, series, evidence)),
        sampled=series is not None,
        devices=devices_view(attempt, series) if devices else None,
        ranks=_ranks_table(attempt) if attempt.ranks else None,
        each_rank=[_rank(run, task, attempt, rank, evidence) for rank in ranks],
        more_ranks=len(attempt.ranks) - len(ranks),
        log=log_view(run, task, attempt, evidence.log(attempt, most=tail)),
    )


def failure_view(attempt: Attempt) -> FailureView | None:
    """Why an attempt failed; None if it did not."""
    failure = attempt.error
    if failure is None:
        return None
    node = f" on node {failure.node}" if failure.node else ""
    return FailureView(
        message=failure.message,
        traceback=failure.traceback.rstrip() if failure.traceback else None,
        where=failure.where,
        rank=None if failure.rank is None else f"{failure.rank}{node}",
        places=elsewhere(failure, attempt.stacks),
        fix=failure.fix,
    )


def log_view(run: Run, task: Task, attempt: Attempt, log: Log, rank: int | None = None) -> LogView:
    """The end of a log, with the command for all of it."""
    command = f"upshift logs {run.id} {shlex.quote(str(task.row.task))}"
    if rank is not None:
        command += f" --rank {rank}"
    if len(task.attempts) > 1:
        command += f" --attempt {attempt.number}"
    title = "The end of what it printed" if log.more else "What it printed"
    return LogView(title=title, text=log.text, more=log.more, command=command)


def stacks_view(attempt: Attempt) -> tuple[list[tuple[str, str]], int]:
    """Where its processes were when they were asked, in words and call by call; and how many are left out."""
    found = together(attempt.stacks)
    return found[:_FULL], max(len(found) - _FULL, 0)


def notable(ranks: Sequence[AttemptRank]) -> list[AttemptRank]:
    """The ranks to show in full: all of a few; of many, failures, one per stack, and the first."""
    if len(ranks) <= _FULL:
        return list(ranks)
    one_of_each = {
        rank.stack and (rank.stack.silent, rank.stack.waits, rank.stack.where): rank
        for rank in reversed(ranks)
    }
    chosen = [rank for rank in ranks if rank.status == "failed"] + list(one_of_each.values()) + list(ranks)
    wanted = list(dict.fromkeys(rank.rank for rank in chosen))[:_FULL]
    return [rank for rank in ranks if rank.rank in wanted]


def _facts(run: Run, attempt: Attempt) -> str:
    seconds = took(attempt)
    facts = [
        f"attempt {attempt.number}",
        f"of run {attempt.run}, which it was reused from" if attempt.run != run.id else "",
        attempt.status + because(attempt.status, attempt.reason),
        f"on {attempt.node}" if attempt.node else "",
        f"by {attempt.backend}",
        f"in image {short_image(attempt.image)}" if attempt.image else "",
        f"from {clock(since(attempt.started, run))}" if attempt.started and attempt.run == run.id else "",
        f"for {duration(seconds)}" if seconds is not None else "",
        *_checkpoints(attempt),
    ]
    return " · ".join(filter(None, facts))


def _checkpoints(attempt: Attempt) -> Iterator[str]:
    had = attempt.checkpoints
    if had is not None and had.resumed_from:
        yield f"went on from checkpoint {had.resumed_from}"
    if had is not None and had.newest:
        yield f"{count(had.saved, 'checkpoint')} saved, the last of {format_size(had.bytes)}"


def _nodes(attempt: Attempt, series: Series | None, evidence: Evidence) -> Iterator[NodeCharts]:
    """What each node was used for; the GPUs of the first one are shown with the devices."""
    granted = attempt.granted
    cpus, memory = (granted.cpu_count, granted.memory) if granted else (None, None)
    several = (granted.nodes if granted else None) or 1
    for number in range(several):
        samples = series if number == 0 else evidence.series(attempt, number)
        if samples is not None:
            charts = usage(samples, cpus=cpus, memory=memory)
            charts += gpu_usage(samples) if number else []
            yield NodeCharts(title=_node(attempt, number) if several > 1 else "", charts=charts)


def _node(attempt: Attempt, number: int) -> str:
    hosts = attempt.used.details.get("by_node", ()) if attempt.used is not None else ()
    host = next((one["host"] for one in hosts if one["node"] == number), "")
    return f"Node {number}" + (f", {host}" if host else "")


# Its accelerators.


def devices_view(attempt: Attempt, series: Series | None) -> Devices | None:
    """What its devices are, and what they did; None: it had none."""
    devices = _devices(attempt, series)
    if not devices:
        return None
    rows = [_device(number, device, series) for number, device in enumerate(devices)]
    heads = ("GPU", "model", "memory", "busy, mean", "busy, peak", "memory, peak", "power, mean", "hottest")
    table = Table(title="GPUs", heads=heads, rows=rows, numeric=range(2, len(heads))).without_empty(2)
    return Devices(
        facts=" · ".join(_about(devices[0], attempt, series)),
        table=table,
        problems=_problems(attempt),
        charts=gpu_usage(series) if series is not None else (),
    )


def _devices(attempt: Attempt, series: Series | None) -> Sequence[Device]:
    """The devices, from the record that says most about them."""
    for record in (attempt.used, attempt.granted):
        if record is not None and record.gpus:
            return record.gpus
    if series is None:
        return ()
    return [
        Device(uuid=gpu.get("uuid"), model=gpu.get("model"), memory=gpu.get("memory"), index=number)
        for number, gpu in enumerate(series.gpus)
    ]


def _device(number: int, device: Device, series: Series | None) -> list[Cell]:
    values = {**(_live(number, series) if series is not None else {}), **device.details}
    index = number if device.index is None else device.index
    model = " ".join(filter(None, (device.model or device.kind or "?", device.partition)))
    return [
        Cell(text=f"{index} of node {device.node}" if device.node else f"{index}", value=number),
        Cell(text=model),
        told(device.memory, "bytes"),
        told(values.get("busy_mean"), "%"),
        told(values.get("busy_peak"), "%"),
        told(values.get("memory_peak"), "bytes"),
        told(values.get("power_mean"), "W"),
        told(values.get("temperature_peak"), "°C"),
    ]


def _live(number: int, series: Series) -> dict[str, float]:
    """The usage of one GPU from the samples, for an attempt without a record yet."""
    if number not in gpu_numbers(series):
        return {}
    found = {}
    for key, column in _WANTED.items():
        values = known(series.columns.get(f"gpu.{number}.{column}", ()))
        if values:
            found[key] = max(values) if key.endswith("peak") else sum(values) / len(values)
    return found


_WANTED = {
    "busy_mean": "busy",
    "busy_peak": "busy",
    "memory_peak": "memory",
    "power_mean": "power",
    "temperature_peak": "temperature",
}


def _about(device: Device, attempt: Attempt, series: Series | None) -> Iterator[str]:
    """Vendor, driver, and what the frameworks in the step made of the devices."""
    seen = attempt.seen.details if attempt.seen else {}
    used = attempt.used.details if attempt.used else {}
    listed = series.gpus[0] if series is not None and series.gpus else {}
    if device.vendor:
        yield device.vendor
    if device.compute_capability:
        yield f"compute capability {device.compute_capability}"
    driver = seen.get("driver") or used.get("gpu_driver") or listed.get("driver")
    if driver:
        yield f"driver {driver}"
    if seen.get("runtime"):
        yield f"runs {seen['runtime']}"
    for framework in seen.get("frameworks", ()):
        built = f" for {framework['built_for']}" if framework.get("built_for") else ""
        sees = f" sees {framework['devices']}" if framework.get("devices") is not None else ""
        yield f"{framework.get('name')} {framework.get('version')}{built}{sees}"


def _problems(attempt: Attempt) -> list[str]:
    lines = []
    for device in (attempt.used.gpus or ()) if attempt.used else ():
        label = f"GPU {device.index}" if device.index is not None else f"GPU {device.uuid}"
        if device.details.get("problem"):
            lines.append(f"{label}: {device.details['problem']}")
        if device.details.get("ecc_errors"):
            lines.append(f"{label}: {device.details['ecc_errors']} uncorrected memory errors")
        xids = device.details.get("xids") or ()
        lines += [f"{label}: Xid {event['code']} after {event['at']} s" for event in xids]
    return lines


# Its processes, where it has several.


def _ranks_table(attempt: Attempt) -> Table:
    used = attempt.used.gpus if attempt.used is not None else None
    granted = attempt.granted.gpus if attempt.granted is not None else None
    devices = {device.uuid: device for device in (*(granted or ()), *(used or ()))}
    heads = (
        "rank",
        "state",
        "node",
        "process",
        "CPU time",
        "memory, peak",
        "device",
        "GPU busy, mean",
        "GPU memory, peak",
        "where it was",
    )
    rows = [
        _rank_row(rank, devices.get(rank.device) if rank.device else None, attempt.error)
        for rank in attempt.ranks
    ]
    return Table(title="Ranks", heads=heads, rows=rows, numeric=(4, 5, 7, 8)).without_empty(2)


def _rank_row(rank: AttemptRank, device: Device | None, failure: Failure | None) -> list[Cell]:
    used: Mapping[str, Any] = device.details if device is not None else {}
    host = rank.host if rank.node is None else f"{rank.node} ({rank.host})" if rank.host else str(rank.node)
    gpu = rank.device if device is None or device.index is None else f"GPU {device.index}"
    return [
        Cell(text=str(rank.rank), value=rank.rank),
        Cell(text=rank.status, status=_rank_status(rank)),
        Cell(text=host or DASH),
        Cell(text=DASH if rank.pid is None else str(rank.pid), value=rank.pid),
        told(rank.cpu_seconds, "s"),
        told(rank.memory_peak, "bytes"),
        Cell(text=gpu or DASH),
        told(used.get("busy_mean"), "%"),
        told(used.get("memory_peak"), "bytes"),
        Cell(text=_where(rank, failure) or DASH),
    ]


def _rank_status(rank: AttemptRank) -> str:
    return "cancelled" if rank.status == "stopped" else rank.status


def _rank(run: Run, task: Task, attempt: Attempt, rank: AttemptRank, evidence: Evidence) -> RankView:
    return RankView(
        rank=rank.rank,
        status=rank.status,
        place=_where(rank, attempt.error),
        stack=rank.stack.text.rstrip() if rank.stack is not None else "",
        log=log_view(run, task, attempt, evidence.log(attempt, rank.rank), rank.rank),
    )


def _where(rank: AttemptRank, failure: Failure | None) -> str:
    """Where a rank waited, with the line of the step's code, or where it raised an exception."""
    stack = rank.stack
    if rank.status == "failed" and failure is not None and failure.traceback is not None:
        return failure.where or ""
    if stack is None:
        return ""
    if stack.silent is not None:
        return f"no answer: {stack.silent}"
    if stack.waits is None:
        return stack.where or "outside of the step's code"
    waits = f"in {stack.waits}" if stack.waits.isidentifier() else f"waiting for {stack.waits}"
    return waits + (f" ({stack.where})" if stack.where is not None else "")
