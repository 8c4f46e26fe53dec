"""The pod of a step as Kubeflow has it: its container, and what only pods of Kubernetes have.

The form is that of ``pipeline_spec.proto``, 2.1.0, and of ``kubernetes_executor_config.proto``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.kubernetes.devices import RESOURCES, resource_of_partition
from upshift.backends.kubernetes.nodes import POD, tainted
from upshift.model.settings.retry import Retry
from upshift.model.spec.hardware import Hardware

Object = dict[str, Any]

_GB = 10**9
_SHM = "/dev/shm"


@attrs.frozen(kw_only=True)
class Pod:
    """What runs a step, the same for all of its nodes."""

    image: str
    command: tuple[str, ...]  # to which its arguments are added
    environment: Mapping[str, str] = attrs.field(factory=dict)
    granted: Hardware = Hardware()
    settings: Mapping[str, Any] = attrs.field(factory=dict)  # of KubeflowSettings, as far as they are said
    secrets: Mapping[str, str] = attrs.field(factory=dict)  # ``k8s:name/key`` by variable
    retry: Retry = Retry()


def container_of(pod: Pod, arguments: Sequence[str]) -> Object:
    """What runs in it."""
    return filled(
        {
            "image": pod.image,
            "command": list(pod.command),
            "args": list(arguments),
            "env": [{"name": name, "value": value} for name, value in pod.environment.items()],
            "resources": _resources(pod.granted),
        }
    )


def _resources(granted: Hardware) -> Object:
    """What a container asks for, as Kubeflow has it since 2.4 and as it had it before."""
    said: Object = {}
    if granted.cpu_count is not None:
        said |= {
            "cpuRequest": granted.cpu_count,
            "resourceCpuRequest": f"{math.ceil(granted.cpu_count * 1000)}m",
        }
    if granted.memory is not None:
        size, text = granted.memory / _GB, str(math.ceil(granted.memory))
        said |= {"memoryRequest": size, "memoryLimit": size}
        said |= {"resourceMemoryRequest": text, "resourceMemoryLimit": text}
    if granted.gpus:
        kind, count = _resource_of(granted), str(len(granted.gpus))
        said["accelerator"] = {"type": kind, "count": count, "resourceType": kind, "resourceCount": count}
    return said


def _resource_of(granted: Hardware) -> str:
    gpu = (granted.gpus or ())[0]
    if gpu.partition is not None:
        return resource_of_partition(gpu.partition)
    resource = granted.details.get(POD, {}).get("resource")
    return str(resource or RESOURCES[gpu.vendor or "nvidia"][0])


def platform_of(pod: Pod) -> Object:
    """What only pods of Kubernetes have."""
    said, granted = pod.settings, pod.granted
    selector = {**granted.details.get(POD, {}).get("node_selector", {}), **said.get("node_selector", {})}
    own = (
        [{"key": key, "operator": "Exists"} for key in tainted([_resource_of(granted)])]
        if granted.gpus
        else []
    )
    shared = granted.shared_memory or granted.memory
    claims = said.get("persistent_volume_claims", {})
    labels, annotations = said.get("labels", {}), said.get("annotations", {})
    memory = {"volumeName": "shared-memory", "mountPath": _SHM, "medium": "Memory"}
    return filled(
        {
            "nodeSelector": {"labels": selector} if selector else {},
            "tolerations": [_toleration(one) for one in (*said.get("tolerations", ()), *own)],
            "imagePullSecret": [
                {"secretName": name, **_constant("secretName", name)}
                for name in said.get("image_pull_secrets", ())
            ],
            "imagePullPolicy": said.get("image_pull_policy") or "",
            "podMetadata": filled({"labels": dict(labels), "annotations": dict(annotations)}),
            "pvcMount": [
                {"constant": claim, "mountPath": path, **_constant("pvcName", claim)}
                for claim, path in claims.items()
            ],
            "secretAsEnv": list(_secrets(pod.secrets)),
            "emptyDirMounts": [{**memory, **({"sizeLimit": str(math.ceil(shared))} if shared else {})}],
        }
    )


def _constant(field: str, value: str) -> Object:
    """A name as newer versions of Kubeflow have it, beside the older form."""
    return {f"{field}Parameter": {"runtimeValue": {"constant": value}}}


def _toleration(one: Mapping[str, Any]) -> Object:
    """As in a manifest; numbers of 64 bits are texts in the JSON of a protocol buffer."""
    return {key: str(value) if key == "tolerationSeconds" else value for key, value in one.items()}


def _secrets(sources: Mapping[str, str]) -> Iterator[Object]:
    for variable, source in sources.items():
        secret, _, key = source.partition(":")[2].rpartition("/")
        yield {
            "secretName": secret,
            **_constant("secretName", secret),
            "keyToEnv": [{"secretKey": key, "envVar": variable}],
            "optional": False,
        }


def filled(table: Mapping[str, Any], keep: str = "") -> Object:
    """What is said of a table."""
    empty: tuple[Any, ...] = ("", [], {}, None, {"parameters": {}})
    return {name: value for name, value in table.items() if name == keep or value not in empty}
