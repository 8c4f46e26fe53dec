"""Pipelines become graphs: nodes, sources, order, settings."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from upshift import GraphError, NotSerializable, pipeline, step, unmapped
from upshift.authoring.loading import load_pipeline
from upshift.model.graph import Collection, Constant, FromStep, Graph, Source, ordered
from upshift.model.spec.codec import from_json, to_json
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

Compose = Callable[..., Graph]


@step
def numbers(n: int = 3) -> list[int]:
    return list(range(n))


@step
def add(a: int, b: int = 1) -> int:
    return a + b


@step
def split(x: Any) -> tuple[Annotated[list[int], "train"], list[int]]:
    return x[:1], x[1:]


@step
def total(values: Any) -> int:
    return sum(values)


@step
def is_large(x: int) -> bool:
    return x > 10


@step
def save(x: Any) -> None: ...


def plain(source: Source | None) -> Any:
    """A source as short text and containers: a constant's value, ``node.output``."""
    if isinstance(source, Constant):
        assert source.artifact.inline is not None
        return json.loads(base64.b64decode(source.artifact.inline))
    if isinstance(source, FromStep):
        return f"{source.node}.{source.output}"
    assert isinstance(source, Collection)
    items = [plain(item) for item in source.items]
    if source.form == "dict":
        return dict(zip(source.keys, items, strict=True))
    return tuple(items) if source.form == "tuple" else items


def inputs(graph: Graph, name: str) -> dict[str, Any]:
    (node,) = (node for node in graph.nodes if node.name == name)
    return {parameter: plain(source) for parameter, source in node.inputs.items()}


def test_calls_are_nodes_and_repeated_calls_are_numbered(compose: Compose) -> None:
    @pipeline
    def sums(n: int) -> int:
        return add(add(add(n), b=5), 7)

    graph = compose(sums, n=2)
    assert [node.name for node in graph.nodes] == ["add", "add_2", "add_3"]
    assert inputs(graph, "add") == {"a": 2, "b": 1}
    assert inputs(graph, "add_2") == {"a": "add.output", "b": 5}
    assert inputs(graph, "add_3") == {"a": "add_2.output", "b": 7}
    assert plain(graph.output) == "add_3.output"
    assert list(graph.steps) == ["add"]
    assert graph.pipeline == "sums"
    assert graph.nodes[0].location is not None
    assert graph.nodes[0].location.endswith(f"test_composing.py:{_line(sums) + 2}")


def test_the_graph_is_plain_data(compose: Compose) -> None:
    graph = compose(everything)
    assert from_json(Graph, to_json(graph)) == graph
    assert ordered(graph.nodes) == graph.nodes


def test_numbers_do_not_clash_with_names_that_are_taken(compose: Compose) -> None:
    @pipeline
    def clash() -> None:
        add.with_options(name="add_2")(1)
        add(1)
        add(1)
        add(1)

    assert [node.name for node in compose(clash).nodes] == ["add_2", "add", "add_3", "add_4"]


def test_copies_with_other_options_have_definitions_of_their_own(compose: Compose) -> None:
    @pipeline
    def copies() -> None:
        add(1)
        for _ in range(3):
            add.with_options(retries=2)(1)
        add.after()(1)

    graph = compose(copies)
    assert [(node.name, node.step) for node in graph.nodes] == [
        ("add", "add"),
        ("add_2", "add_2"),
        ("add_3", "add_2"),
        ("add_4", "add_2"),
        ("add_5", "add"),
    ]
    assert graph.steps["add_2"].settings.retry.times == 2


def test_several_outputs_are_unpacked(compose: Compose) -> None:
    @pipeline
    def two() -> Any:
        train, test = split(numbers())
        return total(train), total(values=test)

    graph = compose(two)
    assert graph.steps["split"].outputs == ("train", "output_1")
    assert inputs(graph, "total") == {"values": "split.train"}
    assert inputs(graph, "total_2") == {"values": "split.output_1"}
    assert plain(graph.output) == ("total.output", "total_2.output")


def test_results_are_found_in_lists_tuples_and_dictionaries(compose: Compose) -> None:
    @pipeline
    def nested() -> Any:
        a, b = add(1), add(2)
        total([a, (b, 3), {"k": [a], "l": None}])
        total([1, 2, {"k": (3,)}])

    graph = compose(nested)
    assert inputs(graph, "total") == {
        "values": ["add.output", ("add_2.output", 3), {"k": ["add.output"], "l": None}]
    }
    constant = graph.nodes[-1].inputs["values"]
    assert isinstance(constant, Constant)  # without results inside, it is one value


