"""How the processes of a step end, and what becomes of the attempt by that.

All of them return, or the first that fails ends them all (:class:`Gang`). The result of one process says what
became of it (:class:`Ends`); that of a launch says which rank is why the others failed, and where these were
(:class:`EndsOfRanks`). Below them is what a failure says that only a supervisor knows of.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.errors import BackendError, UpshiftError
from upshift.model.settings.retry import STOPPED
from upshift.model.spec import Failure, Stack, TaskSpec
from upshift.runtime import tracebacks
from upshift.runtime.launch.stacks import (
    StackAnswer,
    answer,
    listed,
    user_line,
    user_stack,
    waits_for_others,
    whereabouts,
)
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.members import LocalMember, Member
from upshift.runtime.supervisor.node_runtime import NodeRuntime
from upshift.runtime.tracebacks import at_home

if TYPE_CHECKING:
    from upshift.runtime.launch.blame import End

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for the others, once one has failed: nothing is left to be saved."""
ANSWERING = 0.2
"""Seconds that processes are given to write where they are, before they are told to end."""
PATIENCE = 1.0
"""Seconds to see whether another process has failed before, where a failure looks like its consequence."""


class Gang:
    """Keeps the processes of a task together."""

    def __init__(self, loop: Loop, *, grace: float, follows: Callable[[Member], bool]) -> None:
        self.members: list[Member] = []
        self.failed: list[Member] = []
        self._loop = loop
        self._grace = min(grace, GRACE)
        self._follows = follows
        self._timers: list[Timer] = []
        self._ending = False

    @property
    def ended(self) -> bool:
        """Whether no process is left."""
        return all(member.ended for member in self.members)

    @property
    def returned(self) -> bool:
        """Whether all have returned."""
        return all(member.returned for member in self.members)

    @property
    def main(self) -> Member:
        """The one whose value is the step's."""
        return self.members[0]

    @property
    def culprit(self) -> Member:
        """The one that failed first, and not because another one did."""
        causes = [member for member in self.failed if not self._follows(member)]
        return next(iter((*causes, *self.failed)), self.main)

    @property
    def failing(self) -> bool:
        """Whether they end, now or in a moment, because one of several has failed by itself."""
        return bool(self.failed) and len(self.members) > 1

    def fail(self, member: Member) -> None:
        """This one has failed. The others are stopped, unless it may have been one of them."""
        if self._ending or member in self.failed:
            return
        self.failed.append(member)
        if len(self.members) == 1:
            return
        if not self._follows(member):
            self._end()
        elif len(self.failed) == 1:
            self._timers.append(self._loop.after(PATIENCE, self._end))

    @property
    def running(self) -> list[Member]:
        """The processes that have not ended, and are still in the step."""
        return [member for member in self.members if not member.ended and member.outcome is None]

    def ask(self) -> None:
        """Ask all running processes for their stacks."""
        for member in self.running:
            member.ask()

    def signal(self, number: int) -> None:
        """Send a signal to all that run."""
        for member in self.members:
            if not member.ended:
                member.signal(number)

    def kill(self) -> None:
        """Kill all that run, and what descends from them."""
        for member in self.members:
            if not member.ended:
                member.kill()

    def stopped(self) -> None:
        """Somebody stops them: what ends now fails for no reason of its own."""
        self._ending = True

    def cancel(self) -> None:
        """Do nothing any more: the attempt is over."""
        for timer in self._timers:
            timer.cancel()

    def _end(self) -> None:
        if self._ending:
            return
        self._ending = True
        if self.running and self._follows(self.culprit):  # where the others are may tell why it failed
            self.ask()
            self._timers.append(self._loop.after(ANSWERING, partial(self.signal, signal.SIGTERM)))
        else:
            self.signal(signal.SIGTERM)
        self._timers.append(self._loop.after(self._grace, self.kill))


@attrs.frozen
class Stop:
    """An attempt was stopped: the status of its result, and why."""

    status: str
    failure: Failure


