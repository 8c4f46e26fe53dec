"""How a job is, from its Job, its pods and what events say of them; and in which words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.kubernetes.manifest import CONTAINER, ELEMENT, QUEUE
from upshift.backends.scheduler import State

PULLING = 120.0
"""Seconds that an image may fail to be pulled: registries and networks have bad minutes."""
STARTING = 60.0
"""Seconds that a container may fail to be made: what it mounts or reads may come a moment later."""
LOST = 30.0
"""Seconds beyond its grace after which a pod that is being deleted counts as lost, with its node."""
_PULL = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_NEVER = ("InvalidImageName", "ErrImageNeverPull")
_MAKE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError")
_DISRUPTIONS = {
    "PreemptionByScheduler": "it made room for a pod of a higher priority",
    "DeletionByTaintManager": "its node got a taint that it does not tolerate, or was lost",
    "EvictionByEvictionAPI": "it was evicted, as when a node is drained",
    "TerminationByKubelet": "its node took it down",
}
_NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_TRIED = re.compile(r'(Error creating: )?pods "[^"]*" is forbidden: ')
"""What names a pod that was not made; each try has another one."""
_FORBIDDEN = re.compile(r"(?i)exceeded quota")
_QUOTA = re.compile(r"requested: ([^,]+?), used: [^,]+?, limited: ([^,\s]+)")


@attrs.define(eq=False)
class Known:
    """What is known of one job."""

    kind: str = "jobs"  # of its object: "jobs", "jobsets"
    job: Mapping[str, Any] | None = None
    pods: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)  # by uid; one that is gone as it was last
    gone: bool = False  # whether the Job itself is
    since: dict[str, float] = attrs.field(factory=dict)  # of each trouble, when it was seen first
    told: str | None = None  # what events say of what it waits for
    about: str | None = None  # whose events these are
    pull: str | None = None  # why its image could not be pulled when that was last tried


def element_of(known: Known, number: int, before: Known | None) -> Known:
    """What is known of an element of an array, as if it were a job by itself."""
    pods = {
        uid: pod
        for uid, pod in known.pods.items()
        if pod["metadata"].get("labels", {}).get(ELEMENT) == str(number)
    }
    job = dict(known.job or {})
    status, spec = job.get("status", {}), job.get("spec", {})
    ended = [
        {"type": kind, "status": "True", "message": "one of its pods failed"}
        for kind, field in (("Complete", "completedIndexes"), ("Failed", "failedIndexes"))
        if _is_among(number, status.get(field) or "")
    ]
    over = [c for c in status.get("conditions") or () if c["type"] == "Failed" and not known.pods]
    job |= {"status": {"conditions": ended or over}, "spec": {**spec, "completions": 1}}
    found = Known(kind=known.kind, job=job, pods=pods, gone=known.gone)
    if before is not None:
        found.since, found.told, found.about, found.pull = (
            before.since,
            before.told,
            before.about,
            before.pull,
        )
    if known.pods and not pods:  # it is not its turn yet, of which no event says more
        meta = job.get("metadata", {})
        found.job = job | {"metadata": {name: meta[name] for name in ("namespace", "labels") if name in meta}}
        found.told = f"only some of its {spec.get('completions')} pods are made at a time"
    return found


def _is_among(number: int, listed: str) -> bool:
    """Whether a number is in a list such as ``0-3,7``."""
    spans = (part.partition("-") for part in listed.split(",") if part)
    return any(int(first) <= number <= int(last or first) for first, _, last in spans)


def state_of(known: Known, now: float) -> State:
    """How it is; ``now`` is of a monotonic clock."""
    job, pods = known.job or {}, list(known.pods.values())
    node = next((pod["spec"].get("nodeName") for pod in pods if pod.get("spec", {}).get("nodeName")), None)
    conditions = {
        c["type"]: c for c in job.get("status", {}).get("conditions") or () if c["status"] == "True"
    }
    spec = job.get("spec", {})
    queued = job.get("metadata", {}).get("labels", {}).get(QUEUE)
    found = _ended(known, pods, now, several=int(spec.get("completions") or 1))
    evicted = queued and spec.get("suspend") and any(_has_run(pod) for pod in pods)
    if evicted and (found is None or found.reason == "cancelled"):  # which is how its pods look then
        why = "Kueue took its quota back, and evicted it"
        return State(phase="ended", reason="preempted", message=why, node=node)
    if found is not None:
        return attrs.evolve(found, node=found.node or node)
    if "Complete" in conditions:
        return State(phase="ended", node=node)
    if "Failed" in conditions:
        failed = conditions["Failed"]
        reason = "timeout" if failed.get("reason") == "DeadlineExceeded" else "infrastructure"
        said = failed.get("message") or failed.get("reason") or "it says no more"
        return State(phase="ended", reason=reason, message=f"its Job failed: {said}", node=node)
    if known.gone:
        return State(phase="ended", reason="cancelled", message="somebody deleted its Job", node=node)
    if spec.get("suspend"):
        why = f"queue {queued!r} of Kueue has not admitted it" if queued else "its Job is suspended"
        return State(phase="pending", why=_with(why, known.told))
    alive = [pod for pod in pods if not pod.get("deleted")]
    if not alive:
        return _without_pod(known, now)
    waits = [state for state in (_waiting(known, pod, now) for pod in alive) if state is not None]
    hopeless = next((state for state in waits if state.hopeless), None)
    if hopeless or waits:
        return hopeless or waits[0]
    return State(phase="running", node=node)


def _ended(known: Known, pods: Sequence[Mapping[str, Any]], now: float, *, several: int) -> State | None:
    """The end that its pods tell of, if there is one."""
    causes = [(cause, pod) for pod in pods if (cause := cause_of(pod)) is not None]
    if causes:
        # Of several nodes the others are taken down because one has failed: that one says why.
        (reason, message), pod = min(
            causes, key=lambda found: (found[0][0] == "infrastructure", _when(found[1]))
        )
        on = pod.get("spec", {}).get("nodeName")
        at = f", pod {pod['metadata']['name']}" + (f" on {on}" if on else "")
        return State(phase="ended", reason=reason, message=f"{message}{at}", node=on)
    if pods and sum(pod.get("status", {}).get("phase") == "Succeeded" for pod in pods) >= several:
        return State(phase="ended")
    for pod in pods:
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        if pod.get("status", {}).get("phase") == "Unknown":
            return _lost(pod)
        if meta.get("deletionTimestamp") and not pod.get("deleted"):
            since = known.since.setdefault(f"deleted {uid}", now)
            if now - since > (meta.get("deletionGracePeriodSeconds") or 0) + LOST:
                return _lost(pod)
    return None


def _lost(pod: Mapping[str, Any]) -> State:
    node = pod.get("spec", {}).get("nodeName") or "its node"
    return State(
        phase="ended", reason="infrastructure", message=f"{node} does not answer any more", node=node
    )


def cause_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why a pod has failed; None: it has not, or not yet."""
    status = pod.get("status", {})
    disrupted = next(
        (
            c
            for c in status.get("conditions") or ()
            if c["type"] == "DisruptionTarget" and c["status"] == "True"
        ),
        None,
    )
    ended = _terminated(status)
    # A supervisor that is told to stop records that, and leaves as if nothing had been.
    if status.get("phase") not in ("Failed", "Succeeded") and not pod.get("deleted"):
        return None
    said = (status.get("message") or "").strip().rstrip(".")
    if status.get("reason") == "Evicted" or "exceeds the" in said:
        if "shared-memory" in said or "tmpfs" in said:
            return "out-of-memory", f"it was evicted: {said}"
        return ("infrastructure" if "exceeds the" in said else "preempted"), f"it was evicted: {said}"
    if ended is not None and ended.get("reason") == "OOMKilled":
        return "out-of-memory", "the kernel killed it, as it went beyond its memory (OOMKilled)"
    if disrupted is not None:
        if disrupted.get("reason") == "DeletionByPodGC":
            return "infrastructure", "its node is gone"
        how = _DISRUPTIONS.get(disrupted.get("reason", ""), disrupted.get("reason", "it was disrupted"))
        return "preempted", how
    if status.get("reason") in ("NodeShutdown", "Shutdown", "Terminated", "Preempting"):
        return "preempted", f"its node was shut down: {said or status['reason']}"
    if status.get("reason") == "DeadlineExceeded":
        return "timeout", said or "it reached its deadline"
    if (
        status.get("reason") and ended is None
    ):  # the kubelet did not take it: OutOfcpu, UnexpectedAdmissionError
        return "infrastructure", _with(f"its node did not take it ({status['reason']})", said)
    if status.get("phase") == "Succeeded" and not pod["metadata"].get("deletionTimestamp"):
        return None
    if ended is None or status.get("phase") != "Failed":
        return "cancelled", "somebody deleted its pod"
    words = " / ".join(
        line.strip() for line in (ended.get("message") or "").splitlines()[-3:] if line.strip()
    )
    code = ended.get("exitCode")
    if ended.get("reason") in ("ContainerCannotRun", "StartError"):
        return "infrastructure", f"its container cannot run: {words}"
    how = f"signal {code - 128}" if isinstance(code, int) and 128 < code < 160 else f"exit code {code}"
    return "infrastructure", _with(f"its supervisor ended with {how}", words)


