"""One attempt under supervision, from its start to its result."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs

from upshift.errors import StoreError, UpshiftError
from upshift.spec import Failure, Hardware, MetricValue, TaskResult, TaskSpec, decode, from_json
from upshift.store import claims
from upshift.store.edits import Sources
from upshift.store.serializers import scratch
from upshift.store.store import Store
from upshift.worker import causes, cells, proc, stacks
from upshift.worker.confine import MARKER, Confinement
from upshift.worker.cpus import CpuSet
from upshift.worker.devices import ENFORCED, QUIET
from upshift.worker.ledger import Ledger
from upshift.worker.limits import HostMemory, MemoryLimit
from upshift.worker.logs import Log
from upshift.worker.loop import Loop, Timer
from upshift.worker.masking import Mask
from upshift.worker.messages import Lines, understood
from upshift.worker.metrics import BEFORE
from upshift.worker.proc import Consumed
from upshift.worker.sampling import INTERVAL, Node, Sampler
from upshift.worker.seen import Sights
from upshift.worker.step import Outcome, Seen

if TYPE_CHECKING:
    from upshift.worker.accelerators import Accelerators
    from upshift.worker.gpu_usage import GpuUsage
    from upshift.worker.stock import Grant

EXITING = 10.0
"""Seconds that a process is given to end after it has said that its step returned."""


class Born(NamedTuple):
    """A step process that has just been started.

    Parameters
    ----------
    pid
        Its id.
    log, seen, messages
        Descriptors to read what it prints, what it finds, and what becomes of it.
    baseline
        Bytes of memory that it has from its parent, and did not ask for itself.
    """

    pid: int
    log: int
    seen: int
    messages: int
    baseline: int


class Starter(Protocol):
    """Starts a step process, by a fork or afresh. Who has one is told when it has ended."""

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int]) -> Born:
        """Start it. It keeps the descriptors ``held`` open.

        Raises
        ------
        OSError
            There can be no further process.
        """


class Watcher(Protocol):
    """Somebody who wants to know how an attempt goes."""

    def started(self, attempt: Attempt) -> None:
        """The step process runs."""

    def log_grew(self, attempt: Attempt, size: int) -> None:
        """The log has this many bytes."""

    def logged(self, attempt: Attempt, step: float | None, values: Mapping[str, MetricValue]) -> None:
        """Metrics have these values now, at a step of the caller's own count; told now and then."""

    def ended(self, attempt: Attempt, problem: str | None) -> None:
        """The result is in the store; or it is not, because of ``problem``."""


@attrs.define
class _Stop:
    status: str
    failure: Failure