@pytest.mark.parametrize("value", [None, 5, "x", [1, [2]], {"a": (1,)}])
def test_a_pipeline_may_return_a_constant_and_have_no_steps(
    compose: Compose, store: Store, value: Any
) -> None:
    @pipeline
    def constant() -> Any:
        return value

    graph = compose(constant)
    assert graph.nodes == ()
    if value is None:
        assert graph.output is None
    else:
        assert isinstance(graph.output, Constant)
        assert artifacts.load(graph.output.artifact, store) == value


def test_equal_constants_of_different_types_stay_apart(compose: Compose, store: Store) -> None:
    values = [1, True, 1.0, 0.0, -0.0, "1", b"1", None]

    @pipeline
    def constants() -> None:
        for value in values:
            save(value)

    graph = compose(constants)
    found = [artifacts.load(node.inputs["x"].artifact, store) for node in graph.nodes]  # type: ignore[union-attr]
    assert [repr(value) for value in found] == [repr(value) for value in values]


def test_a_value_that_changes_between_two_calls_is_saved_as_it_was_at_each(
    compose: Compose, store: Store
) -> None:
    @pipeline
    def changing() -> None:
        values = [1]
        save(values)
        values.append(2)
        save(values)

    graph = compose(changing)
    found = [artifacts.load(node.inputs["x"].artifact, store) for node in graph.nodes]  # type: ignore[union-attr]
    assert found == [[1], [1, 2]]


def test_parameters_are_plain_values_and_are_recorded_with_defaults(compose: Compose, store: Store) -> None:
    @pipeline
    def choice(flag: bool, n: int = 2, *, names: tuple[str, ...] = ("a",)) -> Any:
        return [add(i) for i in range(n)] if flag else None

    graph = compose(choice, flag=True)
    assert len(graph.nodes) == 2
    assert plain(graph.output) == ["add.output", "add_2.output"]
    assert {k: artifacts.load(v, store) for k, v in graph.params.items()} == {
        "flag": True,
        "n": 2,
        "names": ("a",),
    }
    assert compose(choice, flag=False).nodes == ()


def test_a_nested_pipeline_is_inlined(compose: Compose) -> None:
    @pipeline(retries=3, settings={"resources": {"cpu_count": 2, "memory": "1GB"}}, on="gpu")
    def inner(x: int, y: int = 5) -> int:
        return add(add(x), y)

    @pipeline(settings={"resources": {"cpu_count": 1, "gpu_count": 0}}, retries=1, on="cpu")
    def outer() -> Any:
        first = inner(1)
        return add(inner(first.output, y=6)), first  # type: ignore[arg-type]

    graph = compose(outer)
    assert [node.name for node in graph.nodes] == ["add", "add_2", "add_3", "add_4", "add_5"]
    assert inputs(graph, "add_3") == {"a": "add_2.output", "b": 1}
    assert inputs(graph, "add_4") == {"a": "add_3.output", "b": 6}
    assert inputs(graph, "add_5") == {"a": "add_4.output", "b": 1}
    assert plain(graph.output) == ("add_5.output", "add_2.output")
    within, without = graph.steps[graph.nodes[0].step], graph.steps[graph.nodes[4].step]
    assert (
        within.settings.retry.times,
        within.settings.resources.cpu_count,
        within.settings.resources.gpu_count,
    ) == (3, 2, 0)
    assert (without.settings.retry.times, without.settings.resources.cpu_count) == (1, 1)
    # The place of the outermost pipeline is the run's own.
    assert (within.settings.on, without.settings.on) == ("gpu", None)


def test_a_nested_pipeline_with_several_outputs_can_be_unpacked(compose: Compose) -> None:
    @pipeline
    def inner() -> tuple[Any, Any]:
        return split(numbers())

    @pipeline
    def outer() -> Any:
        train, _ = inner()  # type: ignore[misc]
        _, test = inner().output
        return [train, test]

    assert plain(compose(outer).output) == ["split.train", "split_2.output_1"]


def test_after_takes_results_lists_of_them_and_pipelines(compose: Compose) -> None:
    @pipeline
    def inner() -> None:
        save(1)
        save(2)

    @pipeline
    def order() -> None:
        pair = split(numbers())
        save.after(pair, [add(1)])(3)
        save.after(inner()).after(add(1))(4)  # type: ignore[func-returns-value]

    by_name = {node.name: node for node in compose(order).nodes}
    assert by_name["save"].after == ("split", "add")
    assert by_name["save_4"].after == ("save_2", "save_3", "add_2")


def test_when_names_the_flag(compose: Compose) -> None:
    @pipeline
    def conditional() -> Any:
        x = add(1)
        return add.when(is_large(x)).after(x)(x)

    node = compose(conditional).nodes[-1]
    assert node.when == FromStep(node="is_large")
    assert node.after == ("add",)


