"""What is known of jobs and pods, and why they wait: one watch for the pods of a run says nearly all of it.

::

    list ──► all pods there are ──► watch ──► what changes ──► … the server ends it, or the connection breaks
     ▲                                                                             │
     └── Gone, an error, or every few minutes: what an event was missed of ────────┘

A Job is looked at where its pods cannot say how it is: it has none (a quota, Kueue, a service account that is
not there; or somebody has deleted it), or one of them is being taken down. Why a job waits is asked now and
then, where its own conditions do not say it: of its events, and of Kueue, which admits all pods of a job
at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from upshift.backends.base import Finding
from upshift.backends.kubernetes.api import Api, Exists, Forbidden, Gone, Missing
from upshift.backends.kubernetes.manifest import GANG, NAMED, RUN
from upshift.backends.kubernetes.states import Known, explained
from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError

AGAIN = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds until a watch that failed is begun again."""
WHOLE = 600.0
"""Seconds after which everything is listed again, whatever watches have said."""
SYNCED = 20.0
"""Seconds that the first list is waited for."""
DEAF = 30.0
"""Seconds without a watch after which what is known is not said any more."""

LOOK = (2.0, 10.0)
"""Seconds without a pod after which a Job is looked at, and after which it is looked at again."""
_ASKED_AT_ONCE = 5
"""Jobs that wait and are asked about at once."""
_ASKED_AGAIN = 10.0
"""Seconds after which one is asked about again."""
_QUEUE = "Kueue"
_GROUP = "/apis/kueue.x-k8s.io"
FEW = 5
"""Jobs that are looked at one by one; more of them by a list of the run's, the more, the more rarely."""

PATHS = {
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "pods": "/api/v1/namespaces/{}/pods",
}


@attrs.define(eq=False)
class _Scope:
    """One watch: of the pods of a run."""

    namespace: str
    run: str
    synced: threading.Event = attrs.field(factory=threading.Event)
    error: str | None = None
    deaf: float | None = None  # since when nothing is heard


