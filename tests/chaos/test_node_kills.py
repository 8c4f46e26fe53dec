"""SIGKILL anything of a step on several nodes, or SIGSTOP the supervisor of a further one, at any instant: it
ends, resumed, as an undisturbed one, no rank ever runs twice at once, and nothing of it is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from victims import kill, seeds, start

import upshift
from prepared import Prepared

KILLS = 5
SOURCE = '''
import fcntl, os, socket, time
from pathlib import Path
from upshift import current, pipeline, run_with_torchrun, step

WITNESS = Path(os.environ["WITNESS"])


@run_with_torchrun(nproc_per_node=1, nnodes=3)
@step
def train() -> int:
    """Each rank holds a lock of its own, and rank 0 waits until all others have met it."""
    lock = open(WITNESS / f"rank{current.rank}.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (WITNESS / "twice-at-once").touch()
    at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if current.rank == 0:
        with socket.create_server(at) as server:
            others = [server.accept()[0] for _ in range(current.world_size - 1)]
            return sum(int(other.recv(10)) for other in others)
    while True:
        try:
            with socket.create_connection(at) as first:
                first.sendall(str(current.rank).encode())
                first.recv(1)  # until all have come
                return 0
        except OSError:  # it does not listen yet, of which a port tells nobody
            time.sleep(0.05)


@pipeline
def training():
    return train()
'''


def everything(folder: Path) -> list[psutil.Process]:
    """All processes of the run, on all nodes."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("WITNESS") == str(folder / "witness"):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def freeze(processes: list[psutil.Process]) -> bool:
    """SIGSTOP to the supervisor of a further node whose rank is there; False if there is none."""
    for process in processes:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            parent = process.parent()
            if parent is not None and "--report" in process.cmdline() and "--report" in parent.cmdline():
                os.kill(parent.pid, signal.SIGSTOP)  # what it starts is forked, and looks like it
                return True
    return False


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_nodes_that_are_killed_again_and_again_end_as_undisturbed_ones(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Prepared
) -> None:
    monkeypatch.setenv("UPSHIFT_NODES_SILENCE", "1.5")
    chance = random.Random(seed)
    (tmp_path / "nodes.py").write_text(SOURCE)
    (tmp_path / "upshift.toml").write_text('[targets.three]\nbackend = "local"\noptions = { nodes = 3 }\n')
    (tmp_path / "witness").mkdir()
    story = [f"seed {seed}"]
    first = ["run", "nodes.py", "--on", "three", "--no-cache"]
    began = time.monotonic()
    start(prepared, tmp_path, *first).communicate(timeout=90)
    usual = time.monotonic() - began  # seconds of a run that nobody disturbs
    killed, run = 0, None
    while True:
        process = start(prepared, tmp_path, *(["resume", run] if run else first))
        output = ""
        if killed < KILLS:
            try:
                # After a kill it takes longer, until a node that is silent is taken for lost.
                latest = usual if run is None else max(usual, 1.8)
                output, _ = process.communicate(timeout=chance.uniform(0.2 * usual, latest))
            except subprocess.TimeoutExpired:
                processes = everything(tmp_path)  # none: it has ended while this was looked up
                if chance.random() < 0.3 and freeze(processes):
                    killed += 1
                    story.append("froze a supervisor")
                elif processes and kill(victim := chance.choice(processes).pid):
                    killed += 1
                    story.append(f"killed {victim}")
        if process.returncode is None:
            output, _ = process.communicate(timeout=90)
        story.append(f"exit {process.returncode}: {output[-300:]}")
        if run is None:
            known = upshift.list_runs()
            run = known[0].id if known else None
        if process.returncode == 0:
            assert upshift.get_run(run or "latest").output == 3, story
            if killed >= KILLS:
                break
            run = None
        elif run is not None and "not found" in output.lower():
            run = None
        assert "mistake in Upshift" not in output and len(story) < 100, story
    assert not (tmp_path / "witness" / "twice-at-once").exists(), story
    left = [process for process in everything(tmp_path) if process.pid != process.ppid()]
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive, (alive, story)
