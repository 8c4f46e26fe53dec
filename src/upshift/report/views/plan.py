"""A plan as plain data, and as the JSON that ``upshift plan --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import RunFailed, UpshiftError
from upshift.model.settings.retry import Retry
from upshift.model.settings.secrets import NeededSecret
from upshift.model.spec.hardware import Hardware, Launch, Shortfall
from upshift.model.spec.task import Artifact
from upshift.runs.history.values import params_as_json

if TYPE_CHECKING:
    from upshift.code.packages import LeftOut, PackagePart
    from upshift.images.preparing import Prepared


@attrs.frozen(kw_only=True)
class PlannedTask:
    """What will become of a task."""

    # its number in a mapped step; None: the only task of its step, or one that stands for all tasks
    # of a mapped step whose number is not known
    index: int | None
    # ``"reused"``, ``"runs"``, ``"skipped"``, ``"fails"``; or ``"depends"``: that cannot be known
    # before the steps that it depends on have run, since equal inputs are reused
    action: str
    reason: str | None = None  # why, in words; None: nothing is to be said beside what it depends on
    depends_on: tuple[str, ...] = ()  # steps that it waits for and that are not done by reuse
    origin: str | None = None  # the run whose result is reused


@attrs.frozen(kw_only=True)
class Edge:
    """One step needs another."""

    step: str  # name of the step that is needed
    # ``"data"``: its result; ``"item"``: one task for each of its items, or of its tasks; ``"when"``:
    # its boolean; ``"after"``: only its end
    kind: str


@attrs.frozen(kw_only=True)
class PlannedValue:
    """One value of a request."""

    field: str  # of :class:`~upshift.config.ResourceSettings`
    value: Any  # sizes in bytes
    origin: str | None  # who said it, as ``file:line (@decorator)``, or why it is so


@attrs.frozen(kw_only=True)
class PlannedStep:
    """One step of a plan."""

    name: str  # its name in the graph
    step: str  # name of its definition, which other steps of the plan may share
    location: str | None  # where the pipeline calls it, as ``file:line``
    needs: tuple[Edge, ...]  # the steps that come before it, each once for each kind of need
    mapped: bool  # whether it has one task for each item
    length: int | None  # as in :class:`~upshift.engine.forecast.Forecast`
    tasks: tuple[PlannedTask, ...]
    target: str  # where it runs
    backend: str
    request: tuple[PlannedValue, ...]  # what it asks for
    asked: Hardware  # the same as a record, and what it would be granted; None: nothing can be
    granted: Hardware | None
    strict: bool  # whether it gets all that it asks for, or does not run
    shortfalls: tuple[Shortfall, ...]  # what it would not get
    refused: bool  # whether the run would be refused for it
    retry: Retry  # as in its definition; seconds
    timeout: float | None
    cache: bool
    cache_expires: float | None
    docker: Mapping[str, Any]  # the settings of its image that were said
    images: bool  # whether its backend runs images at all
    launch: Launch | None = None  # how many processes it has there, and how they are started; None: one
    launch_origin: str | None = None  # who said so
    remarks: tuple[str, ...] = ()  # what is worth a word though it gets what it asks for
    # what is known of the image that it runs in; None: its place runs none, or nothing is known
    image: Prepared | None = None
    docker_origins: Mapping[str, str] = attrs.field(factory=dict)  # who said what of them, by field
    # the secrets that it needs: where they come from, and whether they are there
    secrets: tuple[NeededSecret, ...] = ()
    # what its target would be given, values of secrets masked; None: nobody asked, or there is nothing of the
    # kind
    scripts: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class PlannedCode:
    """The code package that the run would keep, or send to other machines."""

    project: str  # the project's folder
    # how many files it would hold, and their size together; None: there can be no package
    files: int | None = None
    bytes: int | None = None
    parts: tuple[PackagePart, ...] = ()  # the files and folders at the top of the project, the largest first
    left_out: tuple[LeftOut, ...] = ()  # what it would not hold though no ignore file names it
    problem: str | None = None  # why there can be none


@attrs.frozen(kw_only=True)
class Plan:
    """What a run would do."""

    pipeline: str  # as in the run's row
    target: str
    store: str  # address of the store
    # the pipeline's parameters as they are saved, and in words those that such a record does not tell
    params: Mapping[str, Artifact]
    texts: Mapping[str, Any]
    steps: tuple[PlannedStep, ...]  # in the order in which each comes after what it needs
    code: PlannedCode  # the code package
    # the errors that the run would be refused with; the first one is what it would raise
    refusals: tuple[UpshiftError, ...] = ()
    # steps of a flow whose tasks are known only when steps before them have chosen where to go
    to_come: tuple[str, ...] = ()
    # what the target's tool would be given, which runs the whole pipeline; None: nobody asked, or it has none
    document: str | None = None

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
        "to_come": list(plan.to_come),
        "document": plan.document,
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
        "scripts": None if step.scripts is None else list(step.scripts),
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
    return image_json(step.image, steps=[step.step], target=step.target)


def image_json(prepared: Prepared, *, steps: Sequence[str], target: str) -> dict[str, Any]:
    """What an image is made of as JSON; sizes are bytes, null is what is not known."""
    ingredients, recipe, parent = prepared.ingredients, prepared.ingredients.recipe, prepared.parent
    return {
        "steps": list(steps),
        "target": target,
        "platform": recipe.platform,
        "parent": None
        if parent is None
        else {
            "reference": str(parent.reference),
            "digest": parent.digest,
            "platform": parent.platform,
            "bytes": parent.bytes,
            "in_engine": parent.in_engine,
        },
        "contents": attrs.asdict(prepared.contents, value_serializer=_plain),
        "recipe": {"digest": prepared.recipe, **attrs.asdict(recipe)},
        "lock": None if prepared.lock is None else prepared.lock.text.splitlines(),
        "digest": prepared.digest,
        "origins": dict(ingredients.origins),
        "notes": list(ingredients.notes),
        "findings": [attrs.asdict(finding) for finding in prepared.findings],
        "builds": prepared.builds and not prepared.errors,
        "image": None if prepared.image is None else attrs.asdict(prepared.image),
    }


def _plain(owner: object, field: object, value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value


def _error(error: UpshiftError) -> dict[str, str | None]:
    return {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