def words_of(known: Known) -> str | None:
    """What is said of a job that ended without a word."""
    for pod in known.pods.values():
        ended = _terminated(pod.get("status", {}))
        if ended is not None:
            words = " / ".join(line.strip() for line in (ended.get("message") or "").splitlines()[-3:])
            return _with(f"exit code {ended.get('exitCode')}", words)
    return known.told


def explained(events: Iterable[Mapping[str, Any]]) -> str | None:
    """What the last event says that is a warning."""
    # Events of a pod are asked for once it is on a node: why it was not before is of no matter any more.
    warnings = [
        event
        for event in events
        if event.get("type") == "Warning"
        and event.get("message")
        and event.get("reason") != "FailedScheduling"
    ]
    if not warnings:
        return None
    last = max(warnings, key=_event_time)
    said = _TRIED.sub("", " ".join(last["message"].split()))
    return f"{last.get('reason', '')}: {said}"[:500]


def _event_time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), event.get("metadata", {}).get("creationTimestamp") or ""))


def _without_pod(known: Known, now: float) -> State:
    """A Job that has no pod: its events say why."""
    since = known.since.setdefault("no pod", now)
    why = known.told
    if why is None:
        return State(phase="pending", why="its pod is not made yet" if now - since > STARTING else None)
    over = [
        (asked, most)
        for asked, most in _QUOTA.findall(why)
        if _more(asked.partition("=")[2], most.partition("=")[2])
    ]
    never = bool(over) or (
        "FailedCreate" in why and not _FORBIDDEN.search(why) and now - since > STARTING / 3
    )
    return State(phase="pending", why=why, hopeless=never)


