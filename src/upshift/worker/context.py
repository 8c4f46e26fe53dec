"""``upshift.current``: what a running step can ask about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from upshift.spec.hardware import Hardware
from upshift.spec.task import TaskSpec

if TYPE_CHECKING:
    from upshift.worker.cards import Cards


@attrs.frozen(kw_only=True)
class Current:
    """The task that this process works for. Outside a step every field is at its default.

    Parameters
    ----------
    run, pipeline, step
        Names; None outside a step.
    index
        Position in a mapped step; None where the step is not mapped.
    attempt
        From 1; 0 outside a step.
    rank
        Number of this process among those that work for the task, from 0.
    world_size
        How many work for the task together.
    granted
        The hardware that was reserved.
    """

    run: str | None = None
    pipeline: str | None = None
    step: str | None = None
    index: int | None = None
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    granted: Hardware | None = None


_NOWHERE = Current()


class CurrentTask:
    """Reads like a :class:`Current`, always that of this very process."""

    def __init__(self) -> None:
        self._value = _NOWHERE

    def __getattr__(self, name: str) -> object:
        return getattr(self._value, name)

    def __bool__(self) -> bool:
        """Whether this process runs a step."""
        return self._value is not _NOWHERE

    def __repr__(self) -> str:
        return repr(self._value)

    @property
    def card(self) -> Cards:
        """What the step has to show in the report: ``upshift.current.card.append(figure)``."""
        from upshift.worker.cards import cards

        return cards

    def leave(self) -> None:
        """This process works for no task any more."""
        self._value = _NOWHERE

    def enter(self, spec: TaskSpec) -> None:
        """From now on this process works for the task of ``spec``."""
        self._value = Current(
            run=spec.task.run,
            pipeline=spec.pipeline,
            step=spec.task.step,
            index=spec.task.index,
            attempt=spec.attempt,
            granted=spec.granted,
        )


current = CurrentTask()
"""What a running step can ask about itself: reads like a :class:`Current`. False outside a step."""
