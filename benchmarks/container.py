"""Steps in containers, over a bare ``docker run`` of the same image: one, and mapped tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import attrs

from benchmarks.harness import Effort, Report, Row, Turns, command_seconds, fresh_home
from tests.engines import base_image
from upshift.backends.base import Ask, Ended, Event, Job
from upshift.backends.docker.backend import DockerBackend
from upshift.code.packages import make_package
from upshift.code.runtime_package import runtime_blob
from upshift.errors import UpshiftError
from upshift.images.containers.engine import ContainerEngine, find_engine
from upshift.model.configuration import Target
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import open_store

ROUNDS = 15
MANY, ROUNDS_OF_MANY = 20, 3
IMAGE = "upshift-bench-container:base"
_NOW = "import time; print(time.time())"
_MAPPED = """
from upshift import DockerSettings, pipeline, step

@step(cache=False, settings={{"docker": DockerSettings(reuse_container={reuse})}})
def one(item: int) -> int:
    return item

@pipeline
def mapped():
    return one.map(range({many}))
"""


def measure(effort: Effort) -> Report:
    """From the call to the first line of the user's code, in milliseconds."""
    try:
        engine = find_engine("docker")
    except UpshiftError as error:
        return Report(title="A step in a container", how=f"Not measured: {error.what}.", rows=[])
    rounds = effort.rounds(ROUNDS)
    with fresh_home() as home, _image(engine), _steps(home) as steps:

        def bare() -> float:
            began = time.time()
            return float(engine.run(["run", "--rm", IMAGE, "python3", "-c", _NOW]).stdout) - began

        bare()
        steps.start()  # the first one unpacks the runtime, and its Python keeps bytecode
        turns = Turns(rounds, bare=bare, step=steps.start)
    return Report(
        title="A step in a container",
        how=f"{engine.title}, an image with the running Python. From the call to the first line of the "
        "user's code: of `docker run --rm IMAGE python3 -c …`, and of a step that is handed to the backend, "
        "with its code package and the runtime in the store. What Upshift adds: a supervisor that records "
        f"and limits, and the step's own process. {rounds} rounds in turns, medians; added is the median "
        "of the differences in a round.",
        rows=[
            Row(what="floor: `docker run`", value=1000 * turns.median("bare"), unit="ms"),
            Row(what="a step in a container", value=1000 * turns.median("step"), unit="ms"),
            Row(what="added by Upshift", value=1000 * turns.above("step", "bare"), unit="ms", target=150),
        ],
    )


def measure_mapped(effort: Effort) -> Report:
    """The whole command for many mapped tasks, beside as many containers, in seconds."""
    try:
        engine = find_engine("docker")
    except UpshiftError as error:
        return Report(title="Mapped tasks in containers", how=f"Not measured: {error.what}.", rows=[])
    rounds = effort.rounds(ROUNDS_OF_MANY)
    with fresh_home() as home, _image(engine):
        turns = _many(engine, home, rounds)
    return Report(
        title="Mapped tasks in containers",
        how=f"{engine.title}, an image with the running Python. The whole command `upshift run` for {MANY} "
        "one-line tasks of a mapped step: with containers that serve one task after the other, and with a "
        f"container for each (`DockerSettings(reuse_container=False)`). The floor is {MANY} times "
        f"`docker run --rm IMAGE python3 -c …`, one after the other. {rounds} rounds in turns, medians; "
        "ratios are medians of those in a round.",
        rows=[
            Row(what=f"floor: {MANY} × `docker run`", value=turns.median("bare"), unit="s"),
            Row(what="a container for each task", value=turns.median("each"), unit="s"),
            Row(what="shared containers", value=turns.median("shared"), unit="s"),
            Row(
                what="shared containers, over the floor",
                value=turns.ratio("shared", "bare"),
                unit="×",
                target=1.0,
            ),
            Row(what="shared containers, over one for each", value=turns.ratio("shared", "each"), unit="×"),
        ],
    )


def _many(engine: ContainerEngine, home: Path, rounds: int) -> Turns:
    """Seconds for many mapped tasks, and for as many containers."""
    with tempfile.TemporaryDirectory(prefix="upshift-bench-") as project:
        folder = Path(project)
        (folder / "upshift.toml").write_text(
            f'[targets.docker]\nbackend = "docker"\noptions = {{ image = "{IMAGE}" }}\n'
        )
        for name, reuse in (("shared", None), ("each", False)):
            (folder / f"{name}.py").write_text(_MAPPED.format(reuse=reuse, many=MANY))

        def bare() -> float:
            began = time.perf_counter()
            for _ in range(MANY):
                engine.run(["run", "--rm", IMAGE, "python3", "-c", _NOW])
            return time.perf_counter() - began

        def run(name: str) -> float:
            command = (sys.executable, "-m", "upshift", "run", f"{name}.py", "--on", "docker")
            return command_seconds(*command, env={"UPSHIFT_HOME": str(home)}, cwd=folder)

        run("shared")  # the first one looks at the image
        return Turns(rounds, bare=bare, each=partial(run, "each"), shared=partial(run, "shared"))


@attrs.define
class _Steps:
    """Runs one trivial step after the other."""

    backend: DockerBackend
    inbox: SimpleQueue[Event]
    spec: TaskSpec
    number: int = 0

    def start(self) -> float:
        """Seconds until its first line; the container is gone when this returns."""
        self.number += 1
        spec = attrs.evolve(self.spec, task=attrs.evolve(self.spec.task, run=f"bench{self.number}"))
        store = open_store(spec.store)
        job = Job(spec=spec, spec_path=store.write_spec(spec))
        began = time.time()
        self.backend.submit([job])
        while not isinstance(self.inbox.get(), Ended):
            continue
        self.backend.close()  # waits until nothing of it is left
        result = store.read_result(spec.task, 1)
        assert result is not None and result.status == "completed", result
        called: object = artifacts.load(result.outputs["output"], store)
        assert isinstance(called, float)
        return called - began


@contextmanager
def _steps(home: Path) -> Iterator[_Steps]:
    before = os.environ.get("UPSHIFT_HOME")
    os.environ["UPSHIFT_HOME"] = str(home)
    try:
        with tempfile.TemporaryDirectory(prefix="upshift-bench-") as project:
            Path(project, "steps.py").write_text("import time\n\ndef now():\n    return time.time()\n")
            store = open_store(str(home / "store"))
            inbox: SimpleQueue[Event] = SimpleQueue()
            target = Target(name="docker", backend="docker")
            backend = DockerBackend(target, store=store.address, sink=inbox.put)
            code = Code(project=project, paths=(".",), package=make_package(Path(project), store).digest)
            offer = backend.offer(Ask())
            spec = TaskSpec(
                task=TaskId(run="bench", step="now"),
                attempt=1,
                pipeline="bench",
                entry=EntryPoint(module="steps", qualname="now"),
                code=code,
                runtime=runtime_blob(store),
                store=store.address,
                granted=offer.granted,
                image=IMAGE,
            )
            yield _Steps(backend, inbox, spec)
            backend.close()
    finally:
        os.environ.pop("UPSHIFT_HOME")
        if before is not None:
            os.environ["UPSHIFT_HOME"] = before


@contextmanager
def _image(engine: ContainerEngine) -> Iterator[None]:
    changes = [f"ENV {name}={value}" for name, value in base_image.ENVIRONMENT.items()]
    options = [word for change in changes for word in ("--change", change)]
    engine.run(["import", *options, str(base_image.layer()), IMAGE])
    try:
        yield
    finally:
        subprocess.run([*engine.command, "rmi", "--force", IMAGE], capture_output=True)
