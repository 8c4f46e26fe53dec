"""Runs to look at in a browser: one with everything in it, and one whose names want to break out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.made_up import MadeUp, definition, devices, metrics, series, used
from upshift.config import ResourceSettings
from upshift.model.graph import FromStep, Graph, Node
from upshift.model.spec import Artifact, Failure, Hardware
from upshift.runs.catalog.rows import TaskRow
from upshift.runs.history.runs import Run
from upshift.runtime.storage.artifacts import save

DEEP = ResourceSettings(cpu_count=8, memory="32GB", accelerator="H100:2")
WIDE = ResourceSettings(cpu_count=4, memory="4GB")
HUNGRY = ResourceSettings(cpu_count=32, memory="16GB")
TRACEBACK = """Traceback (most recent call last):
  File "training.py", line 41, in publish
    registry.push(model, name=name)
ConnectionError: registry.example.org does not answer
"""
PICTURE = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 200">
<rect width="320" height="200" fill="#f4f6f8"/>
<g fill="#0068a8"><rect x="30" y="60" width="40" height="120"/><rect x="90" y="90" width="40" height="90"/>
<rect x="150" y="40" width="40" height="140"/><rect x="210" y="110" width="40" height="70"/></g>
<text x="16" y="28" font-family="sans-serif" font-size="15">errors by class</text></svg>"""
NOTE = b"""## What the model confuses

| true | taken for | times |
| --- | --- | ---: |
| 4 | 9 | 17 |
| 7 | 1 | 9 |

Mostly **open fours**; see [the data sheet](https://example.org/data).
"""
PAGE = b"""<style>body{font:15px sans-serif}b{color:#0068a8}</style><p>Rows: <b id="n">?</b></p>
<script>document.getElementById("n").textContent = String(6 * 7)</script>"""


