"""The nodes of a job of AWS Batch: what tells them who they are, and who can know it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from buckets import BucketHere
from upshift.backends import watcher
from upshift.backends.base import Ended, Event, Job
from upshift.backends.batch.backend import BatchBackend
from upshift.errors import ConfigError
from upshift.model.configuration import Target
from upshift.model.spec import Code, EntryPoint, Hardware, OutputSpec, TaskId, TaskSpec
from upshift.runtime.launch import seats
from upshift.runtime.storage.store import open_direct
from upshift.runtime.supervisor.protocol import ORDER_FILE, take_order

OWN = {"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.7"}


class Api:
    """AWS Batch, which takes any job, and says what became of it when a test does."""

    region = "eu-west-1"

    def __init__(self) -> None:
        self.asked: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.job: dict[str, Any] = {"jobId": "j-1", "status": "RUNNABLE", "statusReason": "CAPACITY:none"}

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self.asked.put({"operation": operation, **arguments})
        arn = "arn:aws:batch:eu-west-1:123456789012:job-definition/upshift:1"
        answers: dict[str, dict[str, Any]] = {
            "register_job_definition": {"jobDefinitionArn": arn},
            "submit_job": {"jobId": "j-1"},
            "describe_jobs": {"jobs": [self.job]},
        }
        return answers.get(operation, {})

    def pages(self, *_: str, **__: Any) -> Iterator[Any]:
        return iter(())

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked until it got the job."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["operation"] != "submit_job":
            found.append(self.asked.get(timeout=60))
        return found


def gang(bucket: BucketHere) -> Job:
    """A job of three nodes, whose spec is in a bucket."""
    address = f"s3://{bucket.name}/store"
    granted = Hardware(cpu_count=1, nodes=3, details={"platform": "EC2"})
    spec = TaskSpec(
        task=TaskId(run="20260101-000000-aaaa", step="count"),
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="math", qualname="factorial"),
        code=Code(project="/nowhere"),
        store=address,
        outputs=(OutputSpec(name="output"),),
        granted=granted,
        image="python:3.11",
        cwd="/",
        key="k:1",
    )
    return Job(spec=spec, spec_path=open_direct(address).write_spec(spec))


def test_the_token_of_nodes_is_neither_in_a_job_nor_readable_in_the_bucket_alone(
    bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(watcher, "ASK", 0.1)
    monkeypatch.setattr(watcher, "LATE", (0.0, 60.0))
    api, inbox = Api(), SimpleQueue[Event]()
    job = gang(bucket)
    backend = BatchBackend(
        Target(name="batch", backend="aws-batch", options={"queue": "gpu"}),
        store=job.spec.store,
        sink=inbox.put,
    )
    monkeypatch.setattr(backend._batch, "api", api)
    backend.submit([job])
    asked = api.requests()
    (each,) = asked[-1]["nodeOverrides"]["nodePropertyOverrides"]
    told = {one["name"]: one["value"] for one in each["containerOverrides"]["environment"]}
    assert told.keys() >= {ORDER_FILE} and not told.keys() & {seats.TOKEN, "UPSHIFT_ORDER"}

    tokens = []
    for node in ("0", "1", "2"):  # all of them read it, in whatever order they come
        environment = {**told, **OWN, "AWS_BATCH_JOB_NODE_INDEX": node}
        take_order(environment)
        seat = seats.take(environment)
        assert seat is not None and (seat.node, seat.nodes) == (int(node), 3)
        tokens.append(seat.token)
    assert len(set(tokens)) == 1 and tokens[0] not in json.dumps(asked)
    _, _, address = told[ORDER_FILE].partition(" ")
    name = address.removeprefix(f"s3://{bucket.name}/")
    lies = bucket.boto3.get_object(Bucket=bucket.name, Key=name)["Body"].read()
    assert tokens[0].encode() not in lies and b"UPSHIFT" not in lies

    api.job = {**api.job, "status": "FAILED", "statusReason": "Host EC2 (instance i-0) terminated."}
    while not isinstance(inbox.get(timeout=60), Ended):
        pass
    with pytest.raises(ConfigError, match="is not there"):
        take_order({ORDER_FILE: told[ORDER_FILE]})
    backend.close()


def test_a_job_on_one_node_has_its_order_where_it_was(
    bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))
    api, job = Api(), gang(bucket)
    job = attrs.evolve(job, spec=attrs.evolve(job.spec, granted=attrs.evolve(job.spec.granted, nodes=1)))
    backend = BatchBackend(
        Target(name="batch", backend="aws-batch", options={"queue": "gpu"}),
        store=job.spec.store,
        sink=SimpleQueue[Event]().put,
    )
    monkeypatch.setattr(backend._batch, "api", api)
    backend.submit([job])
    told = {one["name"] for one in api.requests()[-1]["containerOverrides"]["environment"]}
    assert "UPSHIFT_ORDER" in told and ORDER_FILE not in told
    backend.close()
