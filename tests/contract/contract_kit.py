"""What the contract suite works with: a ground with a store, and backends that are watched."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from settings_kit import with_settings
from upshift.backends import registry
from upshift.backends.base import Ask, Backend, Capabilities, Ended, Event, Job, Started
from upshift.backends.fake import Complete, FakeCluster, Hang, Lose, Outcome
from upshift.code.packages import make_package
from upshift.code.runtime_package import runtime_blob
from upshift.errors import BackendError
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, EntryPoint, Hardware, OutputSpec, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from means import Means

LOCAL_BUCKET = "local over s3"
"""This machine, which publishes what its folder has."""
SLURM_BUCKET, RAY_BUCKET = "slurm over s3", "ray over s3"
BUCKETS = [SLURM_BUCKET, RAY_BUCKET]
"""Clusters whose nodes share nothing with the engine but a bucket: promises that depend on the store."""
BACKENDS = [
    *(
        "fake",
        "local",
        LOCAL_BUCKET,
        "docker",
        "podman",
        "slurm",
        "ray",
        "kubernetes",
        "aws-batch",
        "skypilot",
    )
]
FENCED = [name for name in BACKENDS if name not in ("local", LOCAL_BUCKET)]
"""Those where a job may be accepted late; ``local`` takes jobs from a socket, in order."""


def backend_of(name: str) -> str:
    """The backend of one of these."""
    return name.partition(" ")[0]


REAL = [name for name in BACKENDS if name != "fake"]
KEEP_SECRETS = [
    name
    for name in [*REAL, RAY_BUCKET]
    if "env" in registry.capabilities_of(Target(name="mine", backend=backend_of(name))).secrets
]

SAY_NEVER = ("slurm", "kubernetes", "aws-batch", "skypilot")
"""Those whose scheduler says of a job that it can never start. Ray keeps it in its queue for ever, which only
the target's ``start_within`` ends; the others have no queue: what their offer grants, they start."""
ELEMENTS = 200
"""Those of a mapped step."""
FEWER_ELEMENTS = {"ray": 12, "skypilot": 24}
"""Where there are no arrays, each of them is a job that costs seconds of CPU: Ray starts several processes
for it, and SkyPilot rents it a machine."""
SUITES = ("test_backend_contract", "test_waiting_and_loss", "test_mapped_steps")
"""The modules of the contract, as the documentation shows it."""

PATIENCE = 60.0
"""Seconds after which an event that was promised is not believed in any more."""


def play(job: Job) -> Outcome:
    """The fake backend cannot block in the test's own thread."""
    if job.spec.entry.qualname == "say_supervisor":
        return Lose("infrastructure", "the supervisor died")
    return Hang() if job.spec.entry.qualname == "wait" else Complete(prints=b"adding\n")


class Ground:
    """A store, and backends of one kind that all see the same jobs, which run in ``image`` if at all."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        image: str | None = None,
        options: Mapping[str, Any] | None = None,
        mounts: Mapping[str, str] | None = None,
        store: str | None = None,
        means: Means | None = None,
    ) -> None:
        self.name = name
        self._means = means
        self._image = image
        self.store: Store = open_store(store or str(folder / "store"))
        self.target = Target(name=name, backend=name, options=options or {}, mounts=mounts or {})
        self._cluster = FakeCluster(
            play,
            capacity=Hardware(cpu_count=4, memory=2**30),
            capabilities=Capabilities(fields=frozenset({"cpu_count", "memory"}), remote=False, strict=False),
        )
        directly = self.store.replica is not None and registry.capabilities_of(self.target).buckets
        self._address = self.store.name if directly else self.store.address  # as specs name it
        self._opened: list[Backend] = []
        self._tasks = 0

    @property
    def means(self) -> Means:
        """What a test does to the place where jobs run."""
        assert self._means is not None
        return self._means

    def open(self) -> Watched:
        """One more backend, as another engine would open it."""
        inbox: SimpleQueue[Event] = SimpleQueue()
        opener: Callable[..., Any] = self._cluster.open if self.name == "fake" else registry.open_backend
        backend = opener(self.target, store=self.store.name, sink=inbox.put)
        self._opened.append(backend)
        return Watched(self, backend, inbox)

    def job(self, function: str, *, outputs: tuple[str, ...] = ("output",), **fields: Any) -> Job:
        """A job that calls one of ``contract_steps``."""
        self._tasks += 1
        inputs = {name: artifacts.save(value, self.store) for name, value in fields.pop("inputs", {}).items()}
        spec = TaskSpec(
            task=TaskId(run="20260101-000000-aaaa", step=function, index=self._tasks),
            attempt=1,
            pipeline="contract",
            entry=EntryPoint(module="contract_steps", qualname=function),
            code=Code(project=str(Path(__file__).parent), paths=(".",)),
            store=self._address,
            inputs=inputs,
            outputs=tuple(OutputSpec(name=name) for name in outputs),
            cwd=os.getcwd(),
            key="test:1",
            image=self._image,
        )
        if self.name != "fake" and registry.capabilities_of(self.target).remote:  # as the engine does
            package = make_package(Path(spec.code.project), self.store).digest
            code = attrs.evolve(spec.code, package=package)
            spec = attrs.evolve(spec, code=code, runtime=runtime_blob(self.store), cwd=None)
        spec = attrs.evolve(spec, **with_settings(fields))
        return Job(spec=spec, spec_path=self.store.write_spec(spec))

    def again(self, job: Job, function: str) -> Job:
        """The next attempt of a job's task, which calls another function without parameters."""
        spec = job.spec
        entry = attrs.evolve(spec.entry, qualname=function)
        spec = attrs.evolve(spec, attempt=spec.attempt + 1, entry=entry)
        return Job(spec=spec, spec_path=self.store.write_spec(spec))

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


