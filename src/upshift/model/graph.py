"""The graph: what authoring produces and the engine walks. Plain data, no user objects inside.

A :class:`StepDefinition` says what a step is; a :class:`Node` is one use of it in the pipeline. A
pipeline that calls ``add`` a thousand times has one definition and a thousand nodes. Of a flow, the nodes
that are not certain yet follow from its :class:`FlowShape` (:mod:`upshift.model.growth`).

Four kinds of source can be mapped over (:func:`expansion`):

================================  =====================================  =======================
source                            its length is known                    item *i* is
================================  =====================================  =======================
a collection                      when the pipeline is composed          its *i*-th source
a constant saved by item          when the pipeline is composed          the *i*-th saved item
an output of a mapped node        as soon as that node's is              the output of task *i*
an output of a node of one task   when the task is done                  the *i*-th saved item
================================  =====================================  =======================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Union

import attrs

from upshift.errors import GraphError
from upshift.model.settings.step import StepSettings
from upshift.model.spec.hardware import Launch
from upshift.model.spec.task import Artifact, EntryPoint

VERSION = 1


@attrs.frozen(kw_only=True)
class Constant:
    """A plain value, known when the pipeline is composed."""

    kind: ClassVar[str] = "constant"

    artifact: Artifact


@attrs.frozen(kw_only=True)
class FromStep:
    """An output of another node; of a mapped node the list of its tasks' outputs, in order."""

    kind: ClassVar[str] = "step"

    node: str
    output: str = "output"


@attrs.frozen(kw_only=True)
class Collection:
    """A list, tuple or dictionary whose items are sources themselves."""

    kind: ClassVar[str] = "collection"

    form: str = "list"
    items: tuple[Source, ...] = ()
    keys: tuple[str, ...] = ()


Source = Union[Constant, FromStep, Collection]
"""Where an input, or a pipeline's output, comes from."""


@attrs.frozen(kw_only=True)
class StepDefinition:
    """What a step is.

    Parameters
    ----------
    entry
        What to call.
    outputs
        Names of the outputs, in order.
    settings
        What it was told, settings of step and pipeline merged.
    launch
        How many processes it has, and how they are started.
    environment
        Environment variables of the step.
    image
        Digest of the recipe of the image that it runs in; None: not known yet, or its place runs none.
    code
        Fingerprint of the code that the step reaches: name to digest.
    location
        The step's ``def``, as ``file:line``.
    """

    entry: EntryPoint
    outputs: tuple[str, ...] = ("output",)
    settings: StepSettings = attrs.field(factory=StepSettings)
    launch: Launch | None = None
    environment: Mapping[str, str] = attrs.field(factory=dict)
    image: str | None = None
    code: Mapping[str, str] = attrs.field(factory=dict)
    location: str | None = None


@attrs.frozen(kw_only=True)
class Node:
    """One use of a step in a pipeline.

    Parameters
    ----------
    name
        Unique in the graph: ``add``, ``add_2``, ….
    step
        Name of its definition.
    inputs
        Where each input comes from, by parameter.
    over
        Parameters that are mapped; empty: the node is one task.
    after
        Nodes that end before this one starts, without data between them.
    when
        A boolean output: the node runs only if it is true, else it and what needs it are skipped.
    by_item
        Outputs that other nodes are mapped over.
    location
        The call, as ``file:line``.
    """

    name: str
    step: str
    inputs: Mapping[str, Source] = attrs.field(factory=dict)
    over: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    when: FromStep | None = None
    by_item: tuple[str, ...] = ()
    location: str | None = None

    @property
    def mapped(self) -> bool:
        """Whether the node has one task for each item."""
        return bool(self.over)


@attrs.frozen(kw_only=True)
class Graph:
    """A pipeline, ready to run.

    Parameters
    ----------
    pipeline
        Its name.
    steps
        Definitions, by name.
    nodes
        In an order in which each comes after what it needs.
    output
        The pipeline's return value; None: it returned nothing.
    params
        The pipeline's parameters.
    texts
        Those parameters that their records do not tell, and defaults that are not saved: in words, or in
        the form of :mod:`upshift.model.plain`.
    flow
        What more nodes follow from, as the run goes on: see :mod:`upshift.model.growth`. None: none do.
    sources
        Size, time in nanoseconds and digest of the source files that were looked at, by path. They are
        recorded apart from the graph: see :mod:`upshift.runtime.usercode`.
    """

    pipeline: str
    steps: Mapping[str, StepDefinition] = attrs.field(factory=dict)
    nodes: tuple[Node, ...] = ()
    output: Source | None = None
    params: Mapping[str, Artifact] = attrs.field(factory=dict)
    texts: Mapping[str, Any] = attrs.field(factory=dict)
    sources: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict)
    flow: FlowShape | None = None
    version: int = VERSION

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the definitions that its nodes use, and of those that nodes to come may use."""
        to_come = self.flow.steps if self.flow is not None else ()
        return tuple(dict.fromkeys((*(node.step for node in self.nodes), *to_come)))

    @property
    def reuses_nothing(self) -> bool:
        """Whether it is a flow of which no step asks for reuse; a flow does not do so by itself."""
        return self.flow is not None and not any(step.settings.reusable for step in self.steps.values())

    def definition(self, node: Node) -> StepDefinition:
        """The definition of a node's step."""
        return self.steps[node.step]


