"""What AWS Batch is asked for a job: pure, and the same for the same launch.

A definition has what many jobs have in common, the text of the bootstrap among it, and is registered once:
its name follows from its content. A submission has the rest, since what overrides a definition may have
8,192 characters (metaflow #977)::

    RegisterJobDefinition   image, command, roles, volumes, devices, logs, secrets' sources
    SubmitJob               queue, name, vCPUs, memory, GPUs, time limit, tags; and in variables, which the
                            command names as $NAME, where runtime and spec are

With parameters (``Ref::NAME``) the whole command would be an override by the time that ECS sees it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from upshift.backends.batch.queues import EC2, FARGATE, MEMORY, PLATFORM, VCPUS
from upshift.backends.scheduler import Launch
from upshift.model.settings.batch import mount_of

MIB = 1 << 20
ROOM = 300
"""Seconds beyond a step's own timeout and grace for what comes before and after it."""
LEAST_SECONDS = 60
"""The shortest time limit: API_JobTimeout."""
TMPFS = "/upshift_tmp"
LOGS = "/aws/batch/job"
"""The group of logs where nothing else is said: AWS Batch, "Use the awslogs log driver"."""
ELEMENT = "$AWS_BATCH_JOB_ARRAY_INDEX"
"""The number of an element is in this variable of its container."""
RUNTIME, SPEC = "UPSHIFT_RUNTIME", "UPSHIFT_SPEC"
"""Variables with the arguments of the bootstrap."""
NOT_BUILT = "image-of-the-step"
"""The image of a step in a definition that is shown before it is built."""
REGISTER, SUBMIT = "RegisterJobDefinition", "SubmitJob"
_ALL = "0:"
"""All nodes of a job of several."""


def request_of(launch: Launch) -> dict[str, Any]:
    """The two requests, as boto3 takes them, but for what the first one answers."""
    definition = definition_of(launch)
    return {
        REGISTER: definition,
        SUBMIT: {**submission_of(launch), "jobDefinition": definition["jobDefinitionName"]},
    }


def definition_of(launch: Launch) -> dict[str, Any]:
    """The job definition, which jobs like this share."""
    container, nodes = _container(launch), launch.granted.nodes or 1
    body: dict[str, Any] = {"type": "container", "containerProperties": container}
    if nodes > 1:
        every = [{"targetNodes": _ALL, "container": container}]
        body = {
            "type": "multinode",
            "nodeProperties": {"numNodes": nodes, "mainNode": 0, "nodeRangeProperties": every},
        }
    body |= {
        "platformCapabilities": [_platform(launch)],
        "retryStrategy": {"attempts": 1},  # a step is tried again by what its retries say
        "propagateTags": True,
        "tags": {"upshift": "definition"},
    }
    if nodes > 1:
        del body["platformCapabilities"]  # they run on EC2 anyway
    text = json.dumps(body, sort_keys=True)
    return {"jobDefinitionName": f"upshift-{hashlib.sha256(text.encode()).hexdigest()[:20]}", **body}


def submission_of(launch: Launch) -> dict[str, Any]:
    """The part of a submission that differs from job to job."""
    granted, said = launch.granted, launch.settings
    different = (launch.command[at] for at in _different(launch.command))
    variables = {**launch.environment, **dict(zip((RUNTIME, SPEC), different, strict=True))}
    overrides: dict[str, Any] = {
        "resourceRequirements": list(_requirements(launch)),
        "environment": [{"name": name, "value": text} for name, text in sorted(variables.items())],
    }
    request: dict[str, Any] = {
        "jobName": job_name(launch.name),
        "jobQueue": said.get("queue", ""),
        "retryStrategy": {"attempts": 1},
        "propagateTags": True,
        "tags": {**said.get("tags", {}), "upshift": re.sub(r"[^\w\s+\-=.:/@]", "_", launch.comment)[:256]},
    }
    if (granted.nodes or 1) > 1:
        each = [{"targetNodes": _ALL, "containerOverrides": overrides}]
        request["nodeOverrides"] = {"nodePropertyOverrides": each}
    else:
        request["containerOverrides"] = overrides
    if launch.elements:
        request["arrayProperties"] = {"size": len(launch.elements)}
    if launch.timeout is not None:
        seconds = max(LEAST_SECONDS, math.ceil(launch.timeout + launch.grace + ROOM))
        request["timeout"] = {"attemptDurationSeconds": seconds}
    if said.get("share_identifier"):
        request["shareIdentifier"] = said["share_identifier"]
        request["schedulingPriorityOverride"] = said.get("scheduling_priority", 0)
    return request


def job_name(name: str) -> str:
    """A job's name as Batch takes it: letters, digits, ``-`` and ``_``, a letter or digit first."""
    return re.sub(r"^(?![A-Za-z0-9])", "u", re.sub(r"[^\w-]", "-", name))


def _different(command: Sequence[str]) -> tuple[int, int]:
    """Where in a command is what each job has of its own: package and spec, or order."""
    return (command.index("-m") - 1 if "-m" in command else -2), -1


def _platform(launch: Launch) -> str:
    return str(launch.granted.details.get(PLATFORM, EC2))


