"""A running step of a flow: the state it starts from, the names in ``current``, and the state it leaves."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import index
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from upshift.authoring.flow.definition import NOTHING, Flow, Level, RunningStep, artifacts_of, item_name
from upshift.authoring.flow.parallel import confirm_size, gathered, names_of_nodes
from upshift.authoring.flow.shape import FIRST, PARALLEL
from upshift.errors import MisuseError, UsageError, user_location
from upshift.model.checks import shown
from upshift.model.graph import FOREACH, INPUTS, ITEM, LINEAR, STATE, SWITCH, FlowStep, task_id
from upshift.model.spec.task import Artifact
from upshift.runtime.messages import tell
from upshift.runtime.step.context import current
from upshift.runtime.step.rendering import HTML
from upshift.runtime.storage.manifest import State
from upshift.runtime.tracebacks import user_text

if TYPE_CHECKING:
    from upshift.model.spec.task import Failure


class Joined(Sequence[Any]):
    """What a step joins: by position, by the name of a step, or one after the other."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self._flows = flows

    def __getitem__(self, index: Any) -> Any:
        return self._flows[index]

    def __len__(self) -> int:
        return len(self._flows)

    def __getattr__(self, name: str) -> Any:
        steps = [flow._upshift_running.name for flow in self._flows]
        if name in steps:
            return self._flows[steps.index(name)]
        raise AttributeError(f"no step {name!r} is joined here; joined are {', '.join(dict.fromkeys(steps))}")


def run_step(flow: type[Flow], name: str, method: Any, step: FlowStep, given: Mapping[str, Any]) -> Any:
    """Call a step with what its task gets; what the task makes.

    Parameters
    ----------
    flow
        The class.
    name, method, step
        The step, its function, and where it goes.
    given
        Inputs of the task, as :mod:`upshift.model.growth` names them.
    """
    own, *joined = _join(flow, name, step, given) if step.join else (_go_on(flow, name, step, given),)
    names = cache(partial(names_of, own))  # few steps ask for them
    current.know(names)
    if flow.__upshift_pipeline__.steps[name].options.flow.get(PARALLEL):
        names()  # the nodes share out the work, whether the step asks or not
    running = own._upshift_running
    _call(method, own, joined)
    if step.then and not running.went:
        raise MisuseError(
            f"step {name!r} ended without self.next", where=step.location, fix="Call it in its last line."
        )
    _show(own)
    state = _left(own)
    if PARALLEL in own.__upshift_pipeline__.steps[name].options.flow:
        states = gathered(state, current.store)
        return (state if states is None else states[0]), states
    if step.kind == FOREACH:
        return state, running.items
    if step.kind == SWITCH:
        return state, running.choice
    return state


def _show(own: Flow) -> None:
    """Show the artifacts that ``@card(type="html")`` names."""
    step = own.__upshift_pipeline__.steps[own._upshift_running.name]
    for card in step.options.flow.get("card", ()):
        if card.kind == "html" and hasattr(own, card.attribute):
            target = current.card if card.id is None else current.card[card.id]
            target.append(HTML(getattr(own, card.attribute)), title=card.attribute)


def _call(method: Any, own: Flow, joined: Sequence[Any]) -> None:
    """Call the step; where it has ``@catch``, what it raises in its last attempt becomes an artifact."""
    spec = current.spec
    catch = None if spec is None else spec.settings.catch
    if spec is None or catch is None:
        method(own, *joined)
        return
    caught = None
    if spec.caught is not None:  # the process of the last attempt is gone, with all that it had set
        caught = CaughtException.of(spec.caught)
    else:
        try:
            method(own, *joined)
        except Exception as error:
            retry = spec.settings.retry_policy
            if spec.attempt <= retry.times and "user-error" in retry.on:
                raise
            caught = CaughtException.raised(error)
    if catch.var is not None:
        setattr(own, catch.var, caught)
    if caught is not None:
        own._upshift_running.went = True
        if catch.shown:
            tell([f"caught: {line}" for line in str(caught).splitlines()])


class CaughtException(Exception):
    """Why a step with ``@catch`` has failed; the artifact that it names.

    Attributes
    ----------
    type, exception
        The exception's class, such as ``builtins.ValueError``, and its text; of a step that was stopped or
        killed the cause.
    stacktrace
        The traceback, as Python prints it; None: there was none.
    """

    def __init__(self, type: str, exception: str, stacktrace: str | None = None) -> None:
        super().__init__(type, exception, stacktrace)
        self.type = type
        self.exception = exception
        self.stacktrace = stacktrace

    @classmethod
    def raised(cls, error: Exception) -> CaughtException:
        """From the exception that the step raised."""
        kind = type(error)
        return cls(f"{kind.__module__}.{kind.__qualname__}", str(error), user_text(error))

    @classmethod
    def of(cls, failure: Failure) -> CaughtException:
        """From an attempt that ended without raising: killed, or stopped."""
        return cls(failure.reason, failure.message, failure.traceback)

    def __str__(self) -> str:
        return self.stacktrace or f"{self.type}: {self.exception}"


