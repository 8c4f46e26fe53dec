"""The class of a flow as data, and the object that a running step sees as ``self``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from upshift.authoring.flow.parameters import Config, parameters_of
from upshift.authoring.flow.shape import shape_of
from upshift.authoring.steps import Step
from upshift.errors import location

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.flow.parameters import Parameter
    from upshift.authoring.options import PipelineOptions
    from upshift.model.graph import FlowShape, FlowStep
    from upshift.model.spec.task import Artifact
    from upshift.runtime.storage.manifest import State

OWN = "_upshift_"
"""What names begin with that are no artifacts."""
NOTHING = object()
"""The item of a step outside a foreach; None may be an item."""


class FlowClass:
    """What the class of a flow says: its parameters, constants and steps, and where these go."""

    flow: type[Flow]
    callee: Callee
    options: PipelineOptions
    marks: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Its name in the list of runs."""
        raise NotImplementedError

    @property
    def own(self) -> Mapping[str, Any]:
        """Attributes of the class and its bases but for Upshift's, the nearest ones; bases come first."""
        found: dict[str, Any] = {}
        for kind in reversed(self.flow.__mro__):
            if kind is not object and not _is_ours(kind):
                found.update(vars(kind))
        return found

    @functools.cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Its parameters, by attribute."""
        return {parameter.attribute: parameter for parameter in parameters_of(self.flow)}

    @functools.cached_property
    def steps(self) -> Mapping[str, Step[Any, Any]]:
        """Its steps, by the names of their methods."""
        return {name: value for name, value in self.own.items() if isinstance(value, Step)}

    @functools.cached_property
    def constants(self) -> Mapping[str, object]:
        """Attributes of the class that are plain values."""
        return {
            name: value
            for name, value in self.own.items()
            if not name.startswith("_")
            and not hasattr(value, "__get__")  # methods, properties, parameters, steps
            and not isinstance(value, (type, ModuleType))
        }

    @functools.cached_property
    def unchanging(self) -> frozenset[str]:
        """What no step changes: parameters and constants."""
        return frozenset((*self.parameters, *self.constants, *self.configs))

    @functools.cached_property
    def configs(self) -> Mapping[str, Config]:
        """Its configurations, by attribute."""
        return {name: value for name, value in self.own.items() if isinstance(value, Config)}

    @functools.cached_property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Its methods, steps or not."""
        plain = (value.callee.function if isinstance(value, Step) else value for value in self.own.values())
        return tuple(value for value in plain if inspect.isfunction(value))

    @functools.cached_property
    def shape(self) -> FlowShape:
        """Its steps and where they go.

        Raises
        ------
        GraphError
            It cannot run as it is written.
        """
        methods = {
            name: location(value.__code__.co_filename, value.__code__.co_firstlineno)
            for name, value in self.own.items()
            if inspect.isfunction(value)
        }
        base = next(kind for kind in self.flow.__mro__ if _is_ours(kind))
        return shape_of(
            self.name, self.steps, methods, self.callee.location, taken=functools.partial(hasattr, base)
        )


class Flow:
    """What a step sees as ``self``. Authors derive from :class:`~upshift.FlowSpec`."""

    __upshift_pipeline__: ClassVar[FlowClass]
    _upshift_running: RunningStep

    def _upshift_initialize(self) -> None:
        """Set what the class sets in an ``__init__`` of its own, as far as no step has set it since."""
        raise NotImplementedError


@attrs.frozen
class Level:
    """A foreach around a task: the step that has it, the item's position, the number of items.

    Nodes of a step with ``@parallel`` count as items, and as in Metaflow their number is None.
    """

    step: str
    index: int
    count: int | None


@attrs.define(eq=False)
class RunningStep:
    """What a running step goes on from, and what it says.

    Parameters
    ----------
    name, step
        The step, and where it goes.
    state
        The artifacts that it sees.
    stack
        The foreaches around it, from the outside in.
    unchanging
        Names that no step changes.
    initial
        What an ``__init__`` of its class has set.
    item
        What it works on of the innermost foreach, if that is at hand.
    """

    name: str
    step: FlowStep
    state: State
    stack: tuple[Level, ...]
    unchanging: frozenset[str]
    items: Sequence[Any] | None = None
    nodes: object = None
    choice: str | None = None
    went: bool = False
    initial: Mapping[str, object] = {}
    item: object = NOTHING

    def input(self, depth: int) -> Any:
        """The item of the foreach at this depth."""
        if depth == len(self.stack) - 1 and self.item is not NOTHING:
            return self.item
        return self.state[item_name(depth)]

    def inherit(self, artifacts: Mapping[str, Artifact]) -> None:
        """Add artifacts to those that the step sees."""
        self.state = self.state.replaced(artifacts={**self.state.artifacts, **artifacts})


def item_name(depth: int) -> str:
    """What a state has the item of a foreach as, from the outside in."""
    return f"@input.{depth}"


def artifacts_of(flow: Flow) -> dict[str, object]:
    """The artifacts that a running step has set or touched."""
    return {name: value for name, value in flow.__dict__.items() if not name.startswith(OWN)}


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("upshift.authoring.flow")
