"""Keys of tasks whose inputs name code."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from upshift.engine.keys import Keys, code_in, key_parts
from upshift.engine.tasks import NodeState
from upshift.engine.walk import Walk
from upshift.model.graph import Graph, Node, StepDefinition
from upshift.model.spec.hardware import Launch
from upshift.model.spec.task import Artifact, Collected, EntryPoint, same_inputs, same_work


def _parts(launch: Launch | None) -> object:
    definition = StepDefinition(entry=EntryPoint(module="m", qualname="f"), launch=launch)
    return key_parts(definition, Node(name="f", step="f"))


def test_how_processes_are_started_counts_but_not_where_they_meet_or_how_long_they_may_hang() -> None:
    launch = Launch(launcher="accelerate", processes=2, arguments={"mixed_precision": "no"})
    same = attrs.evolve(launch, port=29500, hang=60.0, per_node=2)
    assert _parts(launch) == _parts(same)
    others = [
        None,
        attrs.evolve(launch, launcher="torchrun"),
        attrs.evolve(launch, processes=4),
        attrs.evolve(launch, devices=True),
        attrs.evolve(launch, arguments={"mixed_precision": "bf16"}),
        attrs.evolve(launch, files={"config_file": "mixed_precision: bf16"}),
        attrs.evolve(launch, files={"deepspeed_config_file": "{}"}),
    ]
    assert all(_parts(other) != _parts(launch) for other in others)


def _state(**inputs: Artifact | Collected) -> NodeState:
    definition = StepDefinition(entry=EntryPoint(module="m", qualname="f"), outputs=("output",))
    graph = Graph(pipeline="p", nodes=(Node(name="f", step="f"),), steps={"f": definition})
    state = Walk(graph, truth=lambda artifact: None).nodes["f"]
    state.shared = inputs
    return state


def _key(version: str | None, *names: str) -> str:
    """The key of a step that gets an array, by the version of the package that made it."""
    value = Artifact(digest="blake2b:1", serializer="numpy", type="numpy.ndarray", bytes=3, code=names)
    state = _state(x=Collected(items=(value,)))

    def named(name: str) -> Mapping[str, str]:
        assert version is not None
        return {f"package {name.partition(':')[0]}": version}

    assert state.shared is not None
    return Keys(None if version is None else named).key(state, state.shared)


def test_the_version_of_the_package_that_an_input_is_of_counts() -> None:
    assert _key("1.26", "numpy:ndarray") == _key("1.26", "numpy:ndarray")
    assert _key("1.26", "numpy:ndarray") != _key("2.0", "numpy:ndarray")
    assert same_inputs(_key("1.26", "numpy:ndarray"), _key("2.0", "numpy:ndarray"))
    assert not same_work(_key("1.26", "numpy:ndarray"), _key("2.0", "numpy:ndarray"))


def test_inputs_that_name_no_code_need_none() -> None:
    assert _key(None) == _key("1.26")
    assert "+" not in _key("1.26")


def test_without_the_code_a_key_is_that_of_the_recorded_work_only() -> None:
    recorded, blind = _key("1.26", "numpy:ndarray"), _key(None, "numpy:ndarray")
    assert blind != recorded
    assert same_work(blind, recorded)
    assert same_work(recorded, blind)


def test_code_is_found_in_nested_containers() -> None:
    one = Artifact(digest="a:1", serializer="pickle", type="A", bytes=1, code=("a:A",))
    other = Artifact(digest="a:2", serializer="pickle", type="B", bytes=1, code=("b:B",))
    nested = Collected(items=(one, Collected(form="dict", keys=("k",), items=(other,))))
    assert code_in(nested) == {"a:A", "b:B"}
