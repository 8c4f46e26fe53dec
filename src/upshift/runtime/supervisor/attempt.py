"""One attempt under supervision, from its start to its result."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from upshift.errors import StoreError
from upshift.model.spec import (
    Checkpoints,
    Failure,
    Hardware,
    MetricValue,
    Rank,
    Stack,
    TaskResult,
    TaskSpec,
    decode,
)
from upshift.runtime.confine import Spawned, Starter
from upshift.runtime.launch.ranks import ranks_of
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.masking import Mask
from upshift.runtime.messages import BEFORE, Outcome, understood
from upshift.runtime.proc import Consumed
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.ends import GRACE, Ends, EndsOfRanks, Gang, Stop
from upshift.runtime.supervisor.logs import Losses, TaskLog
from upshift.runtime.supervisor.members import LocalMember, Member, Overflow
from upshift.runtime.supervisor.node_runtime import Machine, NodeRuntime
from upshift.runtime.supervisor.recorder import Recorder
from upshift.runtime.supervisor.records import AttemptRecords, Observations
from upshift.runtime.tracebacks import mistake
from upshift.runtime.usercode import Sources

if TYPE_CHECKING:
    from upshift.runtime.launch.network import Port
    from upshift.runtime.supervisor.device_pool import Grant
    from upshift.runtime.supervisor.hang_detector import HangDetector
    from upshift.runtime.supervisor.nodes import Nodes


class AttemptWatcher(Protocol):
    """Is told how an attempt goes."""

    def started(self, attempt: SupervisedAttempt) -> None:
        """The step process runs."""

    def log_grew(self, attempt: SupervisedAttempt, size: int) -> None:
        """The log has this many bytes."""

    def logged(
        self, attempt: SupervisedAttempt, step: float | None, values: Mapping[str, MetricValue]
    ) -> None:
        """Metrics have these values now, at a step of the caller's own count; told now and then."""

    def noticed(self, attempt: SupervisedAttempt, text: str) -> None:
        """Something that a person should know now, and that the log of the step cannot say, in a line."""

    def ended(self, attempt: SupervisedAttempt, problem: str | None) -> None:
        """The result is in the store; or it is not, because of ``problem``."""


EXITING = 10.0
"""Seconds that a process is given to end after it has said that its step returned."""


