"""How the processes of a launch ended: which of them is why, and where the others were."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from upshift.model.spec import Failure, Stack, TaskSpec
from upshift.runtime.launch import blame
from upshift.runtime.launch.stacks import StackAnswer, answer, listed, waits_for_others, whereabouts
from upshift.runtime.supervisor.ends import Ends
from upshift.runtime.supervisor.members import Gang, Member
from upshift.runtime.tracebacks import at_home

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
        gang = self._gang
        ends = [self._end_of(one, self.failure_of(one), at=at) for at, one in enumerate(gang.failed)]
        ends += [self._end_of(one, None, at=-1) for one in gang.members if one.returned]
        others = [one for one in gang.members if one not in gang.failed and not one.returned]
        late = (self._end_of(one, self.failure_of(one), at=math.inf) for one in others if one.outcome)
        # Those that failed before they were stopped, because they missed another one.
        ends += [end for end in late if blame.follows(end)]
        found = blame.cause(ends, stacks_of(others, self._spec))
        return found if found.node is not None else attrs.evolve(found, node=_host(gang, found.rank))

    def _end_of(self, member: Member, failure: Failure | None, at: float = 0.0) -> blame.End:
        """How it ended: it said so, or was killed, and what it printed in the end may tell, or exited."""
        end = blame.End(rank=member.number, node=member.host, at=at, failure=failure)
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