def merged(
    flows: Sequence[Flow], *, own: set[str], exclude: set[str], include: set[str]
) -> dict[str, Artifact]:
    """What :meth:`FlowSpec.merge_artifacts` takes over."""
    if exclude and include:
        raise UsageError("merge_artifacts takes exclude or include, not both", where=user_location())
    found: dict[str, dict[str, Artifact]] = {}
    for flow in flows:
        running = flow._upshift_running
        for name, artifact in running.state.artifacts.items():
            if name.startswith("@") or name in running.unchanging:
                continue
            found.setdefault(name, {})[artifact.digest] = artifact
    missing = sorted(include - found.keys() - own)
    if missing:
        raise UsageError(
            f"merge_artifacts: no step that is joined has {', '.join(missing)}", where=user_location()
        )
    taken = {n: by for n, by in found.items() if n not in own | exclude and (not include or n in include)}
    several = sorted(name for name, by_digest in taken.items() if len(by_digest) > 1)
    if several:
        raise UsageError(
            f"merge_artifacts: {', '.join(several)} {'has' if len(several) == 1 else 'have'} several values",
            where=user_location(),
            why="Steps that are joined have set them differently.",
            fix=f"Set them before, such as self.{several[0]} = inputs[0].{several[0]}, or leave them out: "
            f"exclude={several!r}.",
        )
    return {name: next(iter(by_digest.values())) for name, by_digest in taken.items()}


def _go_on(flow: type[Flow], name: str, step: FlowStep, given: Mapping[str, Any]) -> Flow:
    state: State = given[STATE]
    before, stack = state.about, _stack(state)
    item = NOTHING
    if ITEM in given:
        item, name_of_it = given[ITEM], item_name(len(stack))
        saved = None if current.spec is None else current.spec.inputs.get(ITEM)
        if isinstance(saved, Artifact):
            state = state.replaced(artifacts={**state.artifacts, name_of_it: saved})
        else:
            state = state.replaced(values={name_of_it: item})
        stack = (*stack, Level(before["step"], _path()[-1], before["count"]))
    if PARALLEL in flow.__upshift_pipeline__.steps[name].options.flow:
        confirm_size(flow.__upshift_pipeline__, before["step"], before["count"])
        item = current.rank
        state = state.replaced(values={item_name(len(stack)): item})
        stack = (*stack, Level(before["step"], current.rank, None))
    own = _made(flow, name, step, state, stack, item)
    own._upshift_initialize()
    return own


def _join(flow: type[Flow], name: str, step: FlowStep, given: Mapping[str, Any]) -> tuple[Flow, Joined]:
    states: list[State] = list(given[INPUTS]) if INPUTS in given else list(_numbered(given))
    flows = []
    for state in states:
        flows.append(_made(flow, state.about["step"], step, state, _stack(state)))
    base: State = given[STATE] if STATE in given else states[0]
    stack = _stack(base)[: len(_path())]
    inputs = {item_name(depth) for depth in range(len(stack))}
    kept = {
        n: artifact
        for n, artifact in base.artifacts.items()
        if n in inputs | flow.__upshift_pipeline__.unchanging
    }
    own = _made(flow, name, step, base.replaced(values={}, artifacts=kept), stack)
    own._upshift_initialize()
    return own, Joined(flows)


def _numbered(given: Mapping[str, Any]) -> Iterator[State]:
    number = 0
    while f"{INPUTS}_{number}" in given:
        yield given[f"{INPUTS}_{number}"]
        number += 1


def known_before(flow: type[Flow], values: Mapping[str, object]) -> Flow:
    """A flow as a step sees it that knows these values only: those of before the run."""
    return _made(flow, FIRST, FlowStep(kind=LINEAR), State(values), ())


def _made(
    flow: type[Flow],
    name: str,
    step: FlowStep,
    state: State,
    stack: tuple[Level, ...],
    item: object = NOTHING,
) -> Flow:
    made = object.__new__(flow)
    unchanging = flow.__upshift_pipeline__.unchanging
    made.__dict__["_upshift_running"] = RunningStep(name, step, state, stack, unchanging, item=item)
    return made


def _left(own: Flow) -> State:
    """The state that a step passes on to the steps that follow."""
    running = own._upshift_running
    known = running.state
    count = running.nodes if running.items is None else len(running.items)
    if type(count) is not int and count is not None:  # of NumPy, or nothing that is a number
        count = index(count) if hasattr(count, "__index__") else shown(count)
    about = {
        "step": running.name,
        "stack": [[level.step, level.index, level.count] for level in running.stack],
        "count": count,
    }
    values = {**known.values, **artifacts_of(own)}
    return known.replaced(values=values, about=about, many=running.step.kind == FOREACH)


def _stack(state: State) -> tuple[Level, ...]:
    return tuple(Level(*level) for level in state.about.get("stack", ()))


def _path() -> tuple[int, ...]:
    """The items that this task works on, of each foreach around it from the outside in."""
    name: str = str(current.step).partition("#")[0]
    index = current.index
    path = tuple(int(part) for part in name.split(".")[1:])
    return path if index is None else (*path, int(index))


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
