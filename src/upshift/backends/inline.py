"""The engine's own process as a place to run, one task at a time, so that a debugger reaches the step.

No target names it: ``--debug`` does. While a step runs the engine waits; what other tasks have to say
is heard afterwards. The step is neither confined nor sampled. It gets its devices like any other; a library
that has opened devices in this process before still sees those.
"""

from __future__ import annotations

import bdb
import codecs
import contextlib
import os
import pdb
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, cast

import attrs

from upshift.backends.base import (
    DEVICES,
    INLINE,
    Ask,
    Capabilities,
    Capacity,
    Ended,
    Finding,
    Handle,
    Job,
    Offer,
    Sink,
    Started,
    secrets_of,
)
from upshift.backends.local.offers import offer
from upshift.errors import BackendError, UsageError
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Artifact, Failure, Hardware, Rank, TaskResult, TaskSpec
from upshift.model.spec.hardware import Shortfall
from upshift.runtime import proc
from upshift.runtime.confine import host_facts
from upshift.runtime.launch.ranks import environment_of
from upshift.runtime.loop import Loop
from upshift.runtime.masking import Mask, Masking
from upshift.runtime.messages import tell
from upshift.runtime.step import ranks
from upshift.runtime.step.checkpoint import checkpoint
from upshift.runtime.step.context import current
from upshift.runtime.step.step import perform
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor.device_queue import DeviceQueue
from upshift.runtime.supervisor.sampling import Totals
from upshift.runtime.tracebacks import user_text

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination
    from upshift.runtime.accelerators.vendor import Inventory
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor
    from upshift.runtime.supervisor.device_pool import Grant


class InlineBackend:
    """Runs a task in this very process, as soon as it is submitted."""

    name: ClassVar[str] = INLINE
    capabilities: Capabilities = Capabilities(
        fields=DEVICES,
        secrets=frozenset({"env", "file"}),
        remote=False,
        strict=False,
    )

    def __init__(self, *, sink: Sink) -> None:
        self._sink = sink
        self._left = False

    def capacity(self) -> Capacity | None:
        """Any number: each is over before the next one is submitted."""
        return None

    def offer(self, ask: Ask) -> Offer:
        """The accelerators that were asked for, and of the rest what this process has."""
        request = ask.request
        said = request.explicit()
        of_devices = {name: value for name, value in said.items() if name in self.capabilities.fields}
        inventories: tuple[Inventory, ...] = ()
        if request.gpu_count:
            from upshift.runtime.accelerators.agent import discover

            inventories = discover()
        offered = offer(ResourceSettings(**of_devices), Hardware(), inventories)
        short = tuple(
            Shortfall(
                field=field,
                asked=f"{field}={value}",
                got="what this process has",
                why="a step that is debugged is neither limited nor pinned",
            )
            for field, value in said.items()
            if field not in of_devices
        )
        return attrs.evolve(offered, shortfalls=(*offered.shortfalls, *short))

    def findings(self) -> Iterator[Finding]:
        """Nothing is in the way."""
        yield Finding(name="access", text="it is here")

    def destination(self) -> Destination | None:
        """Steps run in this very process."""
        return None

    def scripts(self, jobs: Sequence[Job]) -> None:
        """It starts jobs itself."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Run them, and return when all are over."""
        return [self._run(job) for job in jobs]

    def _run(self, job: Job) -> Handle | BackendError:

        handle = f"{job.spec.task}/{job.spec.attempt}"
        if self._left:  # the engine has not heard of it yet
            self._sink(Ended(handle=handle, reason="cancelled", message="the debugger was left before"))
            return handle
        store = open_store(job.spec.store, **job.spec.store_options)
        try:
            secrets = secrets_of(job.spec)
        except BackendError as error:
            return error
        result = run_inline(job.spec, store, secrets=secrets, stop=False)
        store.create_result(result)
        if result.status == "cancelled":  # who leaves the debugger wants the run to end
            self._left = True
            signal.raise_signal(signal.SIGINT)
        self._sink(Started(handle=handle, node=result.node))
        self._sink(Ended(handle=handle))
        return handle

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Nothing outlives the engine."""
        return {handle: Ended(handle=handle) for handle in jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Nothing outlives the engine."""
        return [None] * len(jobs)

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """Nothing runs while the engine is awake."""

    def close(self) -> None:
        """There is nothing to let go of."""