def _more(asked: str, most: str) -> bool:
    from upshift.backends.kubernetes.nodes import quantity

    return quantity(asked) > quantity(most)


def _waiting(known: Known, pod: Mapping[str, Any], now: float) -> State | None:
    """What a pod waits for; None: it runs."""
    status, uid = pod.get("status", {}), pod["metadata"]["uid"]
    if status.get("phase") not in ("Pending", None):
        return None
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            said = _plain(condition.get("message") or condition.get("reason") or "")
            never = _NO_CLAIM.search(said)
            since = known.since.setdefault(f"claim {uid}", now) if never else now
            return State(phase="pending", why=said or None, hopeless=now - since > STARTING)
    if not status.get("containerStatuses"):
        return State(phase="pending", why=known.told)
    waiting: Mapping[str, Any] = next(
        (s["state"]["waiting"] for s in _containers(status) if "waiting" in s.get("state", {})), {}
    )
    reason, said = waiting.get("reason", ""), _plain(waiting.get("message") or "")
    if reason == "ErrImagePull" and said:
        known.pull = said
    if reason in _NEVER:
        return State(phase="pending", why=_with(reason, said), hopeless=True)
    for those, patience in ((_PULL, PULLING), (_MAKE, STARTING)):
        if reason in those:
            since = known.since.setdefault(f"{those[0]} {uid}", now)
            more = known.pull if those is _PULL and known.pull else said
            return State(phase="pending", why=_with(reason, more), hopeless=now - since > patience)
    since = known.since.setdefault(f"starting {uid}", now)
    if now - since < 5.0:
        return State(phase="pending")
    return State(phase="pending", why=_with("its container is being made", known.told))


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The step's own first."""
    every = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return sorted(every, key=lambda one: one.get("name") != CONTAINER)


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = next(
        (s["state"]["terminated"] for s in _containers(status) if "terminated" in s.get("state", {})), None
    )
    return found


def _has_run(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("startTime"))


def _when(pod: Mapping[str, Any]) -> str:
    ended = _terminated(pod.get("status", {})) or {}
    return str(ended.get("finishedAt") or "9")


def _plain(text: str) -> str:
    """The scheduler's words, without what is the same for all."""
    plain = re.sub(r"\s*(no new claims to deallocate,|preemption:).*$", "", " ".join(text.split()))
    return plain.rstrip(".")


def _with(what: str, more: str | None) -> str:
    return f"{what}: {more}" if more else what
