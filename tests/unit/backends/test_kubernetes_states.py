"""How jobs of Kubernetes are, as its objects say; and an engine whose API server misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from kubernetes_scripted import Scripted, node, scripted
from upshift.backends.base import Ask, Ended, Event, Job, Waiting
from upshift.backends.kubernetes import rights
from upshift.backends.kubernetes.access import Access, read_access
from upshift.backends.kubernetes.api import Api, remedy_of
from upshift.backends.kubernetes.backend import KubernetesBackend
from upshift.backends.kubernetes.manifest import ELEMENT
from upshift.backends.kubernetes.states import PULLING, Known, element_of, explained, state_of
from upshift.errors import BackendError, ConfigError, RequestRefused
from upshift.model.configuration import Target
from upshift.model.settings.kubernetes import KubernetesSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, EntryPoint, Hardware, OutputSpec, TaskId, TaskSpec
from upshift.model.spec.codec import encode
from upshift.runtime.storage.store import open_store

# States


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


# An API server that misbehaves


@attrs.define
class Engine:
    """A backend, and what it tells."""

    server: Scripted
    backend: KubernetesBackend
    inbox: SimpleQueue[Event]
    store: Any
    target: Target
    jobs: int = 0

    @property
    def api(self) -> Api:
        """Its server."""
        return Api(read=read_access)

    def job(self, **settings: Any) -> Job:
        """A job whose step fails at once: what it does is of no matter here."""
        self.jobs += 1
        spec = TaskSpec(
            task=TaskId(run="20260101-000000-aaaa", step="count", index=self.jobs),
            attempt=1,
            pipeline="p",
            entry=EntryPoint(module="math", qualname="factorial"),
            code=Code(project="/nowhere"),
            store=self.store.address,
            outputs=(OutputSpec(name="output"),),
            image="python:3.11",
            cwd="/",
            key="k:1",
        )
        return Job(spec=spec, spec_path=self.store.write_spec(spec))

    def until(self, kind: type, when: Callable[[Any], bool] = lambda event: True) -> Any:
        """The next event of this kind that is so."""
        while True:
            event = self.inbox.get(timeout=60)
            if isinstance(event, kind) and when(event):
                return event

    def waits(self, words: str) -> None:
        """See that it is told to wait for this."""
        self.until(Waiting, lambda event: words in event.why)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as server:
        yield server


@pytest.fixture
def engine(server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    inbox: SimpleQueue[Event] = SimpleQueue()
    store = open_store(str(tmp_path / "store"))
    target = Target(name="cluster", backend="kubernetes", mounts={str(tmp_path): str(tmp_path)})
    backend = KubernetesBackend(target, store=store.address, sink=inbox.put)
    yield Engine(server, backend, inbox, store, target)
    backend.close()


def held(server: Scripted, **status: Any) -> threading.Event:
    """Have pods wait, and look so."""
    free = threading.Event()
    server.hold = lambda pod: None if free.is_set() else status
    return free


def once(status: int, message: str, method: str, part: str) -> Any:
    """A fault of one answer."""
    left = [True]

    def fault(asked: str, path: str) -> tuple[int, str] | None:
        if asked == method and part in path and "dryRun" not in path and left and left.pop():
            return status, message
        return None

    return fault


def test_watches_that_break_and_are_forgotten_lose_nothing(engine: Engine) -> None:
    free = held(engine.server, conditions=[UNSCHEDULABLE])
    engine.backend.submit([engine.job()])
    engine.waits("Insufficient nvidia.com/gpu")
    engine.server.drop()
    engine.server.forget()
    free.set()
    engine.until(Ended)


def test_a_server_that_is_away_or_busy_for_a_moment_is_asked_again(engine: Engine) -> None:
    engine.server.faults += [
        once(429, "slow down", "POST", "/secrets"),
        once(503, "not ready", "POST", "/jobs"),
        once(0, "", "PATCH", "/secrets"),
    ]
    engine.backend.submit([engine.job()])
    engine.until(Ended)
    assert [method for method, path in engine.server.asked if path.endswith("/jobs") and method == "POST"]


def test_a_job_that_was_taken_though_the_answer_was_lost_is_not_made_twice(engine: Engine) -> None:
    free = held(engine.server, conditions=[UNSCHEDULABLE])
    engine.server.lose = lambda method, path: method == "POST" and path.endswith("/jobs")
    engine.backend.submit([engine.job()])
    engine.waits("Insufficient")
    assert len(engine.server.all("jobs")) == 1
    free.set()
    engine.until(Ended)


def test_a_full_quota_is_waited_for(engine: Engine) -> None:
    engine.server.faults.append(
        once(
            403,
            'jobs.batch "x" is forbidden: exceeded quota: objects, requested: count/jobs.batch=1',
            "POST",
            "/jobs",
        )
    )
    engine.backend.submit([engine.job()])
    engine.waits("exceeded quota: objects")
    engine.until(Ended)


@pytest.mark.parametrize(
    ("status", "message", "part", "words"),
    [
        (
            403,
            'secrets is forbidden: User "ann" cannot create resource "secrets" in API group ""',
            "/secrets",
            ['User "ann" cannot create'],
        ),
        (401, "Unauthorized", "/secrets", ["does not know who asks"]),
        (404, 'namespaces "ml" not found', "/secrets", ["no namespace 'ml'"]),
        (422, "Job.batch is invalid: spec.template.spec.x: Invalid value", "/jobs", ["Invalid value"]),
    ],
)
def test_a_refusal_ends_the_attempt_with_its_words(
    engine: Engine, status: int, message: str, part: str, words: list[str]
) -> None:
    engine.server.faults.append(
        lambda method, path: (status, message) if method == "POST" and part in path else None
    )
    engine.backend.submit([engine.job()])
    ended = engine.until(Ended)
    assert ended.reason == "infrastructure"
    for word in words:
        assert word in ended.message


def test_a_pod_whose_image_has_no_such_name_is_given_up(engine: Engine) -> None:
    held(engine.server, containerStatuses=[{"name": "step", "state": waiting("InvalidImageName", "x y")}])
    engine.backend.submit([engine.job()])
    ended = engine.until(Ended)
    assert "can never start it: InvalidImageName" in ended.message


def test_a_supervisor_that_is_killed_is_told_as_such_and_its_job_is_removed(engine: Engine) -> None:
    free = held(engine.server, conditions=[UNSCHEDULABLE])
    job = engine.job()
    engine.backend.submit([job])
    engine.waits("Insufficient")
    engine.store.write_stop(job.spec.task, 1, "SIGTERM")  # as nobody does: it would be over too soon else
    free.set()
    engine.until(Ended)
    engine.backend.close()
    assert engine.server.all("jobs") == engine.server.all("pods") == engine.server.all("secrets") == []


def test_mapped_tasks_are_one_job_that_is_removed_when_all_have_ended(engine: Engine) -> None:
    jobs = [engine.job() for _ in range(3)]
    handles = set(map(str, engine.backend.submit(jobs)))
    ended = {engine.until(Ended).handle for _ in jobs}
    assert ended == handles
    made = {path for method, path in engine.server.asked if method == "POST" and path.endswith("/jobs")}
    assert len(made) == 1 and len(engine.server.all("jobs")) == 1
    engine.backend.close()
    assert engine.server.all("jobs") == []


def gang(engine: Engine, **said: Any) -> Job:
    """A job on two nodes."""
    job = engine.job()
    settings = attrs.evolve(job.spec.settings, backends={"kubernetes": encode(KubernetesSettings(**said))})
    spec = attrs.evolve(job.spec, granted=Hardware(nodes=2), settings=settings)
    return attrs.evolve(job, spec=spec)


def test_a_step_on_several_nodes_is_a_jobset_where_that_is_asked_for(engine: Engine) -> None:
    free = held(engine.server, conditions=[UNSCHEDULABLE])
    job = gang(engine, jobset=True)
    engine.backend.submit([job])
    engine.waits("Insufficient nvidia.com/gpu")
    (made,) = engine.server.all("jobsets")
    assert engine.server.all("jobs") == engine.server.all("services") == []
    (secret,) = engine.server.all("secrets")
    assert [owner["kind"] for owner in secret["metadata"]["ownerReferences"]] == ["JobSet"]
    # An engine that comes later finds it, and takes what waits away.
    other = KubernetesBackend(engine.target, store=engine.store.address, sink=lambda event: None)
    (handle,) = other.find([job])
    assert handle is not None
    assert other.attach({handle: job}) == {handle: None}
    other.close()
    free.set()
    engine.until(Ended)
    engine.backend.close()
    assert engine.server.all("jobsets") == engine.server.all("pods") == engine.server.all("secrets") == []
    assert made["metadata"]["labels"]["upshift/run"] == "20260101-000000-aaaa"


def test_a_cluster_without_jobset_refuses_it_before_anything_runs(engine: Engine) -> None:
    engine.server.put("nodes", "", node("there"))
    engine.server.faults.append(
        lambda method, path: (404, "404 page not found") if "jobset" in path else None
    )
    two = Ask(request=ResourceSettings(num_nodes=2), settings={"jobset": True})
    with pytest.raises(RequestRefused, match="the cluster has no JobSet") as caught:
        engine.backend.offer(two)
    assert "Leave jobset out" in (caught.value.fix or "")
    target = attrs.evolve(engine.target, options={"jobset": True})
    backend = KubernetesBackend(target, store=engine.store.address, sink=lambda event: None)
    found = {one.name: one for one in backend.findings()}
    assert (found["JobSet"].status, found["JobSet"].text[:9]) == ("problem", "not there")
    backend.close()
    assert engine.backend.offer(Ask(settings={"jobset": True})).granted is not None


def test_a_gang_waits_in_its_queue_with_kueues_words_until_it_is_admitted_whole(engine: Engine) -> None:
    said = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default"
    engine.server.workload(said)
    engine.backend.submit([gang(engine, queue="gangs")])
    engine.waits(f"queue 'gangs' of Kueue has not admitted it: {said}")
    (made,) = engine.server.all("jobs")
    assert made["spec"]["suspend"] and made["spec"]["parallelism"] == 2
    assert engine.server.all("pods") == []
    engine.server.admit(made["metadata"]["name"])
    engine.until(Ended)
    assert len(engine.server.all("pods")) == 2


@pytest.mark.parametrize(
    ("lacks", "text", "remedy", "status"),
    [
        (("batch", "jobs", ("create", "watch")), "may not create or watch jobs",
         '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["create", "delete", "get", "list", "watch"]}',
         "problem"),
        (("", "secrets", ("patch",)), "may not patch secrets",
         '{apiGroups: [""], resources: ["secrets"], verbs: ["create", "delete", "patch"]}', "problem"),
        (("", "services", ("create",)), "may not create services",
         '{apiGroups: [""], resources: ["services"], verbs: ["create", "patch"]}', "warning"),
        (("kueue.x-k8s.io", "workloads", ("list",)), "may not list workloads",
         '{apiGroups: ["kueue.x-k8s.io"], resources: ["workloads"], verbs: ["list"]}', "warning"),
    ],
)  # fmt: skip
def test_doctor_names_the_rule_that_is_missing(
    engine: Engine, lacks: tuple[str, str, tuple[str, ...]], text: str, remedy: str, status: str
) -> None:
    group, resource, verbs = lacks
    engine.server.may = lambda asked: (
        not ((asked["group"], asked["resource"]) == (group, resource) and asked["verb"] in verbs)
    )
    found = {one.name: one for one in rights.findings(engine.api, "ml", rights.QUEUES)}
    assert found["rights"].text == f"{text} in namespace 'ml'"
    assert found["rights"].remedy == f"Add this rule to the Role: {remedy}."
    assert found["rights"].status == status


def test_nothing_of_an_order_is_in_a_manifest(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t-of-the-order")
    job = engine.job()
    settings = attrs.evolve(job.spec.settings, secrets={"TOKEN": "env:TOKEN", "HF": "k8s:hugging-face/token"})
    job = attrs.evolve(job, spec=attrs.evolve(job.spec, settings=settings))
    (shown,) = engine.backend.scripts([job])
    assert "s3cr3t" not in shown
    assert "name: hugging-face\n" in shown and "key: token" in shown
    held(engine.server, conditions=[UNSCHEDULABLE])
    engine.backend.submit([job])
    engine.waits("Insufficient")
    (secret,) = engine.server.all("secrets")
    assert "s3cr3t-of-the-order" in secret["stringData"]["UPSHIFT_ORDER"]
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert "s3cr3t" not in json.dumps(engine.server.all("jobs"))


def test_what_nodes_trust_each_other_by_is_in_the_secret_of_their_job_alone(engine: Engine) -> None:
    held(engine.server, conditions=[UNSCHEDULABLE])
    job = engine.job()
    granted = Hardware(cpu_count=1, nodes=2)
    engine.backend.submit([attrs.evolve(job, spec=attrs.evolve(job.spec, granted=granted))])
    engine.waits("Insufficient")
    (secret,) = engine.server.all("secrets")
    token = secret["stringData"]["UPSHIFT_NODES_TOKEN"]
    shown = json.dumps([engine.server.all(kind) for kind in ("jobs", "pods", "services")])
    assert len(token) == 32 and token not in shown and "UPSHIFT_NODES_TOKEN" not in shown


def test_a_job_that_the_server_would_not_take_is_refused_before_anything_runs(engine: Engine) -> None:
    engine.server.faults.append(
        lambda method, path: (
            (400, 'strict decoding error: unknown field "spec.x"') if "dryRun" in path else None
        )
    )
    with pytest.raises(RequestRefused, match=r'unknown field "spec\.x"'):
        engine.backend.offer(Ask())


def test_a_store_that_pods_do_not_see_is_refused(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    backend = KubernetesBackend(Target(name="c", backend="kubernetes"), store="/home/ann/store", sink=print)
    with pytest.raises(RequestRefused, match="pods do not see the store /home/ann/store"):
        backend.offer(Ask())
    claims = encode(KubernetesSettings(persistent_volume_claims={"home": "/home/ann"}))
    assert backend.offer(Ask(settings=claims)).granted is not None
    backend.close()


@pytest.mark.parametrize(
    ("options", "mounts", "words"),
    [
        ({"namespce": "ml"}, {}, ["no option 'namespce'", "namespace"]),
        ({"autoscaling": "yes"}, {}, ["autoscaling = 'yes'"]),
        ({"qos": "best"}, {}, ["target 'c': qos='best'"]),
        ({"code_cache": "upshift"}, {}, ["code_cache = 'upshift' is invalid"]),
        ({}, {"data": "/data"}, ["'data' is not an absolute path"]),
        ({}, {"/data": "pvc:My Claim"}, ["names no claim"]),
        ({}, {"/data": "data"}, ["neither a claim nor a folder"]),
    ],
)
def test_options_of_a_target_that_mean_nothing_are_refused(
    options: Any, mounts: Any, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        KubernetesBackend(
            Target(name="c", backend="kubernetes", options=options, mounts=mounts), store="/s", sink=print
        )
    for word in words:
        assert word in str(caught.value)


# Access


def config(path: Path, **user: Any) -> Path:
    path.write_text(
        json.dumps(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://k8s.example.org/"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, ["there is no kubeconfig", "Set KUBECONFIG"]),
        (lambda path: path.write_text("a: [b"), ["cannot be read as a kubeconfig"]),
        (lambda path: path.write_text("just a text"), ["is no kubeconfig"]),
        (lambda path: path.write_text("{}"), ["names no current context", "get-contexts"]),
        (lambda path: path.write_text("current-context: prod"), ["has no context 'prod'"]),
        (
            lambda path: config(path, **{"auth-provider": {"name": "gcp"}}),
            ["auth-provider is not supported", "exec"],
        ),
        (
            lambda path: config(path, **{"client-certificate": "none.crt"}),
            ["client-certificate cannot be read"],
        ),
    ],
)
def test_a_kubeconfig_that_will_not_do_is_refused_with_what_would(
    tmp_path: Path, write: Any, words: list[str]
) -> None:
    write(tmp_path / "config")
    with pytest.raises(ConfigError) as caught:
        read_access(environ={"KUBECONFIG": str(tmp_path / "config")})
    for word in words:
        assert word in str(caught.value)


def test_a_plugin_logs_in_and_is_asked_again_when_its_token_expires(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f'echo x >> {count}; echo \'{{"status": {{"token": "t\'$(wc -l < {count})\'"}}}}\''
    access = read_access(str(config(tmp_path / "config", exec={"command": "sh", "args": ["-c", script]})))
    assert access.server == "https://k8s.example.org"
    assert [access.headers()["Authorization"] for _ in range(2)] == ["Bearer t1"] * 2
    access.refresh()
    assert access.headers()["Authorization"] == "Bearer t2"


def test_a_plugin_that_fails_or_is_not_there_is_named(tmp_path: Path) -> None:
    for command, words in (("false", "false does not log in"), ("no-such-login", "is not on the PATH")):
        access = read_access(str(config(tmp_path / "config", exec={"command": command})))
        with pytest.raises(BackendError, match=words):
            access.headers()


def test_a_pod_finds_its_own_cluster(tmp_path: Path) -> None:
    for name, content in (("token", "secret\n"), ("ca.crt", "x"), ("namespace", "ml")):
        (tmp_path / name).write_text(content)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "HOME": "/nowhere"}
    access = (
        read_access(environ=environ, in_pod=tmp_path)
        if not Path("~/.kube/config").expanduser().exists()
        else None
    )
    if access is not None:
        assert (access.server, access.namespace) == ("https://[fd00::1]:443", "ml")
        assert access.headers() == {"Authorization": "Bearer secret"}


def test_an_address_of_something_else_says_so() -> None:
    def unreachable() -> Access:
        return Access(server="http://127.0.0.1:9", source="the test")

    from upshift.backends.scheduler import NotNow

    with pytest.raises(NotNow, match=r"does not answer at http://127\.0\.0\.1:9"):
        Api(read=unreachable).ask("GET", "/version")


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("POST", "/apis/batch/v1/namespaces/ml/jobs", '["batch"], resources: ["jobs"], verbs: ["create"]'),
        ("GET", "/api/v1/namespaces/ml/pods/p/log", '[""], resources: ["pods/log"], verbs: ["get"]'),
        ("GET", "/api/v1/namespaces/ml/pods", '[""], resources: ["pods"], verbs: ["list"]'),
        ("WATCH", "/api/v1/namespaces/ml/pods", '[""], resources: ["pods"], verbs: ["watch"]'),
        (
            "DELETE",
            "/apis/batch/v1/namespaces/ml/jobs/j",
            '["batch"], resources: ["jobs"], verbs: ["delete"]',
        ),
        ("GET", "/api/v1/nodes", 'in a ClusterRole: {apiGroups: [""], resources: ["nodes"], verbs: ["list"]'),
    ],
)
def test_a_right_that_is_missing_is_named_as_a_rule(method: str, path: str, rule: str) -> None:
    said = remedy_of('User "ann" cannot do that', method, path)
    assert said is not None and rule in said
    assert remedy_of("exceeded quota", method, path) is None
