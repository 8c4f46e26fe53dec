"""The manifest of a job: from a launch to plain dictionaries, and nothing else.

::

    pod_template ──► Job, for one node
                 ──► Indexed Job, for the elements of an array
                 ──► Service, headless, and Indexed Job, for several nodes
                                           └─► in a JobSet, where that is asked for: it makes the Service

What no manifest may hold (an order, secrets) is in a Secret of the job's name, which is filled when the job
is submitted: here it holds nothing but what the supervisor takes for an order of nobody.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from upshift.backends.kubernetes.nodes import (
    EFA,
    GPUS,
    POD,
    RESOURCES,
    TPU_PORTS,
    resource_of_partition,
    tainted,
)
from upshift.backends.scheduler import Launch
from upshift.model.settings.kubernetes import OWN, TMPFS_PATH
from upshift.runtime.launch import seats
from upshift.runtime.supervisor.protocol import ORDER

Object = dict[str, Any]

LONGEST = 52
"""Characters of a name: pods add the number of their node and five of their own, and 63 is the most."""
AT_ONCE = 100
"""Pods of an array that wait or run at once: while they do, each begins tasks of those that have none yet."""
ELEMENT = "batch.kubernetes.io/job-completion-index"
"""The label of a pod with its number in an Indexed Job."""
CONTAINER = "step"
GANG = "node"
"""What the one Job of a JobSet is called: its pods are ``NAME-node-0-3``."""
HOME = "/upshift"
"""A folder of the pod's own: the runtime, code and what was brought."""
LEAST_GRACE = 10
"""Seconds beyond a step's own grace in which its supervisor records how it ended."""
KEPT = 7 * 24 * 3600
"""Seconds after which the cluster removes an ended job: one of which the end was told is removed at once."""
INDEX = "JOB_COMPLETION_INDEX"
"""What tells a pod of an Indexed Job which one it is: Kubernetes, "Indexed Job"."""
RUN, MANAGED, NAMED = f"{OWN}/run", "app.kubernetes.io/managed-by", f"{OWN}/job"
QUEUE = "kueue.x-k8s.io/queue-name"
_SHM = "/dev/shm"
_HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
"""By which field things in a list are the same: the merge keys of Kubernetes' own strategic merge."""


@attrs.frozen(kw_only=True)
class Mount:
    """A folder that pods see."""

    path: str  # in the pod
    host: str | None = None  # a folder of the node
    claim: str | None = None  # or a claim on a volume
    inside: str | None = None  # a folder in that


@attrs.frozen(kw_only=True)
class Site:
    """What is the same for all jobs of a target."""

    namespace: str
    mounts: tuple[Mount, ...] = ()
    user: tuple[int, int] | None = None  # user and group that the store's files belong to
    code_cache: str | None = None  # a folder of each node, which keeps what pods fetch and unpack


def job_name(name: str) -> str:
    """A name as Kubernetes takes it, of a job that is named so elsewhere: the digest at its end is kept."""
    stem, _, digest = name.rpartition("-")
    plain = re.sub(r"[^a-z0-9-]+", "-", stem.lower())[: LONGEST - len(digest) - 1].strip("-")
    return f"{plain if plain[:1].isalpha() else f's{plain}'[: LONGEST - len(digest) - 1]}-{digest}"