class Watched:
    """A backend, and what it has told so far."""

    def __init__(self, ground: Ground, backend: Backend, inbox: SimpleQueue[Event]) -> None:
        self.ground = ground
        self.backend = backend
        self.events: list[Event] = []
        self._inbox = inbox

    def until(self, kind: type, handle: str, when: Callable[[], bool] = lambda: True) -> Any:
        """The first event of this kind about this job, from when on this is so."""
        for event in self.events:
            if isinstance(event, kind) and event.handle == handle and when():  # type: ignore[attr-defined]
                return event
        while True:
            event = self._inbox.get(timeout=PATIENCE)
            self.events.append(event)
            if isinstance(event, kind) and event.handle == handle and when():  # type: ignore[attr-defined]
                return event

    def submit(self, job: Job) -> str:
        """Submit one job."""
        (handle,) = self.backend.submit([job])
        if isinstance(handle, BackendError):
            raise handle
        return handle

    def attach(self, handle: str, job: Job) -> Ended | None:
        """How one job ended; None: it is watched."""
        return self.backend.attach({handle: job})[handle]

    def find(self, job: Job) -> str | None:
        """The handle of one job."""
        (handle,) = self.backend.find([job])
        return handle

    def cancel(self, handle: str, *, grace: float) -> None:
        """Stop one job."""
        self.backend.cancel([handle], grace=grace)

    def run(self, job: Job) -> TaskResult | None:
        """Submit a job, wait for its end, and read what it recorded."""
        handle = self.submit(job)
        self.until(Ended, handle)
        return self.ground.store.read_result(job.spec.task, job.spec.attempt)

    def run_all(self, jobs: Sequence[Job]) -> list[str]:
        """Submit many jobs, as many at once as the engine would, and wait for their ends; gives handles."""
        capacity = self.backend.capacity()
        at_once = len(jobs)
        if capacity is not None:
            at_once = int((capacity.hardware and capacity.hardware.cpu_count) or capacity.jobs or at_once)
        handles: list[str] = []
        for number in range(0, len(jobs), at_once):
            submitted = self.backend.submit(jobs[number : number + at_once])
            handles += [handle for handle in submitted if isinstance(handle, str)]
            if at_once < len(jobs):
                for handle in handles[number:]:
                    self.until(Ended, handle)
        for handle in handles:
            self.until(Ended, handle)
        return handles

    def started(self, job: Job) -> str:
        """Submit a job, and wait until its supervisor runs."""
        handle = self.submit(job)
        self.until(Started, handle)
        return handle

    def of(self, handle: str) -> list[Event]:
        """What was told about a job, everything that is there by now included."""
        while not self._inbox.empty():
            self.events.append(self._inbox.get())
        return [event for event in self.events if event.handle == handle]

    def asked(self, **request: Any) -> Any:
        """What a request gets."""
        return self.backend.offer(Ask(request=ResourceSettings(**request)))