class Ends:
    """How the only process of a task ended."""

    def __init__(self, spec: TaskSpec, store: Store, gang: Gang, node_runtime: NodeRuntime) -> None:
        self._spec = spec
        self._store = store
        self._gang = gang
        self._node_runtime = node_runtime
        self._deaths: dict[int, Failure] = {}

    def name_cells(self) -> None:
        """From now on lines of a notebook are called as it calls them."""
        with contextlib.suppress(UpshiftError):  # without its text a cell has the name of a file
            tracebacks.restore_cells(self._spec.entry.cells, self._store)

    def follows(self, member: Member) -> bool:
        """Whether what ended a process looks like the consequence of what ended another one."""
        return False

    def remarks(self) -> Iterable[str]:
        """What to say in the log when all have returned."""
        return ()

    def still_running(self) -> str:
        """Which processes still run, in words."""
        return "it still runs"

    def stacks(self) -> Sequence[Stack]:
        """Where those were that did not end by themselves."""
        return ()

    def failure_of(self, member: Member) -> Failure:
        """Why a process failed: it said so, or its end does."""
        if member.outcome is not None and member.outcome.failure is not None:
            return member.outcome.failure
        if member.number not in self._deaths:
            self._deaths[member.number] = self._died(member)
        return self._deaths[member.number]

    def verdict(self, stop: Stop | None, beyond: Failure | None) -> tuple[str, Failure | None]:
        """The status of the result, and why the attempt failed."""
        if self._gang.culprit.sight()[1]:
            self.name_cells()
        status = "failed"
        if beyond is not None:
            failure = self._beyond(beyond)
        elif self._gang.returned:
            return "completed", None
        elif stop is not None:  # it usually fails somehow then
            status, failure = stop.status, self._stopped(stop.failure)
        else:
            failure = self._cause()
        if failure.where is None and failure.reason != "cancelled":
            failure = attrs.evolve(failure, where=self._where(failure))
        return status, failure

    def _cause(self) -> Failure:
        """Why it failed that nobody has stopped."""
        return self.failure_of(self._gang.culprit)

    def _stopped(self, failure: Failure) -> Failure:
        """Why it was stopped, with where it was then."""
        return failure

    def _beyond(self, failure: Failure) -> Failure:
        """Why the attempt failed that went beyond its memory."""
        return failure

    def _where(self, failure: Failure) -> str | None:
        """Where the process was that failed, as far as that is known."""
        return self._last_line(self._gang.main) or self._spec.location

    def _last_line(self, member: Member) -> str | None:
        code = self._spec.code
        folder = self._spec.cwd if code.package is None else code.project
        return user_line(at_home(member.sight()[1], code), code.project, relative_to=folder)

    def _died(self, member: Member) -> Failure:
        """Why a process ended without an outcome; its last stack may tell."""
        code, stack = member.code or 0, at_home(member.sight()[1], self._spec.code)
        if code >= 0:
            return _exited(code)
        here = isinstance(member, LocalMember)
        explained = self._node_runtime.killed_for_memory(code) if here else member.explained
        return explained or _killed(-code, user_stack(stack, self._spec.code.project))


_TAIL = 1 << 14
"""Bytes at the end of the log of a process that crashed in which C++ may have said why."""
HALTED = ("T", "t")
"""States of a process that does nothing until somebody lets it go on: proc(5)."""
_STATES = {
    "T": "is stopped until SIGCONT",
    "t": "is held by a debugger",
    "D": "is in the kernel and cannot be interrupted there",
}
"""Why a process does not say where it is, by its state."""


