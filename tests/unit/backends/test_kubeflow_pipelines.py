"""What a graph becomes for Kubeflow. ``UPDATE_GOLDEN=1`` writes the golden files, which its own SDK reads.

See ``tests/engines/test_kubeflow.py``.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.authoring.loading import load_pipeline
from upshift.backends.base import Ask, Offer
from upshift.backends.kubeflow.backend import KubeflowBackend
from upshift.backends.kubeflow.components import Pod
from upshift.backends.kubeflow.pipeline import pipeline_of, refuse_inexpressible, text_of
from upshift.backends.scheduler import yaml_of
from upshift.errors import ConfigError, RequestRefused, SettingsError
from upshift.model.configuration import Target
from upshift.model.graph import Graph
from upshift.model.settings.kubernetes import KubeflowSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry
from upshift.runtime.storage.store import open_store

GOLDEN = Path(__file__).parent / "kubeflow_pipelines"
yaml = pytest.importorskip("yaml")

FUNCTIONS = """
from upshift import pipeline, step

@step
def load(n: int) -> list[int]:
    return list(range(n))

@step
def score(item: int, by: int = 1) -> int:
    return item

@step
def is_good(scores: list[int]) -> bool:
    return True

@step
def publish(scores: list[int]) -> str:
    return "published"

@step
def tidy() -> None: ...

@pipeline
def functions(n: int = 3, label: str = "a", tags: list[str] = ["x"]):
    scores = score.map(item=load(n))
    twice = score.map(item=scores)
    fixed = score.map(item=[1, 2])
    good = is_good(twice)
    publish.when(good)(twice)
    score.when(good).map(item=fixed)
    tidy.after(scores)()
"""
FLOW = """
from upshift import FlowSpec, Parameter, step

class Growing(FlowSpec):
    alpha = Parameter("alpha", default=0.5)

    @step
    def start(self):
        self.next(self.left, self.right)

    @step
    def left(self):
        self.which = "x"
        self.next({"x": self.one, "y": self.two}, condition="which")

    @step
    def one(self):
        self.next(self.both)

    @step
    def two(self):
        self.next(self.both)

    @step
    def right(self):
        self.items = [1, 2]
        self.next(self.item, foreach="items")

    @step
    def item(self):
        self.parts = [3, 4]
        self.next(self.part, foreach="parts")

    @step
    def part(self):
        self.next(self.parts_joined)

    @step
    def parts_joined(self, inputs):
        self.next(self.items_joined)

    @step
    def items_joined(self, inputs):
        self.next(self.both)

    @step
    def both(self, inputs):
        self.kind = "large"
        self.next({"small": self.small, "large": self.large}, condition="kind")

    @step
    def small(self):
        self.next(self.end)

    @step
    def large(self):
        self.next(self.end)

    @step
    def end(self):
        pass