def training(home: Path, *, seconds: int = 2400, running: bool = False) -> Run:
    """Reuse, retries, GPUs with a profile, metrics, cards, a mapped step, a failure, less than was asked.

    Parameters
    ----------
    home
        Where it is recorded.
    seconds
        How long the training took.
    running
        Whether the training still goes on.
    """
    graph = Graph(
        pipeline="training",
        steps={
            "load": definition(),
            "split": definition(outputs=("train_set", "test_set")),
            "train": definition(DEEP, profile=1.0),
            "tune": definition(WIDE),
            "evaluate": definition(HUNGRY),
            "publish": definition(),
            "notify": definition(),
        },
        nodes=(
            Node(name="load", step="load"),
            Node(name="split", step="split", inputs={"data": FromStep(node="load")}),
            Node(name="tune", step="tune", inputs={"x": _of("split", "train_set")}, over=("rate",)),
            Node(name="train", step="train", inputs={"x": _of("split", "train_set"), "best": _of("tune")}),
            Node(
                name="evaluate",
                step="evaluate",
                inputs={"x": _of("split", "test_set"), "model": _of("train")},
            ),
            Node(name="publish", step="publish", inputs={"model": _of("train"), "score": _of("evaluate")}),
            Node(name="notify", step="notify", after=("publish",), when=_of("evaluate")),
        ),
        texts={"epochs": "40", "rates": "[0.1, 0.03, 0.01, 0.003, …]", "data": "PosixPath('digits.parquet')"},
    )
    end = 300 + seconds
    made = MadeUp(home, graph, id="20261121-120000-wqxa", status="failed", ended=1_795_262_400.0 + end + 40)
    if running:
        made = MadeUp(home, graph, id=made.row.id, status="running", ended=None)
    gpus = devices(2)
    outputs = lambda value: {"output": save(value, made.store)}  # noqa: E731
    _reused_load(made)
    made.task(
        "split",
        start=1.2,
        seconds=14.5,
        used=used(14.5, 0.97, 1_300_000_000),
        outputs={
            "train_set": save(list(range(1500)), made.store),
            "test_set": save(list(range(300)), made.store),
        },
    )
    for index in range(12):
        start, took = 16 + (index // 4) * 88 + index % 4, 70 + 7 * (index % 5)
        task = made.task(
            "tune",
            index,
            start=start,
            seconds=took,
            asked=WIDE,
            granted=Hardware(cpu_count=4, memory=4_000_000_000, gpus=(), details={"cpus": [0, 1, 2, 3]}),
            used=used(took, 3.1 + index / 20, 900_000_000 + 40_000_000 * index),
            outputs=outputs(index / 10),
        )
        made.file(task, "series", series(took, seed=index))
        made.file(task, "metrics", metrics(60, took, seed=index))
    granted = Hardware(cpu_count=8, memory=32_000_000_000, gpus=gpus, details={"cpus": list(range(8))})
    seen = Hardware(cpu_count=8, memory=32_000_000_000, gpus=gpus, details={"driver": "580.95.05"})
    lost = made.task(
        "train",
        start=290,
        seconds=61,
        failure=Failure(
            reason="out-of-memory",
            message="the GPU ran out of memory: 79.6 GB in use of 85.5 GB, 8.2 GB more were wanted",
            where="training.py:23",
            fix='Ask for accelerator="H200:2", or halve the batch size.',
        ),
        asked=DEEP,
        granted=granted,
        seen=seen,
        used=used(61, 2.4, 9_000_000_000, gpus, 61.0),
    )
    made.file(lost, "series", series(61, gpus))
    train = made.task(
        "train",
        start=360,
        seconds=None if running else seconds - 100,
        attempt=2,
        asked=DEEP,
        granted=granted,
        seen=seen,
        used=used(seconds - 100, 3.4, 11_200_000_000, gpus, 64.0),
        outputs=outputs({"weights": list(range(400))}),
        cards=[
            made.card("Errors by class", "image/svg+xml", PICTURE),
            made.card("What the model confuses", "text/markdown", NOTE),
            made.card("Rows", "text/html", PAGE),
        ],
    )
    made.file(train, "series", series(seconds - 100, gpus), 2)
    made.file(train, "metrics", metrics(2000, seconds - 100), 2)
    made.file(train, "log", b"".join(b"epoch %d: loss %.3f\n" % (n, 2.3 / (n + 1)) for n in range(40)), 2)
    if running:
        for step in ("evaluate", "publish", "notify"):
            made.other(TaskRow(task=made.id(step), status="pending"))
        return made.record()
    took = 24.0
    evaluate = made.task(
        "evaluate",
        start=end - 36,
        seconds=took,
        asked=HUNGRY,
        granted=Hardware(cpu_count=16, memory=16_000_000_000, gpus=()),
        used=used(took, 11.6, 2_100_000_000),
        outputs=outputs(0.9734),
    )
    made.file(evaluate, "series", series(24))
    made.task(
        "publish",
        start=end - 10,
        seconds=5.1,
        failure=Failure(
            reason="user-error",
            message="ConnectionError: registry.example.org does not answer",
            traceback=TRACEBACK,
            where="training.py:41",
        ),
        used=used(5.1, 0.1, 80_000_000),
    )
    made.other(TaskRow(task=made.id("notify"), status="cancelled"))
    return made.record()


def nasty(home: Path, *, step: str, text: str) -> Run:
    """A run in which every name and every text that a user gives is ``text``."""
    graph = Graph(
        pipeline=text,
        steps={step: definition(profile=1.0)},
        nodes=(Node(name=step, step=step), Node(name=f"{step}_2", step=step, over=("x",), after=(step,))),
        texts={text: text},
    )
    made = MadeUp(
        home, graph, id="20261121-120000-evil", status="failed", user=text, tags=(text,), target=text
    )
    failure = Failure(reason="user-error", message=text, traceback=text, where=text, fix=text)
    gpus = tuple(devices(1))
    task = made.task(
        step,
        start=1,
        seconds=300,
        why=text,
        failure=failure,
        used=used(300, 1.0, 1000, gpus, 50.0),
        cards=[
            made.card(text, "image/png", b"no picture"),
            made.card(text, "text/markdown", text.encode()),
            made.card(text, "text/html", text.encode()),
            made.card(text, "text/plain", text.encode()),
            made.card(text, text, text.encode()),
        ],
        outputs=_outputs(made, text),
    )
    made.file(task, "series", series(300, gpus))
    made.file(task, "metrics", metrics(20, 300).replace(b'"loss"', _json(text)))
    made.file(task, "log", text.encode() + b"\xff\xfe")
    for index in range(8):
        made.task(
            f"{step}_2", index, start=301, seconds=2, why=text, failure=failure, outputs=_outputs(made, text)
        )
    return made.record()


def _of(step: str, output: str = "output") -> FromStep:
    return FromStep(node=step, output=output)


def _json(text: str) -> bytes:
    import json

    return json.dumps(text).encode()


def _outputs(made: MadeUp, name: str) -> Mapping[str, Artifact]:
    return {name: save(name.encode(), made.store)}


def _reused_load(made: MadeUp) -> None:
    origin = (made.row.id.replace("-12", "-09"), "load", None, 1)
    row = TaskRow(
        task=made.id("load"),
        status="completed",
        cached=True,
        cache_reason="the same code, input and parameters",
        origin=origin,
    )
    made.other(row)
