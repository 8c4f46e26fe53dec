"""What pods of another orchestrator do, without any: a folder is their bucket, and results are written."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from upshift.authoring.loading import load_pipeline
from upshift.authoring.resume import changed, composed_again
from upshift.engine.exported import Order, StepOrder, confirm_same_shape
from upshift.engine.one_step import OneStep
from upshift.engine.ownerless import cancel
from upshift.errors import GraphError, StoreError, UsageError
from upshift.model.configuration import Configuration, Target
from upshift.model.spec.codec import from_json
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import Code, Failure, TaskId, TaskResult
from upshift.runs.catalog.opening import known_run, open_catalog, standing
from upshift.runs.catalog.rebuild import read_ending, rows_of
from upshift.runs.catalog.rows import RunRow
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store

RUN = "0c2d6c9e-5f0e-4f8e-9d36-0d2c8d0f4a11"
PIPELINE = """
from upshift import Retry, pipeline, step

@step
def load(n: int) -> list[int]: ...

@step
def score(item: int) -> int: ...

@step
def twice(item: int) -> int: ...

@step(retries=Retry(times=2, on=["preempted"]))
def total(scores: list[int]) -> int: ...

@step
def is_good(n: int) -> bool: ...

@step
def publish(n: int) -> str: ...

@step
def tell(text: str) -> None: ...

@pipeline
def scoring(n: int = 3, parts: int = 2):
    found = total(twice.map(item=score.map(item=load(n))))
    text = publish.when(is_good(found))(found)
    tell(text)
    score.map(item=list(range(parts)))
