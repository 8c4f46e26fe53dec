"""The start of a step in a container, over a bare ``docker run`` of the same image and interpreter."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import attrs

from benchmarks.harness import Effort, Report, Row, Turns, fresh_home
from tests.engines import base_image
from upshift.backends.base import Ended, Event, Job
from upshift.backends.docker.backend import DockerBackend
from upshift.code.packages import make_package
from upshift.code.runtime_package import runtime_blob
from upshift.errors import UpshiftError
from upshift.images.containers.engine import ContainerEngine, find_engine
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import open_store

ROUNDS = 15
IMAGE = "upshift-bench-container:base"
_NOW = "import time; print(time.time())"


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
        spec = attrs.evolve(self.spec, task=attrs.evolve(self.spec.task, index=self.number))
        store = open_store(spec.store)
        job = Job(spec=spec, spec_path=store.write_spec(spec))
        began = time.time()
        self.backend.submit(job)
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
            offer = backend.offer(ResourceSettings())
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
