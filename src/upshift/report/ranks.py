"""The processes of a step in a person's words: how many there are, and which one failed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from upshift.runtime.launch.whereabouts import listed as ranks_listed
from upshift.runtime.launch.whereabouts import whereabouts

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Hardware
    from upshift.model.spec.launch import Stack
    from upshift.model.spec.task import Failure


def processes(hardware: Hardware | None) -> int | None:
    """How many a record tells of: of what was asked or granted by number, of what was seen each by itself."""
    if hardware is None:
        return None
    if hardware.processes is not None:
        return hardware.processes
    seen = hardware.details.get("ranks")
    return len(seen) if isinstance(seen, Sequence) and seen else None


def many(hardware: Hardware | None) -> str:
    """``4 processes``, ``8 processes on 2 nodes``; empty where it is an ordinary step, of one."""
    number = processes(hardware)
    if number is None:
        return ""
    nodes = hardware.nodes if hardware is not None else None
    where = f" on {nodes} nodes" if nodes is not None and nodes > 1 else ""
    return f"{number:,} process{'' if number == 1 else 'es'}{where}"


def on_rank(failure: Failure) -> str:
    """`` on rank 3``, and of another host its name; empty where it is not one of several that failed."""
    if failure.rank is None:
        return ""
    other = failure.node is not None and failure.node != os.uname().nodename
    return f" on rank {failure.rank}" + (f", node {failure.node}" if other else "")


def elsewhere(failure: Failure, stacks: Sequence[Stack]) -> str:
    """Where the ranks were whose place is neither in the failure's message nor in its traceback."""
    told = failure.rank if failure.traceback else None
    text = whereabouts([stack for stack in stacks if stack.rank != told])
    return "" if text in failure.message else text


def together(stacks: Iterable[Stack]) -> list[tuple[str, str]]:
    """Stacks as they are read: where the ranks are, in words, and the text; those that are equal once."""
    alike: dict[tuple[str | None, str | None, str], list[Stack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        alike.setdefault((stack.waits, stack.where, stack.text.strip()), []).append(stack)
    return [
        (whereabouts(same) or ranks_listed(stack.rank for stack in same), text)
        for (_, _, text), same in alike.items()
    ]


def worth_a_look(failure: Failure, stacks: Sequence[Stack]) -> bool:
    """Whether the stacks say more of a failure than it says itself: an exception has a traceback."""
    return bool(stacks) and failure.traceback is None


def listed(numbers: Iterable[int]) -> str:
    """Numbers as Linux lists CPUs: ``0-3,6``."""
    parts: list[list[int]] = []
    for item in sorted(numbers):
        if parts and item == parts[-1][-1] + 1:
            parts[-1][1:] = [item]
        else:
            parts.append([item])
    return ",".join("-".join(map(str, part)) for part in parts)
