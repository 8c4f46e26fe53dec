"""AWS Batch on loopback: moto, whose jobs are real containers of Docker, and S3 beside it.

What moto leaves out, and AWS documents, is added here: an element's number, the exit code of a container
that failed, and of a multi-node parallel job what overrides its definition and what tells its nodes apart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from buckets import KEYS, BucketHere

REGION = KEYS["AWS_REGION"]
_SERVER = """
import copy
import logging
import os
import threading
import moto.s3.models
from docker.models.containers import ContainerCollection
from moto.batch.models import Job
from moto.batch.responses import BatchResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.disable(logging.CRITICAL)
moto.s3.models.S3_UPLOAD_PART_MIN_SIZE = 1 << 20
properties, describe = Job._get_container_property, Job.describe

def with_index(self, name, default):
    found = properties(self, name, default)
    if name != "environment":
        return found
    found = [one for one in found if one["name"] != "AWS_BATCH_JOB_ARRAY_INDEX"]
    if "index" in self.array_properties:
        found.append({"name": "AWS_BATCH_JOB_ARRAY_INDEX", "value": str(self.array_properties["index"])})
    return found

def with_exit_code(self):
    found = describe(self)
    if self.exit_code is not None:
        found.setdefault("container", {})["exitCode"] = self.exit_code
    if found["status"] == "RUNNABLE" and why_full():
        found["statusReason"] = why_full()
    return found

ROOM = 8  # jobs at once
ended, running = threading.Condition(), set()

def why_full():
    try:
        with open(os.environ["BATCH_FULL"]) as file:
            return file.read()
    except FileNotFoundError:
        return None

def while_there_is_room(self):
    with ended:
        while self.status == "RUNNABLE" and (len(running) >= ROOM or why_full()):
            if self.stop:
                raise RuntimeError("it was cancelled while it waited")
            ended.wait(0.2)
        if self.status == "RUNNABLE":
            running.add(self)
    advance(self)

def to_its_end(self):
    try:
        run(self)
    finally:
        with ended:
            running.discard(self)
            ended.notify_all()

advance, asked, run, start = Job.advance, BatchResponse._get_param, Job.run, ContainerCollection.run

def with_node_overrides(self, name, *default):
    nodes = asked(self, "nodeOverrides") if name == "containerOverrides" else None
    if nodes:
        (only,) = nodes["nodePropertyOverrides"]
        return only["containerOverrides"]
    return asked(self, name, *default)

def on_nodes(self):
    if self.job_definition.type == "multinode":
        self.job_definition = copy.copy(self.job_definition)
        said = self.job_definition.node_properties
        (every,) = said["nodeRangeProperties"]
        more = self.container_overrides.get("environment", [])
        ranges = [
            {
                "targetNodes": str(node),
                "container": {
                    **every["container"],
                    "environment": [
                        *every["container"].get("environment", []),
                        *more,
                        {"name": "AWS_BATCH_JOB_MAIN_NODE_INDEX", "value": str(said["mainNode"])},
                        {"name": "AWS_BATCH_JOB_NODE_INDEX", "value": str(node)},
                        {"name": "AWS_BATCH_JOB_NUM_NODES", "value": str(said["numNodes"])},
                    ],
                },
            }
            for node in range(said["numNodes"])
        ]
        self.job_definition.node_properties = {**said, "nodeRangeProperties": ranges}
    to_its_end(self)

def with_address(self, *args, **kwargs):
    # The containers are all in the network of this host.
    if kwargs["environment"].get("AWS_BATCH_JOB_NODE_INDEX", "0") != "0":
        kwargs["environment"]["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
    return start(self, *args, **kwargs)

Job._get_container_property, Job.describe, Job.advance = with_index, with_exit_code, while_there_is_room
BatchResponse._get_param, Job.run, ContainerCollection.run = with_node_overrides, on_nodes, with_address
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@attrs.frozen
class BatchHere:
    """A queue for jobs, and a bucket for their store."""

    endpoint: str
    queue: str
    role: str
    bucket: BucketHere
    client: Any = attrs.field(repr=False)
    folder: Path

    @contextmanager
    def full(self, why: str) -> Iterator[None]:
        """While the block runs, jobs are RUNNABLE and do not start, with this ``statusReason``."""
        draft = self.folder / "draft"
        draft.write_text(why)
        draft.rename(self.folder / "full")
        try:
            yield
        finally:
            (self.folder / "full").unlink()

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to find it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint, "AWS_ENDPOINT_URL_S3": self.endpoint}

    @property
    def options(self) -> dict[str, Any]:
        """Those of a target."""
        return {"queue": self.queue, "iam_role": self.role, "region": REGION}

    def jobs(self) -> list[dict[str, Any]]:
        """All that it was given, the newest last."""
        found = []
        for status in ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"):
            answer = self.client.list_jobs(jobQueue=self.queue, jobStatus=status)
            found += answer["jobSummaryList"]
        return sorted(found, key=lambda job: int(job["createdAt"]))


@contextmanager
def batch_here(environment: Mapping[str, str] | None = None) -> Iterator[BatchHere]:
    """AWS Batch and S3, as long as a session of tests takes."""
    folder = Path(tempfile.mkdtemp(prefix="upshift-batch-"))
    more = {"MOTO_DOCKER_NETWORK_MODE": "host", "BATCH_FULL": str(folder / "full")}
    variables = {**os.environ, **KEYS, **(environment or {}), **more}
    command = [sys.executable, "-c", _SERVER]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        assert port, "moto did not start"
        yield _set_up(f"http://127.0.0.1:{port}", folder)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        shutil.rmtree(folder)


def _set_up(endpoint: str, folder: Path) -> BatchHere:
    import boto3

    def client(service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )

    iam, ec2, batch, s3 = map(client, ("iam", "ec2", "batch", "s3"))
    trust = json.dumps({"Statement": [{"Principal": {"Service": "ecs-tasks.amazonaws.com"}}]})
    roles = [
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        for name in ("steps", "batch", "instances")
    ]
    iam.create_instance_profile(InstanceProfileName="instances")
    iam.add_role_to_instance_profile(InstanceProfileName="instances", RoleName="instances")
    subnets = [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]]
    groups = [one["GroupId"] for one in ec2.describe_security_groups()["SecurityGroups"]]
    made = batch.create_compute_environment(
        computeEnvironmentName="machines",
        type="MANAGED",
        state="ENABLED",
        serviceRole=roles[1],
        computeResources={
            "type": "EC2",
            "minvCpus": 0,
            "maxvCpus": 256,
            "instanceTypes": ["m5.large"],
            "subnets": subnets[:1],
            "securityGroupIds": groups[:1],
            "instanceRole": roles[2].replace(":role/", ":instance-profile/"),
        },
    )
    order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
    batch.create_job_queue(jobQueueName="cpu", state="ENABLED", priority=1, computeEnvironmentOrder=order)
    s3.create_bucket(Bucket="store")
    return BatchHere(endpoint, "cpu", roles[0], BucketHere("store", endpoint, s3), batch, folder)
