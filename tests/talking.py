"""Two ranks that print more than a pipe holds, and say when they are done with that."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from pathlib import Path

TALKING = """
    import os, time

    from upshift import current, run_with_torchrun

    @run_with_torchrun(nproc_per_node=1)
    @step(cache=False, settings={"resources": {"num_nodes": 2}})
    def talk(gate: str) -> list[int]:
        print("it waits", flush=True)
        while not os.path.exists(gate):
            time.sleep(0.05)
        for number in range(2000):
            print(number, "x" * 500)
        print("that was all", flush=True)
        with open(f"{gate}.told", "w") as told:
            told.write("done\\n")
        return [current.world_size]

    @pipeline
    def example(gate: str):
        return talk(gate)
"""


def until_printed_by_both(told: Path, patience: float) -> None:
    """Wait until both ranks say into the FIFO beside the gate, ``GATE.told``, that all is printed."""
    with open(os.open(told, os.O_RDWR), "rb", buffering=0) as pipe:
        done = b""
        while done.count(b"\n") < 2:
            assert select.select([pipe], [], [], patience)[0], "a rank waits for the store"
            done += pipe.read(100)


def is_whole(lines: Sequence[str]) -> bool:
    """Whether the log has all that each rank has printed, in its order."""
    found = [
        [line.split()[-2] for line in lines if f"[rank {rank}] " in line and line.endswith("x" * 500)]
        for rank in (0, 1)
    ]
    return found == [[*map(str, range(2000))]] * 2
