"""Why a task of several processes failed, and where each of them was."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from upshift.model.spec import Failure, Stack, TaskSpec
from upshift.runtime.launch import blame
from upshift.runtime.launch.stacks import Answer, answer, waits_for_others
from upshift.runtime.launch.whereabouts import listed, whereabouts
from upshift.runtime.supervisor.gang import Gang
from upshift.runtime.supervisor.member import Member
from upshift.runtime.usercode.packaged import at_home

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


def end_of(member: Member, failure: Failure | None, log: Path, at: float = 0.0) -> blame.End:
    """How a process ended: it said so, or was killed, and what it printed in the end may tell, or exited.

    Parameters
    ----------
    failure
        Why it failed; None: it returned.
    log
        The file of what it prints.
    at
        When: in whatever all have in common.
    """
    end = blame.End(rank=member.number, node=member.host, at=at, failure=failure)
    if member.outcome is not None:
        return attrs.evolve(end, exit_code=member.outcome.exit_code)
    if member.code is not None and member.code < 0:
        return attrs.evolve(end, log=_tail(log))
    return attrs.evolve(end, exit_code=member.code)


def cause(
    gang: Gang, spec: TaskSpec, *, failure_of: Callable[[Member], Failure], log_of: Callable[[int], Path]
) -> Failure:
    """Why the processes of a task failed that nobody has stopped, with the rank and node where that began.

    Parameters
    ----------
    failure_of
        Why one of them failed.
    log_of
        The file of what a rank prints.
    """
    ends = [
        end_of(member, failure_of(member), log_of(member.number), at=number)
        for number, member in enumerate(gang.failed)
    ]
    ends += [end_of(member, None, log_of(member.number), at=-1) for member in gang.members if member.returned]
    others = [member for member in gang.members if member not in gang.failed and not member.returned]
    told = [member for member in others if member.outcome is not None]
    late = [end_of(member, failure_of(member), log_of(member.number), at=math.inf) for member in told]
    ends += [end for end in late if blame.follows(end)]  # they missed the culprit before they were stopped
    found = blame.cause(ends, stacks_of(others, spec))
    if found.node is None:
        found = attrs.evolve(found, node=_host(gang, found.rank))
    return found


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


def answers_of(members: Iterable[Member], spec: TaskSpec) -> dict[int, Answer]:
    """What processes wrote when they were asked last, by rank."""
    return _answers({member.number: member.sight()[1] for member in members}, spec)


def _answers(texts: Mapping[int, str], spec: TaskSpec) -> dict[int, Answer]:
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
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