LINEAR, SPLIT, FOREACH, SWITCH, GANG, END = "linear", "split", "foreach", "switch", "gang", "end"
"""How a step of a flow continues."""
STATE, ITEM, INPUTS = "state", "item", "inputs"
"""What a step gets: the state that it continues from, its item of a foreach, the states that it joins.

A step that joins a foreach gets as ``state`` the one that the foreach began with.
"""
CHOICE, ITEMS, STATES = "choice", "items", "states"
"""Outputs beside the state: the case of a switch, the list of a foreach, the states of a gang's processes."""


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


def references(source: Source | None) -> Iterator[FromStep]:
    """Every output of a node that a source is made of, in order."""
    pending = [source]
    while pending:
        current = pending.pop()
        if isinstance(current, FromStep):
            yield current
        elif isinstance(current, Collection):
            pending.extend(reversed(current.items))


def taken_by(node: Node) -> dict[str, Source]:
    """The inputs of a node, but for the state of the split, which a join of a flow comes after anyway."""
    joins = any(name.startswith(INPUTS) for name in node.inputs)
    return {name: source for name, source in node.inputs.items() if not (joins and name == STATE)}


def needs(node: Node) -> frozenset[str]:
    """Names of the nodes that have to end before ``node``: through data, ``after`` or ``when``."""
    names = {r.node for source in taken_by(node).values() for r in references(source)}
    names.update(node.after)
    if node.when is not None:
        names.add(node.when.node)
    return frozenset(names)


def ordered(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes in an order in which each comes after what it needs; otherwise as they were given.

    Raises
    ------
    GraphError
        Two nodes share a name, a node needs one that is not there, or the nodes form a cycle.
    """
    by_name: dict[str, Node] = {}
    for node in nodes:
        if node.name in by_name:
            raise GraphError(f"two nodes are named {node.name!r}", where=node.location)
        by_name[node.name] = node
    required = {name: needs(node) for name, node in by_name.items()}
    for name, names in required.items():
        unknown = sorted(needed for needed in names if needed not in by_name)
        if unknown:
            raise GraphError(
                f"{name} needs {unknown[0]}, which is not in the pipeline", where=by_name[name].location
            )
    done: set[str] = set()
    result: list[Node] = []
    for name in by_name:
        if name not in done:
            _visit(name, by_name, required, done, result)
    return tuple(result)


def _visit(
    start: str,
    by_name: Mapping[str, Node],
    required: Mapping[str, frozenset[str]],
    done: set[str],
    result: list[Node],
) -> None:
    # An explicit stack: a chain of 100,000 nodes is deeper than Python's own.
    path: dict[str, Iterator[str]] = {start: iter(sorted(required[start]))}
    while path:
        name = next(reversed(path))
        for needed in path[name]:
            if needed in path:
                cycle = [*list(path)[list(path).index(needed) :], needed]
                raise GraphError(
                    "these steps wait for each other: " + " needs ".join(cycle),
                    where=by_name[name].location,
                    fix="Take one of these dependencies (data, .after or .when) away.",
                )
            if needed not in done:
                path[needed] = iter(sorted(required[needed]))
                break
        else:
            del path[name]
            done.add(name)
            result.append(by_name[name])


def remaining_path(nodes: Sequence[Node]) -> dict[str, int]:
    """Nodes on the longest path from each node to an end of the graph, itself included.

    Parameters
    ----------
    nodes
        In an order in which each comes after what it needs. What is not among them does not count.
    """
    longest = {node.name: 1 for node in nodes}
    for node in reversed(nodes):
        ahead = longest[node.name] + 1
        for name in needs(node):
            if longest.get(name, ahead) < ahead:
                longest[name] = ahead
    return longest


@attrs.frozen(kw_only=True)
class Expansion:
    """What a node waits for, told apart by what each thing holds up.

    Parameters
    ----------
    gates
        Nodes that hold up every task until they end.
    lists
        Mapped parameters whose list is an artifact that was saved by item, each with its source.
    peers
        Mapped nodes that are followed item by item.
    static
        Mapped parameters that are collections, each with its items.
    """

    gates: frozenset[str]
    lists: Mapping[str, Constant | FromStep]
    peers: tuple[str, ...]
    static: Mapping[str, tuple[Source, ...]]


def expansion(node: Node, named: Callable[[str], Node]) -> Expansion:
    """What ``node`` waits for, in a graph whose nodes ``named`` gives.

    Raises
    ------
    GraphError
        The node is mapped over something that has no items.
    """
    gates = set(node.after)
    if node.when is not None:
        gates.add(node.when.node)
    lists: dict[str, Constant | FromStep] = {}
    peers: dict[str, None] = {}
    static: dict[str, tuple[Source, ...]] = {}
    for parameter, source in node.inputs.items():
        if parameter not in node.over:
            gates.update(reference.node for reference in references(source))
        elif isinstance(source, Collection) and source.form != "dict":
            static[parameter] = source.items
        elif isinstance(source, FromStep) and named(source.node).mapped:
            peers[source.node] = None
        elif isinstance(source, FromStep):
            lists[parameter] = source
            gates.add(source.node)
        elif isinstance(source, Constant) and source.artifact.items is not None:
            lists[parameter] = source
        else:
            raise GraphError(
                f"{node.name} is mapped over {parameter}, which is not a list",
                where=node.location,
                fix="Give a list, a tuple or the result of a step, or wrap the value in unmapped(…).",
            )
    missing = [parameter for parameter in node.over if parameter not in node.inputs]
    if missing:
        raise GraphError(
            f"{node.name} is mapped over {missing[0]}, which it does not get", where=node.location
        )
    return Expansion(gates=frozenset(gates), lists=lists, peers=tuple(peers), static=static)
