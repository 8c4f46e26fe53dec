"""What the processes of an attempt were granted, found and used, on all of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec import Failure, Hardware
from upshift.runtime.forms import Seen
from upshift.runtime.launch import numa
from upshift.runtime.proc import Consumed
from upshift.runtime.supervisor.gang import Gang
from upshift.runtime.supervisor.member import LocalMember, Member
from upshift.runtime.supervisor.seen import Sights
from upshift.runtime.supervisor.site import Site

if TYPE_CHECKING:
    from upshift.runtime.supervisor.several.nodes import Nodes


class Accounts:
    """The records of an attempt.

    Parameters
    ----------
    gang
        Its processes.
    site, nodes
        What it has on this node, and the further ones; None: there are none.
    """

    def __init__(self, gang: Gang, site: Site, nodes: Nodes | None) -> None:
        self._gang = gang
        self._site = site
        self._nodes = nodes

    def verdict(self) -> Failure | None:
        """The failure, if the step went beyond its memory on a node."""
        own = self._site.verdict(self._peak(0))
        return own if own is not None or self._nodes is None else self._nodes.verdict

    def granted(self) -> Hardware | None:
        """The record ``granted``."""
        own = self._site.granted()
        return own if self._nodes is None else self._nodes.granted(own)

    def seen(self, sights: Sights, host: Mapping[str, Any], *, by_rank: bool) -> Hardware | None:
        """The record ``seen``; None: the processes were killed before they looked.

        Parameters
        ----------
        sights
            What was found beside what the processes say.
        host
            What is known of this machine.
        by_rank
            Whether to say what each of the processes has found.
        """
        found = [seen for member in self._on(0) if (seen := member.sight()[0]) is not None]
        if not found:
            return None
        details = {**host, "pid": self._gang.main.pid}
        if by_rank:
            details["ranks"] = [_seen_by(member) for member in self._gang.members]
        record = sights.record(cpu_count=_cpus(found), memory=found[0].memory, details=details)
        return record if self._nodes is None else self._nodes.seen(record)

    def used(self, seconds: float, *, by_rank: bool) -> Hardware:
        """The record ``used``, of so many seconds."""
        record = self._site.used(seconds=seconds, consumed=self._consumed(0), peak=self._peak(0))
        if self._nodes is not None:
            record = self._nodes.used(record, seconds, consumed=self._consumed, peak=self._peak)
        if not by_rank:
            return record
        ranks = [self._used_by(member) for member in self._gang.members]
        return attrs.evolve(record, details={**record.details, "ranks": ranks})

    def _used_by(self, member: Member) -> dict[str, Any]:
        told = member.outcome.peak if member.outcome is not None else None
        seen = self._site.peak_of(member.pid) if isinstance(member, LocalMember) else None
        return {
            "rank": member.number,
            "cpu_seconds": round(_consumed_by(member).cpu_seconds, 6) or None,  # 0: its node was lost
            "memory_peak": max((peak for peak in (told, seen) if peak is not None), default=None),
        }

    def _on(self, node: int) -> list[Member]:
        return [one for one in self._gang.members if one.rank is None or one.rank.node == node]

    def _consumed(self, node: int) -> Consumed:
        return Consumed.sum(_consumed_by(one) for one in self._on(node))

    def _peak(self, node: int) -> int | None:
        """Bytes of memory at most, as the processes of a node saw it themselves."""
        peaks = [one.outcome.peak for one in self._on(node) if one.outcome and one.outcome.peak is not None]
        return sum(peaks) if peaks else None


def _consumed_by(member: Member) -> Consumed:
    """What a process has consumed, as the kernel tells at its end, or itself at that of the call."""
    return member.consumed if member.ended or member.outcome is None else member.outcome.consumed


def _cpus(found: Sequence[Seen]) -> int:
    """How many CPUs processes find together: each may have been placed on some of them."""
    sets = [set(numa.numbers(seen.cpus or "")) for seen in found]
    if all(seen.cpu_count == len(cpus) for seen, cpus in zip(found, sets, strict=True)):
        return len(set().union(*sets))
    return max(seen.cpu_count for seen in found)  # one that is by itself, or a quota, which is all they have


def _seen_by(member: Member) -> dict[str, Any]:
    seen, _ = member.sight()
    found = {"rank": member.number, "host": member.host, "pid": member.pid}
    if member.rank is not None:
        found |= {"node": member.rank.node, "local_rank": member.rank.local_rank}
    return found | {
        "world_size": None if seen is None else seen.world_size,
        "group": None if member.outcome is None else member.outcome.group,
        "device": None if seen is None else seen.device,
        "cpus": None if seen is None else seen.cpus,
        "returned": member.returned,
    }
