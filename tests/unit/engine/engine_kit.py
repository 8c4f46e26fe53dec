"""What the engine's tests share: graphs in a line, a clock that jumps, somebody who watches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import attrs
import pytest

from settings_kit import with_settings
from upshift.backends.base import Job
from upshift.backends.fake import Complete, FakeCluster, Outcome
from upshift.engine import RunOptions
from upshift.engine.driver import Driver
from upshift.engine.journal import RunRecord
from upshift.engine.run import execute
from upshift.model.configuration import Configuration, Target
from upshift.model.graph import Collection, Constant, FromStep, Graph, Node, Source, StepDefinition
from upshift.model.spec import Code, EntryPoint, MetricValue, TaskId
from upshift.report import ImageChange, TaskChange
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.history.runs import Run, get_run
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store

Function = Callable[..., object]


def never() -> bool:
    """Nothing happens while the engine waits."""
    return False


class JumpingClock:
    """Time that passes only while somebody waits for it.

    Parameters
    ----------
    idle
        Called when nothing is in the inbox; says whether it put something there.
    """

    def __init__(self, idle: Callable[[], bool] = never) -> None:
        self.time = 1_700_000_000.0
        self.idle = idle
        self.jumps: list[float] = []

    def now(self) -> float:
        self.time += 0.001
        return self.time

    def monotonic(self) -> float:
        return self.time

    def wait(self, inbox: SimpleQueue[Any], deadline: float | None) -> Any | None:
        while inbox.empty() and self.idle():
            pass
        try:
            return inbox.get_nowait()
        except Empty:
            if deadline is None:
                raise AssertionError("the engine waits for something that never comes") from None
            self.jumps.append(deadline - self.time)
            self.time = max(self.time, deadline)
            return None


class Watcher:
    """Keeps what a run tells."""

    shows = False

    def __init__(self) -> None:
        self.changes: list[TaskChange] = []
        self.notices: list[str] = []
        self.printed: list[tuple[str, str]] = []
        self.unended: list[tuple[str, str]] = []
        self.sizes: dict[str, int] = {}
        self.started: list[str] = []
        self.ended: list[str] = []
        self.images: list[ImageChange] = []

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        self.started = steps

    def step_sized(self, step: str, tasks: int) -> None:
        self.sizes[step] = tasks

    def image_changed(self, change: ImageChange) -> None:
        self.images.append(change)

    def task_changed(self, change: TaskChange) -> None:
        self.changes.append(change)

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        self.notices.append(text)

    def output(self, task: TaskId, text: str) -> None:
        self.printed.append((str(task), text))

    def logged(self, task: TaskId, values: Mapping[str, MetricValue], step: float | None) -> None:
        """Not of interest here."""

    def unfinished(self, task: TaskId, text: str) -> None:
        self.unended.append((str(task), text))

    def run_ended(self, run: str, status: str, seconds: float) -> None:
        self.ended.append(status)

    def of(self, task: str) -> list[str]:
        return [change.status for change in self.changes if str(change.task) == task]


class Bench:
    """A store, a catalog and a cluster, to run graphs on."""

    def __init__(self, folder: Path) -> None:
        targets = {"fake": Target(name="fake", backend="fake", store=str(folder / "store"))}
        self.configuration = Configuration(default_target="fake", targets=targets)
        self.store: Store = open_store(str(folder / "store"))
        self.folder = folder
        self.functions: dict[str, Function] = {}
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.cluster = FakeCluster(self.script)
        self.clock = JumpingClock()
        self.watcher = Watcher()

    def script(self, job: Job) -> Outcome:
        """What ``outcomes`` has for this task and attempt (0: any), else the step's function."""
        spec = job.spec
        for key in ((str(spec.task), spec.attempt), (str(spec.task), 0), (spec.task.step, 0)):
            if key in self.outcomes:
                return self.outcomes[key]
        function = self.functions[spec.entry.qualname]
        return Complete(lambda inputs: function(**inputs))

    def const(self, value: object, *, by_item: bool = False) -> Constant:
        return Constant(artifact=artifacts.save(value, self.store, by_item=by_item))

    def listed(self, *values: object) -> Collection:
        return Collection(items=tuple(self.const(value) for value in values))

    def step(self, function: Function, **fields: Any) -> StepDefinition:
        name = function.__name__
        self.functions[name] = function
        fields.setdefault("code", {f"steps.{name} (steps.py)": "code:1"})
        return StepDefinition(
            entry=EntryPoint(module="steps", qualname=name),
            location="steps.py:1",
            **with_settings(fields, resources="request"),
        )

    def graph(
        self,
        nodes: Mapping[str, tuple[StepDefinition, dict[str, Source]]] | list[Node],
        steps: Mapping[str, StepDefinition] | None = None,
        output: Source | None = None,
    ) -> Graph:
        if isinstance(nodes, list):
            return Graph(pipeline="p", steps=steps or {}, nodes=tuple(nodes), output=output)
        return Graph(
            pipeline="p",
            steps={name: definition for name, (definition, _) in nodes.items()},
            nodes=tuple(Node(name=n, step=n, inputs=inputs) for n, (_, inputs) in nodes.items()),
            output=output or FromStep(node=list(nodes)[-1]),
        )

    def run(self, graph: Graph, *, resume: str | None = None, **options: Any) -> Run:
        self.cluster.clock = self.clock.now
        if not self.cluster.instant and (self.clock.idle is never or self.clock.idle == self._finish):
            self.clock.idle = self._finish
        return execute(
            graph,
            code=Code(project=str(self.project)),
            source={"file": None, "pipeline": "p", "cwd": os.getcwd()},
            configuration=self.configuration,
            options=RunOptions(**options),
            progress=self.watcher,
            resume=resume,
            open_backend=self.cluster.open,
            clock=self.clock,
        )

    def _finish(self) -> bool:
        return self.cluster.finish()

    @property
    def project(self) -> Path:
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        return project

    @property
    def catalog(self) -> Catalog:
        return open_catalog(self.configuration)

    def look(self, run: str) -> Run:
        return get_run(run, self.configuration)

    def ran(self) -> list[str]:
        """The tasks that were submitted, in order."""
        return [str(job.spec.task) for job in self.cluster.submitted]


def changed(definition: StepDefinition, **fields: Any) -> StepDefinition:
    return attrs.evolve(definition, **fields)


class Killed(BaseException):
    """Stands for SIGKILL."""


def killed_run(bench: Bench, graph: Graph, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Run until something raises :class:`Killed`, after which the engine does nothing more.

    Returns
    -------
    str
        Id of the run.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "abandon", lambda self: None)
        patch.setattr(RunRecord, "end", lambda self, status, now: None)
        with pytest.raises(Killed):
            bench.run(graph, **options)
    bench.watcher = Watcher()
    return bench.catalog.runs(limit=1)[0].id


def kill_when_idle(bench: Bench, *, finished: int = 0) -> None:
    """Let jobs go on for ever, and kill the engine after so many of them have ended."""
    left = [finished]

    def idle() -> bool:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return bench.cluster.finish()

    bench.clock.idle = idle
