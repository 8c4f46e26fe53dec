"""An engine whose API server misbehaves, changes its mind, or says no."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pytest
from test_kubernetes_states import UNSCHEDULABLE, waiting

from kubernetes_scripted import Scripted, node, scripted
from upshift.backends import watcher
from upshift.backends.base import Ask, Ended, Event, Job, Waiting
from upshift.backends.kubernetes import watching
from upshift.backends.kubernetes.access import read_access
from upshift.backends.kubernetes.api import QUEUES, Api, findings_of_rights
from upshift.backends.kubernetes.backend import KubernetesBackend
from upshift.errors import ConfigError, RequestRefused
from upshift.model.configuration import Target
from upshift.model.settings.kubernetes import KubernetesSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, EntryPoint, Hardware, Launch, OutputSpec, TaskId, TaskSpec
from upshift.model.spec.codec import encode
from upshift.runtime.storage.store import open_store


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
def server(home_of_pods: Path) -> Iterator[Scripted]:
    with scripted(home_of_pods) as server:
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


def test_one_watch_of_pods_is_all_that_a_run_holds_open(engine: Engine) -> None:
    held(engine.server, conditions=[UNSCHEDULABLE])
    engine.backend.submit([engine.job(), gang(engine)])
    for _ in range(2):
        engine.waits("Insufficient nvidia.com/gpu")
    assert engine.server.watches == 1


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server asked at once what is asked now and then, and no result waited for."""
    monkeypatch.setattr(watching, "LOOK", (0.0, 0.0))
    monkeypatch.setattr(watcher, "ASK", 0.2)
    monkeypatch.setattr(watcher, "LATE", (0.0, 60.0))


def test_a_server_that_is_away_for_longer_is_not_believed_to_know_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    monkeypatch.setattr(watching, "DEAF", 0.0)
    free = held(engine.server, conditions=[UNSCHEDULABLE])
    engine.backend.submit([engine.job()])
    engine.waits("Insufficient nvidia.com/gpu")
    heard = threading.Event()

    def away(method: str, path: str) -> tuple[int, str] | None:
        heard.set()
        return (0, "") if len(engine.server.asked) % 2 else (503, "the server is starting")

    engine.server.faults.append(away)
    engine.server.drop()
    assert heard.wait(60)
    free.set()  # the pod runs and ends while nobody hears of it
    engine.server.faults.clear()
    engine.server.forget()
    assert engine.until(Ended).reason != "cancelled"


def test_a_pod_that_is_heard_of_before_the_answer_to_its_job_is_known(engine: Engine) -> None:
    held(engine.server, conditions=[UNSCHEDULABLE])
    engine.backend.submit([engine.job()])
    engine.waits("Insufficient nvidia.com/gpu")  # the watch is open
    engine.server.lose = lambda method, path: method == "POST" and path.endswith("/jobs")
    (handle,) = engine.backend.submit([engine.job()])
    engine.until(Waiting, lambda event: event.handle == handle and "Insufficient" in event.why)
    assert len(engine.server.all("jobs")) == 2


def test_a_job_that_is_deleted_before_it_has_a_pod_is_cancelled(engine: Engine, soon: None) -> None:
    engine.server.workload("no quota")
    engine.backend.submit([gang(engine, queue="gangs")])
    engine.waits("Kueue has not admitted it: no quota")
    (made,) = engine.server.all("jobs")
    engine.server.remove("jobs", made["metadata"]["name"])
    ended = engine.until(Ended)
    assert ended.reason == "cancelled" and "somebody deleted its Job" in ended.message


def test_a_gang_that_kueue_evicts_is_preempted_though_its_pods_look_deleted(
    engine: Engine, soon: None
) -> None:
    held(engine.server, startTime="now", conditions=[UNSCHEDULABLE])
    engine.server.workload("no quota")
    engine.backend.submit([gang(engine, queue="gangs")])
    engine.waits("Kueue has not admitted it")
    (made,) = engine.server.all("jobs")
    engine.server.admit(made["metadata"]["name"])
    engine.waits("Insufficient")
    engine.server.evict(made["metadata"]["name"])
    assert engine.until(Ended).reason == "preempted"


def test_jobs_without_pods_are_listed_where_they_are_many(engine: Engine, soon: None) -> None:
    engine.server.workload("no quota")
    waiting = set(engine.backend.submit([gang(engine, queue="gangs") for _ in range(watching.FEW + 1)]))
    while waiting:
        waiting.discard(engine.until(Waiting, lambda event: "no quota" in event.why).handle)
    engine.server.asked.clear()
    for made in engine.server.all("jobs")[:2]:
        engine.server.remove("jobs", made["metadata"]["name"])
    for _ in range(2):
        assert "somebody deleted its Job" in engine.until(Ended).message
    assert ("GET", watching.PATHS["jobs"].format("ml")) in engine.server.asked


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
    launch = Launch(launcher="torchrun", processes=2, per_node=1)
    spec = attrs.evolve(job.spec, launch=launch, granted=Hardware(nodes=2), settings=settings)
    return Job(spec=spec, spec_path=engine.store.write_spec(spec))


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
    assert engine.server.ran == 2


@pytest.mark.parametrize(
    ("lacks", "text", "remedy", "status"),
    [
        (("batch", "jobs", ("create", "list")), "may not create or list jobs",
         '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["create", "delete", "get", "list"]}',
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
    found = {one.name: one for one in findings_of_rights(engine.api, "ml", QUEUES)}
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
