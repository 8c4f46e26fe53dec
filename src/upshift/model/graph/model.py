"""The graph: what authoring produces and the engine walks. Plain data, no user objects inside.

A :class:`StepDefinition` says what a step is; a :class:`Node` is one use of it in the pipeline. A
pipeline that calls ``add`` a thousand times has one definition and a thousand nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Union

import attrs

from upshift.model.graph.flow import FlowShape
from upshift.model.settings.step import StepSettings
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.launch import Launch
from upshift.model.spec.task import EntryPoint

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
        What more nodes follow from, as the run goes on: see :mod:`upshift.model.graph.growth`. None: none do.
    sources
        Size, time in nanoseconds and digest of the source files that were looked at, by path. They are
        recorded apart from the graph: see :mod:`upshift.runtime.storage.edits`.
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