class Attempt:
    """Supervises one step process.

    A step that returned is completed as soon as its process says so; nothing waits while that
    process, and what it left running, is taken down. In any other case the end of the process is
    the end of the attempt, so that no further attempt meets anything of it.

    Its trouble is its own: a step may write anything to its pipes, and what goes wrong when that is
    taken, or when the attempt is supervised in any other way, ends this attempt and none beside it.
    """

    def __init__(
        self,
        spec: TaskSpec,
        *,
        store: Store,
        loop: Loop,
        starter: Starter,
        watcher: Watcher,
        cpus: CpuSet,
        host: Mapping[str, str],
        host_memory: HostMemory,
        node: Node,
        accelerators: Callable[[], Accelerators],
        grant: Grant | None,
        supervisor: str,
        secrets: Mapping[str, str],
        sources: Sources,
    ) -> None:
        self.spec = spec
        self.pid = 0
        self._store = store
        self._loop = loop.confined(self._troubled)
        self._watcher = watcher
        self._cpus = cpus
        self._host = host
        self._host_memory = host_memory
        self._node = node
        self._accelerators = accelerators
        self._grant = grant
        self._sources = sources
        self._stopping: _Stop | None = None
        self._outcome: Outcome | None = None
        self._lines = Lines()
        self._timers: list[Timer] = []
        self._exiting = Timer(self._kill)
        self._over = False
        self._scratch = scratch.unused()
        self._mask = Mask(secrets.values()) if secrets else None
        self._sights = Sights(spec.granted, accelerators)
        self._memory, bounds = self._bounds(supervisor, secrets)
        self._bound_cpus = bounds.cpus or ()
        self._started = time.time()
        self._clock = time.monotonic()
        self._begin(starter, bounds)

    # -- starting ---------------------------------------------------------------------------------

    def _bounds(self, supervisor: str, secrets: Mapping[str, str]) -> tuple[MemoryLimit | None, Confinement]:
        spec, granted = self.spec, self.spec.granted
        environment = {
            **spec.environment,
            **secrets,
            MARKER: supervisor,
            scratch.VARIABLE: self._scratch,
            claims.VARIABLE: self._store.claims.file(),
        }
        if self._grant is not None:
            environment |= self._grant.environment
        memory = cpus = threads = None
        if granted is not None and granted.details.get("enforced_by") == ENFORCED:
            if granted.memory is not None:
                memory = MemoryLimit(granted.memory, asked=spec.request.memory)
            if granted.cpu_count is not None:
                cpus = self._cpus.take(granted.cpu_count)
                threads = len(cpus)
        bounds = Confinement(
            cpus=cpus,
            threads=threads,
            group=memory.folder if memory else None,
            memory=memory.limit if memory else None,
            environment=environment,
        )
        return memory, bounds

    def _begin(self, starter: Starter, bounds: Confinement) -> None:
        try:
            held = self._grant.descriptors if self._grant is not None else ()
            self.pid, log, self._sightings, messages, baseline = starter(self.spec, bounds, held)
        except OSError:
            self._cpus.give_back(self._bound_cpus)
            self._release()
            raise
        self._messages = messages
        os.set_blocking(messages, False)
        self._loop.watch(messages, self._hear)
        task, number = self.spec.task, self.spec.attempt
        self.log_path = self._store.log_path(task, number)
        self._log = Log(
            self._loop,
            log,
            self.log_path,
            lambda size: self._watcher.log_grew(self, size),
            mask=self._mask,
        )
        self._ledger = Ledger(
            self._loop,
            self._store.metrics_path(task, number),
            self._store.cards_path(task, number),
            mask=self._mask,
            news=lambda step, values: self._watcher.logged(self, step, values),
        )
        self._sampler = Sampler(
            self._loop,
            self.spec,
            self._store,
            pid=self.pid,
            baseline=baseline,
            started=self._started,
            node=self._node,
            gpus=self._gpu_usage(),
            tell=self._log.remark,
            stop=self._idle,
        )
        if self._memory is not None:
            self._memory.watch(self._loop, self.pid, baseline, self._kill)
        if self.spec.timeout is not None:
            self._timers.append(self._loop.after(self.spec.timeout, self._timed_out))
        self._watcher.started(self)
        for remark in (*(self._grant.remarks if self._grant is not None else ()), *self._sampler.remarks):
            self._log.remark(remark)

    def _gpu_usage(self) -> GpuUsage | None:
        devices = self.spec.granted.gpus if self.spec.granted is not None else None
        if not devices:
            return None
        from upshift.worker.gpu_usage import GpuUsage  # what no task needs is not imported

        return GpuUsage(devices, self._accelerators(), interval=self.spec.profile or INTERVAL)

    # -- while it runs ----------------------------------------------------------------------------

    def cancel(self, grace: float) -> None:
        """SIGTERM, and ``grace`` seconds later SIGKILL."""
        self._stop("cancelled", Failure(reason="cancelled", message="cancelled while it ran"), grace)

    def _timed_out(self) -> None:
        failure = Failure(
            reason="timeout",
            message=f"the step was still running after {self.spec.timeout:g} s",
            fix="Give it more time (timeout=…), or less to do.",
        )
        self._stop("failed", failure, self.spec.grace)

    def _idle(self, failure: Failure) -> None:
        self._stop("failed", failure, self.spec.grace)

    def _troubled(self, error: Exception) -> None:
        self._stop("failed", causes.mistake(error), 0)

    def _stop(self, status: str, failure: Failure, grace: float) -> None:
        if self._stopping is None:
            self._stopping = _Stop(status, failure)
        if grace > 0:
            self._signal(signal.SIGTERM)
            self._timers.append(self._loop.after(grace, self._kill))
        else:
            self._kill()

    def _kill(self) -> None:
        proc.kill(reversed(proc.tree(self.pid)))
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or not a group yet
            os.killpg(self.pid, number)

    def _hear(self) -> None:
        self._listen()

    def _listen(self) -> bool:
        """Take what one read gives; False if that was nothing."""
        try:
            data = os.read(self._messages, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._deafen()
            return False
        for logs, group in groupby(self._lines.take(data), key=lambda line: line.startswith(BEFORE)):
            if self._over:  # what comes after the outcome is of a thread or a process that goes on
                break
            if logs:
                self._logged(list(group))
                continue
            for line in group:
                self._told(line)
            if self._returned:
                self._complete()
        return True

    def _logged(self, lines: list[bytes]) -> None:
        with contextlib.suppress(Exception):  # as below
            self._ledger.logged(lines)

    def _told(self, line: bytes) -> None:
        """Take a line. The step may have written it itself: if it makes no sense, it is nothing."""
        for kind, content in understood(line):
            with contextlib.suppress(Exception):
                getattr(self, f"_told_{kind}")(content)

    @property
    def _returned(self) -> bool:
        """Whether the attempt is over, though its process may still run."""
        return self._outcome is not None and self._outcome.failure is None and self._stopping is None

    def _told_card(self, content: Mapping[str, Any]) -> None:
        self._ledger.shown(content)

    def _told_framework(self, content: Mapping[str, Any]) -> None:
        self._sights.framework(content)

    def _told_diagnosis(self, content: Mapping[str, Any]) -> None:
        """A framework misses devices. If the step must not go on, it is killed if it does."""
        failure = self._sights.diagnosis(content)
        if failure is not None:
            self._stopping = self._stopping or _Stop("failed", failure)
            self._timers.append(self._loop.after(self.spec.grace, self._kill))

    def _told_outcome(self, content: Mapping[str, Any]) -> None:
        self._outcome = decode(Outcome, content)

    def _sighted(self) -> tuple[Hardware | None, str]:
        """What the process found, None if it was killed before it looked; and its last stack."""
        os.set_blocking(self._sightings, False)
        with open(self._sightings, "rb", buffering=0) as pipe:
            text, _, stack = (pipe.read(1 << 16) or b"").partition(b"\n")
        if not text:
            return None, ""
        try:
            seen = from_json(Seen, text)
        except (ValueError, RecursionError):  # the step has read it, and written something else
            return None, ""
        details = {**self._host, "pid": self.pid}
        record = self._sights.record(cpu_count=seen.cpu_count, memory=seen.memory, details=details)
        return record, stack.decode(errors="replace")

    def _deafen(self) -> None:
        if self._messages >= 0:
            self._loop.forget(self._messages)
            self._messages = -1

    # -- ending -----------------------------------------------------------------------------------

    def exited(self, status: int, consumed: Consumed) -> None:
        """The process has ended with this wait status, and nothing that it started runs."""
        while not self._over and self._messages >= 0 and self._listen():
            continue  # the pipe may hold more than one read gives
        if not self._over:
            self._finish(os.waitstatus_to_exitcode(status), consumed)
        self._exiting.cancel()
        self._deafen()
        self._release()

    def _complete(self) -> None:
        assert self._outcome is not None
        self._exiting = self._loop.after(EXITING, self._kill)
        self._finish(0, self._outcome.consumed)

    def _finish(self, code: int, consumed: Consumed) -> None:
        self._over = True
        for timer in self._timers:
            timer.cancel()
        self._cpus.give_back(self._bound_cpus)
        try:
            problem = self._record(code, consumed)
        except Exception as error:  # as in _troubled(), where there is no result to say it
            problem = causes.mistake(error).message
        self._watcher.ended(self, problem)

    def _record(self, code: int, consumed: Consumed) -> str | None:
        """Close all files and write the result; why there is none, if that is so."""
        self._log.close()
        self._sampler.close()
        peak = self._outcome.peak if self._outcome else None
        verdict = self._memory.verdict(peak) if self._memory else None
        peak = self._memory.reached(peak) if self._memory else peak
        result = self._result(code, verdict, consumed, peak)
        try:
            return None if self._store.create_result(result) else "this attempt has a result already"
        except StoreError as error:
            return f"the result could not be written: {error.in_short}"

    def _release(self) -> None:
        if os.path.isdir(self._scratch):
            scratch.remove(self._scratch)
        if self._memory is not None:
            self._memory.close()
            self._host_memory.killed()  # what the kernel killed in this group says nothing of the host
        if self._grant is not None:
            self._grant.give_back()

    def _result(self, code: int, verdict: Failure | None, consumed: Consumed, peak: int | None) -> TaskResult:
        spec = self.spec
        outputs: Mapping[str, Any] = {}
        failure, status = verdict, "failed"
        outcome = self._outcome
        seen, stack = self._sighted()
        if stack:
            with contextlib.suppress(UpshiftError):  # without them a line of it has no name of a cell
                cells.restore(spec.entry.cells, self._store)
        # A step that is being stopped usually fails somehow; that it was stopped is the cause.
        if failure is None and outcome is not None and (outcome.failure is None or not self._stopping):
            failure, outputs = outcome.failure, outcome.outputs
            status = "completed" if failure is None else "failed"
        elif failure is None and self._stopping is not None:
            failure, status = self._stopping.failure, self._stopping.status
        elif failure is None:
            failure = self._died(code, stack)
        if failure is not None and failure.where is None and failure.reason != "cancelled":
            line = stacks.user_line(stack, spec.code.project, relative_to=spec.cwd)
            failure = attrs.evolve(failure, where=line or spec.location)
        seconds = time.monotonic() - self._clock
        return TaskResult(
            task=spec.task,
            attempt=spec.attempt,
            status=status,
            outputs=outputs,
            failure=self._mask.failure(failure) if failure and self._mask else failure,
            edited=self._sources.edited() if status == "completed" and spec.code.package is None else (),
            started=self._started,
            ended=self._started + seconds,
            node=os.uname().nodename,
            backend=spec.backend,
            asked=Hardware.asked(spec.request),
            granted=self._granted(),
            seen=seen,
            used=self._sampler.record(seconds=seconds, consumed=consumed, peak=peak),
            log_bytes=self._log.size,
            metrics=self._ledger.close(),
            cards=tuple(self._ledger.cards),
            key=spec.key,
            degraded=spec.degraded or self._sights.degraded,
        )

    def _granted(self) -> Hardware | None:
        granted = self.spec.granted
        if granted is None:
            return None
        details = dict(granted.details)
        if self._bound_cpus:
            details["cpus"] = list(self._bound_cpus)
        if self._memory is not None:
            details["memory_limit"] = self._memory.kind
        if self._grant is not None and self._grant.waited >= QUIET:
            details["waited"] = round(self._grant.waited, 1)
        return attrs.evolve(granted, details=details)

    def _died(self, code: int, stack: str) -> Failure:
        """Why the process ended without an outcome; its last stack may tell."""
        if code >= 0:
            return causes.exited(code)
        if -code == signal.SIGKILL and self._memory is None and self._host_memory.killed():
            return causes.host_ran_out(self._sampler.memory_peak)
        return causes.killed(-code, stacks.user_stack(stack, self.spec.code.project))