class Watching:
    """What is known of the jobs of some runs. Threads may share it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Condition()
        self._known: dict[str, Known] = {}
        self._added: dict[str, float] = {}  # when a job was submitted or found
        self._strays: dict[str, dict[str, Mapping[str, Any]]] = {}  # pods of jobs that are not known
        self._looked: dict[str, tuple[float, frozenset[str]]] = {}  # when, and which pods were going then
        self._listed: dict[tuple[str, str, str], float] = {}  # when jobs were: by namespace, kind and run
        self._scopes: dict[tuple[str, str], _Scope] = {}
        self._closed = False

    def add(self, job: Mapping[str, Any]) -> None:
        """Watch a job, and all others of its run."""
        meta, kind = job["metadata"], f"{job['kind'].lower()}s"
        id, run = f"{meta['namespace']}/{meta['name']}", meta.get("labels", {}).get(RUN, "")
        with self._lock:
            known = self._known.setdefault(id, Known(kind=kind))
            known.job, known.gone = _slim(job, kind), False
            known.pods |= self._strays.pop(id, {})
            self._added[id] = time.monotonic()
            key = (meta["namespace"], run)
            if key not in self._scopes:
                scope = self._scopes[key] = _Scope(*key)
                threading.Thread(target=self._keep, args=(scope,), name="upshift-pods", daemon=True).start()

    def kind(self, id: str) -> str:
        """What a job is: one of :data:`PATHS`."""
        with self._lock:
            return self._known[id].kind if id in self._known else "jobs"

    def forget(self, id: str) -> None:
        """Let go of what is known of a job."""
        with self._lock:
            for known in (self._known, self._added, self._looked):
                known.pop(id, None)

    def known(self, ids: Collection[str]) -> dict[str, Known]:
        """What is known of these.

        Raises
        ------
        NotNow
            The cluster has not said anything yet, or for a while.
        """
        until = time.monotonic() + SYNCED
        for scope in list(self._scopes.values()):
            if not scope.synced.wait(max(0.0, until - time.monotonic())) or (
                scope.deaf is not None and time.monotonic() - scope.deaf > DEAF
            ):
                raise NotNow(scope.error or "Kubernetes has not answered yet")
        self._look(ids)
        with self._lock:
            return {id: self._known[id] for id in ids if id in self._known}

    def close(self) -> None:
        """End the watches."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._api.interrupt()

    def _keep(self, scope: _Scope) -> None:
        tries = 0
        while not self._closed:
            try:
                version = self._list(scope)
                scope.deaf = None
                scope.synced.set()
                tries = 0
                self._follow(scope, version)
            except Gone:
                continue
            except (NotNow, BackendError, Missing, Exists) as error:
                scope.error = (
                    str(error) if isinstance(error, NotNow) else getattr(error, "in_short", str(error))
                )
            except Exception as error:  # of ours: the next list may be read
                scope.error = f"{type(error).__name__}: {error}"
            if scope.deaf is None:
                scope.deaf = time.monotonic()
            with self._lock:
                self._lock.wait_for(lambda: self._closed, AGAIN[min(tries, len(AGAIN) - 1)])
            tries += 1

    def _query(self, scope: _Scope) -> tuple[str, dict[str, Any]]:
        return PATHS["pods"].format(scope.namespace), {"labelSelector": f"{RUN}={scope.run}"}

    def _list(self, scope: _Scope) -> str:
        path, query = self._query(scope)
        found, version = self._api.list(path, **query)
        there = {item["metadata"]["uid"] for item in found}
        with self._lock:
            for id, known in self._known.items():
                if id.startswith(f"{scope.namespace}/") and _run_of(known) == scope.run:
                    for uid in known.pods.keys() - there:
                        known.pods[uid] = {**known.pods[uid], "deleted": True}
            for item in found:
                self._take(item, deleted=False)
        return version

    def _follow(self, scope: _Scope, version: str) -> None:
        """Watch, and again from where a watch has ended, until it is time for a list."""
        path, query = self._query(scope)
        since = time.monotonic()
        while not self._closed and time.monotonic() - since < WHOLE:
            for event, item in self._api.watch(path, version, **query):
                version = item["metadata"]["resourceVersion"]
                if event != "BOOKMARK":
                    with self._lock:
                        self._take(item, deleted=event == "DELETED")

    def _take(self, item: Mapping[str, Any], *, deleted: bool) -> None:
        meta = item["metadata"]
        id = f"{meta['namespace']}/{meta.get('labels', {}).get(NAMED)}"
        known, pod = self._known.get(id), _slim(item, "pods")
        if known is None:  # of a job whose creation is not answered yet, that was forgotten, or another's
            strays = self._strays.setdefault(id, {})
            strays[meta["uid"]] = pod
            if deleted and strays.pop(meta["uid"]) and not strays:
                del self._strays[id]
            return
        known.pods[meta["uid"]] = pod = {**pod, **({"deleted": True} if deleted else {})}
        if known.job and not _is_going(pod):  # whatever the Job was when it was looked at
            known.job = {**known.job, "spec": {**known.job["spec"], "suspend": False}}

    # -- Jobs --------------------------------------------------------------------------------------

    def _look(self, ids: Collection[str]) -> None:
        """Look at those whose pods cannot say how they are."""
        now = time.monotonic()
        unclear: dict[tuple[str, str, str], list[str]] = {}
        with self._lock:
            for id in ids:
                known = self._known.get(id)
                if known is not None and not known.gone and self._is_due(id, known, now):
                    place = (id.partition("/")[0], known.kind, _run_of(known))
                    unclear.setdefault(place, []).append(id)
        for place, some in unclear.items():
            with contextlib.suppress(NotNow, BackendError, Gone):  # then they are as they were, for now
                if len(some) <= FEW:
                    for id in some:
                        self._look_at(place, id)
                elif now - self._listed.get(place, -LOOK[1]) >= LOOK[1] * len(some) / 100:
                    self._listed[place] = now
                    self._look_at_all(place, some)

    def _is_due(self, id: str, known: Known, now: float) -> bool:
        going = _going(known)
        looked, were = self._looked.get(id, (self._added[id] + LOOK[0] - LOOK[1], frozenset()))
        return bool(going - were) or (len(going) == len(known.pods) and now - looked >= LOOK[1])

    def _look_at(self, place: tuple[str, str, str], id: str) -> None:
        namespace, kind, _ = place
        going = _going(self._known[id])
        job: Mapping[str, Any] | None
        try:
            job = self._api.ask("GET", f"{PATHS[kind].format(namespace)}/{id.partition('/')[2]}")
        except Missing:
            job = None
        self._seen(id, kind, job, going)

    def _look_at_all(self, place: tuple[str, str, str], ids: Collection[str]) -> None:
        namespace, kind, run = place
        going = {id: _going(self._known[id]) for id in ids}
        listed, _ = self._api.list(PATHS[kind].format(namespace), labelSelector=f"{RUN}={run}")
        there = {f"{namespace}/{item['metadata']['name']}": item for item in listed}
        for id in ids:
            self._seen(id, kind, there.get(id), going[id])

    def _seen(self, id: str, kind: str, job: Mapping[str, Any] | None, going: frozenset[str]) -> None:
        with self._lock:
            known = self._known.get(id)
            if known is not None:
                self._looked[id] = (time.monotonic(), going)
                known.gone = job is None
                known.job = known.job if job is None else _slim(job, kind)


