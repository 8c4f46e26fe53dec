"""Flows become graphs, and what is wrong with one is said before anything runs, with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from upshift import (
    FlowSpec,
    GraphError,
    JSONType,
    MisuseError,
    Parameter,
    SettingsError,
    resources,
    retry,
    step,
)
from upshift.authoring.loading import find_pipeline, load_module
from upshift.model.graph import Graph

Compose = Callable[..., Graph]


class Linear(FlowSpec):
    alpha = Parameter("alpha", default=0.5)
    depths = Parameter("depths", type=JSONType, default=[1, 2])

    @resources(cpu=2)
    @step
    def start(self) -> None:
        self.next(self.middle)

    @step
    @retry(times=4)
    def middle(self) -> None:
        self.next(self.end)

    @step
    def end(self) -> None: ...


class Longer(Linear):
    @step
    def middle(self) -> None:
        self.next(self.added)

    @step
    def added(self) -> None:
        self.next(self.end)


def test_steps_are_nodes_in_the_order_of_the_flow(compose: Compose) -> None:
    graph = compose(Linear.__upshift_pipeline__)
    assert [node.name for node in graph.nodes] == ["start", "middle", "end"]
    assert graph.pipeline == "Linear"
    assert graph.steps["start"].settings.resources.cpu_count == 2
    assert graph.steps["middle"].settings.retry.times == 4
    assert graph.steps["middle"].entry.qualname == "Linear.middle"


def test_a_flow_inherits_steps_and_parameters(compose: Compose) -> None:
    graph = compose(Longer.__upshift_pipeline__)
    assert [node.name for node in graph.nodes] == ["start", "middle", "added", "end"]
    assert graph.steps["start"].entry.qualname == "Longer.start"
    assert list(graph.params) == ["alpha", "depths"]


def test_the_first_and_the_last_step_may_have_any_name(compose: Compose) -> None:
    class Named(FlowSpec):
        @step(end=True)
        def done(self) -> None: ...

        @step(start=True)
        def begin(self) -> None:
            self.next(self.done)

    class Alone(FlowSpec):
        @step
        def only(self) -> None: ...

    assert [node.name for node in compose(Named.__upshift_pipeline__).nodes] == ["begin", "done"]
    assert [node.name for node in compose(Alone.__upshift_pipeline__).nodes] == ["only"]


def refused(
    compose: Compose, tmp_path: Path, body: str, *, name: str = "bad_flow"
) -> tuple[GraphError, int | None]:
    """Why a flow cannot run, and the line in its body that is named."""
    head = ["from upshift import FlowSpec, parallel, run_with_torchrun, step", "class Bad(FlowSpec):"]
    file = tmp_path / f"{name}.py"
    lines = body.strip().replace("def ", "@step\ndef ").replace("True)\n@step\n", "True)\n").split("\n")
    file.write_text("\n".join([*head, *(f"    {line}" for line in lines)]) + "\n")
    with pytest.raises(GraphError) as caught:
        compose(find_pipeline(load_module(file), file, None))
    assert caught.value.where is not None
    place, _, line = caught.value.where.rpartition(":")
    assert place.endswith(file.name)
    return caught.value, int(line)


END = "def end(self): pass\n"
OPEN = "@step(start=True)\ndef first(self): self.next(self.end)\n"
GANG = (
    """
