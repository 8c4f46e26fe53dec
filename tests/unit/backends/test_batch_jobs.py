"""What AWS Batch is asked for, and what a request gets in a queue. ``UPDATE_GOLDEN=1`` writes the files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs
import boto3
import pytest
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from upshift.backends.base import Ask
from upshift.backends.batch.definition import REGISTER, SUBMIT, job_name, request_of
from upshift.backends.batch.queues import FARGATE, PAIRS, findings, offer, pair, read_queue
from upshift.backends.scheduler import Launch
from upshift.code.runtime_package import bootstrap
from upshift.errors import RequestRefused, SettingsError
from upshift.model.settings.batch import BatchSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Device, Hardware
from upshift.model.spec.codec import encode

GOLDEN = Path(__file__).parent / "batch_jobs"
ROLE, EXECUTION = "arn:aws:iam::123456789012:role/steps", "arn:aws:iam::123456789012:role/execution"
GIB = 1 << 30

SMALL = Launch(
    name="add-1-0123456789ab",
    comment="upshift 20260101-000000-aaaa add[1] attempt 1",
    command=(
        "python3",
        "-c",
        "BOOTSTRAP",
        "s3://ml/store/blobs/sha256/ab/cd",
        "s3://ml/store/runs/r/1.spec.json",
    ),
    granted=Hardware(cpu_count=1, memory=4 * GIB, nodes=1),
    settings={"queue": "cpu", "iam_role": ROLE},
    image="123456789012.dkr.ecr.eu-west-1.amazonaws.com/ml@sha256:ab",
    environment={"AWS_REGION": "eu-west-1"},
)
GPUS = attrs.evolve(
    SMALL,
    name="train-0123456789ab",
    granted=Hardware(
        cpu_count=47.5,
        memory=300 * 10**9 + 1,
        gpus=(Device(vendor="nvidia", model="H100", kind="H100"),) * 4,
        nodes=1,
        shared_memory=16 * GIB,
    ),
    settings={
        **SMALL.settings,
        "queue": "gpu",
        "execution_role": EXECUTION,
        "max_swap": 0,
        "swappiness": 10,
        "host_volumes": ["/data", "/scratch:/tmp/scratch"],
        "efs_volumes": ["fs-0123456789abcdef0", "fs-0123456789abcdef1:/models"],
        "use_tmpfs": True,
        "log_options": {"awslogs-group": "/ml"},
        "tags": {"team": "vision"},
        "privileged": True,
        "share_identifier": "vision",
        "scheduling_priority": 7,
    },
    timeout=3600.0,
    grace=30.0,
    secrets={"HF_TOKEN": "aws:arn:aws:secretsmanager:eu-west-1:123456789012:secret:hf-x1:token::"},
)
TRAINIUM = attrs.evolve(
    SMALL,
    granted=Hardware(
        cpu_count=128, memory=480 * GIB, gpus=(Device(vendor="neuron", kind="Trainium"),) * 16, nodes=1
    ),
    settings={
        **SMALL.settings,
        "queue": "trn",
        "tmpfs_size": 1024,
        "tmpfs_path": "/t",
        "tmpfs_tempdir": False,
    },
)
NODES = attrs.evolve(
    TRAINIUM,
    granted=attrs.evolve(TRAINIUM.granted, nodes=4),
    settings={**SMALL.settings, "queue": "trn", "efa": 2},
)
ON_FARGATE = attrs.evolve(
    SMALL,
    granted=Hardware(cpu_count=0.25, memory=GIB, nodes=1, disk=100 * GIB, details={"platform": FARGATE}),
    settings={**SMALL.settings, "queue": "fargate", "execution_role": EXECUTION, "assign_public_ip": True},
    timeout=1.0,
)
ARRAY = attrs.evolve(SMALL, elements=(0, 1, 2))
SHAPES = {
    "small": SMALL,
    "gpus": GPUS,
    "trainium": TRAINIUM,
    "nodes": NODES,
    "fargate": ON_FARGATE,
    "array": ARRAY,
}


def refused_by_botocore(request: dict[str, Any]) -> str:
    """What botocore has against the requests, before it would send them."""
    batch = boto3.client("batch", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b")
    found = []
    for operation in (REGISTER, SUBMIT):
        shape = batch.meta.service_model.operation_model(operation).input_shape
        found.append(ParamValidator().validate(request[operation], shape).generate_report())
    return "".join(found)


@pytest.mark.parametrize("name", SHAPES)
def test_a_definition_and_a_submission_have_what_was_granted_and_said(name: str) -> None:
    golden, request = GOLDEN / f"{name}.json", request_of(SHAPES[name])
    text = json.dumps(request, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert refused_by_botocore(request) == ""


EVERYTHING = {
    **GPUS.settings,
    **ON_FARGATE.settings,
    "efa": 1,
    "log_driver": "splunk",
    "tmpfs_size": 1024,
    "tmpfs_path": "/t",
    "tmpfs_tempdir": False,
}
"""Every setting of a job; what Fargate has of disk goes by the grant."""


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(BatchSettings)])
def test_no_setting_is_dropped(field: str) -> None:
    if field == "ephemeral_storage":
        container = request_of(ON_FARGATE)[REGISTER]["containerProperties"]
        assert container["ephemeralStorage"] == {"sizeInGiB": 100}
        return
    every = {name: v for name, v in EVERYTHING.items() if (field, name) != ("use_tmpfs", "tmpfs_size")}
    asked = attrs.evolve(ON_FARGATE if field == "assign_public_ip" else GPUS, settings=every)
    without = attrs.evolve(asked, settings={name: v for name, v in every.items() if name != field})
    assert field in every
    assert request_of(asked) != request_of(without)


def test_jobs_that_differ_in_size_and_task_alone_have_one_definition() -> None:
    other = attrs.evolve(
        SMALL,
        name="add-2-ab0123456789",
        command=(*SMALL.command[:-1], "s3://ml/store/runs/r/2.spec.json"),
        granted=Hardware(cpu_count=8, memory=32 * GIB, gpus=(Device(vendor="nvidia"),), nodes=1),
        timeout=60.0,
    )
    assert request_of(other)[REGISTER] == request_of(SMALL)[REGISTER]
    assert request_of(attrs.evolve(SMALL, image="b"))[REGISTER] != request_of(SMALL)[REGISTER]


def test_a_definition_with_the_bootstrap_is_well_below_its_limit() -> None:
    request = request_of(attrs.evolve(GPUS, command=("python3", "-c", bootstrap(), *SMALL.command[-2:])))
    assert len(json.dumps(request[REGISTER])) < 24 * 1024 / 2


def test_names_of_jobs_are_such_as_batch_takes() -> None:
    assert job_name("pre.pare-1-ab") == "pre-pare-1-ab" and job_name("_train-ab") == "u_train-ab"


SAID = st.fixed_dictionaries(
    {"queue": st.just("q"), "iam_role": st.just(ROLE)},
    optional={
        "execution_role": st.just(EXECUTION),
        "max_swap": st.integers(0, 1 << 20),
        "efa": st.integers(0, 32),
        "host_volumes": st.lists(st.sampled_from(["/a", "/b:/c"])),
        "efs_volumes": st.lists(st.just("fs-01:/x")),
        "use_tmpfs": st.booleans(),
        "tmpfs_size": st.integers(1, 1 << 20),
        "tmpfs_path": st.just("/t"),
        "tmpfs_tempdir": st.booleans(),
        "ephemeral_storage": st.integers(21, 200),
        "log_driver": st.sampled_from(["awslogs", "json-file"]),
        "log_options": st.dictionaries(st.sampled_from("ab"), st.just("x")),
        "tags": st.dictionaries(st.sampled_from("ab"), st.just("x")),
        "privileged": st.booleans(),
        "share_identifier": st.just("team"),
        "scheduling_priority": st.integers(0, 9999),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    said=SAID,
    cpus=st.floats(0.01, 448) | st.none(),
    memory=st.integers(10**6, 1 << 42) | st.none(),
    devices=st.sampled_from([None, "nvidia", "neuron"]),
    count=st.integers(0, 16),
    nodes=st.integers(1, 64),
    shared=st.integers(1, 1 << 40) | st.none(),
    elements=st.integers(2, 10_000) | st.none(),
    timeout=st.floats(0.001, 10**6) | st.none(),
    platform=st.sampled_from(["EC2", "FARGATE"]),
)
def test_any_request_is_such_as_botocore_takes(
    said: dict[str, Any],
    cpus: float | None,
    memory: int | None,
    devices: str | None,
    count: int,
    nodes: int,
    shared: int | None,
    elements: int | None,
    timeout: float | None,
    platform: str,
) -> None:
    checked = encode(BatchSettings(**said))
    granted = Hardware(
        cpu_count=cpus,
        memory=memory,
        gpus=(Device(vendor=devices),) * count,
        nodes=nodes,
        shared_memory=shared,
        details={"platform": platform},
    )
    numbers = tuple(range(elements or 0)) if nodes == 1 else ()
    launch = attrs.evolve(SMALL, granted=granted, settings=checked, elements=numbers, timeout=timeout)
    request = request_of(launch)
    assert refused_by_botocore(request) == ""
    seconds = request[SUBMIT].get("timeout", {}).get("attemptDurationSeconds", 60)
    assert seconds >= 60
    container = (
        request[REGISTER].get("containerProperties")
        or request[REGISTER]["nodeProperties"]["nodeRangeProperties"][0]["container"]
    )
    paths = [one["hostPath"] for one in container.get("linuxParameters", {}).get("devices", ())]
    neurons = count if devices == "neuron" and platform == "EC2" else 0
    assert [path for path in paths if "neuron" in path] == [f"/dev/neuron{n}" for n in range(neurons)]


# Offers


def environment(name: str, *types: str, kind: str = "EC2", **more: Any) -> dict[str, Any]:
    return {
        "computeEnvironmentName": name,
        "computeEnvironmentArn": f"arn:aws:batch:eu-west-1:123456789012:compute-environment/{name}",
        "type": "MANAGED",
        "state": more.pop("state", "ENABLED"),
        "status": more.pop("status", "VALID"),
        "statusReason": more.pop("reason", "ComputeEnvironment Healthy"),
        "computeResources": {"type": kind, "maxvCpus": more.pop("most", 1024), "instanceTypes": list(types)},
        **more,
    }


def queue(*environments: dict[str, Any], **more: Any) -> Any:
    order = [
        {"order": number, "computeEnvironment": one["computeEnvironmentArn"]}
        for number, one in enumerate(environments)
    ]
    said = {
        "jobQueueName": "q",
        "jobQueueArn": "arn:aws:batch:eu-west-1:123456789012:job-queue/q",
        "state": "ENABLED",
        "status": "VALID",
        "computeEnvironmentOrder": order,
        **more,
    }
    return read_queue(said, environments)


CPU = queue(environment("cpu", "default_x86_64"))
H100 = queue(environment("gpu", "p5"))
MIXED = queue(environment("gpu", "p5.48xlarge", "p4d.24xlarge", "g5.12xlarge"))
TRN = queue(environment("trn", "trn1.32xlarge"))
FARGATES = queue(environment("f", kind="FARGATE"))


def offered(
    where: Any, said: dict[str, Any] | None = None, timeout: float | None = None, **request: Any
) -> Any:
    said = {"iam_role": ROLE, "execution_role": EXECUTION, **(said or {})}
    return offer(Ask(request=ResourceSettings(**request), timeout=timeout), said, where)


def test_what_nobody_asks_for_is_a_small_job_or_the_share_of_the_devices() -> None:
    granted = offered(CPU).granted
    assert (granted.cpu_count, granted.memory, granted.gpus) == (1, 4 * GIB, None)
    granted = offered(H100, accelerator="H100:8").granted
    assert granted.cpu_count == 192 and 1900 * GIB < granted.memory < 2048 * GIB
    assert [gpu.kind for gpu in granted.gpus] == ["H100"] * 8
    assert offered(H100, gpu_count=1).granted.cpu_count == 16  # a p5.4xlarge


def test_sizes_are_rounded_up_to_what_batch_counts_in() -> None:
    granted = offered(CPU, cpu_count=1.5, memory="1GB").granted
    assert (granted.cpu_count, granted.memory) == (2, 10**9)
    requirements = request_of(attrs.evolve(SMALL, granted=granted))[SUBMIT]["containerOverrides"]
    assert {"type": "MEMORY", "value": "954"} in requirements["resourceRequirements"]


@pytest.mark.parametrize(
    ("where", "request_", "words"),
    [
        (
            CPU,
            {"gpu_count": 1},
            ["1 × GPU", "none", "the largest type of queue 'q' is", "The smallest type that could is"],
        ),
        (CPU, {"accelerator": "A100-80GB:8"}, ["8 × A100-80GB", "p4de.24xlarge with 96 vCPUs"]),
        (H100, {"accelerator": "H100:9"}, ["9 × H100", "No instance type of EC2 could"]),
        (CPU, {"cpu_count": 300}, ["300 vCPUs", "192 vCPUs", "The smallest type that could is"]),
        (CPU, {"memory": "2TiB"}, ["2.2 TB of memory", "The smallest type that could is"]),
        (
            MIXED,
            {"accelerator": "H100:8", "cpu_count": 8, "memory": "64GB"},
            ["8 × H100", "does not know their kinds", "p4d.24xlarge", "Name a queue"],
        ),
        (queue(environment("c", "p5", most=96)), {"gpu_count": 8}, ["192 vCPUs", "96", "maxvCpus"]),
        (queue(environment("c", "p5", kind="SPOT")), {"gpu_count": 8, "num_nodes": 2}, ["Spot", "type EC2"]),
        (
            queue(environment("c", "trn1")),
            {"accelerator": "Trainium"},
            ["no second one fits", "trn1.32xlarge"],
        ),
        (CPU, {"disk": "1TB"}, ["1 TB of disk", "launch template"]),
        (FARGATES, {"gpu_count": 1}, ["1 × GPU", "is on Fargate, which has no", "Name a queue on EC2"]),
        (FARGATES, {"num_nodes": 2}, ["2 nodes", "is on Fargate"]),
        (FARGATES, {"shared_memory": "1GB"}, ["/dev/shm", "is on Fargate"]),
        (FARGATES, {"cpu_count": 17}, ["17 vCPUs", "16 with 129 GB"]),
        (FARGATES, {"memory": "200GB"}, ["200 GB", "16 with 129 GB"]),
        (FARGATES, {"disk": "1TB"}, ["200 GiB at most"]),
        (FARGATES, {"timeout": 15 * 86400.0}, ["15 days", "after 14 days"]),
    ],
)
def test_what_no_instance_of_a_queue_can_hold_is_refused_with_what_could(
    where: Any, request_: dict[str, Any], words: list[str]
) -> None:
    short = offered(where, **request_).shortfalls
    assert short
    told = " ".join(f"{one.asked} {one.got} {one.why} {one.fix}" for one in short)
    for word in words:
        assert word in told


def test_jobs_with_neuron_devices_never_share_an_instance() -> None:
    granted = offered(TRN, accelerator="Trainium:16", cpu_count=4).granted
    assert granted.cpu_count == 65 and len(granted.gpus) == 16  # of 128: no second one fits beside it
    assert {gpu.vendor for gpu in granted.gpus} == {"neuron"}
    both = queue(environment("trn", "trn1"))
    assert offered(both, accelerator="Trainium:16").shortfalls == ()  # a trn1.2xlarge has too few


def test_a_type_that_is_not_known_may_be_what_is_asked_for() -> None:
    found = offered(queue(environment("new", "p9.48xlarge")), accelerator="H100:8")
    assert found.shortfalls == () and len(found.granted.gpus) == 8


def test_interfaces_of_efa_are_those_of_a_type_that_has_as_many() -> None:
    assert offered(TRN, {"efa": 8}, accelerator="Trainium:16").shortfalls == ()
    (short,) = offered(TRN, {"efa": 9}, accelerator="Trainium:16").shortfalls
    assert (short.field, short.asked, short.got) == ("efa", "9 EFA interfaces", "8 EFA interfaces")


def test_a_range_of_nodes_gets_as_many_as_an_environment_has_vcpus_for() -> None:
    where = queue(environment("gpu", "p5.48xlarge", most=3 * 192))
    assert offered(where, accelerator="H100:8", num_nodes=(2, 8)).granted.nodes == 3


@pytest.mark.parametrize(("cpus", "sizes"), PAIRS.items())
def test_fargate_rounds_up_to_a_pair_that_it_has(cpus: float, sizes: Any) -> None:
    assert pair(cpus, sizes[0]) == (cpus, sizes[0]) and pair(cpus, sizes[-1] - 1)[0] <= cpus  # type: ignore[index]
    granted = offered(FARGATES, cpu_count=3, memory="9GB").granted
    assert (granted.cpu_count, granted.memory) == (4, 9 * GIB)
    assert pair(0.25, 3000) == (0.5, 3072)


@pytest.mark.parametrize(
    ("where", "said", "words"),
    [
        (queue(environment("c", "p5"), state="DISABLED"), {}, ["queue 'q' is disabled", "update-job-queue"]),
        (queue(environment("c", "p5", state="DISABLED")), {}, ["can start nothing", "c is disabled"]),
        (queue(environment("c", "p5", status="INVALID", reason="no role")), {}, ["c is INVALID: no role"]),
        (queue(environment("c", "p5"), schedulingPolicyArn="arn"), {}, ["fair-share", "share_identifier"]),
        (queue(environment("c", "p5", eksConfiguration={})), {}, ["on EKS", "--on kubernetes"]),
        (FARGATES, {"execution_role": None}, ["no execution role is named", "execution_role"]),
    ],
)
def test_a_queue_that_takes_no_such_job_says_why(where: Any, said: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RequestRefused) as refused:
        offered(where, said)
    for word in words:
        assert word in str(refused.value)


def test_what_fargate_or_ec2_alone_has_is_refused_elsewhere() -> None:
    for said in ({"efa": 1}, {"privileged": True}, {"host_volumes": ["/data"]}, {"use_tmpfs": True}):
        assert offered(FARGATES, said).shortfalls, said
    for said in ({"ephemeral_storage": 100}, {"assign_public_ip": True}):
        assert offered(CPU, said).shortfalls, said
    assert offered(FARGATES, {"ephemeral_storage": 100}).granted.disk == 100 * GIB


def test_a_person_is_told_how_a_queue_is_and_what_to_do() -> None:
    where = queue(
        environment("gpu", "p5.48xlarge", kind="SPOT"),
        environment("old", "p3", status="INVALID", reason="CLIENT_ERROR - no such subnet"),
        environment("new", "p9.48xlarge"),
    )
    told = list(findings({"iam_role": ROLE}, where))
    assert [one.status for one in told] == ["ok", "ok", "warning", "warning", "ok"]
    text = " ".join(f"{one.text} {one.remedy}" for one in told)
    for word in (
        "SPOT",
        "p5.48xlarge with 192 vCPUs",
        "no such subnet",
        "does not know what p9.48xlarge has",
        "8 × H100",
    ):
        assert word in text
    (role,) = [one for one in findings({}, where) if one.name == "role"]
    assert role.status == "warning" and "iam_role" in str(role.remedy)


def test_settings_are_refused_with_what_would_do() -> None:
    for fields, word in (({"memory": 5}, "ResourceSettings(memory=…)"), ({"job_queue": "x"}, "Use queue.")):
        with pytest.raises(SettingsError) as caught:
            BatchSettings(**fields)
        assert word in str(caught.value)