"""


class Pods:
    """The pods of a run, one after the other."""

    def __init__(self, order: Order, store: Store) -> None:
        self.order = order
        self.store = store

    @property
    def pod(self) -> OneStep:
        """Another one, which knows nothing but the store."""
        return OneStep(self.order, "sha256:" + "0" * 64, self.store, RUN)

    def does(self, node: str, value: object, *at: int, failure: Failure | None = None) -> None:
        """A step runs, and makes this or fails."""
        prepared = self.pod.prepare(node, at)
        assert prepared.spec is not None, prepared
        spec = self.store.read_spec(prepared.spec)
        made = {
            output.name: artifacts.save(value, self.store, by_item=output.by_item) for output in spec.outputs
        }
        self.store.create_result(
            TaskResult(
                task=spec.task,
                attempt=spec.attempt,
                status="failed" if failure else "completed",
                outputs={} if failure else made,
                failure=failure,
                started=1.0,
                ended=2.0,
                target=spec.target,
                backend=spec.backend,
            )
        )


Made = Callable[[str], Pods]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))

    def make(text: str) -> Pods:
        file = tmp_path / "project" / "exported_pipeline.py"
        file.parent.mkdir()
        file.write_text(textwrap.dedent(text))
        store = open_store(str(tmp_path / "store"))
        graph = attrs.evolve(load_pipeline(str(file)).build({}, store), sources={})
        order = Order(
            graph=graph,
            steps=dict.fromkeys(graph.used, StepOrder(granted=Hardware(nodes=1), strict=True)),
            code=Code(project=str(file.parent), file=file.name, package="sha256:" + "1" * 64),
            runtime="sha256:" + "2" * 64,
            target=Target(name="kf", backend="kubeflow", store="s3://b/s"),
            store="s3://b/s",
            options={"durability": "process", "verify": "changed"},
            source={"file": str(file), "pipeline": None},
            params={"n": 3, "parts": 2},
            user="ann",
        )
        pods = Pods(order, store)
        pods.pod.begin(None)
        return pods

    return make


def test_pods_hand_on_results_through_the_store_alone(made: Made) -> None:
    pods = made(PIPELINE)
    pods.does("load", [5, 6])
    assert json.loads(pods.pod.told("load", (), "items:output")) == ["0", "1"]
    pods.does("score", 50, 0)
    assert pods.pod.prepare("twice", (1,)).failed, "what it needs has not run"
    pods.does("twice", 500, 0)  # item by item: nothing else of score is needed
    pods.does("score", 60, 1)
    pods.does("twice", 600, 1)
    pods.does("total", 1100)
    pods.does("is_good", True)
    assert pods.pod.told("is_good", (), "flag:output") == "true"
    pods.does("publish", "done")
    pods.does("tell", None)
    pods.does("score_2", 0, 0)
    pods.does("score_2", 1, 1)
    spec = pods.store.read_spec(pods.store.spec_path(TaskId(run=RUN, step="total"), 1))
    assert spec.inputs["scores"].items[1].digest == artifacts.save(600, pods.store).digest  # type: ignore[union-attr]
    assert pods.pod.end() == "completed"
    rows = rows_of(RUN, pods.store)
    assert rows is not None
    _, row, tasks, attempts = rows
    assert row is not None
    assert (row.status, row.user, row.source["orchestrator"]["name"]) == ("completed", "ann", "kubeflow")
    assert {task.status for task in tasks} == {"completed"}
    assert len(attempts) == len(tasks) == 11


def test_what_needs_a_step_that_is_skipped_is_skipped(made: Made) -> None:
    pods = made(PIPELINE)
    pods.does("load", [])
    pods.does("total", 0)
    pods.does("is_good", False)
    skipped = pods.pod.prepare("tell", ())
    assert (skipped.spec, skipped.failed) == (None, False)
    assert skipped.said == "tell is skipped: needs publish, which was skipped"
    assert pods.pod.prepare("publish", ()).said == "publish is skipped: is_good gave False"


def test_an_attempt_gets_a_number_that_nobody_has(made: Made) -> None:
    pods = made(PIPELINE)
    first, second = pods.pod.prepare("load", ()), pods.pod.prepare("load", ())
    assert (first.attempt, second.attempt) == (1, 2)
    assert pods.store.claimed_by(TaskId(run=RUN, step="load"), 1) is not None, "the first one never begins"


def test_a_task_that_is_done_is_not_done_again(made: Made) -> None:
    pods = made(PIPELINE)
    pods.does("load", [1])
    again = pods.pod.prepare("load", ())
    assert (again.spec, again.failed, again.said) == (None, False, "load is done already")


def test_a_cause_that_is_not_to_be_retried_ends_the_task_and_the_run(made: Made) -> None:
    pods = made(PIPELINE)
    pods.does("load", [])
    pods.does("total", None, failure=Failure(reason="preempted", message="its node went"))
    pods.does("total", None, failure=Failure(reason="user-error", message="ValueError: no"))
    third = pods.pod.prepare("total", ())
    assert (third.spec, third.failed) == (None, True)
    assert third.said == "total is not tried again after user-error: on=['preempted']"
    assert pods.pod.end() == "failed"
    ending = {str(task.task): task.status for task in read_ending(RUN, pods.store).tasks}
    assert (ending["total"], ending["tell"], ending["score_2[0]"]) == ("failed", "cancelled", "cancelled")


def test_a_person_may_retry_more_often_than_the_step_says(made: Made) -> None:
    pods = made(PIPELINE)
    pods.does("load", [])
    for _ in range(3):
        pods.does("total", None, failure=Failure(reason="preempted", message="its node went"))
    assert pods.pod.prepare("total", ()).attempt == 4


def test_a_run_of_another_orchestrator_goes_on_without_an_engine(made: Made, tmp_path: Path) -> None:
    pods = made(PIPELINE)
    pods.does("load", [1])
    configuration = Configuration(catalog=str(tmp_path / "catalog.db"), store=pods.store.address)
    with closing(open_catalog(configuration)) as catalog:
        (row,) = standing([known_run(RUN, catalog, configuration)], catalog)
        assert row.status == "running"
    target = Target(name="kf", backend="kubeflow", store="s3://bucket/team")
    configuration = attrs.evolve(configuration, targets={"kf": target})
    with pytest.raises(UsageError, match="'kf' does not give the address of Kubeflow Pipelines") as caught:
        cancel(RUN, configuration)
    assert "host" in (caught.value.fix or "")


def test_a_pod_that_left_nothing_is_told_of_at_the_end(made: Made) -> None:
    pods = made(PIPELINE)
    pods.pod.prepare("load", ())
    assert pods.pod.end() == "failed"
    (attempt,) = read_ending(RUN, pods.store).attempts
    assert (attempt.status, attempt.reason) == ("failed", "infrastructure")
    assert attempt.failure is not None
    assert attempt.failure.message == "its pod has gone without a result"


def test_a_condition_that_is_no_bool_is_an_error(made: Made) -> None:
    pods = made(PIPELINE)
    pods.does("load", [])
    pods.does("total", 0)
    pods.does("is_good", 1)
    with pytest.raises(GraphError, match=r"\.when\(is_good\) is of type int, and not a bool") as caught:
        pods.pod.told("is_good", (), "flag:output")
    assert "exported_pipeline.py:" in str(caught.value.where)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"n": "3", "parts": "2"}, {}),
        ({"n": "3.0", "parts": "4"}, {"parts": "4"}),
        ({"n": "many"}, {"n": "many"}),
    ],
)
def test_only_parameters_that_differ_from_the_exported_ones_count(
    made: Made, given: dict[str, str], found: dict[str, str]
) -> None:
    assert changed(made(PIPELINE).order, given) == found


def test_a_graph_with_other_steps_is_not_what_kubeflow_has(made: Made, tmp_path: Path) -> None:
    pods = made(PIPELINE)
    pipeline = load_pipeline(str(tmp_path / "project" / "exported_pipeline.py"))
    same, other = (pipeline.build(given, pods.store) for given in ({"n": 9}, {"parts": 5}))
    confirm_same_shape(same, pods.order.graph)
    with pytest.raises(StoreError, match="other steps than the exported one: score_2"):
        confirm_same_shape(other, pods.order.graph)


FLOW = """
from upshift import FlowSpec, step

