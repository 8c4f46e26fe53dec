"""A step of two processes, beside ``accelerate launch`` of the same function; ranks that fail, or hang."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs

from benchmarks.harness import PROGRAMS, Effort, Report, Row, fresh_home, program

TITLE = "A step of two processes"
ROUNDS = 7
BATCHES = 600
BIN = Path(sys.executable).parent
PLAIN = (
    *(str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"),
    str(PROGRAMS / "launched.py"),
)
"""With ``--cpu`` it would start one process only; that this is for CPUs, the script says itself."""


@attrs.frozen(kw_only=True)
class Cost:
    """What one command took.

    Parameters
    ----------
    wall, cpu
        Seconds, from the shell's point of view; CPU time of everything that it has started.
    start
        Seconds until the function is called in the main process.
    trained
        Seconds of the training itself, in the main process.
    """

    wall: float
    cpu: float
    start: float
    trained: float


def measure(effort: Effort) -> Report:
    """Wall and CPU time of the whole command; from a failure, and from the start of a hang, to the end."""
    try:
        versions = f"Accelerate {version('accelerate')}, PyTorch {version('torch')}"
    except PackageNotFoundError as error:
        return Report(title=TITLE, how=f"Not measured: {error.name} is not installed.", rows=[])
    rounds, batches = effort.rounds(ROUNDS), str(effort.size(BATCHES))
    plain: list[Cost] = []
    upshift: list[Cost] = []
    with fresh_home() as home:
        run = (str(BIN / "upshift"), "run", str(PROGRAMS / "launched_step.py"), "--no-cache", "-p")
        _cost([*PLAIN, "1"], home)
        _cost([*run, "batches=1"], home)
        for _ in range(rounds):
            plain.append(_cost([*PLAIN, batches], home))
            upshift.append(_cost([*run, f"batches={batches}"], home))
        few = effort.rounds(3)
        failing = statistics.median(program("ranks", "failing", home=home)["seconds"] for _ in range(few))
        hanging = statistics.median(program("ranks", "hanging", home=home)["seconds"] for _ in range(few))
    return Report(
        title=TITLE,
        how=f"{versions}. The same training ({batches} batches of 256, three layers) in two processes of one "
        "thread each, which exchange their gradients by gloo: as a script under `accelerate launch "
        "--multi_gpu --num_processes 2`, and as a step with `@run_with_accelerate(cpu=True, "
        "num_processes=2)`. Whole commands, imports and shutdown included; CPU time is that of everything "
        f"that the command has started, by the kernel's count. {rounds} rounds in turns, medians; a ratio is "
        "the median of those in each round. A rank that raises: until the caller has the error, with its "
        "rank. A step with `timeout=30` of which one rank never joins the others: from its start until the "
        f"caller has the error, with the stacks of both. {few} rounds.",
        rows=[
            Row(
                what="floor: `accelerate launch`, until the function is called",
                value=_median(plain, "start"),
                unit="s",
            ),
            Row(what="the step, until the function is called", value=_median(upshift, "start"), unit="s"),
            Row(
                what="floor: the training itself under `accelerate launch`",
                value=_median(plain, "trained"),
                unit="s",
            ),
            Row(what="the training itself in the step", value=_median(upshift, "trained"), unit="s"),
            Row(what="floor: `accelerate launch`, wall time", value=_median(plain, "wall"), unit="s"),
            Row(what="the step, wall time", value=_median(upshift, "wall"), unit="s"),
            Row(
                what="two processes, wall time over `accelerate launch`",
                value=_ratio(upshift, plain, "wall"),
                unit="×",
                target=1.05,
            ),
            Row(what="floor: `accelerate launch`, CPU time", value=_median(plain, "cpu"), unit="s"),
            Row(what="the step, CPU time", value=_median(upshift, "cpu"), unit="s"),
            Row(
                what="two processes, CPU time over `accelerate launch`",
                value=_ratio(upshift, plain, "cpu"),
                unit="×",
                target=1.05,
            ),
            Row(what="failure of a rank to the end of the run", value=failing, unit="s", target=5),
            Row(what="a hang with `timeout=30`, until its end", value=hanging, unit="s", target=35),
        ],
    )


def _cost(command: Sequence[str], home: Path) -> Cost:
    """Run it; it prints what `train` found."""
    found = program("cost", *command, home=home)
    lines = [line for line in found["output"].splitlines() if '"called"' in line]
    told: dict[str, Any] = json.loads(lines[-1][lines[-1].index("{") :])
    assert told["processes"] == 2 and told["threads"] == 1, told
    return Cost(
        wall=found["seconds"],
        cpu=found["cpu"],
        start=told["called"] - found["started"],
        trained=told["trained"],
    )


def _median(costs: Sequence[Cost], what: str) -> float:
    return statistics.median(float(getattr(cost, what)) for cost in costs)


def _ratio(costs: Sequence[Cost], floor: Sequence[Cost], what: str) -> float:
    pairs = zip(costs, floor, strict=True)
    return statistics.median(float(getattr(cost, what) / getattr(bare, what)) for cost, bare in pairs)
