"""The programs of the page on accelerators: what they say is what a pod or a job gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from test_batch_jobs import environment, queue
from test_kubernetes_manifests import BUCKET

from upshift.authoring.loading import find_pipeline, load_module
from upshift.backends.base import Ask
from upshift.backends.batch.definition import request_of
from upshift.backends.batch.queues import offer as offered_by_batch
from upshift.backends.kubernetes.manifest import manifests, template_of
from upshift.backends.kubernetes.nodes import offer
from upshift.backends.scheduler import Launch
from upshift.runtime.storage.store import open_store

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "accelerators.md"


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings of a step of a program of the page, as a plan has them."""
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))

    def plan(title: str, step: str = "train") -> Any:
        found = re.search(
            rf'^```python title="{title}"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
        assert found is not None
        file = tmp_path / title
        file.write_text(found[1])
        pipeline = find_pipeline(load_module(file), file, "training")
        return pipeline.build({}, open_store(str(tmp_path / "store"))).steps[step].settings

    return plan


def pod_of(settings: Any, *, nodes: int = 1) -> tuple[Any, Any]:
    """The pod of a step on a cluster that adds nodes as they are asked for, and its Job."""
    said = {name: v for name, v in settings.backends.get("kubernetes", {}).items() if v}
    found = offer(settings.resources, said, (), grows=True)
    assert found.shortfalls == () and found.granted is not None and found.granted.nodes == nodes
    launch = Launch(
        name="train-0123456789ab",
        comment="upshift r train attempt 1",
        command=("python3", "-c", "x", "runtime", "spec"),
        granted=found.granted,
        settings=said,
        image="i",
    )
    *_, job = manifests(launch, BUCKET)
    return template_of(job)["spec"], job["spec"]


def limits(pod: Any) -> Any:
    return pod["containers"][0]["resources"]["limits"]


def is_on_the_page(selector: dict[str, str]) -> bool:
    return all(f"`{name}: {value}`" in PAGE.read_text() for name, value in selector.items())


def test_a_slice_of_one_host_is_one_pod_on_the_nodes_that_the_page_names(planned: Any) -> None:
    pod, _ = pod_of(planned("tpu.py"))
    assert limits(pod)["google.com/tpu"] == "8"
    assert is_on_the_page(pod["nodeSelector"]) and len(pod["nodeSelector"]) == 2


def test_a_slice_of_several_hosts_is_a_pod_on_each(planned: Any) -> None:
    settings = planned("tpu_hosts.py")
    pod, job = pod_of(settings, nodes=4)
    assert limits(pod)["google.com/tpu"] == "4"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    assert {"key": "google.com/tpu", "operator": "Exists"} in pod["tolerations"]


def test_trainium_on_eks_is_asked_for_as_devices_with_their_interfaces(planned: Any) -> None:
    pod, job = pod_of(planned("eks.py"), nodes=2)
    assert limits(pod)["aws.amazon.com/neuron"] == "16" and limits(pod)["vpc.amazonaws.com/efa"] == "8"
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == "trn1.32xlarge"
    assert {"key": "aws.amazon.com/neuron", "operator": "Exists"} in pod["tolerations"]
    assert job["completions"] == 2


def test_another_vendors_gpus_are_asked_for_by_its_own_resource(planned: Any) -> None:
    pod, _ = pod_of(planned("amd.py"))
    assert limits(pod)["amd.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("step", "type_", "devices"), [("train", "trn1.32xlarge", 16), ("compile_model", "inf2.8xlarge", 1)]
)
def test_neuron_devices_on_aws_batch_are_those_of_a_whole_instance(
    planned: Any, step: str, type_: str, devices: int
) -> None:
    settings = planned("trainium.py", step)
    said = {name: v for name, v in settings.backends["aws-batch"].items() if v}
    found = offered_by_batch(Ask(request=settings.resources), said, queue(environment("neuron", type_)))
    assert found.shortfalls == () and found.granted is not None
    launch = Launch(
        name="train-0123456789ab",
        comment="upshift r train attempt 1",
        command=("python3", "-c", "x", "runtime", "spec"),
        granted=attrs.evolve(found.granted, nodes=1),
        settings=said,
        image="i",
    )
    container = request_of(launch)["RegisterJobDefinition"]["containerProperties"]
    paths = [one["hostPath"] for one in container["linuxParameters"]["devices"]]
    assert paths == [f"/dev/neuron{number}" for number in range(devices)]
