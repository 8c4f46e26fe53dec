"""Runs that never ran, recorded as an engine and its supervisors record them: for reports of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs

from upshift.config import ResourceSettings
from upshift.model.graph import Graph, Node, StepDefinition
from upshift.model.settings.step import StepSettings
from upshift.model.spec import (
    Artifact,
    Card,
    Device,
    EntryPoint,
    Failure,
    Hardware,
    Launch,
    TaskId,
    TaskResult,
    encode,
    to_json,
)
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runs.history.runs import Run
from upshift.runtime.storage.artifacts import save
from upshift.runtime.storage.metrics import header as metrics_header
from upshift.runtime.storage.series import GPU_COLUMNS, header, sample
from upshift.runtime.storage.store import open_store

STARTED = 1_795_262_400.0
"""2026-11-21 12:00:00 UTC."""
H100 = 85_520_809_984
"""Bytes of memory of a device."""


def definition(
    request: ResourceSettings | None = None,
    *,
    outputs: tuple[str, ...] = ("output",),
    launch: Launch | None = None,
    **settings: Any,
) -> StepDefinition:
    """What a step is, with this request."""
    entry = EntryPoint(module="pipeline", qualname="f")
    return StepDefinition(
        entry=entry,
        outputs=outputs,
        settings=StepSettings(resources=request or ResourceSettings(), **settings),
        launch=launch,
    )


def devices(number: int) -> tuple[Device, ...]:
    """So many H100."""
    return tuple(
        Device(
            vendor="nvidia",
            model="NVIDIA H100 80GB HBM3",
            kind="H100",
            memory=H100,
            uuid=f"GPU-{n:08x}-0000",
            index=n,
            compute_capability="9.0",
        )
        for n in range(number)
    )


class MadeUp:
    """One run, in a catalog and a store below ``home``, which may be an ``UPSHIFT_HOME``.

    Parameters
    ----------
    home
        Where it is recorded.
    graph
        What was run.
    row
        Fields of its row that are not as usual.
    """

    def __init__(self, home: Path, graph: Graph, **row: Any) -> None:
        self.store = open_store(str(home / "store"))
        self.catalog = Catalog(home / "catalog.db")
        params = {name: encode(save(text, self.store)) for name, text in graph.texts.items()}
        usual = RunRow(
            id="20261121-120000-made",
            pipeline=graph.pipeline,
            status="completed",
            target="local",
            user="ada",
            tags=("nightly",),
            store=self.store.address,
            started=STARTED,
            ended=STARTED + 3600,
            params=params,
        )
        self.row = attrs.evolve(usual, **row)
        self._tasks: list[TaskRow] = []
        self._attempts: list[AttemptRow] = []
        self.store.write_record(self.row.id, "graph.json", to_json(graph))

    def record(self) -> Run:
        """All of it."""
        self.catalog.add_run(self.row)
        self.catalog.record(self._tasks, self._attempts)
        return Run(self.row, self.catalog, self.store)

    def id(self, step: str, index: int | None = None) -> TaskId:
        """The name of a task."""
        return TaskId(run=self.row.id, step=step, index=index)

    def task(
        self,
        step: str,
        index: int | None = None,
        *,
        start: float,
        seconds: float | None,
        attempt: int = 1,
        why: str | None = "first run",
        failure: Failure | None = None,
        asked: ResourceSettings | None = None,
        granted: Hardware | None = None,
        seen: Hardware | None = None,
        used: Hardware | None = None,
        outputs: Mapping[str, Artifact] | None = None,
        cards: Sequence[Card] = (),
        **more: Any,
    ) -> TaskId:
        """An attempt, and how the task stands after it; ``seconds`` None: it still runs.

        ``more`` are fields of its result.
        """
        task = self.id(step, index)
        status = "running" if seconds is None else "failed" if failure else "completed"
        if failure is not None and failure.reason == "cancelled":
            status = "cancelled"
        result = None
        if seconds is not None:
            result = TaskResult(
                task=task,
                attempt=attempt,
                status=status,
                outputs=outputs or {},
                failure=failure,
                started=STARTED + start,
                ended=STARTED + start + seconds,
                node="node-1",
                backend="local",
                asked=Hardware.asked(asked or ResourceSettings()),
                granted=granted or Hardware(cpu_count=asked.cpu_count if asked else None),
                seen=seen or Hardware(cpu_count=16, memory=64_000_000_000, gpus=()),
                used=used,
                cards=tuple(cards),
                **more,
            )
        self._attempts.append(
            AttemptRow(
                task=task,
                number=attempt,
                status=status,
                backend="local",
                node="node-1",
                started=STARTED + start,
                ended=None if seconds is None else STARTED + start + seconds,
                result=result,
            )
        )
        others = [row for row in self._tasks if row.task != task] if attempt > 1 else self._tasks
        self._tasks = (
            [*others, TaskRow(task=task, status=status, cache_reason=why)] if attempt > 1 else self._tasks
        )
        if attempt == 1:
            self._tasks.append(TaskRow(task=task, status=status, cache_reason=why))
        return task

    def other(self, row: TaskRow) -> None:
        """A task that stands as it says, without an attempt."""
        self._tasks.append(row)

    def file(self, task: TaskId, ending: str, content: bytes, attempt: int = 1) -> None:
        """Something that a supervisor wrote beside a result: its log, its series, its metrics."""
        path = getattr(self.store, f"{ending}_path")(task, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def card(self, title: str, media: str, content: bytes) -> Card:
        """Something to look at."""
        digest, size = self.store.put(content)
        return Card(title=title, media=media, digest=digest, bytes=size)


def used(seconds: float, cpus: float, peak: int, gpus: Sequence[Device] = (), busy: float = 0.0) -> Hardware:
    """What was used of it, with GPUs that were busy so many percent of the time."""
    details = {"seconds": seconds, "cpu_seconds": seconds * cpus, "cpu_mean": cpus, "memory_peak": peak}
    each = {
        "busy_mean": busy,
        "busy_peak": min(100.0, busy * 1.6),
        "memory_peak": 41_200_000_000,
        "power_mean": 410.0,
        "temperature_peak": 71,
    }
    if gpus:
        details["gpu_mean"] = len(gpus) * busy / 100
    return Hardware(
        cpu_count=cpus,
        memory=peak,
        gpus=tuple(attrs.evolve(gpu, details=each) for gpu in gpus) or None,
        nodes=1,
        details=details,
    )


def series(seconds: int, gpus: Sequence[Device] = (), *, seed: int = 1, lost: int | None = None) -> bytes:
    """Samples of a training, one a second; device ``lost`` is gone after two thirds of the time."""
    chance = Random(seed)
    columns = ["time", "cpu", "memory", "read", "written", "received", "sent"]
    columns += [f"gpu.{number}.{name}" for number in range(len(gpus)) for name in GPU_COLUMNS]
    lines = [
        header(
            STARTED, columns, [{"uuid": gpu.uuid, "model": gpu.model, "memory": gpu.memory} for gpu in gpus]
        )
    ]
    for second in range(1, seconds + 1):
        loading = second % 300 < 60
        values: list[float | int | None] = [
            float(second),
            round((3.9 if loading else 1.2) + chance.random() * 0.6, 3),
            int(6e9 + 5e9 * (1 - math.exp(-second / 400)) + 4e8 * chance.random()),
            int(3e8 * chance.random()) if loading else 0,
            int(2e9) if second % 900 == 0 else 0,
            int(1e5 * chance.random()),
            int(4e4 * chance.random()),
        ]
        for number in range(len(gpus)):
            if number == lost and second > 2 * seconds / 3:
                values += [None] * len(GPU_COLUMNS)
                continue
            busy = 3 * chance.random() if loading else min(100.0, 82 + 14 * chance.random() - 4 * number)
            values += [
                round(busy, 1),
                int((41 + 0.3 * number) * 1e9) if second > 20 else int(1e9 * second),
                int((40.2 + 0.3 * number) * 1e9) if second > 20 else int(0.9e9 * second),
                round(90 + 5.2 * busy + 20 * chance.random(), 1),
                round(38 + 0.32 * busy + number, 1),
                1980 if not loading else 345,
                2619,
                int(4e9 * chance.random()),
                int(1e9 * chance.random()),
                int(2e10 * busy / 100),
                int(2e10 * busy / 100),
                0,
                79 if number == lost and second == 2 * seconds // 3 else None,
                0,
            ]
        lines.append(sample(values))
    return "".join(lines).encode()


def metrics(points: int, seconds: float, *, seed: int = 1) -> bytes:
    """Loss, accuracy and learning rate of a training."""
    chance = Random(seed)
    lines = [metrics_header(["loss", "accuracy", "lr"]).decode()]
    for step in range(points):
        share = (step + 1) / points
        loss = 2.3 * math.exp(-3 * share) + 0.12 + 0.05 * chance.random()
        accuracy = 1 - 0.7 * math.exp(-4 * share) - 0.02 * chance.random()
        rate = 0.001 * (0.5 + 0.5 * math.cos(math.pi * share))
        lines.append(f"[0,{share * seconds:.2f},{step},{loss:.6g},{accuracy:.6g},{rate:.6g}]\n")
    return "".join(lines).encode()


def large(home: Path, tasks: int = 10_000, seconds: int = 3600) -> Run:
    """A step of so many tasks, after one on eight GPUs that took ``seconds``.

    Tasks take their time in turns, 16 at once, over those seconds; some fail at first.
    """
    chance = Random(7)
    wide = ResourceSettings(cpu_count=1, memory="2GB")
    deep = ResourceSettings(cpu_count=8, memory="32GB", gpu_count=8)
    graph = Graph(
        pipeline="large",
        steps={"train": definition(deep, profile=1.0), "score": definition(wide), "report": definition()},
        nodes=(
            Node(name="train", step="train"),
            Node(name="score", step="score", over=("x",)),
            Node(name="report", step="report", after=("train", "score")),
        ),
        texts={"n": str(tasks)},
    )
    made = MadeUp(home, graph, ended=STARTED + seconds + 5)
    gpus = devices(8)
    train = made.task(
        "train",
        start=0.5,
        seconds=seconds,
        asked=deep,
        granted=Hardware(cpu_count=8, memory=32_000_000_000, gpus=gpus),
        seen=Hardware(cpu_count=8, memory=32_000_000_000, gpus=gpus),
        used=used(seconds, 3.2, 11_000_000_000, gpus, 78.0),
        outputs={"output": save(list(range(20)), made.store)},
    )
    made.file(train, "series", series(seconds, gpus))
    made.file(train, "metrics", metrics(5000, seconds))
    made.file(train, "log", b"".join(b"epoch %d: done\n" % n for n in range(4000)))
    width = seconds * 16 / tasks
    for index in range(tasks):
        took = width * (0.3 + 1.3 * chance.random() ** 2)
        lane = index % 16
        start = 0.5 + (index // 16) * width + lane * 0.01
        failure = (
            Failure(reason="user-error", message=f"ValueError: item {index} is odd", where="pipeline.py:12")
            if index % 997 == 3
            else None
        )
        made.task(
            "score",
            index,
            start=start,
            seconds=took,
            asked=wide,
            granted=Hardware(cpu_count=1, memory=2_000_000_000, gpus=(), details={"cpus": [lane]}),
            seen=Hardware(cpu_count=1, memory=2_000_000_000, gpus=()),
            used=used(took, round(chance.uniform(0.6, 1.0), 3), int(chance.uniform(2e8, 9e8))),
            failure=failure,
            why="first run" if index % 5 else "input changed: x",
        )
        made.file(
            made.id("score", index),
            "series",
            (header(STARTED, ["time", "cpu", "memory"]) + sample([1.0, 0.9, 300_000_000])).encode(),
        )
    made.task("report", start=seconds + 1, seconds=0.3, used=used(0.3, 0.9, 90_000_000))
    return made.record()
