"""What Kubernetes is asked for. ``UPDATE_GOLDEN=1`` writes the golden files."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_validate import utils

from upshift.backends.kubernetes.cluster import Kubernetes
from upshift.backends.kubernetes.manifest import (
    LONGEST,
    Mount,
    Site,
    job_name,
    label_value,
    manifests,
    patched,
    template_of,
)
from upshift.backends.kubernetes.nodes import (
    PRODUCTS,
    Node,
    chips_per_host,
    is_device,
    offer,
    quantity,
    read_nodes,
    topology_of,
)
from upshift.backends.scheduler import Launch
from upshift.errors import RequestRefused, SettingsError
from upshift.model.settings.kinds import kind_named
from upshift.model.settings.kubernetes import KubernetesSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Device, Hardware
from upshift.model.spec.codec import encode

GOLDEN = Path(__file__).parent / "kubernetes_jobs"
VERSIONS = [v for v in utils.all_versions() if int(v.split(".")[1]) >= 30]
GIB = 1 << 30

BUCKET = Site(namespace="ml")
SHARED = Site(
    namespace="ml",
    mounts=(
        Mount(path="/shared", claim="team-data", inside="ann"),
        Mount(path="/scratch", host="/local/scratch"),
    ),
    user=(1000, 1000),
)
SMALL = Launch(
    name="add-1-0123456789ab",
    comment="upshift 20260101-000000-aaaa add[1] attempt 1",
    command=("python3", "-c", "BOOTSTRAP $(HOME)", "s3://b/blobs/sha256/ab/cd", "s3://b/runs/1.1.spec.json"),
    granted=Hardware(nodes=1),
    settings={},
    grace=10.0,
    image="registry.example.org/ml@sha256:0123",
    environment={"UPSHIFT_NODE_HOME": "/upshift", "AWS_REGION": "eu-central-1"},
)


def granted(said: Mapping[str, Any] | None = None, nodes: Any = None, **request: Any) -> Hardware:
    found = offer(ResourceSettings(**request), said or {}, nodes, grows=nodes is None)
    assert found.shortfalls == ()
    assert found.granted is not None
    return found.granted


def settings_of(**fields: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in encode(KubernetesSettings(**fields)).items()
        if value is not None and value not in ((), [], {})
    }


def launch(said: Mapping[str, Any] | None = None, nodes: Any = None, **request: Any) -> Launch:
    return attrs.evolve(SMALL, granted=granted(said, nodes, **request), settings=said or {})


FULL = settings_of(
    namespace="research",
    service_account="trainer",
    image_pull_secrets=["registry-login"],
    image_pull_policy="always",
    secrets=["hugging-face"],
    node_selector={"zone": "a"},
    tolerations=[{"key": "dedicated", "value": "ml", "effect": "NoExecute", "toleration_seconds": 60}],
    affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}]}}},
    topology_spread_constraints=[
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    security_context={"runAsUser": 7},
    labels={"team": "vision"},
    annotations={"example.org/owner": "Ann, from the 3rd floor"},
    persistent_volume_claims={"models.2026": "/models"},
    use_tmpfs=True,
    tmpfs_size="4GiB",
    tmpfs_path="/fast",
    tmpfs_tempdir=False,
    priority_class="high",
    runtime_class="nvidia",
    queue="research-gpus",
    qos="guaranteed",
    termination_grace=120,
    efa=4,
    pod_patch={"spec": {"hostIPC": True, "containers": [{"name": "step", "stdin": True}]}},
)  # fmt: skip


def device(vendor: str, resource: str, count: int, product: str | None = None, **labels: str) -> Node:
    label = PRODUCTS[vendor][0]
    return Node(
        name="n1",
        cpus=96,
        memory=512 * GIB,
        disk=1000 * GIB,
        devices={resource: count},
        labels={
            **({label: product} if product else {}),
            **{k.replace("__", "/"): v for k, v in labels.items()},
        },
    )


CLAIMS = {
    "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-h100"}],
        "containers": [{"name": "step", "resources": {"claims": [{"name": "gpu"}]}}],
    }
}
"""Dynamic resource allocation, as the page on Kubernetes shows it."""
H100 = device("nvidia", "nvidia.com/gpu", 8, "NVIDIA-H100-80GB-HBM3")
MIG = device("nvidia", "nvidia.com/mig-1g.10gb", 7, "NVIDIA-A100-SXM4-80GB")
MI300X = device("amd", "amd.com/gpu", 8, "AMD_Instinct_MI300X_OAM")
XE = device("intel", "gpu.intel.com/xe", 2)
GAUDI = device("habana", "habana.ai/gaudi", 8)
TRN1 = device("neuron", "aws.amazon.com/neuron", 16, "trn1.32xlarge")

CASES: dict[str, tuple[Launch, Site]] = {
    "small": (SMALL, BUCKET),
    "folder": (launch(cpu_count=2.5, memory="4GB", disk="10GB"), SHARED),
    "everything": (
        attrs.evolve(
            launch(FULL, None, cpu_count=8, memory="64GB", gpu_count=2, shared_memory="16GB"),
            secrets={"HF_TOKEN": "k8s:hugging-face/token"},
        ),
        SHARED,
    ),
    "nvidia": (launch(nodes=[H100], accelerator="H100:8", cpu_count=64, memory="400GB"), BUCKET),
    "mig": (launch(nodes=[MIG], accelerator="A100-80GB/1g.10gb:2"), BUCKET),
    "amd": (launch(nodes=[MI300X], accelerator="MI300X:8"), BUCKET),
    "intel": (launch(nodes=[XE], gpu_vendor="intel", gpu_count=2), BUCKET),
    "gaudi": (launch(nodes=[GAUDI], gpu_vendor="habana", gpu_count=8), BUCKET),
    "neuron-efa": (launch(settings_of(efa=8), None, gpu_vendor="neuron", gpu_count=16), BUCKET),
    "tpu": (launch(accelerator="tpu-v5e-8"), BUCKET),
    "tpu-hosts": (launch(accelerator="tpu-v5p-32"), BUCKET),
    "nodes": (
        attrs.evolve(
            launch(nodes=[H100, attrs.evolve(H100, name="n2")], num_nodes=2, accelerator="H100:8"),
            name="train-0123456789ab",
            timeout=3600,
        ),
        BUCKET,
    ),
    "jobset": (
        attrs.evolve(
            launch(
                settings_of(jobset=True, queue="gangs"),
                [H100, attrs.evolve(H100, name="n2")],
                num_nodes=2,
                accelerator="H100:8",
            ),
            name="train-0123456789ab",
        ),
        BUCKET,
    ),
    "code-cache": (SMALL, attrs.evolve(BUCKET, code_cache="/var/lib/upshift")),
    "claims": (launch(settings_of(pod_patch=CLAIMS), cpu_count=4), BUCKET),
    "array": (
        attrs.evolve(
            SMALL,
            comment="upshift 20260101-000000-aaaa add, 3 tasks",
            command=(*SMALL.command[:-1], "s3://b/runs/add.array"),
            elements=(0, 1, 2),
        ),
        BUCKET,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_what_was_granted_and_said(name: str) -> None:
    golden = GOLDEN / f"{name}.yaml"
    shown = yaml.safe_dump_all(manifests(*CASES[name]), sort_keys=False, allow_unicode=True)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


@functools.cache
def validator(version: str, kind: str) -> Any:
    """That of Kubernetes' own schema, in which no other field is allowed than those that are there."""
    import jsonschema
    from referencing import Registry, Resource

    folder = f"kubernetes-json-schema/v{version}-local-strict"
    schema = utils.schema_contents(f"{folder}/{kind}.json", version)
    definitions = Resource.from_contents(utils.schema_contents(f"{folder}/_definitions.json", version))
    registry: Any = definitions @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.validators.Draft202012Validator(schema, registry=registry)