"""

Composed = Callable[[str], Graph]


@pytest.fixture
def composed(tmp_path: Path) -> Composed:
    def compose(text: str) -> Graph:
        file = tmp_path / "composed_for_kubeflow.py"
        file.write_text(textwrap.dedent(text))
        return load_pipeline(str(file)).build({}, open_store(str(tmp_path / "store")))

    return compose


def pod(**said: Any) -> Pod:
    return Pod(
        **{"image": "registry.example.org/ml@sha256:00", "command": ("python3", "-c", "start"), **said}
    )


def rendered(graph: Graph, params: Mapping[str, object] = {}, **pods: Pod) -> str:
    every = {name: pods.get(name, pod()) for name in graph.used}
    return text_of(pipeline_of(graph, every, pod(), params=params, description="Exported"))


def offered(request: ResourceSettings, **settings: Any) -> Offer:
    target = Target(name="kf", backend="kubeflow", store="s3://b/s", options=settings)
    backend = KubeflowBackend(target, store="s3://b/s", sink=lambda event: None)
    return backend.offer(Ask(request=request))


def compared(name: str, text: str) -> None:
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_pipeline_of_functions(composed: Composed) -> None:
    compared("functions", rendered(composed(FUNCTIONS), {"n": 3, "label": "a", "tags": ["x"]}))


def test_a_flow(composed: Composed) -> None:
    compared("flow", rendered(composed(FLOW), {"alpha": 0.5}))


def test_what_a_pod_asks_for(composed: Composed) -> None:
    granted = offered(
        ResourceSettings(cpu_count=3.5, memory="16GB", gpu_count=2, shared_memory="4GiB")
    ).granted
    mig = offered(ResourceSettings(accelerator="A100-80GB/1g.10gb"), node_selector={"pool": "mig"}).granted
    assert granted is not None
    assert mig is not None
    said = KubeflowSettings(
        node_selector={"pool": "gpu"},
        tolerations=[
            {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 30},
            {"operator": "Exists"},
        ],
        labels={"team": "ml"},
        annotations={"example.org/owner": "ann"},
        image_pull_secrets=["login"],
        image_pull_policy="Always",
        persistent_volume_claims={"data": "/data"},
    )
    train = pod(
        granted=granted,
        settings={name: getattr(said, name) for name in ("node_selector", "tolerations", "labels",
                  "annotations", "image_pull_secrets", "image_pull_policy", "persistent_volume_claims")},
        secrets={"HF_TOKEN": "k8s:hugging-face/token"},
        retry=Retry(times=3, delay=2.5, backoff=3, max_delay=60),
        environment={"AWS_REGION": "eu-west-1"},
    )  # fmt: skip
    graph = composed(
        """
        from upshift import pipeline, step

        @step
        def train() -> int:
            return 1

        @step
        def look(n: int) -> int:
            return n

        @pipeline
        def yes():
            return look(train())
        """
    )
    compared(
        "pods",
        rendered(graph, train=train, look=pod(granted=mig, settings={"node_selector": {"pool": "mig"}})),
    )


def test_nodes_of_a_step_that_are_alike_share_a_component(composed: Composed) -> None:
    text = rendered(
        composed(
            """
            from upshift import pipeline, step

            @step
            def add(n: int) -> int:
                return n

            @pipeline
            def adding():
                n = 0
                for _ in range(50):
                    n = add(n)
            """
        )
    )
    spec = next(yaml.safe_load_all(text))
    tasks = spec["components"]["comp-steps"]["dag"]["tasks"]
    assert len(tasks) == 50
    assert tasks["add-50"]["dependentTasks"] == ["add-49"]
    assert set(spec["deploymentSpec"]["executors"]) == {"exec-add", "exec-end"}


def test_a_step_that_something_skipped_is_needed_by_depends_on_it(composed: Composed) -> None:
    """Kubeflow's own rule is that every dependency has succeeded, which one that is skipped has not."""
    spec = next(yaml.safe_load_all(rendered(composed(FUNCTIONS), {"n": 3})))
    tasks = spec["components"]["comp-steps"]["dag"]["tasks"]
    condition = "inputs.parameter_values['pipelinechannel--is-good--flag_output'] == true"
    assert tasks["publish"]["triggerPolicy"] == {"condition": condition}
    assert tasks["if-score-4"]["triggerPolicy"] == {"condition": condition}
    assert set(tasks["if-score-4"]["dependentTasks"]) == {"is-good", "for-score-3"}
    assert "triggerPolicy" not in tasks["tidy"]
    assert spec["root"]["dag"]["tasks"]["end"]["triggerPolicy"] == {
        "strategy": "ALL_UPSTREAM_TASKS_COMPLETED"
    }


def test_two_lists_that_kubeflow_would_call_alike_are_refused(composed: Composed) -> None:
    graph = composed(
        """
        from typing import Annotated
        from upshift import pipeline, step

        @step
        def both() -> tuple[Annotated[list, "output"], Annotated[list, "items"]]:
            return [1], [2, 3]

        @step
        def use(n: int) -> int:
            return n

        @pipeline
        def alike():
            one, other = both()
            use.map(n=one)
            use.map(n=other)
        """
    )
    with pytest.raises(RequestRefused, match="step both has lists named output and items"):
        rendered(graph)


def test_only_first_steps_are_told_the_parameters(composed: Composed) -> None:
    spec = next(yaml.safe_load_all(rendered(composed(FUNCTIONS), {"n": 3, "label": "a"})))
    assert spec["root"]["inputDefinitions"]["parameters"]["n"] == {
        "parameterType": "NUMBER_INTEGER", "defaultValue": 3, "isOptional": True,
    }  # fmt: skip
    told = {
        name for name, one in spec["components"].items() if "param-n" in str(one.get("inputDefinitions", ""))
    }
    assert told == {"comp-load", "comp-score-2"}  # the one that is mapped over a fixed list
    assert _arguments(spec, "exec-load")[-6:-3] == ["--param", "n", "{{$.inputs.parameters['param-n']}}"]