def label_value(text: str) -> str:
    """A text as the value of a label; what is too long ends with a digest of it."""
    plain = re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-_.")
    if len(plain) <= 63:
        return plain
    return f"{plain[:50].rstrip('-_.')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def manifests(launch: Launch, site: Site) -> list[Object]:
    """What is made for a job, in order: the job itself is the last one."""
    said, name = launch.settings, job_name(launch.name)
    namespace = said.get("namespace") or site.namespace
    words = launch.comment.split()  # upshift RUN STEP …
    own = {
        MANAGED: "upshift",
        NAMED: name,
        **({RUN: label_value(words[1])} if len(words) > 1 else {}),
        **({f"{OWN}/step": label_value(words[2].rstrip(","))} if len(words) > 2 else {}),
    }
    labels = {**said.get("labels", {}), **own}
    about = {"name": name, "namespace": namespace, "labels": labels}
    nodes = launch.granted.nodes or 1
    is_set = nodes > 1 and bool(said.get("jobset"))
    found: list[Object] = []
    if nodes > 1 and not is_set:
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": dict(about),
                "spec": {
                    "clusterIP": "None",
                    "publishNotReadyAddresses": True,
                    "selector": {NAMED: name},
                },
            }
        )
    found.append(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": dict(about),
            "type": "Opaque",
            "stringData": {ORDER: "{}"},
        }
    )
    template = patched(pod_template(launch, site, labels=labels), said.get("pod_patch", {}))
    annotations = {**said.get("annotations", {}), f"{OWN}/comment": launch.comment}
    queue = said.get("queue")
    spec = {**_job(launch, nodes), "template": template}
    suspended = {"suspend": True} if queue else {}
    found.append(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2" if is_set else "batch/v1",
            "kind": "JobSet" if is_set else "Job",
            "metadata": {
                **about,
                "labels": {**labels, **({QUEUE: queue} if queue else {})},
                "annotations": annotations,
            },
            "spec": {**suspended, **(_set_of(name, labels, spec) if is_set else spec)},
        }
    )
    return found


def template_of(job: Mapping[str, Any]) -> Object:
    """The template of the pods of a Job, or of a JobSet of ours."""
    spec = job["spec"]
    if job["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    template: Object = spec["template"]
    return template


def _set_of(name: str, labels: Mapping[str, str], job: Object) -> Object:
    """A JobSet of one Job, which has the names of its pods in DNS from the JobSet."""
    after = job.pop("ttlSecondsAfterFinished")
    return {
        "ttlSecondsAfterFinished": after,
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {"name": GANG, "replicas": 1, "template": {"metadata": {"labels": dict(labels)}, "spec": job}}
        ],
    }


def _job(launch: Launch, nodes: int) -> Object:
    spec: Object = {
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT,
    }
    if launch.elements:
        return {
            **spec,
            "completionMode": "Indexed",
            "completions": len(launch.elements),
            "parallelism": min(len(launch.elements), AT_ONCE),
            # One element that fails is one task that fails.
            "backoffLimit": 2**31 - 1,
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": len(launch.elements),
        }
    failed = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}}
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec["podFailurePolicy"] = {"rules": [disrupted, failed]}
    if nodes > 1:
        spec |= {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes}
    return spec