N = 2
def start(self): self.next(self.a, {})
@parallel
def a(self): self.next(self.join)
def join(self, inputs): self.next(self.end)
"""
    + END
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (END + "def begin(self): self.next(self.end)", ["no step 'start'", "@step(start=True)"]),
        ("def start(self): self.next(self.a)\ndef a(self): self.next(self.end)", ["no step 'end'"]),
        (END + "def start(self): pass", ["'start'", "does not name the next step", "self.next(self.end)"]),
        (END + "def start(self): self.next(self.trian)\ndef train(self): self.next(self.end)",
         ["'trian'", "Did you mean 'train'?"]),
        (END + "def start(self): self.next(self.end)\ndef lost(self): self.next(self.end)",
         ["nothing goes to step 'lost'"]),
        (END + "def start(self): self.next(self.a, self.b)\ndef a(self): self.next(self.end)\n"
         "def b(self): self.next(self.end)", ["'a' and 'b' both go to 'end'", "def end(self, inputs)"]),
        (END + "def start(self): self.next(self.a, foreach='xs')\ndef a(self): self.next(self.end)",
         ["'start' splits", "never joined", "def join(self, inputs)"]),
        (END + "def start(self): self.next(self.a)\ndef a(self, inputs): self.next(self.end)",
         ["'a'", "nothing was split"]),
        (END + "def start(self): self.next(self.a)\ndef a(self): self.next(self.b)\n"
         "def b(self): self.next(self.a)", ["circle: a → b → a", "condition="]),
        (END + "def start(self, inputs): self.next(self.end)", ["'start' has nothing to join"]),
        (END + "def start(self, a, b): self.next(self.end)", ["takes self, a, b"]),
        ("def end(self): self.next(self.start)\ndef start(self): self.next(self.end)",
         ["the last step goes nowhere"]),
        (END + "def start(self): self.next(self.a, num_parallel=2)\ndef a(self): self.next(self.end)",
         ["'start' goes to 'a' with num_parallel", "Write @parallel above step 'a'"]),
        (GANG.format("num_parallel=0"), ["num_parallel=0 is invalid", "whole number from 1"]),
        (GANG.format("num_parallel='2'"), ["num_parallel='2' is invalid", "whole number from 1"]),
        (GANG.format("num_parallel=True"), ["num_parallel=True is invalid"]),
        (GANG.format("num_parallel=1.0 + 1"), ["num_parallel=2.0 is invalid"]),
        (GANG.format("num_parallel=-self.N"), ["num_parallel=-2 is invalid"]),
        (GANG.format("num_parallel=1 // 0"), ["num_parallel=1 // 0 is not known", "ZeroDivisionError"]),
        (GANG.format("num_parallel=self.none"), ["num_parallel=self.none is not known before the run",
         "self.none is set while a step runs", "a Parameter"]),
        (GANG.format("num_parallel=2, foreach='xs'"), ["num_parallel and foreach"]),
        (GANG.format("self.join, num_parallel=2"), ["num_parallel goes to one step, and this to a, join"]),
        (GANG.replace(", {}", ""), ["'a' has @parallel", "'start' goes to it without num_parallel"]),
        (GANG.replace("(self, inputs)", "(self)").format("num_parallel=2"),
         ["'a' has @parallel", "does not join its nodes", "def join(self, inputs)"]),
        (GANG.replace("(self.join)", "(self.join, foreach='xs')").format("num_parallel=2"),
         ["'a' has @parallel", "does not join its nodes"]),
        (GANG.replace("@par", "@run_with_torchrun(nproc_per_node=2)\n@par").format("num_parallel=2"),
         ["@parallel, and @run_with_torchrun(nproc_per_node=2)", "@torchrun"]),
        (END + "def start(self): self.next(self.end, froeach='xs')", ["no option 'froeach'"]),
        (END + OPEN + "def start(self): self.next(self.end)", ["two steps to start with: 'first' and 'start'",
         "give the other another name than 'start'"]),
        (END + OPEN + OPEN.replace("first", "other"), ["two steps to start with: 'first' and 'other'"]),
        (OPEN.replace("self.end", "self.other") + "def other(self): self.next(self.first)",
         ["no step 'end'", "@step(end=True)"]),
        (END + OPEN + "def other(self): self.next(self.first)", ["goes back to 'first'"]),
        (END + "def start(self): self.next(self.end, self.end)", ["'end' twice"]),
        (END + "def start(self): self.next(print)", ["names no step", "self.NAME"]),
        (END + "def start(self): self.next(self.j, foreach='xs')\ndef j(self, inputs): self.next(self.end)",
         ["goes to the join at once"]),
        (END + "def start(self): self.next(self.end, condition='x')", ["a dictionary of cases"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_flow_is_said(
    compose: Compose, tmp_path: Path, request: pytest.FixtureRequest, body: str, words: list[str]
) -> None:
    number = request.node.callspec.indices["body"]
    error, _ = refused(compose, tmp_path, body, name=f"bad_flow_{number}")
    for word in words:
        assert word in str(error)


def test_the_line_is_that_of_the_transition(compose: Compose, tmp_path: Path) -> None:
    body = "def start(self):\n    self.x = 1\n    self.next(self.ned)\n" + END
    _, line = refused(compose, tmp_path, body, name="flow_with_a_typo")
    assert line == 6


def test_a_choice_in_plain_python_has_a_way_out(compose: Compose, tmp_path: Path) -> None:
    body = (
        "def start(self):\n    if self.x:\n        self.next(self.end)\n    else:\n"
        "        self.next(self.end)\n" + END
    )
    error, line = refused(compose, tmp_path, body, name="flow_with_a_choice")
    assert "condition=" in str(error)
    assert line == 6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Parameter("a b"), ["cannot be called 'a b'"]),
        (lambda: Parameter("x", type=list), ["not a parameter type", "JSONType"]),
        (lambda: Parameter("x", defualt=3), ["no option 'defualt'"]),
    ],
)
def test_a_parameter_that_makes_no_sense(make: Callable[[], Parameter], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_outside_of_a_run_a_flow_has_no_item() -> None:
    flow = object.__new__(Linear)
    with pytest.raises(MisuseError, match="only in a running step"):
        flow.input  # noqa: B018
