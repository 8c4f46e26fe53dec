"""The processes of an attempt that has several: a row for each, its log, and where it was when asked."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from upshift.model.spec.hardware import Device
from upshift.model.spec.task import Failure
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.evidence import TAIL, Evidence
from upshift.report.html.scales import amount
from upshift.report.html.words import badge
from upshift.report.human import DASH, count
from upshift.report.ranks import together
from upshift.runs.history import Attempt, Run, Task
from upshift.runs.history_ranks import AttemptRank

_FULL = 16
"""Ranks whose log and stack are shown; of more, those that failed or are where no other one is come first."""
_HEADINGS = ("rank", "state", "node", "process", "device", "busy, mean", "memory, peak", "where it was")


def ranks_view(run: Run, task: Task, attempt: Attempt, evidence: Evidence) -> Html:
    """The table, and below it each rank to be opened; nothing for an ordinary step."""
    ranks = attempt.ranks
    if not ranks:
        return Html("")
    shown = notable(ranks)
    more = len(ranks) - len(shown)
    left_out = f"… and {count(more, 'more rank')}: upshift logs {run.id} --rank N"
    return join(
        tag("h4", None, "Ranks"),
        _table(ranks, attempt),
        [_rank(run, task, attempt, rank, evidence) for rank in shown],
        tag("p", {"class": "quiet"}, left_out) if more else None,
    )


def stacks_view(attempt: Attempt) -> Html:
    """Where each of them was when it was asked, call by call; what is equal is there once, to be opened."""
    found = together(attempt.stacks)
    left_out = f"… and {count(len(found) - _FULL, 'more place')}: upshift show {attempt.run} --stacks"
    return join(
        [
            tag(
                "details",
                {"class": "task place"},
                tag("summary", None, name(place)),
                tag("pre", {"class": "stack", "tabindex": 0, "aria-label": f"Stack: {place}"}, text),
            )
            for place, text in found[:_FULL]
        ],
        tag("p", {"class": "quiet"}, left_out) if len(found) > _FULL else None,
    )


def notable(ranks: Sequence[AttemptRank]) -> list[AttemptRank]:
    """Those that are shown in full: all, if there are few; else failures, one of each place, the first."""
    if len(ranks) <= _FULL:
        return list(ranks)
    one_of_each = {
        rank.stack and (rank.stack.silent, rank.stack.waits, rank.stack.where): rank
        for rank in reversed(ranks)
    }
    chosen = [rank for rank in ranks if rank.status == "failed"] + list(one_of_each.values()) + list(ranks)
    wanted = list(dict.fromkeys(rank.rank for rank in chosen))[:_FULL]
    return [rank for rank in ranks if rank.rank in wanted]


def _table(ranks: Sequence[AttemptRank], attempt: Attempt) -> Html:
    used = attempt.used.gpus if attempt.used is not None else None
    granted = attempt.granted.gpus if attempt.granted is not None else None
    devices = {device.uuid: device for device in (*(granted or ()), *(used or ()))}
    rows = [_row(rank, devices.get(rank.device) if rank.device else None, attempt.error) for rank in ranks]
    shown = [i for i in range(len(_HEADINGS)) if i < 2 or any(row[i] != DASH for row in rows)]
    head = [tag("th", {"scope": "col"}, _HEADINGS[i]) for i in shown]
    body = [tag("tr", None, [tag("td", None, row[i]) for i in shown]) for row in rows]
    table = tag(
        "table",
        {"class": "plain ranks"},
        tag("thead", None, tag("tr", None, head)),
        tag("tbody", None, body),
    )
    return tag("div", {"class": "scroll high", "tabindex": 0, "role": "region", "aria-label": "Ranks"}, table)


def _row(rank: AttemptRank, device: Device | None, failure: Failure | None) -> tuple[Html | str, ...]:
    used = device.details if device is not None else {}

    def told(key: str, unit: str) -> str:
        value = used.get(key)
        return DASH if value is None else amount(value, unit)

    return (
        str(rank.rank),
        _state(rank),
        " ".join(_known(rank.node, rank.host)) or DASH,
        DASH if rank.pid is None else str(rank.pid),
        _device(rank, device),
        told("busy_mean", "%"),
        told("memory_peak", "bytes"),
        _where(rank, failure) or DASH,
    )


def _known(node: int | None, host: str | None) -> Iterable[str]:
    if node is not None:
        yield str(node)
    if host is not None:
        yield host if node is None else f"({host})"


def _state(rank: AttemptRank) -> Html:
    return badge("cancelled", rank.status) if rank.status == "stopped" else badge(rank.status)


def _device(rank: AttemptRank, device: Device | None) -> str:
    if device is None or device.index is None:
        return rank.device or DASH
    return f"GPU {device.index}"


def _where(rank: AttemptRank, failure: Failure | None) -> str:
    """What it waited in, and the line of the step's code; of one that raised an exception where it did."""
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


def _rank(run: Run, task: Task, attempt: Attempt, rank: AttemptRank, evidence: Evidence) -> Html:
    text, more = evidence.tail(attempt, rank.rank)
    stack = rank.stack.text.rstrip() if rank.stack is not None else ""
    if not text and not stack:
        return Html("")
    place = _where(rank, attempt.error)
    command = f"upshift logs {run.id} {shlex.quote(str(task.row.task))} --rank {rank.rank}"
    if len(task.attempts) > 1:
        command += f" --attempt {attempt.number}"
    title = f"The last {TAIL // 1024} KB of what it printed" if more else "What it printed"
    summary = tag("summary", None, f"rank {rank.rank} ", _state(rank), " ", name(place) if place else None)
    return tag(
        "details",
        {"class": "task rank"},
        summary,
        _text("Where it was", "stack", stack),
        _text(title, "log", text),
        tag("p", {"class": "quiet"}, "All of it: ", tag("code", None, command)) if more else None,
    )


def _text(title: str, kind: str, text: str) -> Html:
    if not text:
        return Html("")
    return join(tag("h4", None, title), tag("pre", {"class": kind, "tabindex": 0, "aria-label": title}, text))