def pod_template(launch: Launch, site: Site, *, labels: Mapping[str, str]) -> Object:
    """The pod of a job, without what a user patches; pure."""
    granted, said, name = launch.granted, launch.settings, job_name(launch.name)
    nodes = granted.nodes or 1
    pod = granted.details.get(POD, {})
    resource = pod.get("resource") or _usual(launch)
    volumes: list[Object] = []
    mounts: list[Object] = []
    for volume, path, inside in _mounted(launch, site):
        if volume not in volumes:
            volumes.append(volume)
        mounts.append({"name": volume["name"], "mountPath": path, **({"subPath": inside} if inside else {})})
    container: Object = {
        "name": CONTAINER,
        "image": launch.image or "",
        # Kubernetes would expand $(NAME); a supervisor reads $NAME where it is the number of its element.
        "command": [
            *(part.replace("$(", "$$(") for part in launch.command),
            *([f"${INDEX}"] if launch.elements else []),
        ],
        "env": list(_environment(launch, name, nodes)),
        "envFrom": [{"secretRef": {"name": one}} for one in (*said.get("secrets", ()), name)],
        "resources": _resources(launch, resource),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if said.get("image_pull_policy"):
        container["imagePullPolicy"] = said["image_pull_policy"]
    if nodes > 1 and resource == RESOURCES["tpu"][0]:
        container["ports"] = [{"containerPort": port} for port in TPU_PORTS]
    security = said.get("security_context") or (
        {} if site.user is None else {"runAsUser": site.user[0], "runAsGroup": site.user[1]}
    )
    if security:
        container["securityContext"] = dict(security)
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_of(launch),
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(said.get("service_account")),
        "containers": [container],
        "volumes": volumes,
    }
    if nodes > 1 and not said.get("jobset"):  # a JobSet says it itself
        spec["subdomain"] = name
    for field, key in (
        ("service_account", "serviceAccountName"),
        ("priority_class", "priorityClassName"),
        ("runtime_class", "runtimeClassName"),
    ):
        if said.get(field):
            spec[key] = said[field]
    if said.get("image_pull_secrets"):
        spec["imagePullSecrets"] = [{"name": one} for one in said["image_pull_secrets"]]
    if said.get("topology_spread_constraints"):
        spec["topologySpreadConstraints"] = [dict(one) for one in said["topology_spread_constraints"]]
    selector = {**pod.get("node_selector", {}), **said.get("node_selector", {})}
    if selector:
        spec["nodeSelector"] = selector
    affinity = _affinity(launch, name, nodes)
    if affinity:
        spec["affinity"] = affinity
    own = tainted([resource]) if granted.gpus and resource else []
    tolerations = [*said.get("tolerations", ()), *({"key": key, "operator": "Exists"} for key in own)]
    if tolerations:
        spec["tolerations"] = [dict(one) for one in tolerations]
    annotations = {
        **said.get("annotations", {}),
        # A pod that an autoscaler evicted to empty its node would be a step that begins anew.
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    return {"metadata": {"labels": dict(labels), "annotations": annotations}, "spec": spec}


def _resources(launch: Launch, resource: str | None) -> Object:
    """What the container reserves and may use; ``resource`` is that of its devices."""
    granted, said = launch.granted, launch.settings
    limits: dict[str, str] = {}
    requests: dict[str, str] = {"cpu": _cpus(1 if granted.cpu_count is None else granted.cpu_count)}
    if granted.memory is not None:
        requests["memory"] = limits["memory"] = str(math.ceil(granted.memory))
    if granted.disk is not None:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = str(math.ceil(granted.disk))
    if said.get("qos") == "Guaranteed":
        limits["cpu"] = requests["cpu"]
    if granted.gpus and resource:
        requests[resource] = limits[resource] = str(len(granted.gpus))
    if said.get("efa"):
        requests[EFA] = limits[EFA] = str(said["efa"])
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _mounted(launch: Launch, site: Site) -> Iterator[tuple[Object, str, str | None]]:
    """The volumes of a pod, each with its path in the container, and the folder in the volume."""
    granted, said = launch.granted, launch.settings
    shared = granted.shared_memory or granted.memory
    memory = {"medium": "Memory", **({"sizeLimit": str(math.ceil(shared))} if shared else {})}
    yield {"name": "shared-memory", "emptyDir": memory}, _SHM, None
    yield {"name": "upshift", "emptyDir": {}}, HOME, None
    if site.code_cache is not None:
        kept = {"path": site.code_cache, "type": "DirectoryOrCreate"}
        yield {"name": "code", "hostPath": kept}, f"{HOME}/code", None
    if said.get("use_tmpfs"):
        size = said.get("tmpfs_size") or (granted.memory // 2 if granted.memory else None)
        tmpfs = {"medium": "Memory", **({"sizeLimit": str(size)} if size else {})}
        yield {"name": "tmpfs", "emptyDir": tmpfs}, said.get("tmpfs_path") or TMPFS_PATH, None
    yield from _folders(site.mounts, said.get("persistent_volume_claims", {}))


def grace_of(launch: Launch) -> int:
    """Seconds that the pod has between SIGTERM and SIGKILL."""
    said = launch.settings.get("termination_grace")
    return int(said) if said else math.ceil(launch.grace) + LEAST_GRACE


def _affinity(launch: Launch, name: str, nodes: int) -> Object:
    """Where its pods run: as the step says, each on a node of its own, and none where it was lost before."""
    affinity: Object = dict(launch.settings.get("affinity", {}))
    avoids = launch.granted.details.get("avoids")
    if nodes > 1:
        apart = {"labelSelector": {"matchLabels": {NAMED: name}}, "topologyKey": _HOST}
        said = affinity.get("podAntiAffinity", {})
        affinity["podAntiAffinity"] = {**said, _REQUIRED: [*said.get(_REQUIRED, ()), apart]}
    if avoids:
        others = {"key": _HOST, "operator": "NotIn", "values": list(avoids)}
        said = affinity.get("nodeAffinity", {})
        terms = said.get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
        terms = [{**term, "matchExpressions": [*term.get("matchExpressions", ()), others]} for term in terms]
        affinity["nodeAffinity"] = {**said, _REQUIRED: {"nodeSelectorTerms": terms}}
    return affinity


def _usual(launch: Launch) -> str | None:
    """The resource of devices of which a grant does not say by which they are had."""
    gpus = launch.granted.gpus
    if not gpus:
        return None
    if gpus[0].partition is not None:
        return resource_of_partition(gpus[0].partition)
    return RESOURCES[gpus[0].vendor or GPUS[0]][0]


def _cpus(count: float) -> str:
    """CPUs as Kubernetes has them: whole ones, or thousandths, rounded up."""
    thousandths = math.ceil(round(count * 1000, 6))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def _environment(launch: Launch, name: str, nodes: int) -> Iterator[Object]:
    said = launch.settings
    for variable, value in launch.environment.items():
        yield {"name": variable, "value": value}
    yield {"name": "HOME", "value": HOME}
    yield {"name": seats.NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    if said.get("use_tmpfs") and said.get("tmpfs_tempdir") is not False:
        yield {"name": "TMPDIR", "value": said.get("tmpfs_path") or TMPFS_PATH}
    if nodes > 1:
        yield {"name": seats.NODE, "value": f"${INDEX}"}
        first = f"{name}-{GANG}-0-0" if said.get("jobset") else f"{name}-0"
        yield {"name": seats.MAIN, "value": f"{first}.{name}"}
    for variable, source in launch.secrets.items():
        secret, _, key = source.partition(":")[2].rpartition("/")
        yield {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _folders(mounts: Iterable[Mount], claims: Mapping[str, str]) -> Iterator[tuple[Object, str, str | None]]:
    """Volumes, where they are mounted, and what of them."""
    paths = set(claims.values())
    for number, one in enumerate(mounts):
        if one.path in paths:  # the step says what it wants to find there
            continue
        if one.claim is not None:
            volume = {"name": _volume(one.claim), "persistentVolumeClaim": {"claimName": one.claim}}
        else:
            volume = {"name": f"folder-{number}", "hostPath": {"path": one.host, "type": "Directory"}}
        yield volume, one.path, one.inside
    for claim, path in claims.items():
        yield {"name": _volume(claim), "persistentVolumeClaim": {"claimName": claim}}, path, None


def _volume(claim: str) -> str:
    """The name of a volume, which has no dots."""
    plain = re.sub(r"[^a-z0-9-]", "-", claim)
    if plain == claim and len(claim) <= 50:
        return f"claim-{claim}"
    return f"claim-{plain[:40].strip('-')}-{hashlib.sha256(claim.encode()).hexdigest()[:8]}"


def patched(value: Any, patch: Any) -> Any:
    """What becomes of a part of a manifest, as by Kubernetes' strategic merge."""
    if not isinstance(value, Mapping) or not isinstance(patch, Mapping):
        return patch
    merged = dict(value)
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        elif name in _KEYS and isinstance(change, list) and isinstance(merged.get(name), list):
            merged[name] = _joined(merged[name], change, _KEYS[name])
        elif name == "tolerations" and isinstance(change, list):
            merged[name] = [
                *merged.get(name, []),
                *(one for one in change if one not in merged.get(name, [])),
            ]
        else:
            merged[name] = patched(merged.get(name), change)
    return merged


def _joined(items: list[Any], changes: list[Any], key: str) -> list[Any]:
    """A list of things that are told apart by a field."""
    found = list(items)
    for change in changes:
        at = next((n for n, item in enumerate(found) if item.get(key) == change.get(key)), None)
        if at is None:
            found.append({name: value for name, value in change.items() if name != "$patch"})
        elif change.get("$patch") == "delete":
            del found[at]
        else:
            found[at] = patched(found[at], change)
    return found