def _is_going(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("deleted") or pod["metadata"].get("deletionTimestamp"))


def _going(known: Known) -> frozenset[str]:
    """Its pods that are gone, or being taken down."""
    return frozenset(uid for uid, pod in known.pods.items() if _is_going(pod))


def _run_of(known: Known) -> str:
    return str((known.job or {}).get("metadata", {}).get("labels", {}).get(RUN, ""))


def _slim(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What of an object says how it is, as a thousand of them are kept; of a JobSet in a Job's words."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    if kind == "jobsets":
        own = spec["replicatedJobs"][0]["template"]["spec"]
        spec = {"suspend": spec.get("suspend", False), "completions": own["completions"]}
        status = {
            "conditions": [
                {**c, "type": "Complete" if c["type"] == "Completed" else c["type"]}
                for c in status.get("conditions") or ()
            ]
        }
    kept = ("name", "namespace", "uid", "labels", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {name: spec[name] for name in ("nodeName", "suspend", "completions") if name in spec},
        "status": status,
    }


@attrs.define(eq=False)
class Reasons:
    """What was heard of jobs that wait."""

    api: Api
    _asked: dict[str, float] = attrs.field(factory=dict)  # when, by job

    def ask(self, known: Mapping[str, Known], now: float) -> None:
        """Ask about some of these jobs; what is said is kept with what is known of them."""
        most = _ASKED_AT_ONCE
        for id, one in known.items():
            if most == 0:
                return
            about = _unexplained(one)
            if about != one.about:
                one.told, one.about = None, about
                self._asked.pop(id, None)
            if about is None or now - self._asked.get(id, -_ASKED_AGAIN) < _ASKED_AGAIN:
                continue
            most -= 1
            self._asked[id] = now
            with contextlib.suppress(BackendError, Missing, NotNow):
                job = one.job or {}
                one.told = why_not_admitted(self.api, job) if about == _QUEUE else self._events(job, about)

    def _events(self, job: Mapping[str, Any], about: str) -> str | None:
        namespace = job["metadata"]["namespace"]
        listed, _ = self.api.list(
            f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.{about}"
        )
        return explained(listed)


def _unexplained(known: Known) -> str | None:
    """Whose word says why a job waits: that of a pod's or Job's events, or Kueue's; None: it is known."""
    job = known.job or {}
    if job.get("spec", {}).get("suspend"):
        return _QUEUE
    for pod in known.pods.values():
        status = pod.get("status", {})
        if status.get("phase") == "Pending" and not pod.get("deleted"):
            scheduled = all(
                c["status"] == "True" for c in status.get("conditions") or () if c["type"] == "PodScheduled"
            )
            return f"uid={pod['metadata']['uid']}" if scheduled else None
    if known.pods or "uid" not in job.get("metadata", {}):
        return None
    meta = job["metadata"]
    return f"uid={meta['uid']}" if known.kind == "jobs" else f"name={meta['name']}-{GANG}-0"


def _kueue(api: Api) -> str:
    """The version that the cluster prefers. Raises ``Missing``."""
    return f"/apis/{api.ask('GET', _GROUP)['preferredVersion']['groupVersion']}"


def findings_of_queue(api: Api, namespace: str, queue: str | None) -> Iterator[Finding]:
    """Whether it is there, and the queue that jobs are to wait in."""
    try:
        version = _kueue(api)
        if not queue:
            text = "there; queue = … of the target has jobs wait in one of its queues"
            yield Finding(name="Kueue", text=text)
            return
        api.ask("GET", f"{version}/namespaces/{namespace}/localqueues/{queue}")
        yield Finding(name="Kueue", text=f"queue {queue!r} is there")
    except Missing:
        if queue:
            yield Finding(
                name="Kueue",
                text=f"namespace {namespace!r} has no queue {queue!r}: jobs would wait for ever",
                status="problem",
                remedy="Make a LocalQueue of that name, or leave queue out.",
            )
    except Forbidden:
        yield Finding(name="Kueue", text=f"queue {queue!r} may not be looked at", status="warning")


def why_not_admitted(api: Api, job: Mapping[str, Any]) -> str | None:
    """What it says of a job that it has not admitted."""
    meta = job["metadata"]
    listed, _ = api.list(
        f"{_kueue(api)}/namespaces/{meta['namespace']}/workloads",
        labelSelector=f"kueue.x-k8s.io/job-uid={meta['uid']}",
    )
    conditions = [c for one in listed for c in one.get("status", {}).get("conditions") or ()]
    held = [c for c in conditions if c["type"] in ("QuotaReserved", "Admitted") and c["status"] == "False"]
    return next((c["message"] for c in held if c.get("message")), None)
