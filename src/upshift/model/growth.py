"""Graphs that grow: what is known of a flow before it runs, and the nodes that follow from what steps did.

A flow says where it goes next in each step::

    start ──foreach──► train ──► join ──► end        a list that start makes; train has a task for each item
    start ──switch───► small | large ──► end         a name that start chooses
    start ──split────► a, b ──► join ──► end         always both

That is its :class:`~upshift.model.graph.FlowShape`. :class:`Growth` turns it into nodes, as many at once as
are certain: a split, and a foreach whose body has only linear steps and splits, which are mapped item by
item without a barrier. Where more depends on what a step does (which case it chooses, how many items there
are for a body of another kind), the nodes behind it are made when the step is done. Their names follow from
where they are, so that a resumed run comes to the same ones: ``inner.3`` is step ``inner`` in item 3 of the
foreach around it, ``inner.3.0`` one level deeper, ``body#2`` the second pass of a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from upshift.model.graph import (
    FOREACH,
    GANG,
    INPUTS,
    ITEM,
    ITEMS,
    LINEAR,
    SPLIT,
    STATE,
    STATES,
    SWITCH,
    Collection,
    Constant,
    FlowShape,
    FromStep,
    Node,
    Source,
)
from upshift.model.spec.task import Artifact


@attrs.define(eq=False)
class _Frame:
    """What has been split and is to be joined, and what has come to the join so far, by slot.

    Where ``mapped``, one node comes to it, which has one result for each item. ``before`` is the state that a
    foreach began with: of a list without items the join has nothing else to go on from.
    """

    thread: _Thread
    join: str
    slots: int
    mapped: bool = False
    output: str = "output"
    before: FromStep | None = None
    arrived: dict[int, FromStep] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class _Thread:
    """Where in a flow something is made: within which split, in which items, and whether it is mapped."""

    frame: _Frame | None = None
    slot: int = 0
    path: tuple[int, ...] = ()
    mapped: bool = False


_Begun = tuple[str, Mapping[str, Source], _Thread]
"""A step that something has come to, what it gets, and where."""


class Growth:
    """The nodes of a flow, made as they become certain.

    Parameters
    ----------
    shape
        The flow.
    parameters
        The state that its first step goes on from.
    """

    def __init__(self, shape: FlowShape, parameters: Source) -> None:
        self._shape = shape
        self._parameters = parameters
        self._behind: dict[str, tuple[str, _Thread]] = {}
        self._names: Counter[str] = Counter()

    def first(self) -> tuple[Node, ...]:
        """The nodes that are certain before anything has run."""
        return self._made_from([(next(iter(self._shape.steps)), {STATE: self._parameters}, _Thread())])

    def grows(self, node: str) -> bool:
        """Whether more nodes follow from what this one does."""
        return node in self._behind

    def after(
        self, node: str, *, choice: str | None = None, items: Sequence[Artifact] = ()
    ) -> tuple[Node, ...]:
        """The nodes that are certain once a node is done that the graph grows behind.

        Parameters
        ----------
        node
            Its name.
        choice
            The case that it chose, if it is a switch.
        items
            The items of its list, if it has a foreach.
        """
        name, thread = self._behind.pop(node)
        step, state = self._shape.steps[name], FromStep(node=node)
        if step.kind == SWITCH:
            assert choice in step.then
            return self._made_from([(choice, {STATE: state}, thread)])
        frame = _Frame(thread, self._shape.joins[name], len(items), before=state)
        begun: list[_Begun] = []
        for index, item in enumerate(items):
            inside = _Thread(frame, index, (*thread.path, index))
            begun.append((step.then[0], {STATE: state, ITEM: Constant(artifact=item)}, inside))
        return self._made_from(begun or [(frame.join, _joined(frame), thread)])

    def _made_from(self, begun: list[_Begun]) -> tuple[Node, ...]:
        """Make these nodes and all that is certain behind them, in the order of the flow."""
        made: list[Node] = []
        pending = begun[::-1]
        while pending:
            name, inputs, thread = pending.pop()
            frame = thread.frame
            if frame is not None and name == frame.join:
                (source,) = (s for s in inputs.values() if isinstance(s, FromStep))
                frame.arrived[thread.slot] = attrs.evolve(source, output=frame.output)
                if len(frame.arrived) < frame.slots:
                    continue
                inputs, thread = _joined(frame), frame.thread
            node = self._node(name, inputs, thread)
            made.append(node)
            pending.extend(reversed(list(self._behind_node(name, node, thread))))
        return tuple(made)

    def _node(self, step: str, inputs: Mapping[str, Source], thread: _Thread) -> Node:
        name = ".".join((step, *map(str, thread.path)))
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}#{self._names[name]}"
        over: tuple[str, ...] = ()
        if thread.mapped:
            over = (ITEM,) if ITEM in inputs else tuple(inputs)
        by_item = (ITEMS,) if self._shape.steps[step].kind == FOREACH else ()
        if thread.frame is not None and thread.frame.output == STATES:
            by_item = (STATES,)
        location = self._shape.steps[step].location
        return Node(name=name, step=step, inputs=inputs, over=over, by_item=by_item, location=location)

    def _behind_node(self, name: str, node: Node, thread: _Thread) -> Iterator[_Begun]:
        step, state = self._shape.steps[name], FromStep(node=node.name)
        if step.kind == LINEAR:
            yield step.then[0], {STATE: state}, thread
        elif step.kind == SPLIT:
            frame = _Frame(thread, self._shape.joins[name], len(step.then))
            for slot, following in enumerate(step.then):
                yield following, {STATE: state}, attrs.evolve(thread, frame=frame, slot=slot)
        elif step.kind == FOREACH and name not in self._shape.open_ended:
            frame = _Frame(thread, self._shape.joins[name], 1, mapped=True, before=state)
            item = FromStep(node=node.name, output=ITEMS)
            yield step.then[0], {STATE: state, ITEM: item}, _Thread(frame, 0, thread.path, mapped=True)
        elif step.kind == GANG:
            frame = _Frame(thread, self._shape.joins[name], 1, mapped=True, output=STATES)
            yield step.then[0], {STATE: state}, attrs.evolve(thread, frame=frame, slot=0)
        elif step.kind in (FOREACH, SWITCH):
            self._behind[node.name] = (name, thread)


def _joined(frame: _Frame) -> Mapping[str, Source]:
    """What a join gets: all that has come to it, in order; in a mapped body, that of its own item."""
    sources = [frame.arrived[slot] for slot in range(frame.slots)]
    if frame.thread.mapped:
        return {f"{INPUTS}_{slot}": source for slot, source in enumerate(sources)}
    joined = {INPUTS: sources[0] if frame.mapped else Collection(items=tuple(sources))}
    return joined if frame.before is None else {STATE: frame.before, **joined}