KINDS = {"Job": "job-batch-v1", "Secret": "secret-v1", "Service": "service-v1"}


def refuse_invalid(item: Mapping[str, Any], version: str) -> None:
    if item["kind"] == "JobSet":  # no part of Kubernetes; the Job in it is
        (only,) = item["spec"]["replicatedJobs"]
        spec = only["template"]["spec"]
        item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": item["metadata"], "spec": spec}
    validator(version, KINDS[item["kind"]]).validate(item)
    name, template = item["metadata"]["name"], item.get("spec", {}).get("template")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= LONGEST
    for value in item["metadata"]["labels"].values():
        assert re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value)
    if template is None:
        return
    container = template["spec"]["containers"][0]
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    assert volumes == {mount["name"] for mount in container["volumeMounts"]}
    assert len(volumes) == len(template["spec"]["volumes"])
    assert len({mount["mountPath"] for mount in container["volumeMounts"]}) == len(container["volumeMounts"])
    has = container["resources"]
    for resource, amount in has.get("limits", {}).items():
        assert quantity(has["requests"][resource]) == quantity(amount) > 0


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(KubernetesSettings)])
def test_no_setting_is_dropped(field: str) -> None:
    every = {**FULL, "jobset": True, **({"tmpfs_tempdir": True} if field == "use_tmpfs" else {})}
    asked = launch(every, None, cpu_count=8, gpu_count=2, num_nodes=2, memory="64GB")
    without = attrs.evolve(asked, settings={name: v for name, v in every.items() if name != field})
    assert field in every
    assert manifests(asked, BUCKET) != manifests(without, BUCKET)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_kubernetes_knows_all_fields(version: str) -> None:
    minor = int(version.split(".")[1])
    for name, one in CASES.items():
        if name == "claims" and minor < 31:  # they were written otherwise
            continue
        for item in manifests(*one):
            refuse_invalid(item, version)