def test_order_condition_options_and_map_can_be_chained(compose: Compose) -> None:
    @pipeline
    def chained() -> Any:
        x = add(1)
        return add.with_options(name="each").after(x).when(is_large(x)).map([1, 2])

    node = compose(chained).nodes[-1]
    assert (node.name, node.step, node.over, node.after) == ("each", "each", ("a",), ("add",))
    assert node.when is not None


def test_a_default_that_is_no_plain_data_is_left_to_the_function(compose: Compose) -> None:
    nothing = object()

    @step
    def sentinel(a: int, b: object = nothing) -> bool:
        return b is nothing

    @pipeline
    def sentinels() -> Any:
        return sentinel(1)

    assert inputs(compose(sentinels), "sentinel") == {"a": 1}


def test_arguments_for_args_and_kwargs(compose: Compose) -> None:
    @step
    def many(a: int, *rest: int, **more: int) -> int:
        return a

    @pipeline
    def everything_passed() -> Any:
        return many(1, 2, add(3), z=4)

    assert inputs(compose(everything_passed), "many") == {"a": 1, "*0": 2, "*1": "add.output", "z": 4}


def test_an_argument_that_cannot_be_saved_names_itself_and_the_line(compose: Compose) -> None:
    @pipeline
    def unsaved() -> None:
        save(x=(n for n in [1]))

    with pytest.raises(NotSerializable) as caught:
        compose(unsaved)
    assert "argument x of type" in str(caught.value)
    assert f"test_composing.py:{_line(unsaved) + 2}" in str(caught.value)


def test_results_of_another_pipeline_are_refused(compose: Compose) -> None:
    kept: list[Any] = []

    @pipeline
    def first() -> None:
        kept.append(add(1))

    @pipeline
    def second() -> Any:
        return add(kept[0])

    compose(first)
    with pytest.raises(GraphError, match="belongs to another run of a pipeline") as caught:
        compose(second)
    assert f"test_composing.py:{_line(second) + 2}" in str(caught.value)
    with pytest.raises(GraphError, match="step 'add' gets the result of step 'add' outside a pipeline"):
        add(kept[0])


def test_pipelines_that_call_each_other_without_end_are_refused(compose: Compose) -> None:
    @pipeline
    def ping() -> Any:
        return pong()

    @pipeline
    def pong() -> Any:
        return ping()

    with pytest.raises(GraphError, match="pipelines call each other more than 100 deep") as caught:
        compose(ping)
    assert "ping → pong → ping" in str(caught.value)


def test_a_pipeline_may_call_itself_as_long_as_it_ends(compose: Compose) -> None:
    @pipeline
    def tree(depth: int) -> Any:
        return add(tree(depth - 1).output) if depth else add(0)

    assert len(compose(tree, depth=5).nodes) == 6


def test_after_a_pipeline_that_failed_steps_are_functions_again(compose: Compose) -> None:
    @pipeline
    def broken() -> None:
        add(1)
        raise LookupError("no")

    with pytest.raises(LookupError):
        compose(broken)
    assert add(1) == 2


def test_arrays_are_values_not_lists(compose: Compose, store: Store) -> None:
    array = np.arange(5)

    @pipeline
    def arrays() -> Any:
        return add.map(a=[1, 2], b=array)

    source = compose(arrays).nodes[0].inputs["b"]
    assert isinstance(source, Constant)
    assert np.array_equal(artifacts.load(source.artifact, store), array)  # type: ignore[arg-type]


def test_a_hundred_thousand_calls_share_one_definition(compose: Compose) -> None:
    @pipeline
    def many() -> Any:
        x = 0
        for i in range(100_000):
            x = add(x, i % 10)
        return x

    graph = compose(many)
    assert len(graph.nodes) == 100_000
    assert len(graph.steps) == 1
    assert graph.nodes[-1].name == "add_100000"


def test_the_pipeline_of_the_example_composes(store: Store) -> None:
    pytest.importorskip("sklearn")
    example = Path(__file__).parents[3] / "examples/digits/pipeline.py"
    graph = load_pipeline(str(example)).build({}, store)
    assert [node.name for node in graph.nodes] == ["load", "split", "score", "choose", "fit", "evaluate"]


@pipeline
def everything(n: int = 3) -> Any:
    train, test = split(numbers(n))
    each = add.map(train, b=unmapped(test))
    chosen = add.when(is_large(total(each))).after(test)(1, 2)
    return {"each": each, "list": [chosen, 3, None, "x"]}


def _line(one: Any) -> int:
    """The line of the decorator."""
    return int(one.callee.function.__code__.co_firstlineno)
