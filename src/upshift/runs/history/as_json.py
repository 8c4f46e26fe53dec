"""Runs as the JSON that ``upshift runs --json`` and ``upshift show --json`` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from upshift.runs.catalog.opening import plain_status
from upshift.runs.history.records import utc
from upshift.runs.history.values import params_as_json
from upshift.runtime.storage.artifacts import described

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Hardware, Stack
    from upshift.model.spec.task import Artifact, Failure
    from upshift.model.spec.telemetry import Card, Checkpoints, MetricSummary
    from upshift.runs.catalog.rows import RunRow
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.runs import Run
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task

_IN_SHORT = ("last", "step", "min", "max", "count")
"""What is told of a metric."""


def row_as_json(row: RunRow) -> dict[str, Any]:
    """A run as ``runs --json`` lists it; times are ISO 8601 in UTC."""
    return {
        "id": row.id,
        "pipeline": row.pipeline,
        "status": plain_status(row),
        "target": row.target,
        "user": row.user,
        "tags": list(row.tags),
        "started": _seconds(row.started),
        "ended": _seconds(row.ended),
    }


def run_as_json(run: Run) -> dict[str, Any]:
    """A run as ``show --json`` prints it; times are ISO 8601 in UTC, sizes bytes."""
    return {
        "id": run.id,
        "pipeline": run.pipeline,
        "status": run.status,
        "target": run.target,
        "started": time_text(run.started),
        "ended": time_text(run.ended),
        "params": params_as_json(run.param_artifacts, run.graph.texts),
        "steps": [_step(step) for step in run.steps],
        "images": run.images,
    }


def _step(step: Step) -> dict[str, Any]:
    return {"name": step.name, "status": step.status, "tasks": [_task(task) for task in step.tasks]}


def _task(task: Task) -> dict[str, Any]:
    return {
        "index": task.index,
        "status": task.status,
        "cached": task.cached,
        "cache_reason": task.cache_reason,
        "inputs": {name: described(value) for name, value in task.input_artifacts.items()},
        "outputs": [{"name": name} | _artifact(saved) for name, saved in task.artifacts.items()],
        "attempts": [_attempt(attempt) for attempt in task.attempts],
        "origin": _origin(task),
    }


def _origin(task: Task) -> dict[str, Any] | None:
    """Which task of an earlier run it was reused from."""
    origin = task.origin
    return None if origin is None else {"run": origin.run, "step": origin.step, "index": origin.index}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "status": attempt.status,
        "reason": attempt.reason,
        "target": attempt.target,
        "backend": attempt.backend,
        "node": attempt.node,
        "image": attempt.image,
        "started": time_text(attempt.started),
        "ended": time_text(attempt.ended),
        "error": _error(attempt.error),
        "asked": _hardware(attempt.asked),
        "granted": _hardware(attempt.granted),
        "seen": _hardware(attempt.seen),
        "used": _hardware(attempt.used),
        "metrics": metrics_as_json(attempt.metric_summaries),
        "metrics_by_rank": _metrics_by_rank(attempt),
        "cards": [_card(shown.card) for shown in attempt.cards],
        "gaps": [attrs.asdict(gap) for gap in attempt.gaps],
        "stacks": [_stack(stack) for stack in attempt.stacks],
        "checkpoints": _checkpoints(attempt.checkpoints),
        "run": attempt.run,
    }


def metrics_as_json(metrics: Mapping[str, MetricSummary]) -> dict[str, Any]:
    """Metrics in short, by name."""
    return _in_short(metrics, (*_IN_SHORT, "rank", "ranks"))


def _metrics_by_rank(attempt: Attempt) -> dict[str, Any]:
    """The metrics of each rank in short, by rank and name; empty for a single process."""
    if attempt.processes is None:
        return {}
    return {
        str(rank): _in_short({name: curve.summary for name, curve in curves.items()}, _IN_SHORT)
        for rank, curves in attempt.metrics_by_rank.items()
    }


def _in_short(metrics: Mapping[str, MetricSummary], fields: Sequence[str]) -> dict[str, Any]:
    return {name: {field: getattr(summary, field) for field in fields} for name, summary in metrics.items()}


def _card(card: Card) -> dict[str, Any]:
    fields = ("title", "media", "digest", "bytes", "rank", "id")
    return {field: getattr(card, field) for field in fields}


def _checkpoints(had: Checkpoints | None) -> dict[str, Any] | None:
    if had is None:
        return None
    newest = None if had.newest is None else {"name": had.newest, "bytes": had.bytes}
    return {"resumed_from": had.resumed_from, "saved": had.saved, "newest": newest}


def _stack(stack: Stack) -> dict[str, Any]:
    fields = ("rank", "waits", "where", "silent", "text")
    return {field: getattr(stack, field) for field in fields}


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {"type": artifact.type, "digest": artifact.digest, "bytes": artifact.bytes}


def _error(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "message": failure.message,
        "traceback": failure.traceback,
        "where": failure.where,
        "fix": failure.fix,
        "rank": failure.rank,
        "node": failure.node,
    }


def _hardware(record: Hardware | None) -> dict[str, Any] | None:
    return None if record is None else record.as_json()


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else time_text(utc(seconds))


def time_text(moment: datetime | None) -> str | None:
    """A time as ISO 8601."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
