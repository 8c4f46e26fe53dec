"""``upshift.current``: what a running step can ask about itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec.hardware import Hardware, Rank
from upshift.model.spec.task import TaskSpec

if TYPE_CHECKING:
    from upshift.runtime.step.cards import Cards
    from upshift.runtime.step.checkpoint import CurrentCheckpoint
    from upshift.runtime.storage.store import Store


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
_ELSEWHERE = {
    "flow_name": "pipeline",
    "node_index": "rank",
    "num_nodes": "world_size",
    "pipeline_name": "pipeline",
    "retry_count": "attempt, which counts from 1",
    "run_id": "run",
    "run_name": "run",
    "step_name": "step",
    "task_id": "index",
}
"""What other tools call its fields. In a step of a flow these names are there: see ``authoring/flow``."""


class CurrentTask:
    """Reads like a :class:`Current`, always that of this very process."""

    def __init__(self) -> None:
        self._value = _NOWHERE
        self._shares = False
        self._further: Callable[[], Mapping[str, Callable[[], object]]] | None = None
        self.store: Store | None = None
        self.spec: TaskSpec | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("rank", "world_size"):
            self._shares = True
        try:
            return getattr(self._value, name)
        except AttributeError:
            further = {} if self._further is None else self._further()
            if name in further:
                return further[name]()
            instead = _ELSEWHERE.get(name)
            hint = f"; here it is current.{instead}" if instead else ""
            raise AttributeError(f"upshift.current has no {name!r}{hint}") from None

    def __bool__(self) -> bool:
        """Whether this process runs a step."""
        return self._value is not _NOWHERE

    def __repr__(self) -> str:
        return repr(self._value)

    def get(self, name: str, default: Any = None) -> Any:
        """What it has by this name, or the default."""
        return getattr(self, name, default)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    @property
    def is_running_flow(self) -> bool:
        """Whether this process runs a step of a flow."""
        return self._further is not None

    @property
    def card(self) -> Cards:
        """What the step has to show in the report: ``upshift.current.card.append(figure)``."""
        from upshift.runtime.step.cards import cards

        return cards

    @property
    def checkpoint(self) -> CurrentCheckpoint:
        """What the step keeps between its attempts: ``with upshift.current.checkpoint.save() as folder:``.

        In a step of a flow that has ``@checkpoint`` it is Metaflow's: ``current.checkpoint.save()``.
        """
        further = {} if self._further is None else self._further()
        if "checkpoint" in further:
            return further["checkpoint"]()  # type: ignore[return-value]
        from upshift.runtime.step.checkpoint import checkpoint

        return checkpoint

    @property
    def stopping(self) -> bool:
        """Whether the step was told to end: by SIGTERM, of which it has the grace period left.

        A step that asks gets SIGTERM in this way, and has to end by itself, with an exception or a return.
        What it returns then is no result. False outside a step.
        """
        from upshift.runtime.step.stopping import stopping

        return stopping.asked()

    def shares(self) -> bool:
        """Whether the step has asked which of several processes this is: it shares its work out itself."""
        return self._shares

    def leave(self) -> None:
        """This process works for no task any more."""
        self._value, self._further, self.store, self.spec = _NOWHERE, None, None, None

    def know(self, further: Callable[[], Mapping[str, Callable[[], object]]]) -> None:
        """Have these names, too, as long as this process works for the task."""
        self._further = further

    def record(self) -> Mapping[str, Any]:
        """The record of the run in the store; empty where there is none."""
        import json

        found = None if self.store is None else self.store.read_record(str(self.run), "run.json")
        return {} if found is None else json.loads(found)

    def enter(self, spec: TaskSpec, rank: Rank | None = None, store: Store | None = None) -> None:
        """From now on this process works for the task of ``spec``, whose run has its records in ``store``."""
        self._shares = False
        self._further, self.store, self.spec = None, store, spec
        self._value = Current(
            run=spec.task.run,
            pipeline=spec.pipeline,
            step=spec.task.step,
            index=spec.task.index,
            attempt=spec.attempt,
            rank=rank.rank if rank else 0,
            world_size=rank.world_size if rank else 1,
            granted=spec.granted,
        )


class PlainCalls:
    """Calls of steps as functions, outside of a run: what the outermost of them has saved goes with it."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        module = sys.modules.get("upshift.runtime.step.checkpoint")
        if module is not None and not self._depth and not current:
            module.checkpoint.close()


plain_calls = PlainCalls()
"""Those of this process."""
current = CurrentTask()
"""What a running step can ask about itself: reads like a :class:`Current`. False outside a step."""
