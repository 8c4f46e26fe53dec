"""Steps on Slurm, beside ``sbatch`` itself: one, and mapped tasks beside an array."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import attrs

from benchmarks.harness import Effort, Report, Row, Turns, command_seconds, fresh_home
from tests.slurm_here import CONF
from upshift.backends.base import Ask, Ended, Event, Job, Started
from upshift.backends.slurm.backend import SlurmBackend
from upshift.code.packages import make_package
from upshift.code.runtime_package import runtime_blob
from upshift.model.configuration import Target
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec
from upshift.runtime.storage.store import open_store

ROUNDS, ROUNDS_OF_MANY = 20, 5
MANY = 200
_MAPPED = f"""
from upshift import pipeline, step

@step(cache=False)
def one(item: int) -> int:
    return item

@pipeline
def mapped():
    return one.map(range({MANY}))
"""
_TRIVIAL = "#!/bin/sh\ntrue\n"
_LOOK = 0.005
"""Seconds between two looks of the floors for what they wait for."""


def measure(effort: Effort) -> Report:
    """From the submission to a running step, and whole mapped steps."""
    if not CONF.exists() or shutil.which("sbatch") is None:
        return Report(title="Slurm", how="Not measured: no Slurm runs here (make engines).", rows=[])
    rounds, rounds_of_many = effort.rounds(ROUNDS), effort.rounds(ROUNDS_OF_MANY)
    os.environ["SLURM_CONF"] = str(CONF)
    with fresh_home() as home, tempfile.TemporaryDirectory(prefix="upshift-bench-") as folder:
        one = _one(home, Path(folder), rounds)
        many = _many(home, Path(folder), rounds_of_many)
    return Report(
        title="Slurm",
        how="A Slurm of three nodes on this machine, whose 24 made-up CPUs are the few of the machine; its "
        "daemons run there, too. One step: from the call to the supervisor that runs it, beside `sbatch` of "
        f"a script that creates a file; {rounds} rounds in turns, each on an idle Slurm. Mapped tasks: from "
        f"the call with {MANY} one-line tasks until all have ended, beside an array of {MANY} jobs that run "
        "`true`, until `squeue` has none of them, and the whole command `upshift run`; "
        f"{rounds_of_many} rounds in turns. Medians; added, and times, are medians of those in a round.",
        rows=[
            Row(what="floor: `sbatch` to running", value=1000 * one.median("bare"), unit="ms"),
            Row(what="a step to running", value=1000 * one.median("step"), unit="ms"),
            Row(what="added by Upshift", value=1000 * one.above("step", "bare"), unit="ms", target=300),
            Row(what=f"floor: an array of {MANY} jobs", value=many.median("bare"), unit="s"),
            Row(what=f"{MANY} mapped tasks", value=many.median("tasks"), unit="s"),
            Row(what="the same, times the array", value=many.ratio("tasks", "bare"), unit="×", target=1.3),
            Row(what=f"`upshift run` of {MANY} mapped tasks", value=many.median("run"), unit="s"),
            Row(what="the same, times the array", value=many.ratio("run", "bare"), unit="×"),
        ],
    )


def _submitted(*options: str, script: str) -> str:
    command = ["sbatch", "--parsable", "--output=/dev/null", *options]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=True).stdout.strip()


def _settle() -> None:
    """Wait until Slurm has no job, and a second more: the end of one is work of the controller's, too."""
    while subprocess.check_output(["squeue", "--noheader"]).strip():
        time.sleep(20 * _LOOK)
    time.sleep(1)


def _one(home: Path, folder: Path, rounds: int) -> Turns:
    """Seconds until a job and a step run."""
    with _steps(home, folder) as steps:

        def bare() -> float:
            flag = folder / f"{time.monotonic_ns()}"
            _settle()
            began = time.perf_counter()
            _submitted(script=f"#!/bin/sh\n: > '{flag}'\n")
            while not flag.exists():
                time.sleep(_LOOK)
            return time.perf_counter() - began

        def step() -> float:
            _settle()
            return steps.start()

        step()  # the first one unpacks the runtime, and its Python keeps bytecode
        return Turns(rounds, bare=bare, step=step)


def _many(home: Path, folder: Path, rounds: int) -> Turns:
    """Seconds for as many jobs as a mapped step has tasks, for those tasks, and for the whole command."""
    (folder / "mapped.py").write_text(_MAPPED)

    def bare() -> float:
        _settle()
        began = time.perf_counter()
        id = _submitted(f"--array=0-{MANY - 1}", script=_TRIVIAL)
        while subprocess.check_output(["squeue", "--noheader", f"--jobs={id}"]).strip():
            time.sleep(20 * _LOOK)
        return time.perf_counter() - began

    def run() -> float:
        _settle()
        command = (sys.executable, "-m", "upshift", "run", "mapped.py", "--on", "slurm")
        return command_seconds(*command, env={"UPSHIFT_HOME": str(home)}, cwd=folder)

    with _steps(home, folder) as steps:

        def tasks() -> float:
            _settle()
            return steps.many()

        return Turns(rounds, bare=bare, tasks=tasks, run=run)


@attrs.define
class _Steps:
    """Runs one trivial step after the other."""

    backend: SlurmBackend
    inbox: SimpleQueue[Event]
    spec: TaskSpec
    number: int = 0

    def start(self) -> float:
        """Seconds until the next step runs; it has ended then, too."""
        jobs = self._jobs(1)
        began = time.perf_counter()
        self.backend.submit(jobs)
        took = 0.0
        while not isinstance(event := self.inbox.get(timeout=60), Ended):
            if isinstance(event, Started):
                took = time.perf_counter() - began
        return took

    def many(self) -> float:
        """Seconds until as many have ended as a mapped step has."""
        jobs = self._jobs(MANY)
        began = time.perf_counter()
        self.backend.submit(jobs)
        left = MANY
        while left:
            left -= isinstance(self.inbox.get(timeout=60), Ended)
        return time.perf_counter() - began

    def _jobs(self, count: int) -> list[Job]:
        self.number += 1
        step, store = f"trivial{self.number}", open_store(self.spec.store)
        indexes = range(count) if count > 1 else (None,)
        specs = [
            attrs.evolve(self.spec, task=TaskId(run="bench", step=step, index=index)) for index in indexes
        ]
        return [Job(spec=spec, spec_path=store.write_spec(spec)) for spec in specs]


@contextmanager
def _steps(home: Path, folder: Path) -> Iterator[_Steps]:
    """Steps of a project of one module, given to the backend."""
    (folder / "trivial.py").write_text("def trivial() -> None:\n    pass\n")
    before = os.environ.get("UPSHIFT_HOME")
    os.environ["UPSHIFT_HOME"] = str(home)
    store = open_store(str(home / "store"))
    inbox: SimpleQueue[Event] = SimpleQueue()
    backend = SlurmBackend(Target(name="slurm", backend="slurm"), store=store.address, sink=inbox.put)
    spec = TaskSpec(
        task=TaskId(run="bench", step="trivial"),
        attempt=1,
        pipeline="bench",
        entry=EntryPoint(module="trivial", qualname="trivial"),
        code=Code(project=str(folder), paths=(".",), package=make_package(folder, store).digest),
        store=store.address,
        runtime=runtime_blob(store),
        granted=backend.offer(Ask()).granted,
    )
    try:
        yield _Steps(backend, inbox, spec)
    finally:
        backend.close()
        if before is None:
            os.environ.pop("UPSHIFT_HOME")
        else:
            os.environ["UPSHIFT_HOME"] = before
