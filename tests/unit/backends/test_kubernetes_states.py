"""How jobs of Kubernetes are, as its objects say, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from upshift.backends.kubernetes.manifest import ELEMENT
from upshift.backends.kubernetes.states import PULLING, Known, element_of, explained, state_of


def job(*conditions: Any, suspend: bool = False, completions: int | None = None, **labels: str) -> Any:
    spec = {"suspend": suspend, **({"completions": completions} if completions else {})}
    named = {name.replace("__", "/"): value for name, value in labels.items()}
    return {
        "metadata": {"name": "j", "namespace": "ml", "uid": "u", "labels": named},
        "spec": spec,
        "status": {"conditions": [{"status": "True", **one} for one in conditions]},
    }


def pod(phase: str = "Running", *, state: Any = None, deleted: bool = False, **more: Any) -> Any:
    conditions = [{"status": "True", **one} for one in more.pop("conditions", ())]
    meta = {"name": "p", "namespace": "ml", "uid": "pu", **more.pop("meta", {})}
    statuses = [] if state is None else [{"name": "step", "state": state}]
    return {
        "metadata": meta,
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": statuses, **more},
        **({"deleted": True} if deleted else {}),
    }


def known(job: Any, *pods: Any, **fields: Any) -> Known:
    return Known(job=job, pods={str(n): one for n, one in enumerate(pods)}, **fields)


def terminated(code: int, reason: str = "Error", message: str = "") -> Any:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waiting(reason: str, message: str = "") -> Any:
    return {"waiting": {"reason": reason, "message": message}}


DISRUPTED = {"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 20}
COMPLETE = {"type": "Complete"}


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (known(job(COMPLETE), pod("Succeeded")), None, None),
        (known(job(COMPLETE), pod("Succeeded", conditions=[DISRUPTED])), "preempted", "evicted"),
        (known(job(COMPLETE), pod("Succeeded", meta=GOING)), "cancelled", "somebody deleted its pod"),
        (known(job(), pod("Failed", state=terminated(137, "OOMKilled"))), "out-of-memory", "OOMKilled"),
        (known(job(), pod("Failed", state=terminated(137))), "infrastructure", "signal 9"),
        (
            known(job(), pod("Failed", state=terminated(2, message="no bucket b"))),
            "infrastructure",
            "no bucket b",
        ),
        (
            known(job(), pod("Failed", state=terminated(128, "StartError", "no python3"))),
            "infrastructure",
            "its container cannot run: no python3, pod p on n1",
        ),
        (
            known(
                job(),
                pod("Failed", conditions=[{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}]),
            ),
            "preempted",
            "a higher priority",
        ),
        (
            known(
                job(), pod("Failed", conditions=[{"type": "DisruptionTarget", "reason": "DeletionByPodGC"}])
            ),
            "infrastructure",
            "its node is gone",
        ),
        (
            known(job(), pod("Failed", reason="Evicted", message="The node was low on resource: memory.")),
            "preempted",
            "low on resource: memory",
        ),
        (
            known(
                job(),
                pod(
                    "Failed",
                    reason="Evicted",
                    message='Usage of EmptyDir volume "shared-memory" exceeds the limit "1Gi".',
                ),
            ),
            "out-of-memory",
            "shared-memory",
        ),
        (
            known(
                job(),
                pod(
                    "Failed", reason="Evicted", message="Pod ephemeral local storage usage exceeds the total"
                ),
            ),
            "infrastructure",
            "ephemeral local storage",
        ),
        (
            known(job(), pod("Failed", reason="NodeShutdown", message="imminent node shutdown.")),
            "preempted",
            "shut down",
        ),
        (
            known(job(), pod("Failed", reason="UnexpectedAdmissionError", message="no healthy devices")),
            "infrastructure",
            "no healthy devices",
        ),
        (known(job(), pod("Unknown")), "infrastructure", "n1 does not answer"),
        (known(job(), pod(deleted=True)), "cancelled", "somebody deleted its pod"),
        (known(job(), gone=True), "cancelled", "somebody deleted its Job"),
        (
            known(job({"type": "Failed", "reason": "DeadlineExceeded", "message": "too long"})),
            "timeout",
            "too long",
        ),
        (
            known(
                job(suspend=True, kueue__x=""),
                pod(startTime="now"),
            ),
            None,
            "suspended",
        ),
        # Of several nodes, that which failed first by itself says why.
        (
            known(
                job(completions=2),
                pod("Failed", state=terminated(1)),
                pod("Failed", state=terminated(137, "OOMKilled")),
            ),
            "out-of-memory",
            "OOMKilled",
        ),
    ],
)
def test_why_a_job_ended_is_told_by_its_cause(seen: Known, reason: str | None, words: str | None) -> None:
    state = state_of(seen, 0.0)
    if words == "suspended":
        assert (state.phase, state.why) == ("pending", "its Job is suspended")
        return
    assert (state.phase, state.reason) == ("ended", reason)
    assert words is None or words in (state.message or "")


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: "
    "2 No preemption victims found for incoming pod.",
}
NO_CLAIM = {
    **UNSCHEDULABLE,
    "message": '0/2 nodes are available: persistentvolumeclaim "x" not found. not found',
}
NOT_FOUND = waiting("ErrImagePull", "failed to pull: registry.example.org/x: not found")
QUOTA = (
    'FailedCreate: pods "x" is forbidden: exceeded quota: q, requested: cpu={}, used: cpu=3, limited: cpu=4'
)


@pytest.mark.parametrize(
    ("seen", "later", "hopeless", "words"),
    [
        (
            known(job(), pod("Pending", conditions=[UNSCHEDULABLE])),
            0,
            False,
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu",
        ),
        (known(job(), pod("Pending", state=NOT_FOUND)), 0, False, "registry.example.org/x: not found"),
        (
            known(job(), pod("Pending", state=NOT_FOUND)),
            PULLING + 1,
            True,
            "registry.example.org/x: not found",
        ),
        (
            known(job(), pod("Pending", conditions=[NO_CLAIM])),
            61,
            True,
            'persistentvolumeclaim "x" not found',
        ),
        (
            known(job(), pod("Pending", state=waiting("InvalidImageName", "x y"))),
            0,
            True,
            "InvalidImageName: x y",
        ),
        (
            known(
                job(), pod("Pending", state=waiting("CreateContainerConfigError", 'secret "hf" not found'))
            ),
            0,
            False,
            'secret "hf" not found',
        ),
        (
            known(
                job(), pod("Pending", state=waiting("CreateContainerConfigError", 'secret "hf" not found'))
            ),
            61,
            True,
            'secret "hf" not found',
        ),
        (
            known(
                job(), pod("Pending", state=waiting("ContainerCreating")), told="FailedMount: no such claim"
            ),
            9,
            False,
            "FailedMount: no such claim",
        ),
        (known(job(), told=QUOTA.format(2)), 99, False, "exceeded quota"),
        (known(job(), told=QUOTA.format(8)), 0, True, "exceeded quota"),
        (
            known(job(), told='FailedCreate: pods "x" is forbidden: no service account ml/x'),
            99,
            True,
            "service account ml/x",
        ),
        (
            known(
                job(suspend=True, **{"kueue.x-k8s.io__queue-name": "gpus"}), told="insufficient quota for cpu"
            ),
            0,
            False,
            "queue 'gpus' of Kueue has not admitted it: insufficient quota for cpu",
        ),
    ],
)
def test_what_a_job_waits_for_is_told_and_whether_that_is_hopeless(
    seen: Known, later: float, hopeless: bool, words: str
) -> None:
    state_of(seen, 0.0)
    state = state_of(seen, later)
    assert (state.phase, state.hopeless) == ("pending", hopeless)
    assert words in (state.why or "")


def test_an_element_of_an_array_is_as_its_own_pod_says() -> None:
    whole = job({"type": "Failed", "message": "indexes have failed"}, completions=5)
    whole["status"] |= {"completedIndexes": "0,3-4", "failedIndexes": "1"}
    named = [pod("Succeeded"), pod("Failed", state=terminated(137, "OOMKilled")), pod()]
    for number, one in enumerate(named):
        one["metadata"]["labels"] = {ELEMENT: str(number)}
    seen = known(whole, *named)
    states = [state_of(element_of(seen, number, None), 0.0) for number in range(5)]
    assert [state.phase for state in states] == ["ended", "ended", "running", "ended", "ended"]
    assert [state.reason for state in states] == [None, "out-of-memory", None, None, None]
    waits = state_of(element_of(known(job(completions=9), named[2]), 7, None), 0.0)
    assert (waits.phase, waits.why) == ("pending", "only some of its 9 pods are made at a time")


def test_a_job_that_kueue_evicts_is_preempted() -> None:
    seen = known(job(suspend=True, **{"kueue.x-k8s.io__queue-name": "gpus"}), pod(startTime="now"))
    assert state_of(seen, 0.0).reason == "preempted"


def test_a_pod_that_does_not_go_is_lost_with_its_node() -> None:
    seen = known(job(), pod(meta=GOING))
    assert state_of(seen, 0.0).phase == "running"
    state = state_of(seen, 60.0)
    assert (state.reason, state.message) == ("infrastructure", "n1 does not answer any more")


def test_the_last_warning_is_what_events_say() -> None:
    old = {
        "type": "Warning",
        "reason": "FailedMount",
        "message": "old",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    new = {"type": "Warning", "reason": "Failed", "message": "new  one", "eventTime": "2026-01-02T00:00:00Z"}
    assert explained([new, old, {"type": "Normal", "message": "x"}]) == "Failed: new one"
    assert explained([]) is None
