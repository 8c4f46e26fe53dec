"""The shape of a flow: its steps, and where each of them goes, as far as its source says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import attrs

LINEAR, SPLIT, FOREACH, SWITCH, GANG, END = "linear", "split", "foreach", "switch", "gang", "end"


def task_id(node: str, index: int | None) -> str:
    """What tells a task from the others of its step: ``0``, ``3.2`` in two foreaches, ``0#2`` in a loop."""
    place, _, again = node.partition("#")
    path = [*place.split(".")[1:], *([] if index is None else [str(index)])] or ["0"]
    return ".".join(path) + (f"#{again}" if again else "")


@attrs.frozen(kw_only=True)
class FlowStep:
    """A step of a flow, and where it goes.

    Parameters
    ----------
    kind
        How it continues: :data:`LINEAR`, :data:`SPLIT`, :data:`FOREACH`, :data:`SWITCH`, :data:`GANG` (the
        step that follows is one task of several processes, and is followed by its join), or :data:`END`.
    then
        The steps that follow; of a switch all that may.
    join
        Whether it joins what an earlier step has split.
    location
        Its ``def``, as ``file:line``.
    """

    kind: str
    then: tuple[str, ...] = ()
    join: bool = False
    location: str | None = None


@attrs.frozen(kw_only=True)
class FlowShape:
    """The steps of a flow by name, the first one first."""

    steps: Mapping[str, FlowStep] = attrs.field(factory=dict)

    @cached_property
    def joins(self) -> Mapping[str, str]:
        """For each step that splits, the step that joins what it has split."""
        found: dict[str, str] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        pending: list[tuple[str, tuple[str, ...]]] = [(next(iter(self.steps)), ())]
        while pending:
            name, open_splits = pending.pop()
            if (name, open_splits) in seen:
                continue
            seen.add((name, open_splits))
            step = self.steps[name]
            if step.join and open_splits:
                found[open_splits[-1]] = name
                open_splits = open_splits[:-1]
            if step.kind in (SPLIT, FOREACH, GANG):
                open_splits = (*open_splits, name)
            pending.extend((following, open_splits) for following in step.then)
        return found

    @cached_property
    def open_ended(self) -> frozenset[str]:
        """The steps with a foreach whose nodes cannot be told before its list is there."""
        return frozenset(
            name
            for name, step in self.steps.items()
            if step.kind == FOREACH
            and any(self.steps[inner].kind in (FOREACH, SWITCH, GANG) for inner in self._body(name))
        )

    def _body(self, name: str) -> set[str]:
        """The steps between a split and its join."""
        last, found, pending = self.joins.get(name), set[str](), list(self.steps[name].then)
        while pending:
            step = pending.pop()
            if step != last and step not in found:
                found.add(step)
                pending.extend(self.steps[step].then)
        return found