def test_versions_from_1_30_to_1_35_are_among_them() -> None:
    assert {int(version.split(".")[1]) for version in VERSIONS} >= {*range(30, 36)}


def test_a_misspelt_field_would_be_found() -> None:
    item = manifests(SMALL, BUCKET)[-1]
    item["spec"]["template"]["spec"]["restartPolici"] = "Never"
    with pytest.raises(Exception, match="restartPolici"):
        kubernetes_validate.validate(item, VERSIONS[0], strict=True)


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
PATHS = st.from_regex(r"/[a-z]{1,9}(/[a-z]{1,9})?", fullmatch=True)
TEXTS = st.from_regex(r"[A-Za-z0-9]([-\w.]{0,20}[A-Za-z0-9])?", fullmatch=True).filter(str.isascii)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "namespace": NAMES,
        "service_account": NAMES,
        "image_pull_secrets": st.lists(NAMES, max_size=2),
        "secrets": st.lists(NAMES, max_size=2),
        "node_selector": st.dictionaries(NAMES, TEXTS, max_size=2),
        "tolerations": st.lists(
            st.fixed_dictionaries({"key": NAMES}, optional={"value": TEXTS, "effect": st.just("NoSchedule")}),
            max_size=2,
        ),
        "labels": st.dictionaries(NAMES, TEXTS, max_size=2),
        "annotations": st.dictionaries(NAMES, st.text(max_size=20), max_size=2),
        "persistent_volume_claims": st.dictionaries(
            NAMES, PATHS.map(lambda path: f"/claims{path}"), max_size=3
        ).filter(lambda claims: len(set(claims.values())) == len(claims)),
        "use_tmpfs": st.booleans(),
        "tmpfs_size": st.integers(1, 4096),
        "priority_class": NAMES,
        "queue": NAMES,
        "jobset": st.booleans(),
        "qos": st.sampled_from(["Burstable", "Guaranteed"]),
        "termination_grace": st.integers(1, 600),
        "efa": st.integers(0, 4),
    },
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu_count": st.one_of(st.integers(1, 200), st.floats(0.01, 200)),
        "memory": st.integers(10**6, 2 * 10**12),
        "disk": st.integers(10**6, 2 * 10**12),
        "shared_memory": st.integers(10**6, 2 * 10**12),
        "gpu_count": st.integers(0, 16),
        "num_nodes": st.integers(1, 5),
    },
)
CLUSTERS = st.one_of(
    st.none(), st.lists(st.sampled_from([H100, MIG, MI300X, XE, GAUDI, TRN1]), min_size=1, max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(name=st.text(min_size=1, max_size=60), said=SETTINGS, request=REQUESTS, nodes=CLUSTERS)
def test_what_is_asked_for_is_in_a_valid_manifest_or_is_refused(
    name: str, said: dict[str, Any], request: dict[str, Any], nodes: Any
) -> None:
    fields = settings_of(**said)
    try:
        found = offer(ResourceSettings(**request), fields, nodes)
    except RequestRefused:  # a label that no node has, or a guarantee of who knows how much
        return
    assert found.granted is not None
    *_, job = items = manifests(
        attrs.evolve(SMALL, name=f"{name}-0123456789ab", granted=found.granted, settings=fields), SHARED
    )
    for item in items:
        refuse_invalid(item, VERSIONS[-1])
    short = {one.field for one in found.shortfalls}
    template = template_of(job)
    pod = template["spec"]
    has = pod["containers"][0]["resources"]
    if "cpu_count" in request and "cpu_count" not in short:
        assert quantity(has["requests"]["cpu"]) >= request["cpu_count"] - 1e-9
    for field, resource in (("memory", "memory"), ("disk", "ephemeral-storage")):
        if field in request and field not in short:
            assert quantity(has["limits"][resource]) == request[field]
    if request.get("gpu_count") and not short:
        counts = [int(value) for key, value in has["limits"].items() if is_device(key)]
        assert counts == [request["gpu_count"]]
    if request.get("num_nodes", 1) > 1 and not short:
        spec = job["spec"]
        assert (job["kind"] == "JobSet") == bool(said.get("jobset"))
        if job["kind"] == "JobSet":
            spec = spec["replicatedJobs"][0]["template"]["spec"]
        assert spec["completions"] == spec["parallelism"] == request["num_nodes"]
    if "shared_memory" in request and "shared_memory" not in short:
        (shm,) = (volume for volume in pod["volumes"] if volume["name"] == "shared-memory")
        assert int(shm["emptyDir"]["sizeLimit"]) == request["shared_memory"]


def test_ten_thousand_manifests_are_rendered_in_no_time_worth_a_word() -> None:
    cluster = Kubernetes(api=None, options={"namespace": "ml"})  # type: ignore[arg-type]
    since = time.process_time()
    for _ in range(1000):
        cluster.render(SMALL)
    assert time.process_time() - since < 3  # ten times what is promised for as many


@pytest.mark.parametrize(
    "name", ["Tränen[3]-0123456789ab", "9-lives-0123456789ab", f"{'x' * 60}-0123456789ab", "_-0123456789ab"]
)
def test_names_are_those_that_kubernetes_takes_and_keep_their_digest(name: str) -> None:
    made = job_name(name)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)
    assert len(made) <= LONGEST
    assert made.endswith("-0123456789ab")
    assert len(label_value("y" * 80)) == 63


def test_a_patch_is_merged_as_kubernetes_would() -> None:
    pod = {
        "spec": {
            "containers": [{"name": "step", "env": [{"name": "A", "value": "1"}], "image": "x"}],
            "tolerations": [{"key": "a"}],
            "nodeSelector": {"zone": "a"},
            "subdomain": "x",
        }
    }
    patch = {
        "spec": {
            "containers": [{"name": "step", "env": [{"name": "B", "value": "2"}]}, {"name": "proxy"}],
            "tolerations": [{"key": "b"}],
            "nodeSelector": {"disk": "ssd"},
            "subdomain": None,
        }
    }
    assert patched(pod, patch) == {
        "spec": {
            "containers": [
                {
                    "name": "step",
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                    "image": "x",
                },
                {"name": "proxy"},
            ],
            "tolerations": [{"key": "a"}, {"key": "b"}],
            "nodeSelector": {"zone": "a", "disk": "ssd"},
        }
    }


@pytest.mark.parametrize(
    ("chips", "generation", "topology", "hosts"),
    [(1, "v5e", "1x1", 1), (8, "v5e", "2x4", 1), (16, "v6e", "4x4", 4), (32, "v5e", "4x8", 8),
     (4, "v5p", "2x2x1", 1), (16, "v5p", "2x2x4", 4), (64, "v4", "4x4x4", 16)],
)  # fmt: skip
def test_a_slice_of_tpus_has_the_usual_shape(chips: int, generation: str, topology: str, hosts: int) -> None:
    kind = kind_named(f"tpu-{generation}")
    assert topology_of(kind, chips) == topology
    assert chips // chips_per_host(kind, chips) == hosts


# Offers


def item(
    name: str, *, taints: Any = (), ready: str = "True", labels: Any = None, **has: str
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": [*taints]},
        "status": {
            "allocatable": {key.replace("__", ".").replace("_S_", "/"): value for key, value in has.items()},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
NODES = read_nodes(
    [
        item("small", cpu="3920m", memory="15Gi", **{"ephemeral-storage": "100Gi"}),
        item(
            "gpus",
            cpu="48",
            memory="512Gi",
            nvidia__com_S_gpu="4",
            taints=[GPU_TAINT],
            labels={"nvidia.com/gpu.product": "NVIDIA-H200", "zone": "a"},
            **{"ephemeral-storage": "1Ti"},
        ),
        item(
            "theirs", cpu="900", memory="9Ti", taints=[{"key": "team", "value": "x", "effect": "NoExecute"}]
        ),
    ]
)


@pytest.mark.parametrize(
    ("request_", "said", "words"),
    [
        ({"cpu_count": 5}, {}, ["5 CPUs", "the largest node is small with 3.92 CPUs"]),
        ({"cpu_count": 49, "gpu_count": 1}, {},
         ["49 CPUs", "gpus with 48 CPUs", "4 × nvidia.com/gpu (NVIDIA-H200)"]),
        ({"accelerator": "H200:5"}, {}, ["5 × H200", "none", "4 × nvidia.com/gpu"]),
        ({"accelerator": "B200"}, {}, ["1 × B200", "none"]),
        ({"num_nodes": 2, "gpu_count": 4}, {}, ["2 nodes", "no more nodes"]),
        ({"memory": "2GB", "shared_memory": "4GB"}, {}, ["shared memory", "part of the memory"]),
    ],
)  # fmt: skip
def test_what_no_node_can_hold_is_refused_with_the_largest_one(
    request_: dict[str, Any], said: dict[str, Any], words: list[str]
) -> None:
    found = offer(ResourceSettings(**request_), said, NODES)
    text = " | ".join(f"{one.asked} | {one.got} | {one.why}" for one in found.shortfalls)
    for word in words:
        assert word in text


def test_a_tolerated_taint_opens_a_node_and_an_autoscaler_all() -> None:
    said = settings_of(tolerations=[{"key": "team", "operator": "Exists"}])
    assert offer(ResourceSettings(cpu_count=900), said, NODES).shortfalls == ()
    assert offer(ResourceSettings(cpu_count=9000), {}, NODES, grows=True).shortfalls == ()
    assert offer(ResourceSettings(cpu_count=9000), {}, None).shortfalls == ()


def test_a_kind_that_no_label_is_known_of_is_refused_unless_a_selector_names_it() -> None:
    (short,) = offer(ResourceSettings(accelerator="B200:8"), {}, None).shortfalls
    assert "may not list the nodes" in short.why
    said = settings_of(node_selector={"pool": "b200"})
    found = offer(ResourceSettings(accelerator="B200:8"), said, None)
    assert found.shortfalls == () and found.granted is not None and len(found.granted.gpus or ()) == 8


def test_a_label_that_no_node_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RequestRefused, match=r"no node has the label zone=b[\s\S]*Nodes have a\."):
        offer(ResourceSettings(), settings_of(node_selector={"zone": "b"}), NODES)


def test_a_node_that_was_lost_is_avoided_where_there_are_others() -> None:
    nodes = [H100, attrs.evolve(H100, name="n2"), attrs.evolve(H100, name="n3")]
    found = offer(ResourceSettings(num_nodes=(2, 3), gpu_count=8), {}, nodes, avoid=["n2"])
    assert found.granted is not None
    assert (found.granted.nodes, found.granted.details["avoids"]) == (2, ["n2"])
    job = manifests(attrs.evolve(SMALL, granted=found.granted), BUCKET)[-1]
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert "'NotIn', 'values': ['n2']" in str(terms)


@pytest.mark.parametrize(
    ("text", "amount"), [("3920m", 3.92), ("15Gi", 15 * GIB), ("2k", 2000), ("1e3", 1000), ("8", 8), ("x", 0)]
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, amount: float) -> None:
    assert quantity(text) == amount


# Settings


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"namespace": "My Team"}, ["namespace='My Team'", "small letters"]),
        ({"node_selector": "gpu"}, ["node_selector='gpu'", "values by name"]),
        ({"labels": {"team": "a b"}}, ["labels['team']='a b'", "63"]),
        ({"labels": {"upshift/run": "x"}}, ["labels has 'upshift/run'", "another prefix"]),
        ({"tolerations": {"key": "a"}}, ["tolerations=", "a list"]),
        ({"tolerations": [{"kee": "a"}]}, ["tolerations[0]", "key, operator"]),
        ({"tolerations": [{"key": "a", "operator": "Is"}]}, ["'Equal' or 'Exists'"]),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, ["NoSchedule"]),
        ({"persistent_volume_claims": {"a": "data"}}, ["persistent_volume_claims['a']='data'", "absolute"]),
        ({"persistent_volume_claims": {"a": "/d", "b": "/d"}}, ["a path of its own"]),
        ({"tmpfs_size": "much"}, ["tmpfs_size='much'", "MiB"]),
        ({"qos": "BestEffort"}, ["qos='BestEffort'", "'Burstable'", "'Guaranteed'"]),
        ({"termination_grace": 0}, ["termination_grace=0", "at least 1 second"]),
        ({"pod_patch": {"containers": []}}, ["pod_patch=", '"metadata" and "spec"']),
        ({"pod_patch": {"spec": {"x": object()}}}, ["plain data"]),
        ({"image": "x"}, ["no field 'image'", "DockerSettings(parent_image="]),
        ({"gpu": 2}, ["no field 'gpu'", "ResourceSettings(gpu_count=…)"]),
        ({"compute_pool": "x"}, ["no field 'compute_pool'", "node_selector"]),
        ({"node_selectr": {}}, ["no field 'node_selectr'", "node_selector"]),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_would(
    fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        KubernetesSettings(**fields)
    for word in words:
        assert word in str(caught.value)


def test_settings_may_be_written_as_on_the_command_line() -> None:
    said = KubernetesSettings(node_selector="zone=a,disk=ssd", image_pull_secrets="one, two")  # type: ignore[arg-type]
    assert said.node_selector == {"zone": "a", "disk": "ssd"}
    assert said.image_pull_secrets == ("one", "two")
    assert KubernetesSettings(tmpfs_size=512).use_tmpfs is True


def test_devices_of_the_grant_are_those_that_the_node_says() -> None:
    assert (
        granted(nodes=[TRN1], accelerator="Trainium:16").gpus
        == (Device(vendor="neuron", model="trn1.32xlarge", kind="Trainium"),) * 16
    )
    assert {d.partition for d in granted(nodes=[MIG], accelerator="A100-80GB/1g.10gb:2").gpus or ()} == {
        "1g.10gb"
    }
