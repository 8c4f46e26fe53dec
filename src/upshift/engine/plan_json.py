"""A plan as the JSON that ``upshift plan --json`` prints."""

from __future__ import annotations

from typing import Any

import attrs

from upshift.engine.plan import Plan, PlannedStep
from upshift.errors import UpshiftError
from upshift.model.spec.artifact import Artifact

_PLAIN = (
    *("name", "step", "location", "mapped", "target", "backend", "strict", "refused"),
    *("timeout", "cache", "cache_expires"),
)


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Everything that a plan says; sizes are bytes, times seconds, null where unknown."""
    return {
        "pipeline": plan.pipeline,
        "target": plan.target,
        "store": plan.store,
        "params": {name: _param(plan, name, text) for name, text in plan.texts.items()},
        "steps": [_step(step) for step in plan.steps],
        "code": attrs.asdict(plan.code),
        "refused": [_error(error) for error in plan.refusals],
        "exit_code": plan.exit_code,
    }


def _step(step: PlannedStep) -> dict[str, Any]:
    return {
        **{name: getattr(step, name) for name in _PLAIN},
        "needs": [attrs.asdict(edge) for edge in step.needs],
        "request": {value.field: {"value": value.value, "origin": value.origin} for value in step.request},
        "asked": step.asked.as_json(),
        "granted": None if step.granted is None else step.granted.as_json(),
        "launch": _launch(step),
        "remarks": list(step.remarks),
        "shortfalls": [attrs.asdict(shortfall) for shortfall in step.shortfalls],
        "retry": attrs.asdict(step.retry),
        "secrets": {
            secret.name: {
                "source": secret.source,
                "origin": secret.origin,
                "problem": None if secret.problem is None else secret.problem.what,
            }
            for secret in step.secrets
        },
        "docker": dict(step.docker),
        "docker_origins": dict(step.docker_origins),
        "image": _image(step),
        "length": step.length,
        "tasks": [attrs.asdict(task) for task in step.tasks],
    }


def _launch(step: PlannedStep) -> dict[str, Any] | None:
    """How its processes are started; None: there is one, as of any step."""
    launch = step.launch
    if launch is None:
        return None
    return {
        **attrs.asdict(launch),
        "arguments": dict(launch.arguments),
        "files": dict(launch.files),
        "origin": step.launch_origin,
    }


def _image(step: PlannedStep) -> dict[str, Any] | None:
    if step.image is None:
        return None
    from upshift.report.terminal.images import image_json

    return image_json(step.image, steps=[step.step], target=step.target)


def _param(plan: Plan, name: str, text: str) -> Any:
    """The value where JSON has one for it; else what it is. A default that is no plain data is not saved."""
    if name not in plan.params:
        return {"type": None, "digest": None, "bytes": None, "text": text}
    value = plan.params[name]
    if isinstance(value, Artifact):
        return {"type": value.type, "digest": value.digest, "bytes": value.bytes, "text": text}
    return value


def _error(error: UpshiftError) -> dict[str, str | None]:
    return {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
