"""A plan as plain data, and as the JSON that ``upshift plan --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import RunFailed, UpshiftError
from upshift.model.settings.retry import Retry
from upshift.model.settings.secrets import NeededSecret
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.hardware import Hardware, Shortfall
from upshift.model.spec.launch import Launch
from upshift.runs.params import params_as_json

if TYPE_CHECKING:
    from upshift.code.packages import Part
    from upshift.code.project_files import LeftOut
    from upshift.images.preparing import Prepared


@attrs.frozen(kw_only=True)
class PlannedTask:
    """What will become of a task.

    Parameters
    ----------
    index
        Its number in a mapped step; None: the only task of its step, or one that stands for all
        tasks of a mapped step whose number is not known.
    action
        ``"reused"``, ``"runs"``, ``"skipped"``, ``"fails"``; or ``"depends"``: that cannot be known
        before the steps that it depends on have run, since equal inputs are reused.
    reason
        Why, in words; None: nothing is to be said beside what it depends on.
    depends_on
        Steps that it waits for and that are not done by reuse.
    origin
        The run whose result is reused.
    """

    index: int | None
    action: str
    reason: str | None = None
    depends_on: tuple[str, ...] = ()
    origin: str | None = None


@attrs.frozen(kw_only=True)
class Edge:
    """One step needs another.

    Parameters
    ----------
    step
        Name of the step that is needed.
    kind
        ``"data"``: its result; ``"item"``: one task for each of its items, or of its tasks;
        ``"when"``: its boolean; ``"after"``: only its end.
    """

    step: str
    kind: str


@attrs.frozen(kw_only=True)
class PlannedValue:
    """One value of a request.

    Parameters
    ----------
    field
        Of :class:`~upshift.config.ResourceSettings`.
    value
        Sizes in bytes.
    origin
        Who said it, as ``file:line (@decorator)``, or why it is so.
    """

    field: str
    value: Any
    origin: str | None


@attrs.frozen(kw_only=True)
class PlannedStep:
    """One step of a plan.

    Parameters
    ----------
    name
        Its name in the graph.
    step
        Name of its definition, which other steps of the plan may share.
    location
        Where the pipeline calls it, as ``file:line``.
    needs
        The steps that come before it, each once for each kind of need.
    mapped
        Whether it has one task for each item.
    length, tasks
        As in :class:`~upshift.engine.forecast.Forecast`.
    target, backend
        Where it runs.
    request
        What it asks for.
    asked, granted
        The same as a record, and what it would be granted; None: nothing can be.
    strict
        Whether it gets all that it asks for, or does not run.
    shortfalls
        What it would not get.
    refused
        Whether the run would be refused for it.
    retry, timeout, cache, cache_expires
        As in its definition; seconds.
    docker
        The settings of its image that were said.
    docker_origins
        Who said what of them, by field.
    images
        Whether its backend runs images at all.
    launch
        How many processes it has there, and how they are started; None: one.
    launch_origin
        Who said so.
    remarks
        What is worth a word though it gets what it asks for.
    image
        What is known of the image that it runs in; None: its place runs none, or nothing is known.
    secrets
        The secrets that it needs: where they come from, and whether they are there.
    """

    name: str
    step: str
    location: str | None
    needs: tuple[Edge, ...]
    mapped: bool
    length: int | None
    tasks: tuple[PlannedTask, ...]
    target: str
    backend: str
    request: tuple[PlannedValue, ...]
    asked: Hardware
    granted: Hardware | None
    strict: bool
    shortfalls: tuple[Shortfall, ...]
    refused: bool
    retry: Retry
    timeout: float | None
    cache: bool
    cache_expires: float | None
    docker: Mapping[str, Any]
    images: bool
    launch: Launch | None = None
    launch_origin: str | None = None
    remarks: tuple[str, ...] = ()
    image: Prepared | None = None
    docker_origins: Mapping[str, str] = attrs.field(factory=dict)
    secrets: tuple[NeededSecret, ...] = ()


@attrs.frozen(kw_only=True)
class PlannedCode:
    """The code package that the run would keep, or send to other machines.

    Parameters
    ----------
    project
        The project's folder.
    files, bytes
        How many files it would hold, and their size together; None: there can be no package.
    parts
        The files and folders at the top of the project, the largest first.
    left_out
        What it would not hold though no ignore file names it.
    problem
        Why there can be none.
    """

    project: str
    files: int | None = None
    bytes: int | None = None
    parts: tuple[Part, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    problem: str | None = None


@attrs.frozen(kw_only=True)
class Plan:
    """What a run would do.

    Parameters
    ----------
    pipeline, target
        As in the run's row.
    store
        Address of the store.
    params, texts
        The pipeline's parameters as they are saved, and in words those that such a record does not tell.
    steps
        In the order in which each comes after what it needs.
    code
        The code package.
    refusals
        The errors that the run would be refused with; the first one is what it would raise.
    """

    pipeline: str
    target: str
    store: str
    params: Mapping[str, Artifact]
    texts: Mapping[str, Any]
    steps: tuple[PlannedStep, ...]
    code: PlannedCode
    refusals: tuple[UpshiftError, ...] = ()

    @property
    def problem(self) -> UpshiftError | None:
        """The error that the run would end with, as far as that is certain; None: it may complete."""
        if self.refusals:
            return self.refusals[0]
        for step in self.steps:  # in order: what fails comes before what needs it
            for task in step.tasks:
                if task.action == "fails":
                    name = step.name if task.index is None else f"{step.name}[{task.index}]"
                    return RunFailed(f"the run would fail at step {name}: {task.reason}", where=step.location)
        return None

    @property
    def exit_code(self) -> int:
        """What ``upshift run`` would exit with: 2 refused, 1 failed; 0 where neither is certain."""
        return self.problem.exit_code if self.problem else 0


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
        "params": params_as_json(plan.params, plan.texts),
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


def _error(error: UpshiftError) -> dict[str, str | None]:
    return {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
