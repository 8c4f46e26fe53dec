"""A backend that only plays: scripted, deterministic, without processes. The smallest one there is.

It exists for tests, of the engine and of whatever is built on it. A :class:`FakeCluster` is the place
where jobs are; it outlives the engines that come and go. A *script* says what becomes of each job::

    def script(job):
        if job.spec.task.step == "train" and job.spec.attempt == 1:
            return Fail("out-of-memory", "killed at 2 GB")
        return Complete()                       # calls the step, in this process

    cluster = FakeCluster(script, capacity=Hardware(cpu_count=4))
    execute(graph, …, open_backend=cluster.open)

By default a job ends before ``submit`` returns. With ``instant=False`` it goes on until
:meth:`FakeCluster.finish` is called, in any order the test likes; a clock that calls it whenever the
engine has nothing else to wait for makes a whole run deterministic in one thread.

What it cannot show: anything about processes, limits, or two threads that meet.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Union, cast

import attrs

from upshift.backends.base import (
    Ask,
    Capabilities,
    Capacity,
    Ended,
    Finding,
    Handle,
    Job,
    LogGrew,
    Offer,
    Sink,
    Started,
    Waiting,
)
from upshift.backends.registry import refuse_options
from upshift.errors import BackendError
from upshift.model.checks import refuse_unknown_fields
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.calls import bind
from upshift.model.spec.hardware import Device, Hardware, Shortfall
from upshift.model.spec.task import Artifact, Failure, TaskResult
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination


@attrs.frozen
class Complete:
    """The step completes.

    Parameters
    ----------
    compute
        Its values in the order of its outputs, from its inputs by parameter; None: the step's own
        function is called, in this process.
    prints
        What it prints before.
    """

    compute: Callable[[Mapping[str, object]], object] | None = None
    prints: bytes = b""


@attrs.frozen
class Lose:
    """The supervisor dies: there is no result, only the backend's word."""

    reason: str | None = None
    message: str | None = None


@attrs.frozen
class Fail:
    """The attempt records that it failed; the backend may have a word on that, too."""

    reason: str = "user-error"
    message: str = "ValueError: scripted"
    lost: tuple[str, ...] = ()
    memory: int | None = None
    word: Lose = Lose()


@attrs.frozen
class Hang:
    """It runs until it is cancelled."""


@attrs.frozen
class Refuse:
    """The backend does not take the job."""

    message: str = "the queue is closed"


@attrs.frozen
class Wait:
    """The backend holds the job back first, and says why."""

    why: str
    then: Outcome | None = attrs.field(factory=Complete)
    """What becomes of it then; None: it waits until it is cancelled."""
    hopeless: bool = False


Outcome = Union[Complete, Fail, Lose, Hang, Refuse, Wait]
Script = Callable[[Job], Outcome]


def complete_all(job: Job) -> Outcome:
    """The script that calls every step."""
    return Complete()