class Growing(FlowSpec):
    @step
    def start(self):
        self.outer = [1, 2]
        self.next(self.group, foreach="outer")

    @step
    def group(self):
        self.inner = [3, 4]
        self.next(self.item, foreach="inner")

    @step
    def item(self):
        self.next(self.joined)

    @step
    def joined(self, inputs):
        self.next(self.all_joined)

    @step
    def all_joined(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass
"""


def test_upstream_of_a_step_in_loops_is_what_is_in_the_same_items(made: Made) -> None:
    from upshift.engine.one_step import upstream_of
    from upshift.engine.tasks import NodeState, TaskState
    from upshift.model.graph import Node, StepDefinition
    from upshift.model.spec.task import EntryPoint

    graph = made(FLOW).order.graph

    def task(name: str, index: int | None = None) -> TaskState:
        node: Any = Node(name=name, step=name.partition(".")[0])
        definition = StepDefinition(entry=EntryPoint(module="m", qualname="f"))
        state = NodeState(node, definition, None, order=0, remaining=0)  # type: ignore[arg-type]
        return TaskState(state, index)

    every = [task("start"), *(task(f"group.{n}") for n in (0, 1)),
             *(task(f"item.{n}", m) for n in (0, 1) for m in (0, 1)), task("joined.0"), task("joined.1"),
             task("all_joined")]  # fmt: skip

    def upstream(name: str, *at: int) -> list[str]:
        return [str(one) for one in filter(upstream_of(graph, name, at), every)]

    assert upstream("start") == []
    assert upstream("group", 1) == ["start"]
    assert upstream("item", 1, 0) == ["start", "group.1"]
    assert upstream("joined", 0) == ["start", "group.0", "item.0[0]", "item.0[1]"]
    assert len(upstream("all_joined")) == 9
    assert len(upstream("end")) == 10


def test_other_parameters_compose_the_exported_code_again(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from upshift.code.packages import make_package

    pods = made(PIPELINE)
    package = make_package(tmp_path / "project", pods.store).digest
    order = attrs.evolve(
        pods.order,
        code=attrs.evolve(pods.order.code, package=package, paths=(".",)),
        source={**pods.order.source, "pipeline": "scoring"},
    )
    graph = composed_again(order, pods.store, {"n": "8"})
    assert artifacts.load(graph.params["n"], pods.store) == 8
    confirm_same_shape(graph, order.graph)
    other = OneStep(order, "sha256:" + "0" * 64, pods.store, "another-run")
    other.begin(lambda: graph)
    content = pods.store.read_record("another-run", "run.json")
    assert content is not None
    assert (
        artifacts.load(
            from_json(type(graph), pods.store.read_record("another-run", "graph.json") or b"").params["n"],
            pods.store,
        )
        == 8
    )
    assert from_json(RunRow, content).pipeline == "scoring"
