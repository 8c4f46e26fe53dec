"""Graphs whose nodes follow from what their steps did: nested foreaches, switches, loops."""

from __future__ import annotations

from typing import Any

import pytest
from engine_kit import Bench, kill_when_idle, killed_run, never

from upshift.backends.fake import Fail, FakeCluster
from upshift.errors import RunFailed
from upshift.model.graph import (
    CHOICE,
    END,
    FOREACH,
    ITEMS,
    LINEAR,
    SPLIT,
    SWITCH,
    FlowShape,
    FlowStep,
    FromStep,
    Graph,
)
from upshift.model.growth import Growth

OUTPUTS = {FOREACH: ("output", ITEMS), SWITCH: ("output", CHOICE)}


def flow(bench: Bench, shape: dict[str, Any], last: str, **functions: Any) -> Graph:
    """A flow whose steps are functions of ``state``, ``item`` and ``inputs``; a state is a list of words."""
    steps = {
        name: step if isinstance(step, FlowStep) else FlowStep(kind=step[0], then=step[1:])
        for name, step in shape.items()
    }
    growth = Growth(FlowShape(steps=steps), bench.const([]))
    definitions = {}
    for name, step in steps.items():
        function = functions.get(name) or default(name)
        function.__name__ = name
        definitions[name] = bench.step(function, outputs=OUTPUTS.get(step.kind, ("output",)))
    return Graph(
        pipeline="flow",
        steps=definitions,
        nodes=growth.first(),
        flow=FlowShape(steps=steps),
        output=FromStep(node=last),
    )


def default(name: str) -> Any:
    def work(state: Any = None, item: Any = None, inputs: Any = None, **several: Any) -> Any:
        if inputs is not None or several:
            return [list(several.values()) if several else inputs, name]
        return [*state, name if item is None else f"{name}({item})"]

    return work


def join(*then: str) -> FlowStep:
    return FlowStep(kind=LINEAR if then else END, then=then, join=True)


def numbers(count: int) -> Any:
    return lambda state, item=None: ([*state, "" if item is None else item], list(range(count)))


def output(bench: Bench, run: str) -> Any:
    (last,) = [row for row in bench.catalog.tasks(run) if row.task.step.split(".")[0] == "end"]
    result = bench.store.read_result(last.task, 1)
    assert result is not None
    from upshift.runtime.storage.artifacts import load

    return load(result.outputs["output"], bench.store)


NESTED = {
    "start": (FOREACH, "middle"),
    "middle": (FOREACH, "inner"),
    "inner": (LINEAR, "gather"),
    "gather": join("close"),
    "close": join("end"),
    "end": (END,),
}


def test_a_foreach_in_a_foreach_is_joined_item_by_item(bench: Bench) -> None:
    graph = flow(
        bench, NESTED, "end", start=numbers(2), middle=lambda state, item: ([item], list(range(item + 1)))
    )
    assert [node.name for node in graph.nodes] == ["start"]
    run = bench.run(graph)
    inner = [[0, "inner(0)"]], [[1, "inner(0)"], [1, "inner(1)"]]
    assert output(bench, run.id) == [[[inner[0], "gather"], [inner[1], "gather"]], "close", "end"]
    assert set(bench.ran()) == {
        *("start", "middle.0", "middle.1", "inner.0[0]", "inner.1[0]", "inner.1[1]"),
        *("gather.0", "gather.1", "close", "end"),
    }


def test_a_foreach_whose_body_is_certain_is_mapped_and_splits_within_it_are_joined_for_each_item(
    bench: Bench,
) -> None:
    shape = {
        "start": (FOREACH, "body"),
        "body": (SPLIT, "a", "b"),
        "a": (LINEAR, "both"),
        "b": (LINEAR, "both"),
        "both": join("close"),
        "close": join("end"),
        "end": (END,),
    }
    graph = flow(bench, shape, "end", start=numbers(2))
    assert [(node.name, node.mapped) for node in graph.nodes] == [
        *(("start", False), ("body", True), ("a", True), ("b", True), ("both", True)),
        *(("close", False), ("end", False)),
    ]
    run = bench.run(graph)
    one, two = ([[["", f"body({i})", "a"], ["", f"body({i})", "b"]], "both"] for i in (0, 1))
    assert output(bench, run.id) == [[one, two], "close", "end"]


def test_a_switch_takes_one_way_and_may_come_back(bench: Bench) -> None:
    shape = {
        "start": (LINEAR, "guess"),
        "guess": (SWITCH, "guess", "end"),
        "end": (END,),
    }
    graph = flow(
        bench, shape, "end", guess=lambda state: ([*state, "guess"], "end" if len(state) > 3 else "guess")
    )
    run = bench.run(graph)
    assert output(bench, run.id) == ["start", "guess", "guess", "guess", "guess", "end"]
    assert bench.ran() == ["start", "guess", "guess#2", "guess#3", "guess#4", "end"]


def test_a_switch_within_a_foreach_goes_its_own_way_for_each_item(bench: Bench) -> None:
    shape = {
        "start": (FOREACH, "look"),
        "look": (SWITCH, "small", "large"),
        "small": (LINEAR, "close"),
        "large": (LINEAR, "more"),
        "more": (LINEAR, "close"),
        "close": join("end"),
        "end": (END,),
    }

    def look(state: Any, item: int) -> Any:
        return [item], "large" if item % 2 else "small"

    graph = flow(bench, shape, "end", start=numbers(3), look=look)
    run = bench.run(graph)
    assert output(bench, run.id) == [[[0, "small"], [1, "large", "more"], [2, "small"]], "close", "end"]


def test_an_empty_foreach_is_joined_at_once(bench: Bench) -> None:
    graph = flow(bench, NESTED, "end", start=numbers(0))
    assert output(bench, bench.run(graph).id) == [[], "close", "end"]


def test_a_branch_that_fails_fails_the_run_and_its_join_is_never_made(bench: Bench) -> None:
    graph = flow(bench, NESTED, "end", start=numbers(2), middle=numbers(2))
    bench.outcomes["inner.1[1]", 0] = Fail()
    with pytest.raises(RunFailed):
        bench.run(graph)
    assert "close" not in bench.ran()


def test_what_grew_is_found_again_when_the_run_is_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.cluster = FakeCluster(bench.script, instant=False)
    graph = flow(bench, NESTED, "end", start=numbers(2), middle=numbers(2))
    kill_when_idle(bench, finished=5)
    run_id = killed_run(bench, graph, monkeypatch)
    bench.clock.idle = never
    run = bench.run(graph, resume=run_id, reuse=False)
    assert run.status == "completed"
    assert len(bench.ran()) == len(set(bench.ran())) == 11


def test_a_graph_of_thousands_of_nodes_grows_in_time_that_does_not(bench: Bench) -> None:
    graph = flow(bench, NESTED, "end", start=numbers(300), middle=numbers(2))
    run = bench.run(graph)
    assert run.status == "completed" and len(bench.ran()) == 1 + 300 * 4 + 2
