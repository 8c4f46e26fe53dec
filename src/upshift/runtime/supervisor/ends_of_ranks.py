"""How the processes of a launch ended: which of them is why, and where the others were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from upshift.model.spec import Failure, Stack
from upshift.runtime.launch import blame
from upshift.runtime.launch.whereabouts import listed
from upshift.runtime.supervisor import verdicts
from upshift.runtime.supervisor.ends import Ends
from upshift.runtime.supervisor.member import Member


class EndsOfRanks(Ends):
    """Of the processes of a launch."""

    def follows(self, member: Member) -> bool:
        return blame.follows(verdicts.end_of(member, self.failure_of(member), self._log_of(member.number)))

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
        stacks = verdicts.stacks_of(left, self._spec)
        died = {one.number for one in self._gang.failed}  # one may have been asked in its last moment
        return [stack for stack in stacks if stack.silent is None or stack.rank not in died]

    def _cause(self) -> Failure:
        return verdicts.cause(self._gang, self._spec, failure_of=self.failure_of, log_of=self._log_of)

    def _stopped(self, failure: Failure) -> Failure:
        return verdicts.stopped(failure, self._gang, self._spec)

    def _beyond(self, failure: Failure) -> Failure:
        largest = self._site.largest
        named = next((one for one in self._gang.members if one.pid == largest), self._gang.culprit)
        return attrs.evolve(failure, rank=named.number, node=named.host)

    def _where(self, failure: Failure) -> str | None:
        """Its last line alone: that of the step would look as if it were the fault."""
        named = (one for one in self._gang.members if one.number == failure.rank)
        return self._last_line(next(named, self._gang.culprit))

    def _log_of(self, rank: int) -> Path:
        return self._store.rank_log_path(self._spec.task, self._spec.attempt, rank)
