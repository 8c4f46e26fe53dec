"""A run with a step of several processes on two nodes, recorded as an engine and supervisors record it."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from benchmarks.made_up import MadeUp, definition, devices, series, used
from upshift.config import ResourceSettings
from upshift.model.graph import FromStep, Graph, Node
from upshift.model.spec import Card, Code, EntryPoint, Failure, Hardware, Launch, Stack, TaskSpec
from upshift.runs.history.runs import Run
from upshift.runtime.storage.metrics import header, read_by_rank, summaries_of

ASKED = ResourceSettings(cpu_count=8, memory="64GB", accelerator="H100:2", num_nodes=2)
HOSTS = ("gpu-a", "gpu-b")
HANG = Failure(
    reason="hang",
    message="the step has made no progress for 300 s",
    where="data.py:9",
    fix="Give all ranks the same number of batches.",
)
RAISED = Failure(
    reason="user-error",
    message="ValueError: batch 31 has no labels",
    traceback='Traceback (most recent call last):\n  File "train.py", line 22, in train\nValueError: no\n',
    where="train.py:22",
    rank=2,
    node="gpu-b",
)


def finetuning(
    home: Path, *, world_size: int = 4, failure: Failure | None = None, running: bool = False
) -> Run:
    """``load``, and ``train`` as several processes, half of them on each of two nodes.

    Parameters
    ----------
    home
        Where it is recorded.
    world_size
        How many there are.
    failure
        Why the training failed; a hang has stacks.
    running
        Whether it still goes on.
    """
    launch = Launch(launcher="accelerate", processes=world_size, per_node=world_size // 2, devices=True)
    graph = Graph(
        pipeline="finetuning",
        steps={"load": definition(), "train": definition(ASKED, launch=launch)},
        nodes=(
            Node(name="load", step="load"),
            Node(name="train", step="train", inputs={"data": FromStep(node="load")}),
        ),
    )
    status = "running" if running else "failed" if failure else "completed"
    ended = None if running else 1_795_262_400.0 + 700
    made = MadeUp(home, graph, id="20261121-120000-gang", status=status, ended=ended)
    made.task("load", start=0.4, seconds=2.5, used=used(2.5, 0.9, 300_000_000))
    gpus = tuple(
        attrs.evolve(gpu, node=number // 2, index=number % 2) for number, gpu in enumerate(devices(4))
    )
    ranks = [
        _seen(rank, world_size, gpus[rank].uuid if rank < len(gpus) else None) for rank in range(world_size)
    ]
    granted = Hardware(cpu_count=8, memory=64_000_000_000, gpus=gpus, nodes=2, processes=world_size)
    train = made.id("train")
    made.store.write_spec(
        TaskSpec(
            task=train,
            attempt=1,
            pipeline=graph.pipeline,
            entry=EntryPoint(module="train", qualname="train"),
            code=Code(project="/home/ada/finetuning"),
            store=made.store.address,
            request=ASKED,
            granted=granted,
            launch=launch,
        )
    )
    made.file(train, "metrics", _metrics(world_size))
    made.task(
        "train",
        start=3,
        seconds=None if running else 640,
        failure=failure,
        asked=ASKED,
        granted=granted,
        seen=Hardware(cpu_count=8, memory=64_000_000_000, gpus=gpus, nodes=2, details={"ranks": ranks}),
        used=used(640, 3.4, 11_200_000_000, gpus, 64.0),
        cards=[_card(made, 0), _card(made, 1)],
        metrics=summaries_of(read_by_rank(made.store.metrics_path(train, 1))),
        stacks=stacks_of(world_size) if failure is not None and failure.reason == "hang" else (),
    )
    made.file(train, "series", series(640, gpus[:2]))
    lines = [
        b"[rank %d] rank %d: epoch %d\n" % (rank, rank, epoch)
        for epoch in range(3)
        for rank in range(world_size)
    ]
    made.file(train, "log", b"".join(lines))
    for rank in range(world_size):
        path = made.store.rank_log_path(train, 1, rank)
        path.write_bytes(b"".join(b"rank %d: epoch %d\n" % (rank, epoch) for epoch in range(3)))
    return made.record()


def _seen(rank: int, world_size: int, device: str | None) -> dict[str, object]:
    node, local = divmod(rank, world_size // 2)
    found = {"rank": rank, "node": node, "host": HOSTS[node], "local_rank": local, "world_size": world_size}
    return {**found, "pid": 4000 + rank, "device": device}


def _card(made: MadeUp, rank: int) -> Card:
    return attrs.evolve(made.card("Samples", "text/markdown", b"Rank **%d**" % rank), rank=rank)


def stacks_of(world_size: int) -> tuple[Stack, ...]:
    """All wait for rank 2, which reads data."""
    waiting = [
        Stack(
            rank=rank,
            waits="all_reduce",
            where="train.py:31",
            text='Thread 0x1 (most recent call first):\n  File "train.py", line 31 in train\n',
        )
        for rank in range(world_size)
        if rank != 2
    ]
    busy = Stack(
        rank=2,
        where="data.py:9",
        text='Thread 0x1 (most recent call first):\n  File "data.py", line 9 in next_batch\n',
    )
    return tuple(sorted([*waiting, busy], key=lambda stack: stack.rank))


def _metrics(world_size: int) -> bytes:
    lines = [header(["loss"], rank) for rank in range(world_size)]
    for step in range(50):
        for rank in range(world_size):
            point = [rank, 12.0 * step + rank / 10, step, round(2.3 / (step + 1) + rank / 50, 6)]
            lines.append(json.dumps(point).encode() + b"\n")
    lines += [header(["tokens"], 1), json.dumps([world_size, 600.0, None, 81_920]).encode() + b"\n"]
    return b"".join(lines)