class EndsOfRanks(Ends):
    """How the processes of a launch ended."""

    def follows(self, member: Member) -> bool:
        from upshift.runtime.launch import blame  # what no step of one process needs is not imported

        return blame.follows(self._end_of(member, self.failure_of(member)))

    def remarks(self) -> Iterable[str]:
        """What is lost where the first process returned nothing, and another one something."""
        kinds = {member.number: member.outcome.returned for member in self._gang.members if member.outcome}
        others = {number: kind for number, kind in kinds.items() if kind is not None}
        if others and kinds.get(0) is None:
            number, kind = next(iter(others.items()))
            yield (
                f"rank 0 returned None, and rank {number} a value of type {kind}: what rank 0 returns is "
                "the step's output"
            )

    def still_running(self) -> str:
        left = [one.number for one in self._gang.members if not one.ended]
        return f"{listed(left)} still run{'s' if len(left) == 1 else ''}"

    def stacks(self) -> Sequence[Stack]:
        said = [one for one in self._gang.failed if one.outcome is not None]
        left = (one for one in self._gang.members if not one.returned and one not in said)
        stacks = stacks_of(left, self._spec)
        died = {one.number for one in self._gang.failed}  # one may have been asked in its last moment
        return [stack for stack in stacks if stack.silent is None or stack.rank not in died]

    def _cause(self) -> Failure:
        """Why they failed, with the rank and node where that began."""
        from upshift.runtime.launch import blame

        gang = self._gang
        ends = [self._end_of(one, self.failure_of(one), at=at) for at, one in enumerate(gang.failed)]
        ends += [self._end_of(one, None, at=-1) for one in gang.members if one.returned]
        others = [one for one in gang.members if one not in gang.failed and not one.returned]
        late = (self._end_of(one, self.failure_of(one), at=math.inf) for one in others if one.outcome)
        # Those that failed before they were stopped, because they missed another one.
        ends += [end for end in late if blame.follows(end)]
        found = blame.cause(ends, stacks_of(others, self._spec))
        return found if found.node is not None else attrs.evolve(found, node=_host(gang, found.rank))

    def _end_of(self, member: Member, failure: Failure | None, at: float = 0.0) -> End:
        """How it ended: it said so, or was killed, and what it printed in the end may tell, or exited."""
        from upshift.runtime.launch.blame import End

        end = End(rank=member.number, node=member.host, at=at, failure=failure)
        if member.outcome is not None:
            return attrs.evolve(end, exit_code=member.outcome.exit_code)
        if member.code is not None and member.code < 0:
            log = self._store.rank_log_path(self._spec.task, self._spec.attempt, member.number)
            return attrs.evolve(end, log=_tail(log))
        return attrs.evolve(end, exit_code=member.code)

    def _stopped(self, failure: Failure) -> Failure:
        return stopped(failure, self._gang, self._spec)

    def _beyond(self, failure: Failure) -> Failure:
        largest = self._node_runtime.largest
        named = next((one for one in self._gang.members if one.pid == largest), self._gang.culprit)
        return attrs.evolve(failure, rank=named.number, node=named.host)

    def _where(self, failure: Failure) -> str | None:
        """Its last line alone: that of the step would look as if it were the fault."""
        named = (one for one in self._gang.members if one.number == failure.rank)
        return self._last_line(next(named, self._gang.culprit))


def stopped(failure: Failure, gang: Gang, spec: TaskSpec) -> Failure:
    """Why processes were stopped, with where they were then; one that did not wait for others is named."""
    stacks = stacks_of((member for member in gang.members if not member.returned), spec)
    where = places(stacks, [member.number for member in gang.members if member.returned])
    if not where or failure.reason not in ("timeout", "hang"):
        return failure
    one = _suspect(stacks, of=len(gang.members))
    rank = one.rank if one is not None and failure.rank is None else failure.rank
    return attrs.evolve(
        failure,
        message=failure.message if failure.reason == "hang" else f"{failure.message}; {where}",
        where=failure.where or (one.where if one is not None else _common(stacks)),
        rank=rank,
        node=_host(gang, rank),
    )


def places(stacks: Iterable[Stack], returned: Iterable[int] = ()) -> str:
    """Where processes are, in words, and which of them have returned."""
    gone = list(returned)
    verb = "has" if len(gone) == 1 else "have"
    return ", ".join(
        part
        for part in (f"{listed(gone)} {verb} returned" if gone else "", whereabouts(list(stacks)))
        if part
    )


