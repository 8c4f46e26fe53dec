"""The spec of an attempt, made when it is submitted, and the code that travels with it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.engine.offers import GrantPlan
from upshift.engine.targets import OpenTarget
from upshift.engine.tasks import TaskState
from upshift.errors import UpshiftError
from upshift.model.graph import Graph
from upshift.model.settings.sizes import parse_span
from upshift.model.settings.step import StepSettings
from upshift.model.spec.task import Code, OutputSpec, TaskId, TaskSpec, Value
from upshift.runtime.launch import seats
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.images.base import Image


@attrs.frozen(kw_only=True)
class Shipped:
    """What tasks on other machines need of this one."""

    code: Code  # the user's code, with its package
    runtime: str  # digest of the runtime blob


@attrs.define(eq=False)
class Specs:
    """Makes the specs of one run."""

    _graph: Graph
    _code: Code
    _store: Store
    _cwd: str | None
    _shipped: Shipped | None  # what goes to other machines; None: no step runs on one
    _draws: Mapping[str, str]  # what this run drew from the generators of random numbers
    _outputs: dict[str, tuple[OutputSpec, ...]] = attrs.field(init=False, factory=dict)
    _settings: dict[str, StepSettings] = attrs.field(init=False, factory=dict)

    def make(
        self,
        task: TaskState,
        task_id: TaskId,
        number: int,
        inputs: Mapping[str, Value],
        plan: GrantPlan,
        *,
        degraded: bool,
        image: Image | None = None,
    ) -> TaskSpec:
        """The spec of attempt ``number`` of a task, which runs in this image; None: in none."""
        node, definition = task.node.node, task.node.definition
        buckets = self._store.replica is not None and plan.place.backend.capabilities.buckets
        if self._store.replica is not None and not buckets and plan.place.backend.name != "local":
            with contextlib.suppress(UpshiftError):  # the step says what it lacks
                for value in inputs.values():
                    artifacts.bring(value, self._store)
        remote = self._shipped if plan.place.backend.capabilities.remote else None
        outputs = self._outputs.get(node.name)
        if outputs is None:
            outputs = tuple(OutputSpec(name=o, by_item=o in node.by_item) for o in definition.outputs)
            self._outputs[node.name] = outputs
        settings = self._settings.get(node.step)
        if settings is None:  # where a value was typed is in the graph, once for all tasks
            settings = self._settings[node.step] = attrs.evolve(definition.settings, origins={})
        return TaskSpec(
            task=task_id,
            attempt=number,
            pipeline=self._graph.pipeline,
            entry=definition.entry,
            code=remote.code if remote else self._code,
            runtime=remote.runtime if remote else None,
            store=self._store.name if buckets else self._store.address,
            durability=self._store.durability,
            verify=self._store.verify,
            target=plan.place.target.name,
            backend=plan.place.backend.name,
            inputs=inputs,
            outputs=outputs,
            settings=settings,
            request=plan.request or definition.settings.resources,
            granted=plan.granted,
            environment=definition.environment,
            image=(image.reference or None) if image else None,
            interpreter=image.interpreter if image else None,
            user=image.user if image else None,
            launch=plan.launch,
            silence=_silence(plan),
            cwd=None if remote else self._cwd,
            location=definition.location,
            key=task.key,
            strict=plan.strict,
            degraded=degraded,
            caught=task.caught,
            draws=self._draws,
            stream=task.stream,
        )


def _silence(plan: GrantPlan) -> float | None:
    """After how many seconds a node counts as lost, where there are several."""
    if (plan.granted.nodes or 1) == 1:
        return None
    return seats.silence(os.environ, parse_span(plan.place.target.nodes_silence))


def ship(
    code: Code, places: Iterable[OpenTarget], store: Store, *, exclude: Sequence[Path]
) -> Shipped | None:
    """Put code and runtime into the store, if any step runs on another machine."""
    if not any(place.backend.capabilities.remote for place in places):
        return None
    from upshift.code.packages import make_package
    from upshift.code.runtime_package import runtime_blob

    package = code.package or make_package(Path(code.project), store, exclude=exclude).digest
    return Shipped(code=attrs.evolve(code, package=package), runtime=runtime_blob(store))


@attrs.define(eq=False)
class Keeper:
    """Keeps a package of the code of a run on this machine, while its first tasks run.

    A run with steps elsewhere has its package already. Here nothing waits for it, so it is made by a
    thread, which tells the engine's own through its inbox.
    """

    _code: Code
    _store: Store
    _inbox: SimpleQueue[Any]
    _exclude: Sequence[Path]  # files that are no code
    _keep: Callable[[Code], None]  # called by the engine's thread with the code and its package
    _give_up: Callable[[str], None]  # called by the engine's thread with the reason why there is none
    _thread: threading.Thread | None = attrs.field(init=False, default=None)

    def start(self) -> None:
        """Start the thread, if it has not been started."""
        if self._thread is None and self._code.package is None:
            self._thread = threading.Thread(target=self._make, name="upshift-package", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until the thread is done."""
        if self._thread is not None:
            self._thread.join()

    def _make(self) -> None:
        from upshift.code.packages import make_package

        try:
            digest = make_package(Path(self._code.project), self._store, exclude=self._exclude).digest
        except Exception as error:
            # Whatever it is, the run does not need the package; its user is told.
            reason = repr(error)
            if isinstance(error, UpshiftError):
                reason = error.what + (f". {' '.join(error.fix.split())}" if error.fix else "")
            self._inbox.put(lambda: self._give_up(reason))
        else:
            code = attrs.evolve(self._code, package=digest)
            self._inbox.put(lambda: self._keep(code))