class FakeCluster:
    """Where the jobs of fake backends are."""

    def __init__(
        self,
        script: Script = complete_all,  # what becomes of each job
        *,
        capacity: Hardware | None = None,  # what jobs share that run at once; None: any number
        offer: Callable[[Ask], Offer] | None = None,  # what a step gets; by default all that it asks for
        instant: bool = True,  # whether a job ends before ``submit`` returns
        capabilities: Capabilities | None = None,  # what the backend says it can do
        destination: Destination | None = None,  # where it takes images from; None: it runs none
    ) -> None:
        self.script = script
        self.capacity = capacity
        self.offer = offer
        self.instant = instant
        self.capabilities = capabilities
        self.destination = destination
        self.submitted: list[Job] = []
        """Every job, in the order of submission."""
        self.running: dict[Handle, Job] = {}
        """Those that have not ended."""
        self.ended: dict[Handle, Ended] = {}
        """How the others ended."""
        self.most_at_once = 0
        """The largest number of jobs that ran at one time."""
        self.cancelled: list[tuple[Handle, float]] = []
        """What was cancelled, with what grace."""
        self.clock: Callable[[], float] = time.time
        self._sinks: dict[Handle, Sink] = {}
        self._outcomes: dict[Handle, Outcome] = {}

    def open(self, target: Target, *, store: str, sink: Sink) -> FakeBackend:
        """A backend of this cluster; takes the place of :func:`~upshift.backends.registry.open_backend`."""
        return FakeBackend(target, store=store, sink=sink, cluster=self)

    def finish(self, handle: Handle | None = None) -> bool:
        """Let a job end as the script says, by default the one that was submitted first.

        Returns
        -------
        bool
            False: nothing runs that would end by itself.
        """
        if handle is None:
            ending = [h for h in self.running if not isinstance(self._outcomes[h], Hang)]
            if not ending:
                return False
            handle = ending[0]
        self._end(handle, self._outcomes[handle])
        return True

    def submit(self, job: Job, sink: Sink) -> Handle:
        """Take a job; what happens to it is told to ``sink``."""
        handle = f"fake/{job.spec.task.run}/{job.spec.task}#{job.spec.attempt}"
        outcome = self.script(job)
        if isinstance(outcome, Refuse):
            raise BackendError(outcome.message)
        self.submitted.append(job)
        self.running[handle] = job
        self.most_at_once = max(self.most_at_once, len(self.running))
        self._sinks[handle] = sink
        if isinstance(outcome, Wait):
            sink(Waiting(handle=handle, why=outcome.why, hopeless=outcome.hopeless))
            if outcome.then is None:
                self._outcomes[handle] = Hang()
                return handle
            outcome = outcome.then
        store = open_store(job.spec.store)
        if not store.claim_attempt(job.spec.task, job.spec.attempt, by="the fake cluster"):
            del self.running[handle]
            sink(Ended(handle=handle, reason="infrastructure", message="the attempt has been given up"))
            return handle
        sink(Started(handle=handle, node="fake-0"))
        self._outcomes[handle] = outcome
        if self.instant and not isinstance(outcome, Hang):
            self.finish(handle)
        return handle

    def attach(self, handle: Handle, sink: Sink) -> Ended | None:
        """Tell ``sink`` what happens to a job from now on; how it ended, if it has."""
        if handle not in self.running:
            return self.ended.get(handle, Ended(handle=handle))
        self._sinks[handle] = sink
        return None

    def find(self, job: Job) -> Handle | None:
        """The handle under which this task and attempt runs."""
        for handle, other in self.running.items():
            if (other.spec.task, other.spec.attempt) == (job.spec.task, job.spec.attempt):
                return handle
        return None

    def cancel(self, handle: Handle, grace: float) -> None:
        """Stop a job. It records that it was cancelled."""
        self.cancelled.append((handle, grace))
        if handle in self.running:
            self._end(handle, Fail("cancelled", "stopped on request"))

    def let_go(self, sink: Sink) -> None:
        """Tell this sink nothing more."""
        for handle, other in self._sinks.items():
            if other == sink:
                self._sinks[handle] = _nobody

    def _end(self, handle: Handle, outcome: Outcome) -> None:
        job = self.running.pop(handle)
        word = outcome.word if isinstance(outcome, Fail) else outcome if isinstance(outcome, Lose) else Lose()
        ended = Ended(handle=handle, reason=word.reason, message=word.message)
        if not isinstance(outcome, Lose):
            store = open_store(job.spec.store)
            if isinstance(outcome, Complete) and outcome.prints:
                log = store.log_path(job.spec.task, job.spec.attempt)
                log.write_bytes(outcome.prints)
                self._sinks[handle](LogGrew(handle=handle, size=len(outcome.prints)))
            store.create_result(_result(job, outcome, store, self.clock()))
        self.ended[handle] = ended
        self._sinks[handle](ended)


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class FakeSettings:
    """What ``settings={"fake": …}`` takes; a script finds it in the spec of its job."""

    queue: str | None = None
    priority: int | None = None