class SupervisedAttempt:
    """Supervises the process of a step, or its processes.

    A step that returned is completed as soon as its process says so, or the last of them; nothing waits
    while these, and what they left running, are taken down. In any other case the end of the processes is
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
        watcher: AttemptWatcher,
        machine: Machine,
        grant: Grant | None,
        secrets: Mapping[str, str],
        sources: Sources,
        nodes: Nodes | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        self.spec = spec
        self._overflow = overflow
        self._left = False
        self.over = False  # whether its result is written, or about to be
        self.completed = False  # whether that says so
        self._nodes = nodes
        self._store = store
        self._loop = loop.confined(self._troubled)
        self._watcher = watcher
        self._host = machine.facts
        self._sources = sources
        self._stopping: Stop | None = None
        self._checkpoints: Checkpoints | None = None
        self._hang_detector: HangDetector | None = None
        self._timers: list[Timer] = []
        self._mask = Mask(secrets.values()) if secrets else None
        self._observations = Observations(spec.granted, machine.accelerators)
        self._gang = Gang(
            self._loop, grace=spec.settings.grace_period, follows=lambda member: self._ends.follows(member)
        )
        self._exiting = Timer(self._gang.kill)
        self._clock = time.monotonic()
        self._port: Port | None = None
        try:
            ranks = self._ranks()
            self._open_files()
            self._node_runtime = NodeRuntime(
                spec, store=store, loop=self._loop, machine=machine, grant=grant, secrets=secrets
            )
            self._records = AttemptRecords(self._gang, self._node_runtime, nodes)
            kind = Ends if spec.launch is None else EndsOfRanks
            self._ends = kind(spec, store, self._gang, self._node_runtime)
            members = self._node_runtime.start(starter, ranks, self._member)
        except BaseException:
            self._let_go_of_port()
            raise
        self._gang.members += members
        try:
            self._begin(members)
        except Exception as error:  # there are processes: it ends with them
            self._troubled(error)

    # -- starting ---------------------------------------------------------------------------------

    def _open_files(self) -> None:
        task, number = self.spec.task, self.spec.attempt
        self._losses = Losses(self._clock, tell=partial(self._watcher.noticed, self))
        self.log = TaskLog(
            self._loop,
            self.spec,
            self._store,
            grew=partial(self._watcher.log_grew, self),
            losses=self._losses,
            mask=self._mask,
        )
        self._recorder = Recorder(
            self._loop,
            self._store.metrics_path(task, number),
            self._store.cards_path(task, number),
            origin=self._clock,
            losses=self._losses,
            mask=self._mask,
            news=partial(self._watcher.logged, self),
        )

    def _begin(self, members: Sequence[LocalMember]) -> None:
        """Its processes on this node are there: look after them."""
        if self._overflow is not None:
            self._overflow.start()
        if self._nodes is not None:
            self._gang.members += self._nodes.start(self, log=self.log.of, told=self._hear)
        if self.spec.settings.timeout is not None:
            self._timers.append(self._loop.after(self.spec.settings.timeout, self._timed_out))
        self._watcher.started(self)
        if self.spec.launch is not None:
            from upshift.runtime.supervisor.hang_detector import (
                HangDetector,  # what no other step needs is not imported
            )

            self._ends.name_cells()
            stop = partial(self._give_up, grace=min(self.spec.settings.grace_period, GRACE))
            self._hang_detector = HangDetector(
                self._loop, self.spec, self._gang, tell=self.log.remark, stop=stop
            )
        idle = partial(self._give_up, grace=self.spec.settings.grace_period)
        self._node_runtime.watch(members, tell=self.log.remark, stop=idle, kill=self._gang.kill)
        if self._nodes is not None:
            self._nodes.look_after()

    def _member(self, born: Spawned, rank: Rank | None) -> LocalMember:
        member = LocalMember(
            born,
            rank,
            loop=self._loop,
            log=self.log.of(rank),
            told=self._hear,
            overflow=self._overflow,
        )
        if self._nodes is not None:
            member.host = self._nodes.name
        return member

    def _ranks(self) -> Sequence[Rank | None]:
        """Which processes there are to be on this node; None: one that is on its own."""
        launch = self.spec.launch
        if launch is None:
            return [None]
        if self._nodes is not None:
            self._port, address = self._nodes.port, self._nodes.address
            return ranks_of(self.spec, address=address, port=self._port.number, nodes=self._nodes.count)
        from upshift.runtime.launch.network import keep_port  # no other step needs it

        self._port = keep_port(launch)
        return ranks_of(self.spec, address="127.0.0.1", port=self._port.number)

    def _let_go_of_port(self) -> None:
        if self._port is not None:
            self._port.close()

    @property
    def pids(self) -> list[int]:
        """The processes that this supervisor has started for it."""
        return [member.pid for member in self._gang.members if isinstance(member, LocalMember)]

    # -- while it runs ----------------------------------------------------------------------------

    def cancel(self, grace: float, why: Failure | None = None) -> None:
        """SIGTERM, and ``grace`` seconds later SIGKILL."""
        if why is not None:
            self._stop("failed", why, grace)
        else:
            self._stop("cancelled", Failure(reason="cancelled", message="cancelled while it ran"), grace)

    def node_failed(self, failure: Failure) -> None:
        """A further node cannot go on."""
        if not self.over:
            self._stop("failed", failure, GRACE)

    def remark(self, line: str) -> None:
        """Something is to be said in the log of the step."""
        if not self.over:
            self.log.remark(line)

    def _timed_out(self) -> None:
        failure = Failure(
            reason="timeout",
            message=f"the step was still running after {self.spec.settings.timeout:g} s",
            fix="Give it more time (timeout=…), or less to do.",
        )
        self._give_up(failure, self.spec.settings.grace_period)

    def _give_up(self, failure: Failure, grace: float) -> None:
        """The processes are to be stopped for what they do; those of which one failed end anyway."""
        if not self._gang.failing:
            self._stop("failed", failure, grace)

    def _troubled(self, error: Exception) -> None:
        self._stop("failed", mistake(error), 0)

    def _stop(self, status: str, failure: Failure, grace: float) -> None:
        self._because(status, failure)
        self._gang.stopped()
        if grace <= 0:
            self._gang.kill()
            return
        if self._hang_detector is not None and failure.reason in ("timeout", "hang"):
            self._hang_detector.look_into(partial(self._terminate, grace))
        else:
            self._terminate(grace)

    def _because(self, status: str, failure: Failure) -> None:
        """Record this as why it ends, unless there is a reason already: the first one counts.

        Processes that have failed by themselves are one. But a user who cancels has the last word, and what
        became of a node is why those failed that missed its processes.
        """
        failed = [] if status == "cancelled" else self._gang.failed
        if failure.node is not None:
            failed = [member for member in failed if not self._ends.follows(member)]
        if self._stopping is None and not failed:
            self._stopping = Stop(status, failure)

    def _terminate(self, grace: float) -> None:
        self._gang.signal(signal.SIGTERM)
        if self._hang_detector is not None:
            self._hang_detector.stopping(grace, self._gang.kill)
        self._timers.append(self._loop.after(grace, partial(self._grace_is_over, grace)))

    def _grace_is_over(self, grace: float) -> None:
        self.log.remark(f"{self._ends.still_running()} {grace:g} s after SIGTERM: SIGKILL")
        self._gang.kill()

    def _hear(self, member: Member, lines: list[bytes]) -> None:
        """Take what a process says."""
        for logs, group in groupby(lines, key=lambda line: line.startswith(BEFORE)):
            if self.over:  # what comes after the outcome is of a thread or a process that goes on
                break
            if logs:
                self._logged(member, list(group))
                continue
            for line in group:
                self._told(member, line)
            if self._gang.returned and self._stopping is None:  # over, though they may still run
                self._complete()

    def _logged(self, member: Member, lines: list[bytes]) -> None:
        with contextlib.suppress(Exception):  # as below
            self._recorder.logged(lines, member.number)

    def _told(self, member: Member, line: bytes) -> None:
        """Take a line. The step may have written it itself: if it makes no sense, it is nothing."""
        for kind, content in understood(line):
            with contextlib.suppress(Exception):
                getattr(self, f"_told_{kind}")(member, content)

    def _told_card(self, member: Member, content: Mapping[str, Any]) -> None:
        self._recorder.shown(content, member.number)

    def _told_checkpoint(self, member: Member, content: Mapping[str, Any]) -> None:
        self._checkpoints = (self._checkpoints or Checkpoints()).and_then(decode(Checkpoints, content))

    def _told_framework(self, member: Member, content: Mapping[str, Any]) -> None:
        self._observations.framework(content)

    def _told_diagnosis(self, member: Member, content: Mapping[str, Any]) -> None:
        """A framework misses devices. If the step must not go on, it is killed if it does."""
        failure = self._observations.diagnosis(content)
        if failure is not None:
            self._because("failed", failure)
            self._timers.append(self._loop.after(self.spec.settings.grace_period, self._gang.kill))

    def _told_outcome(self, member: Member, content: Mapping[str, Any]) -> None:
        member.outcome = decode(Outcome, content)
        if not member.returned:
            self._gang.fail(member)
        elif self._hang_detector is not None:
            self._hang_detector.returned()

    # -- ending -----------------------------------------------------------------------------------

    def exited(self, pid: int, status: int, consumed: Consumed) -> None:
        """A process has ended with this wait status, and nothing that it started runs."""
        for member in self._gang.members:
            if member.pid == pid and isinstance(member, LocalMember):
                self.left(member, os.waitstatus_to_exitcode(status), consumed)

    def left(self, member: Member, code: int, consumed: Consumed) -> None:
        """One of the processes has ended: with this exit code, or by the signal whose negative it is."""
        if not self.over:
            member.drain()
        member.code, member.consumed = code, consumed
        if not self.over and not member.returned:
            self._gang.fail(member)
        if not self._gang.ended:
            return
        if not self.over:
            self._finish()
        self._exiting.cancel()
        for one in self._gang.members:
            one.close()
        self._node_runtime.release()
        if self._nodes is not None:
            self._nodes.close()
        self._left = True

    @property
    def released(self) -> bool:
        """Whether nothing is left of it: no process, and no further node that is to be told of its end."""
        return self._left and (self._nodes is None or self._nodes.closed)

    def _complete(self) -> None:
        self._exiting = self._loop.after(EXITING, self._gang.kill)
        self._let_go_of_port()  # rank 0 waits for that
        self._finish()

    def _finish(self) -> None:
        self.over = True
        self._gang.cancel()
        if self._hang_detector is not None:
            self._hang_detector.close()
        for timer in self._timers:
            timer.cancel()
        self._node_runtime.give_back_cpus()
        try:
            problem = self._record()
        except Exception as error:  # as in _troubled(), where there is no result to say it
            problem = mistake(error).message
        self._watcher.ended(self, problem)

    def hand_on(self) -> None:
        """Flush log, metrics and cards, so that other machines see them."""
        self.log.hand_on()
        self._recorder.hand_on()

    def _record(self) -> str | None:
        """Close all files and write the result; why there is none, if that is so."""
        members = self._gang.members
        for member in members:
            member.hush()
        self.log.settle()
        if self._gang.returned:
            for line in self._ends.remarks():
                self.log.remark(line)
        self.log.close()
        self._node_runtime.end_watch()
        self._let_go_of_port()
        result = self._result(self._records.verdict())
        try:
            if not self._store.create_result(result):
                return "this attempt has a result already"
            self.completed = result.status == "completed"
            return None
        except StoreError as error:
            return f"the result could not be written: {error.in_short}"

    def _result(self, beyond: Failure | None) -> TaskResult:
        spec, main = self.spec, self._gang.main.outcome
        status, failure = self._ends.verdict(self._stopping, beyond)
        stacks: Iterable[Stack] = () if failure is None else self._ends.stacks()
        if self._mask is not None:
            failure = failure and self._mask.failure(failure)
            stacks = map(self._mask.stack, stacks)
        seconds = time.monotonic() - self._clock
        return TaskResult(
            task=spec.task,
            attempt=spec.attempt,
            status=status,
            outputs=main.outputs if main is not None and status == "completed" else {},
            failure=failure,
            edited=self._sources.edited() if status == "completed" and spec.code.package is None else (),
            started=self._node_runtime.started,
            ended=self._node_runtime.started + seconds,
            node=self._host["host"],
            target=spec.target,
            backend=spec.backend,
            image=spec.image,
            asked=Hardware.asked(spec.request, spec.launch),
            granted=self._records.granted(),
            seen=self._records.seen(self._observations, self._host, by_rank=spec.launch is not None),
            used=self._records.used(seconds, by_rank=spec.launch is not None),
            log_bytes=self.log.size,
            metrics=self._recorder.close(),
            cards=tuple(self._recorder.cards),
            gaps=(*self._losses.gaps, *self._node_runtime.gaps),
            checkpoints=self._checkpoints,
            key=spec.key,
            degraded=spec.degraded
            or self._observations.degraded
            or (self._nodes is not None and self._nodes.less),
            stacks=tuple(stacks),
        )