GONE = 1.0
"""Seconds that are waited, at most, for the processes that have found the devices to be gone."""


def run_inline(
    spec: TaskSpec, store: Store, *, secrets: Mapping[str, str], into: Store | None = None, stop: bool
) -> TaskResult:
    """Run one attempt here and now; its result is returned, not recorded.

    A step that a launcher starts in several processes is one here, in a world of its own.

    Standard input and output are the terminal's; what Python's own streams show there is masked. Time
    and memory are not limited: a person who thinks takes long. Devices that others hold are waited for.
    """
    interrupted = False

    def call(function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        nonlocal interrupted
        try:
            return debugged(function, args, kwargs, stop=stop)
        except KeyboardInterrupt as error:
            interrupted = True
            raise Left(str(error)) from None

    def check() -> None:
        if spec.launch is not None:
            ranks.enter(spec, spec.launch, Rank())

    began, clock, before = time.time(), time.monotonic(), proc.own_consumption()
    memory = proc.own_memory()
    outputs: Mapping[str, Artifact] = {}
    mask = Mask(secrets.values())
    grant, failure = _devices(spec)
    if grant is not None and grant.devices is not None and spec.granted is not None:
        spec = attrs.evolve(spec, granted=attrs.evolve(spec.granted, gpus=grant.devices))
    try:
        if failure is None:
            variables = _alone({**spec.environment, **secrets, **(grant.environment if grant else {})}, spec)
            with (
                screened(mask) if secrets else contextlib.nullcontext(),
                _as_the_step(spec, store, variables),
            ):
                checkpoint.open(spec, store, into=into or open_store(home_folders.new_folder()))
                outputs, failure = perform(spec, store, check=check, call=call, into=into)
    finally:
        if grant is not None:
            grant.give_back()
    status = "completed" if failure is None else "failed"
    if interrupted or (failure is not None and failure.reason == "cancelled"):
        status, failure = "cancelled", Failure(reason="cancelled", message="the debugger was left")
    if failure is not None:
        failure = mask.failure(failure)
    seconds, host = time.monotonic() - clock, host_facts()
    return TaskResult(
        task=spec.task,
        attempt=spec.attempt,
        status=status,
        outputs=outputs,
        failure=failure,
        started=began,
        ended=began + seconds,
        node=host["host"],
        target=spec.target,
        backend=spec.backend,
        asked=Hardware.asked(spec.request, spec.launch),
        granted=spec.granted,
        seen=Hardware(
            cpu_count=len(os.sched_getaffinity(0)),
            memory=host["memory"],
            nodes=1,
            details={"pid": os.getpid()},
        ),
        used=Totals().record(
            seconds=seconds,
            consumed=proc.own_consumption().since(before),
            peak=max(0, proc.own_memory().resident - memory.resident),
        ),
        key=spec.key,
        degraded=spec.degraded,
    )


def _alone(own: Mapping[str, str], spec: TaskSpec) -> Mapping[str, str]:
    """The step's variables, with those of the only process that there is: so a group of one can be formed."""
    if spec.launch is None:
        return own
    devices = spec.granted is not None and bool(spec.granted.gpus)
    return environment_of(
        spec.launch, Rank(), task=str(spec.task), devices=devices, own=own, inherited=os.environ
    )


def _devices(spec: TaskSpec) -> tuple[Grant | None, Failure | None]:
    """The step's devices, when they are free; or why it gets none."""
    loop = Loop()
    watching: list[DeviceMonitor] = []

    def accelerators() -> DeviceMonitor:
        from upshift.runtime.supervisor.device_monitor import (
            DeviceMonitor,  # what no task needs is not imported
        )

        watching.append(watching[0] if watching else DeviceMonitor(loop))
        return watching[0]

    answers: list[tuple[Grant | None, Failure | None]] = []
    DeviceQueue(loop, accelerators).ask(
        spec,
        ready=lambda grant: answers.append((grant, None)),
        tell=lambda why: tell([f"{spec.task} {why}"]),
        refuse=lambda failure: answers.append((None, failure)),
    )
    try:
        while not answers:
            loop.turn()
    except KeyboardInterrupt:
        return None, Failure(reason="cancelled", message="the debugger was left")
    finally:
        for watched in watching[:1]:
            watched.close()
            watched.bury(GONE)
        loop.abandon()
    ((grant, failure),) = answers
    tell(grant.remarks if grant is not None else ())
    return grant, failure


@contextlib.contextmanager
def _as_the_step(spec: TaskSpec, store: Store, variables: Mapping[str, str]) -> Iterator[None]:
    """The step's environment, folder and Ctrl-C, for a while."""
    environment, folder = dict(os.environ), os.getcwd()
    main = threading.current_thread() is threading.main_thread()
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler) if main else None
    os.environ.update(variables)
    current.enter(spec, store=store)
    try:
        yield
    finally:
        current.leave()
        checkpoint.close()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        if main:
            signal.signal(signal.SIGINT, signal.SIG_DFL if interrupt is None else interrupt)  # None: from C