class FakeBackend:
    """A connection to a :class:`FakeCluster`; by default to one of its own, which calls every step."""

    name: ClassVar[str] = "fake"
    settings: ClassVar[type] = FakeSettings
    capabilities: Capabilities = Capabilities(
        fields=frozenset(f.name for f in attrs.fields(ResourceSettings)),
        images=True,
        remote=False,
        strict=False,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink, cluster: FakeCluster | None = None) -> None:
        refuse_options(target, ())
        self._sink = sink
        self._cluster = cluster or FakeCluster()
        if self._cluster.capabilities is not None:
            self.capabilities = self._cluster.capabilities

    def capacity(self) -> Capacity | None:
        """What the cluster was made with."""
        hardware = self._cluster.capacity
        return None if hardware is None else Capacity(hardware=hardware)

    def offer(self, ask: Ask) -> Offer:
        """What the cluster was made to offer; else all of it, but for fields that it cannot honour."""
        if self._cluster.offer is not None:
            return self._cluster.offer(ask)
        request = ask.request
        short = [
            Shortfall(field=name, asked=f"{name}={value}", got="nothing", why="the fake backend lacks it")
            for name, value in request.explicit().items()
            if value and name not in self.capabilities.fields
        ]
        most = self._cluster.capacity or Hardware()
        granted = Hardware(
            cpu_count=_clipped("cpu_count", request.cpu_count, most.cpu_count, short),
            memory=_clipped("memory", request.memory, most.memory, short),
            gpus=None if request.gpu_count is None else (Device(),) * request.gpu_count,
        )
        if request.gpu_count and most.gpus is not None and request.gpu_count > len(most.gpus):
            short.append(_too_much("gpu_count", request.gpu_count, len(most.gpus)))
            granted = attrs.evolve(granted, gpus=most.gpus)
        return Offer(granted=granted, shortfalls=tuple(short))

    def findings(self) -> Iterator[Finding]:
        """Nothing is in the way."""
        yield Finding(name="access", text="it is here")

    def destination(self) -> Destination | None:
        """What the cluster was made with."""
        return self._cluster.destination

    def scripts(self, jobs: Sequence[Job]) -> None:
        """It starts jobs itself."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Do with each job what the script says."""
        return [self._submit(job) for job in jobs]

    def _submit(self, job: Job) -> Handle | BackendError:
        try:
            return self._cluster.submit(job, self._sink)
        except BackendError as error:
            return error

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Hear of jobs that another backend of the cluster submitted."""
        return {handle: self._cluster.attach(handle, self._sink) for handle in jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Look for the jobs among those that run."""
        return [self._cluster.find(job) for job in jobs]

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """Stop jobs at once."""
        for handle in handles:
            self._cluster.cancel(handle, grace)

    def close(self) -> None:
        """Hear nothing more."""
        self._cluster.let_go(self._sink)


def _clipped(field: str, asked: Any, most: Any, short: list[Shortfall]) -> Any:
    if asked is None or most is None or asked <= most:
        return asked
    short.append(_too_much(field, asked, most))
    return most


def _too_much(field: str, asked: object, most: object) -> Shortfall:
    return Shortfall(field=field, asked=f"{field}={asked}", got=str(most), why=f"the cluster has {most}")


def _nobody(event: object) -> None:
    """The sink of a backend that was closed."""


def _result(job: Job, outcome: Outcome, store: Store, now: float) -> TaskResult:
    spec = job.spec
    outputs: dict[str, Artifact] = {}
    failure = None
    if isinstance(outcome, Complete):
        try:
            outputs = _outputs(job, outcome, store)
        except Exception as error:  # the step's own, as it would be recorded anywhere else
            failure = Failure(
                reason="user-error",
                message=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
    elif isinstance(outcome, Fail):
        failure = Failure(
            reason=outcome.reason, message=outcome.message, lost=outcome.lost, memory=outcome.memory
        )
    status = "completed" if failure is None else "cancelled" if failure.reason == "cancelled" else "failed"
    return TaskResult(
        task=spec.task,
        attempt=spec.attempt,
        status=status,
        outputs=outputs,
        failure=failure,
        started=now,
        ended=now,
        node="fake-0",
        target=spec.target,
        backend=spec.backend,
        image=spec.image,
        asked=Hardware.asked(spec.request),
        granted=spec.granted,
        seen=Hardware(),
        used=Hardware(details={"samples": 0}),
        key=spec.key,
        degraded=spec.degraded,
    )


def _outputs(job: Job, outcome: Complete, store: Store) -> dict[str, Artifact]:
    spec = job.spec
    inputs = {name: artifacts.load_value(value, store) for name, value in spec.inputs.items()}
    if outcome.compute is not None:
        returned = outcome.compute(inputs)
    else:
        function = _function(job, store)
        positional, keywords = bind(function, inputs)
        returned = function(*positional, **keywords)
    values = (returned,) if len(spec.outputs) == 1 else cast("tuple[object, ...]", returned)
    return {
        output.name: artifacts.save(value, store, by_item=output.by_item, name=output.name)
        for output, value in zip(spec.outputs, values, strict=True)
    }


def _function(job: Job, store: Store) -> Callable[..., Any]:
    entry = job.spec.entry
    if entry.payload is not None:
        return cast("Callable[..., Any]", artifacts.load(entry.payload, store))
    for path in job.spec.code.paths:
        folder = str(Path(job.spec.code.project, path))
        if folder not in sys.path:
            sys.path.append(folder)
    function: Any = import_module(entry.module)
    for name in entry.qualname.split("."):
        function = getattr(function, name)
    return cast("Callable[..., Any]", function)
