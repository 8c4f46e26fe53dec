"""Runs in a catalog and a store, written as an engine writes them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path

import attrs

from upshift.config import ResourceSettings
from upshift.model.graph import (
    END,
    FOREACH,
    ITEMS,
    LINEAR,
    Constant,
    FlowShape,
    FlowStep,
    FromStep,
    Graph,
    Node,
    StepDefinition,
)
from upshift.model.growth import Growth
from upshift.model.settings.step import StepSettings
from upshift.model.spec import Artifact, EntryPoint, Failure, Hardware, TaskId, TaskResult, encode, to_json
from upshift.model.spec.task import UNCACHED
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runs.history.runs import Run
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.manifest import State
from upshift.runtime.storage.store import open_store

STARTED = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc).timestamp()
REQUEST = ResourceSettings(cpu_count=2, memory="4GB", gpu_count=1)
LONG = "report_everything_that_there_is"


class Recorder:
    """Writes a run into a catalog and a store below ``folder``, which may be an ``UPSHIFT_HOME``."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(str(folder / "store"))
        self.catalog = Catalog(folder / "catalog.db")
        self.id = "20261121-aaaa"

    def log(self, step: str, text: bytes, index: int | None = None, *, attempt: int = 1) -> None:
        """A task printed this."""
        path = self.store.log_path(TaskId(run=self.id, step=step, index=index), attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(text)

    def run(self, graph: Graph | None = None, **fields: object) -> Run:
        def definition(request: ResourceSettings | None = None) -> StepDefinition:
            entry = EntryPoint(module="m", qualname="f")
            return StepDefinition(entry=entry, settings=StepSettings(resources=request or ResourceSettings()))

        graph = graph or Graph(
            pipeline="digits",
            steps={"load": definition(), "train": definition(REQUEST), "choose": definition()},
            nodes=(
                Node(name="load", step="load"),
                Node(name="train", step="train", inputs={"x": FromStep(node="load")}, over=("x",)),
                Node(name="choose", step="choose"),
                Node(name=LONG, step="choose"),
            ),
            texts={"lr": "0.1", "data": "<bytes, 3 KB>", "kind": "Color.RED"},
        )
        params = {"lr": encode(save(0.1, self.store)), "data": encode(save(b"x" * 3000, self.store))}
        row = RunRow(
            id=self.id,
            pipeline="digits",
            status="completed",
            target="local",
            user="ada",
            tags=("nightly",),
            store=self.store.address,
            started=STARTED,
            ended=STARTED + 93.2,
            params=params,
        )
        row = attrs.evolve(row, **fields)
        self.store.write_record(row.id, "graph.json", to_json(graph))
        self.catalog.add_run(row)
        return Run(row, self.catalog, self.store)

    def task(
        self,
        step: str,
        index: int | None = None,
        *,
        seconds: float = 1.0,
        cpus: float = 1.0,
        why: str | None = None,
        failure: Failure | None = None,
        attempt: int = 1,
        outputs: dict[str, Artifact] | None = None,
    ) -> None:
        task = TaskId(run=self.id, step=step, index=index)
        status = "failed" if failure else "completed"
        if failure is not None and failure.reason == "cancelled":
            status = "cancelled"
        result = TaskResult(
            task=task,
            attempt=attempt,
            status=status,
            outputs=outputs or {},
            failure=failure,
            started=STARTED,
            ended=STARTED + seconds,
            asked=Hardware.asked(REQUEST if step == "train" else ResourceSettings()),
            granted=Hardware(cpu_count=2, memory=4_000_000_000, gpus=(), details={"cpus": [0, 1]}),
            seen=Hardware(cpu_count=2, memory=23_400_000_000, gpus=()),
            used=Hardware(cpu_count=cpus, memory=812_000_000),
        )
        row = AttemptRow(task=task, number=attempt, status=status, backend="local", result=result)
        self.catalog.record([TaskRow(task=task, status=status, cache_reason=why)], [row])

    def flow(self, *, cached: Collection[str] = ()) -> Run:
        """A flow that is over: ``start``, two tasks of ``train`` that ``join`` joins, ``end``."""

        def state(before: dict[str, Artifact], **values: object) -> Artifact:
            return save(State(values, before, about={"step": "train"}), self.store)

        def held(artifact: Artifact) -> dict[str, Artifact]:
            loaded = load(artifact, self.store)
            assert isinstance(loaded, State)
            return dict(loaded.artifacts)

        shape = FlowShape(
            steps={
                "start": FlowStep(kind=FOREACH, then=("train",)),
                "train": FlowStep(kind=LINEAR, then=("join",)),
                "join": FlowStep(kind=LINEAR, then=("end",), join=True),
                "end": FlowStep(kind=END),
            }
        )
        first = state({}, alpha=0.5, SIZE=3)
        growth = Growth(shape, Constant(artifact=first))
        nodes = growth.first()
        outputs = {"start": ("output", ITEMS)}
        steps = {
            name: StepDefinition(
                entry=EntryPoint(module="m", qualname=name),
                settings=StepSettings(cache=name in cached),
                outputs=outputs.get(name, ("output",)),
            )
            for name in shape.steps
        }
        graph = Graph(pipeline="Flow", steps=steps, nodes=nodes, flow=shape, output=FromStep(node="end"))
        start = state(held(first), name="digits", data=b"x" * 3000, output=[1])
        one, two = (state(held(start), score=score, _own=1) for score in (1, 2))
        joined = state(held(two), best=2, name="digits")
        run = self.run(graph, pipeline="Flow")
        items = save([1, 2], self.store, by_item=True)
        self.task("start", outputs={"output": start, ITEMS: items}, why=UNCACHED)
        for index, made in enumerate((one, two)):
            self.task("train", index, outputs={"output": made}, why=UNCACHED)
        self.task("join", outputs={"output": joined}, why=UNCACHED)
        self.task("end", outputs={"output": state(held(joined), told={"best": 2})}, why=UNCACHED)
        return run

    def reused(self, step: str, original: TaskId, why: str) -> None:
        task = TaskId(run=self.id, step=step)
        origin = (original.run, original.step, original.index, 1)
        row = TaskRow(task=task, status="completed", cached=True, cache_reason=why, origin=origin)
        self.catalog.record([row])