@contextlib.contextmanager
def screened(mask: Mask) -> Iterator[None]:
    """For a while let ``sys.stdout`` and ``sys.stderr`` show no secrets.

    What other programs print, or this process itself below Python, does not go through them.
    """
    before = sys.stdout, sys.stderr
    out, err = _Screen(sys.stdout, mask), _Screen(sys.stderr, mask)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for screen in (out, err):
            with contextlib.suppress(Exception):  # the step has closed it
                screen.end()


class _Screen:
    """A text stream that is another one but for what is written."""

    def __init__(self, stream: Any, mask: Mask) -> None:
        self._stream = stream
        self._masking = Masking(mask)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, text: str) -> int:
        self._put(self._masking.feed(text.encode("utf-8", "surrogatepass")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _Bytes:
        return _Bytes(self)

    def end(self) -> None:
        """Write what was held back because it might have become a secret."""
        self._put(self._masking.end())
        self._stream.flush()

    def _put(self, data: bytes) -> None:
        self._stream.write(self._decoder.decode(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Bytes:
    """The binary stream below a text stream, for those that write to it."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen

    def write(self, data: Any) -> int:
        self._screen._put(self._screen._masking.feed(bytes(data)))
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen._stream.buffer, name)


_COMMANDS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters by which an exception's text could give commands to the terminal."""


class Left(KeyboardInterrupt):
    """The debugger was left before the call had ended."""


class _Debugger(pdb.Pdb):
    """Remembers that it was left: ``runcall`` keeps that to itself, and gives None."""

    left = False

    def set_quit(self) -> None:
        self.left = True
        super().set_quit()


def at_a_terminal() -> bool:
    """Whether somebody can type commands."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def debugged(
    function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], *, stop: bool
) -> object:
    """Call a function; where it raises, look at its frames before they are gone."""
    try:
        if stop and at_a_terminal():
            debugger = _Debugger()
            value = debugger.runcall(function, *args, **kwargs)
            if debugger.left:
                raise bdb.BdbQuit
            return value
        return function(*args, **kwargs)
    except bdb.BdbQuit as error:
        if at_a_terminal():
            raise Left("the debugger was left") from None
        raise UsageError(
            "the debugger has no terminal, and found nothing more to read",
            fix="Run the command in a terminal, and redirect neither its input nor its output.",
        ).with_traceback(error.__traceback__) from None
    except Exception as error:
        frames = _from(error.__traceback__, function)
        if frames is not None and at_a_terminal():
            said = _COMMANDS.sub(lambda found: repr(found[0])[1:-1], user_text(error))
            sys.stdout.write(f"{said}\npdb is where it was raised: u up, p NAME, q continue\n")
            sys.stdout.flush()
            pdb.post_mortem(frames)
        raise


def _from(frames: TracebackType | None, function: Callable[..., object]) -> TracebackType | None:
    """The traceback from the function's own frame on."""
    code = getattr(function, "__code__", None)
    found = frames
    while found is not None and found.tb_frame.f_code is not code:
        found = found.tb_next
    return found or frames