def _container(launch: Launch) -> dict[str, Any]:
    said = launch.settings
    fargate = _platform(launch) == FARGATE
    command = list(launch.command)
    for at, name in zip(_different(command), (RUNTIME, SPEC), strict=True):
        command[at] = f"${name}"
    found: dict[str, Any] = {
        "image": launch.image or NOT_BUILT,
        "command": [*command, *([ELEMENT] if launch.elements else [])],
        # Each job has its own, instead of these.
        "resourceRequirements": [
            {"type": "VCPU", "value": str(VCPUS)},
            {"type": "MEMORY", "value": str(MEMORY)},
        ],
        "jobRoleArn": said.get("iam_role"),
        "executionRoleArn": said.get("execution_role"),
        "user": launch.user,
        "environment": list(_variables(launch)),
        "secrets": [
            {"name": name, "valueFrom": source.partition(":")[2]}
            for name, source in sorted(launch.secrets.items())
        ],
        "logConfiguration": _logs(said),
    }
    volumes = [*said.get("host_volumes", ()), *said.get("efs_volumes", ())]
    found["volumes"] = [_volume(number, volume) for number, volume in enumerate(volumes)]
    found["mountPoints"] = [
        {"sourceVolume": f"volume-{number}", "containerPath": mount_of(volume)[1], "readOnly": False}
        for number, volume in enumerate(volumes)
    ]
    if fargate:
        public = "ENABLED" if said.get("assign_public_ip") else "DISABLED"
        found["networkConfiguration"] = {"assignPublicIp": public}
        found["fargatePlatformConfiguration"] = {"platformVersion": "LATEST"}
        if launch.granted.disk is not None and launch.granted.disk > 20 << 30:
            found["ephemeralStorage"] = {"sizeInGiB": math.ceil(launch.granted.disk / (1 << 30))}
    else:
        found["linuxParameters"] = _linux(launch)
        found["privileged"] = bool(said.get("privileged"))
        if said.get("efa"):  # buffers of EFA are pinned
            found["ulimits"] = [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    return {name: value for name, value in found.items() if value not in (None, [], {}, False)}


def _linux(launch: Launch) -> dict[str, Any]:
    granted, said = launch.granted, launch.settings
    devices = [f"/dev/infiniband/uverbs{number}" for number in range(said.get("efa") or 0)]
    gpus = granted.gpus or ()
    devices += [f"/dev/neuron{number}" for number, gpu in enumerate(gpus) if gpu.vendor == "neuron"]
    permissions = {"/dev/infiniband": ["READ", "WRITE", "MKNOD"]}
    found: dict[str, Any] = {
        "initProcessEnabled": True,
        "devices": [
            {
                "hostPath": path,
                "containerPath": path,
                "permissions": permissions.get(path.rpartition("/")[0], ["READ", "WRITE"]),
            }
            for path in devices
        ],
        "maxSwap": said.get("max_swap"),
        "swappiness": said.get("swappiness"),
    }
    if granted.shared_memory is not None:
        found["sharedMemorySize"] = math.ceil(granted.shared_memory / MIB)
    if said.get("use_tmpfs") or said.get("tmpfs_size"):
        half = math.ceil((granted.memory or MEMORY * MIB) / MIB / 2)
        size = said.get("tmpfs_size") or half
        found["tmpfs"] = [
            {"containerPath": said.get("tmpfs_path", TMPFS), "size": size, "mountOptions": ["defaults"]}
        ]
    return {name: value for name, value in found.items() if value not in (None, [])}


def _variables(launch: Launch) -> Iterator[dict[str, str]]:
    said = launch.settings
    if (said.get("use_tmpfs") or said.get("tmpfs_size")) and said.get("tmpfs_tempdir", True):
        yield {"name": "TMPDIR", "value": said.get("tmpfs_path", TMPFS)}


def _volume(number: int, volume: str) -> dict[str, Any]:
    source = mount_of(volume)[0]
    if source.startswith("fs-"):
        of_efs = {"fileSystemId": source, "transitEncryption": "ENABLED"}
        return {"name": f"volume-{number}", "efsVolumeConfiguration": of_efs}
    return {"name": f"volume-{number}", "host": {"sourcePath": source}}


def _logs(said: Mapping[str, Any]) -> dict[str, Any] | None:
    if not said.get("log_driver") and not said.get("log_options"):
        return None
    return {"logDriver": said.get("log_driver", "awslogs"), "options": dict(said.get("log_options", {}))}


def _requirements(launch: Launch) -> Iterator[dict[str, str]]:
    granted = launch.granted
    cpus = VCPUS if granted.cpu_count is None else granted.cpu_count
    if _platform(launch) == EC2:
        cpus = max(1, math.ceil(cpus))
    yield {"type": "VCPU", "value": f"{cpus:g}"}
    memory = MEMORY if granted.memory is None else max(4, math.ceil(granted.memory / MIB))
    yield {"type": "MEMORY", "value": str(memory)}
    count = sum(gpu.vendor in (None, "nvidia") for gpu in granted.gpus or ())
    if count:
        yield {"type": "GPU", "value": str(count)}
