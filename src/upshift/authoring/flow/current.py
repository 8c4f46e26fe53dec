"""The names that Metaflow's ``current`` adds to ``upshift.current`` in a running step of a flow."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from upshift.authoring.flow.parallel import names_of_nodes
from upshift.model.graph import task_id
from upshift.runtime.step.context import current

if TYPE_CHECKING:
    from upshift.authoring.flow.definition import Flow

BRANCH = "project_branch:"
"""What the tag begins with that says on which branch of a project a run is."""


def names_of(own: Flow) -> Mapping[str, Callable[[], object]]:
    """The names, each with what finds its value when somebody asks."""
    running, pipeline = own._upshift_running, own.__upshift_pipeline__
    record: Callable[[], Mapping[str, Any]] = functools.cache(current.record)
    identity = task_id(str(current.step), current.index)

    def parameters() -> object:
        return SimpleNamespace(**{name: running.state[name] for name in pipeline.parameters})

    names: dict[str, Callable[[], object]] = {
        "flow_name": lambda: pipeline.name,
        "run_id": lambda: current.run,
        "step_name": lambda: running.name,
        "task_id": lambda: identity,
        "pathspec": lambda: f"{pipeline.name}/{current.run}/{running.name}/{identity}",
        "retry_count": lambda: current.attempt - 1,
        "origin_run_id": lambda: record().get("source", {}).get("origin"),
        "username": lambda: record().get("user"),
        "namespace": lambda: os.environ.get("UPSHIFT_NAMESPACE", f"user:{record().get('user')}") or None,
        "tags": lambda: frozenset(record().get("tags", ())),
        "parameters": parameters,
        "graph": lambda: {name: list(step.then) for name, step in pipeline.shape.steps.items()},
        "tempdir": tempfile.gettempdir,
        "trigger": lambda: None,  # nothing here starts a run but whoever runs it
        "is_production": lambda: False,
    }
    options = pipeline.steps[running.name].options.flow
    names.update(names_of_nodes(options))
    if "checkpoint" in options:
        from upshift.authoring.flow.checkpoints import FlowCheckpoint  # no other step needs it

        made = FlowCheckpoint(str(names["pathspec"]()), **options["checkpoint"])
        names["checkpoint"] = lambda: made
    project = pipeline.marks.get("project")
    return names if project is None else {**names, **_of_project(project["name"], pipeline.name, record)}


def _of_project(
    project: str, flow: str, record: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Callable[[], object]]:
    def branch() -> str:
        told = (tag.removeprefix(BRANCH) for tag in record().get("tags", ()) if tag.startswith(BRANCH))
        return next(told, f"user.{record().get('user')}")

    return {
        "project_name": lambda: project,
        "branch_name": branch,
        "project_flow_name": lambda: f"{project}.{branch()}.{flow}",
        "is_user_branch": lambda: branch().startswith("user."),
        "is_production": lambda: branch().partition(".")[0] == "prod",
    }
