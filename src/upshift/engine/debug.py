"""One step in this very process: ``--debug STEP`` in a run of all others, or a recorded attempt again.

What a replay computes is not recorded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.backends.base import Ask, Offer
from upshift.backends.inline import InlineBackend
from upshift.engine.offers import GrantPlan, short_of_processes
from upshift.engine.schedule import Demand
from upshift.engine.targets import OpenTarget
from upshift.engine.tasks import TaskState
from upshift.errors import NotFound, suggestion
from upshift.model.configuration import Target
from upshift.model.graph import Graph
from upshift.model.settings.secrets import read_secrets
from upshift.model.spec.codec import decode
from upshift.model.spec.task import Artifact, Code, TaskResult, TaskSpec
from upshift.runs.catalog.rows import AttemptRow, RunRow
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.store import Store, open_store

_TASK = re.compile(r"(?P<node>.+?)(?:\[(?P<index>\d+)\])?")


@attrs.frozen(kw_only=True)
class Debugged:
    """The tasks that are debugged, and what they get."""

    node: str  # node, index: the step in the pipeline, and which of its tasks; None: all of them
    index: int | None
    plan: GrantPlan

    def holds(self, task: TaskState) -> bool:
        """Whether this task runs under the debugger."""
        return task.node.node.name == self.node and self.index in (None, task.index)


def debugged(text: str, graph: Graph, *, store: str, inbox: SimpleQueue[Any]) -> Debugged:
    """What ``--debug TEXT`` means in a graph."""
    match = _TASK.fullmatch(text)
    known = {node.name: node for node in graph.nodes}
    if match is None or match["node"] not in known:
        raise NotFound(f"pipeline {graph.pipeline!r} has no step {text!r}", fix=suggestion(text, known))
    node = known[match["node"]]
    if match["index"] is not None and not node.mapped:
        raise NotFound(f"step {node.name!r} is not mapped", fix=f"Write --debug {node.name}.")
    target = Target(name="this process", backend=InlineBackend.name)
    place = OpenTarget(
        target, store=store, inbox=inbox, open_backend=lambda target, *, store, sink: InlineBackend(sink=sink)
    )
    definition = graph.definition(node)
    offer = place.backend.offer(Ask(request=definition.settings.resources))
    assert offer.granted is not None
    launch = definition.launch
    return Debugged(
        node=node.name,
        index=None if match["index"] is None else int(match["index"]),
        plan=GrantPlan(
            place=place,
            granted=offer.granted,
            demand=Demand.of(offer.granted),
            strict=False,
            shortfalls=(*offer.shortfalls, *short_of_processes(launch)),
            launch=None if launch is None else attrs.evolve(launch, per_node=1),
        ),
    )


@attrs.frozen(kw_only=True)
class Replayed:
    """What became of an attempt, this time and when it was recorded."""

    result: TaskResult  # this time
    recorded: TaskResult | None  # then; None: it did not get that far

    @property
    def other_outputs(self) -> list[str] | None:
        """Names of the outputs whose content is another one; None: there is nothing to compare."""
        before = self.recorded
        if before is None or not before.outputs or not self.result.outputs:
            return None
        return [name for name, now in self.result.outputs.items() if not _same(name, now, before.outputs)]


def read_attempt(row: AttemptRow, store: Store) -> TaskSpec:
    """The spec of an attempt."""
    return store.read_spec(store.spec_path(row.task, row.number))


def recorded_code(row: RunRow, *, package: bool) -> Code:
    """Where the code of a run was."""
    code = decode(Code, row.source["code"])
    if package and code.package is None:
        raise NotFound(
            f"the code of run {row.id} was not recorded",
            why=row.source.get("code_lacks") or "The run ended before its code was stored.",
            fix="Use the code as it is now.",
        )
    return code


def offered_here(spec: TaskSpec) -> Offer:
    """What this process has for an attempt, which may be less than it had then."""
    offer = InlineBackend(sink=lambda event: None).offer(Ask(request=spec.request))
    return attrs.evolve(offer, shortfalls=(*offer.shortfalls, *short_of_processes(spec.launch)))


def replay(spec: TaskSpec, code: Code | None, store: Store) -> Replayed:
    """Run an attempt again, with the code as it was or as it is now (None); what it makes is removed."""
    from upshift.runtime.supervisor.inline import run_inline  # a run needs none of it

    recorded = store.read_result(spec.task, spec.attempt)
    secrets = read_secrets(
        spec.settings.secret_sources, project=spec.code.project
    )  # they are not in a package
    granted = offered_here(spec).granted
    spec = attrs.evolve(spec, code=code or attrs.evolve(spec.code, package=None), granted=granted)
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        spec = attrs.evolve(spec, cwd=None)
    result = run_inline(spec, store, secrets=secrets, into=open_store(home_folders.new_folder()), stop=True)
    return Replayed(result=result, recorded=recorded)


def _same(name: str, now: Artifact, before: Mapping[str, Artifact]) -> bool:
    return name in before and before[name].digest == now.digest
