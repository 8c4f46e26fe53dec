"""The spec of an attempt, made when it is submitted, and the code that travels with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.engine.places import Place, Terms
from upshift.engine.tasks import Task
from upshift.errors import UpshiftError
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
        As in :func:`upshift.engine.run.execute`.
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
            caught=task.caught,
            draws=self._draws,
            stream=task.stream,
        )


def ship(code: Code, places: Iterable[Place], store: Store, *, exclude: Sequence[Path]) -> Shipped | None:
    """Put code and runtime into the store, if any step runs on another machine.

    Parameters
    ----------
    code, places, store
        What to ship, if one of the places is on another machine, and where to.
    exclude
        Files that are no code.

    Raises
    ------
    UsageError
        The project is too large, or a file of it cannot be read.
    """
    if not any(place.backend.capabilities.remote for place in places):
        return None
    from upshift.code.packages import make_package
    from upshift.code.runtime_package import runtime_blob

    package = code.package or make_package(Path(code.project), store, exclude=exclude).digest
    return Shipped(code=attrs.evolve(code, package=package), runtime=runtime_blob(store))


class Keeper:
    """Keeps a package of the code of a run on this machine, while its first tasks run.

    A run with steps elsewhere has its package already. Here nothing waits for it, so it is made by a
    thread, which tells the engine's own through its inbox.

    Parameters
    ----------
    code
        The user's code.
    store
        Where the package goes.
    inbox
        The engine's inbox.
    exclude
        Files that are no code.
    keep
        Called by the engine's thread with the code and its package.
    give_up
        Called by the engine's thread with the reason why there is no package.
    """

    def __init__(
        self,
        code: Code,
        store: Store,
        inbox: SimpleQueue[Any],
        *,
        exclude: Sequence[Path],
        keep: Callable[[Code], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._code = code
        self._store = store
        self._inbox = inbox
        self._exclude = exclude
        self._keep = keep
        self._give_up = give_up
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if that has not happened yet."""
        if self._thread is None and self._code.package is None:
            self._thread = threading.Thread(target=self._make, name="upshift-package", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
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
