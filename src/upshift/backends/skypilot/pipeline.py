"""A pipeline as a chain of SkyPilot's tasks: one for each step, which run one after the other.

::

    name: training
    --- load    its machine, its image, and a script: one step of the run, from the bucket
    --- train
    --- …       the last one records how the run ended, as does one that fails

The run's id is that of SkyPilot's job, which all of its tasks know.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.scheduler import Launch
from upshift.backends.skypilot.task import task_of
from upshift.backends.yaml_text import yaml_of
from upshift.errors import RequestRefused
from upshift.model.graph import LINEAR, SPLIT, Graph, Node
from upshift.model.settings.retry import Retry
from upshift.model.spec.hardware import Hardware

_RUN = (
    'run="$(printf "%s\\n" "${SKYPILOT_TASK_IDS:-$SKYPILOT_TASK_ID}"'
    ' | head -n 1 | tr -c "A-Za-z0-9\\n-" "-")"'
)
"""SkyPilot lists the ids of a job's tasks, that of the first one first: the same in all of them."""
_ELSEWHERE = "Run it from here: upshift run FILE --on TARGET, which rents machines for each step as it comes."


@attrs.frozen(kw_only=True)
class Link:
    """One task of the chain."""

    node: str
    command: tuple[str, ...]  # which is told what to do
    image: str
    granted: Hardware
    settings: Mapping[str, Any]  # of SkyPilotSettings, as far as they are said
    environment: Mapping[str, str] = attrs.field(factory=dict)
    retry: Retry = Retry()


def pipeline_of(name: str, links: Sequence[Link], *, file: str) -> str:
    """The chain as YAML; pure."""
    documents = [yaml_of({"name": name})]
    for number, link in enumerate(links):
        sketch = Launch(
            name=link.node,
            comment=f"step {link.node} of {name}, exported by Upshift from {file}",
            command=(),
            granted=link.granted,
            settings=link.settings,
            image=link.image,
            environment=link.environment,
        )
        script = _script(link, is_last=number == len(links) - 1)
        documents.append(task_of(sketch, script=script, restarts=link.retry.times))
    return "---\n".join(documents)


def _script(link: Link, *, is_last: bool) -> str:
    lines = [
        _RUN,
        f'upshift() {{ {shlex.join(link.command)} "$@" --run "$run"; }}',
        f"upshift step --node {shlex.quote(link.node)} || {{ upshift end; exit 1; }}",
    ]
    return "\n".join([*lines, *(["upshift end"] if is_last else [])]) + "\n"


def refuse_inexpressible(graph: Graph) -> None:
    """Raise what of a graph a chain cannot express.

    Raises
    ------
    RequestRefused
    """
    if not graph.nodes:
        raise RequestRefused(
            f"pipeline {graph.pipeline} has no steps", fix="A chain of SkyPilot's has one task at least."
        )
    for node in graph.nodes:
        _refuse_mapped(node)
    for name, shape in graph.flow.steps.items() if graph.flow is not None else ():
        if shape.then and shape.kind not in (LINEAR, SPLIT):
            raise RequestRefused(
                f"step {name} goes on with {shape.kind}, which a chain of SkyPilot's tasks cannot express",
                where=shape.location,
                why="Its tasks are written down before anything runs.",
                fix=_ELSEWHERE,
            )
    for name in graph.used:
        definition = graph.steps[name]
        settings = definition.settings
        if settings.resources.most_nodes > 1:
            raise RequestRefused(
                f"step {name} asks for several nodes, which an exported step cannot have",
                where=definition.location,
                fix=_ELSEWHERE,
            )
        if settings.secret_sources:
            raise RequestRefused(
                f"step {name} has secrets, of which an exported file must know nothing",
                where=definition.location,
                fix="Give its machines a role that reads them, or envs of SkyPilotSettings. " + _ELSEWHERE,
            )
        if settings.retry_policy.memory_factor > 1:
            raise RequestRefused(
                f"step {name} asks for more memory when it is tried again, which SkyPilot cannot give",
                where=definition.location,
                fix="Leave memory_factor out, and ask for the memory at once.",
            )


def _refuse_mapped(node: Node) -> None:
    if node.mapped:
        raise RequestRefused(
            f"{node.name} is mapped, which a chain of SkyPilot's tasks cannot express",
            where=node.location,
            why="Its tasks are written down before anything runs, and run one after the other.",
            fix=f"Loop inside a step. {_ELSEWHERE}",
        )