def stacks_of(members: Iterable[Member], spec: TaskSpec) -> list[Stack]:
    """Where processes were when they were asked last, or stopped, or why they did not say it when asked."""
    known = {member.number: member for member in members}
    found = answers_of(known.values(), spec)
    found |= _answers({rank: member.spied for rank, member in known.items()}, spec)
    stacks = {rank: one.stack for rank, one in found.items()}
    for rank, member in known.items():
        said = stacks.get(rank)
        if member.asked and (said is None or member.state in HALTED):  # what it said, it said later
            why = f"process {member.pid} {_STATES.get(member.state, 'does not say where it is')}"
            if member.unheard:  # its supervisor does not answer
                why = f"nothing comes from {member.unheard}"
            stacks[rank] = attrs.evolve(said or Stack(rank=rank), silent=why)
    return [stacks[rank] for rank in sorted(stacks)]


def answers_of(members: Iterable[Member], spec: TaskSpec) -> dict[int, StackAnswer]:
    """What processes wrote when they were asked last, by rank."""
    return _answers({member.number: member.sight()[1] for member in members}, spec)


def _answers(texts: Mapping[int, str], spec: TaskSpec) -> dict[int, StackAnswer]:
    project = spec.code.project
    folder = spec.cwd if spec.code.package is None else project
    texts = {rank: at_home(text, spec.code) for rank, text in texts.items()}
    found = {rank: answer(rank, text, project=project, relative_to=folder) for rank, text in texts.items()}
    return {rank: one for rank, one in found.items() if one is not None}


def _suspect(stacks: Sequence[Stack], *, of: int) -> Stack | None:
    """The one because of which the others wait: it does not answer, or waits for nobody; None: not known."""
    for suspects in (
        [stack for stack in stacks if stack.silent is not None],
        [stack for stack in stacks if not waits_for_others(stack)],
    ):
        if suspects:
            last = len(stacks) == 1 < of  # all others have returned
            return suspects[0] if last or len(suspects) < len(stacks) else None
    return None


def _common(stacks: Sequence[Stack]) -> str | None:
    """The place of the first one that is known."""
    return next((stack.where for stack in stacks if stack.where is not None), None)


def _host(gang: Gang, rank: int | None) -> str | None:
    return next((member.host for member in gang.members if member.number == rank), None)


def _tail(log: Path) -> str:
    """The end of a log of a process that crashed, in which C++ may have said why."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# -- causes that a supervisor names itself ----------------------------------------------------------

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def _exited(code: int) -> Failure:
    """The process ended by itself, with this exit code, before the step returned."""
    return Failure(
        reason="user-error",
        message=f"the step's process ended with exit code {code} before the step returned",
        fix="Something called os._exit(), or a library did; the end of the log may tell.",
    )


def _killed(number: int, stack: str | None) -> Failure:
    """A signal that Upshift did not send ended the process; ``stack`` is that of the user's code."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number in _FROM_OUTSIDE:
        return Failure(
            reason=STOPPED,
            message=f"the step's process was killed by {name}, which Upshift did not send",
            fix="The step itself, another process or an administrator did.",
        )
    return Failure(
        reason="user-error",
        message=f"the step's process was killed by {name}",
        traceback=stack,
        fix="A compiled library crashed, perhaps because of the values passed to it.",
    )


def stopped_from_outside(what: str, name: str, *, node: str | None = None) -> Failure:
    """Somebody else than Upshift has sent a signal of this name to the supervisor, which stopped the step."""
    message = f"{what} was stopped from outside ({name})"
    return Failure(reason=STOPPED, message=message, node=node)


def unavailable(error: BackendError) -> Failure:
    """The machine does not have what the processes need before they can start: a port."""
    return Failure(reason="infrastructure", message=error.in_short, fix=error.fix)


def not_started(error: OSError | UpshiftError) -> str:
    """Why there is no result of a task that could not be started."""
    why = error.in_short if isinstance(error, UpshiftError) else str(error)
    return f"the task could not be started: {why}"