def _arguments(spec: Mapping[str, Any], executor: str) -> list[str]:
    found: list[str] = spec["deploymentSpec"]["executors"][executor]["container"]["args"]
    return found


LOOP = """
from upshift import FlowSpec, step

class Looping(FlowSpec):
    @step
    def start(self):
        self.next(self.body)

    @step
    def body(self):
        self.more = "no"
        self.next({"yes": self.body, "no": self.end}, condition="more")

    @step
    def end(self):
        pass
"""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (LOOP, "step body is in a loop, which Kubeflow cannot express"),
        ("from upshift import pipeline\n\n@pipeline\ndef nothing(): ...\n", "nothing has no steps"),
    ],
    ids=["loop", "no-steps"],
)
def test_what_kubeflow_cannot_express_of_a_graph_is_refused(composed: Composed, text: str, what: str) -> None:
    with pytest.raises(RequestRefused, match=what) as caught:
        rendered(composed(text))
    assert what.endswith("no steps") or "composed_for_kubeflow.py:" in str(caught.value.where)


def test_more_memory_for_the_next_attempt_is_refused(composed: Composed) -> None:
    graph = composed(
        """
        from upshift import Retry, pipeline, step

        @step(retries=Retry(times=2, memory_factor=2))
        def train() -> int:
            return 1

        @pipeline
        def training():
            return train()
        """
    )
    with pytest.raises(RequestRefused, match="asks for more memory when it is tried again"):
        refuse_inexpressible("train", graph.steps["train"])


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (ResourceSettings(num_nodes=2), "num_nodes=2"),
        (ResourceSettings(disk="10GB"), "room on a disk"),
        (ResourceSettings(accelerator="tpu-v5e-32"), "hosts"),
    ],
    ids=["nodes", "disk", "tpu"],
)
def test_what_kubeflow_has_no_means_for_is_refused(request_: ResourceSettings, what: str) -> None:
    with pytest.raises(RequestRefused, match=what):
        offered(request_)


def test_a_kind_of_gpu_needs_the_label_of_its_nodes() -> None:
    (short,) = offered(ResourceSettings(accelerator="H100")).shortfalls
    assert "not asked for a kind of GPU, but for a label of its nodes" in short.why
    labelled = offered(ResourceSettings(accelerator="H100"), node_selector={"nvidia.com/gpu.product": "H100"})
    assert labelled.shortfalls == ()
    assert labelled.granted is not None
    assert len(labelled.granted.gpus or ()) == 1


def test_settings_are_refused_by_their_own_name() -> None:
    with pytest.raises(SettingsError, match="KubeflowSettings: image_pull_policy='sometimes'"):
        KubeflowSettings(image_pull_policy="sometimes")
    with pytest.raises(SettingsError, match="KubeflowSettings has no field 'affinity'"):
        KubeflowSettings(affinity={})


def test_a_target_needs_a_bucket() -> None:
    with pytest.raises(ConfigError, match="its store is the folder /shared"):
        KubeflowBackend(
            Target(name="kf", backend="kubeflow"), store="/shared/upshift", sink=lambda event: None
        )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=9,
    )
)
def test_yaml_says_what_it_was_made_of(value: object) -> None:
    assert yaml.safe_load(yaml_of({"on": value, "plain-name": [value]})) == {
        "on": value,
        "plain-name": [value],
    }


@pytest.mark.parametrize(
    "text",
    [
        *("one\n", "one\n\ttwo\n\n three\n", " one\ntwo\n", "\n", "\none\n", "one\n\n", "one\r\n"),
        *("one\x07\n", "one\x85\n", "one\u2028two\n", "\tone\n", "# one\n", "- one\n"),
    ],
)
def test_yaml_has_lines_of_text_as_they_are(text: str) -> None:
    assert yaml.safe_load(yaml_of({"script": text, "next": {"script": text}})) == {
        "script": text,
        "next": {"script": text},
    }
