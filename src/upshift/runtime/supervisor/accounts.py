"""What the processes of an attempt were granted, found and used, on all of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upshift.model.spec import Failure, Hardware
from upshift.runtime.forms import Seen
from upshift.runtime.launch import numa
from upshift.runtime.proc import Consumed
from upshift.runtime.supervisor.gang import Gang
from upshift.runtime.supervisor.member import Member
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

    def used(self, seconds: float) -> Hardware:
        """The record ``used``, of so many seconds."""
        own = self._site.used(seconds=seconds, consumed=self._consumed(0), peak=self._peak(0))
        if self._nodes is None:
            return own
        return self._nodes.used(own, seconds, consumed=self._consumed, peak=self._peak)

    def _on(self, node: int) -> list[Member]:
        return [one for one in self._gang.members if one.rank is None or one.rank.node == node]

    def _consumed(self, node: int) -> Consumed:
        """What processes have consumed, as the kernel tells at their end, or they at that of the call."""
        return Consumed.sum(
            one.consumed if one.ended or one.outcome is None else one.outcome.consumed
            for one in self._on(node)
        )

    def _peak(self, node: int) -> int | None:
        """Bytes of memory at most, as the processes of a node saw it themselves."""
        peaks = [one.outcome.peak for one in self._on(node) if one.outcome and one.outcome.peak is not None]
        return sum(peaks) if peaks else None


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
