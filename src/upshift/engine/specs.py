"""The spec of an attempt, made when it is submitted and not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from upshift.engine.places import Terms
from upshift.engine.tasks import Task
from upshift.model.graph import Graph
from upshift.model.settings.step import StepSettings
from upshift.model.spec.artifact import Value
from upshift.model.spec.task import Code, OutputSpec, TaskId, TaskSpec
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.images.base import Image


@attrs.frozen(kw_only=True)
class Shipped:
    """What tasks on other machines need of this one.

    Parameters
    ----------
    code
        The user's code, with its package.
    runtime
        Digest of the runtime blob.
    """

    code: Code
    runtime: str


class Specs:
    """Makes the specs of one run.

    Parameters
    ----------
    graph, code
        As in :func:`upshift.engine.execute`.
    store
        The store.
    cwd
        Where the run was started.
    shipped
        What goes to other machines; None: no step runs on one.
    draws
        What this run drew from the generators of random numbers.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        code: Code,
        store: Store,
        cwd: str | None,
        shipped: Shipped | None,
        draws: Mapping[str, str],
    ) -> None:
        self._graph = graph
        self._code = code
        self._store = store
        self._cwd = cwd
        self._shipped = shipped
        self._draws = draws
        self._outputs: dict[str, tuple[OutputSpec, ...]] = {}
        self._settings: dict[str, StepSettings] = {}

    def make(
        self,
        task: Task,
        task_id: TaskId,
        number: int,
        inputs: Mapping[str, Value],
        terms: Terms,
        *,
        degraded: bool,
        image: Image | None = None,
    ) -> TaskSpec:
        """The spec of attempt ``number`` of a task, which runs in this image; None: in none."""
        node, definition = task.node.node, task.node.definition
        remote = self._shipped if terms.place.backend.capabilities.remote else None
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
            store=self._store.address,
            durability=self._store.durability,
            verify=self._store.verify,
            target=terms.place.target.name,
            backend=terms.place.backend.name,
            inputs=inputs,
            outputs=outputs,
            settings=settings,
            request=terms.request or definition.settings.resources,
            granted=terms.granted,
            environment=definition.environment,
            image=image.reference if image else None,
            interpreter=image.interpreter if image else None,
            user=image.user if image else None,
            launch=terms.launch,
            cwd=None if remote else self._cwd,
            location=definition.location,
            key=task.key,
            strict=terms.strict,
            degraded=degraded,
            draws=self._draws,
            stream=task.stream,
        )
