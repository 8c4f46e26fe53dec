"""What is known of jobs and pods, kept by watches: one for the Jobs of a run, and one for its pods.

::

    list ──► everything there is ──► watch ──► what changes ──► … the server ends it, or the connection breaks
     ▲                                                                             │
     └── Gone, an error, or every few minutes: what an event was missed of ────────┘
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from upshift.backends.kubernetes.api import Api, Exists, Gone, Missing
from upshift.backends.kubernetes.manifest import NAMED, RUN
from upshift.backends.kubernetes.states import Known
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

PATHS = {
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "pods": "/api/v1/namespaces/{}/pods",
}


@attrs.define(eq=False)
class _Scope:
    """One watch."""

    kind: str
    namespace: str
    run: str
    synced: threading.Event = attrs.field(factory=threading.Event)
    error: str | None = None
    deaf: float | None = None  # since when nothing is heard


class Watching:
    """What is known of the jobs of some runs. Threads may share it."""

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Condition()
        self._known: dict[str, Known] = {}
        self._added: dict[str, float] = {}  # when a job was submitted or found
        self._scopes: dict[tuple[str, str, str], _Scope] = {}
        self._closed = False

    def add(self, job: Mapping[str, Any]) -> None:
        """Watch a job, and all others of its run."""
        meta, kind = job["metadata"], f"{job['kind'].lower()}s"
        id, run = f"{meta['namespace']}/{meta['name']}", meta.get("labels", {}).get(RUN, "")
        with self._lock:
            known = self._known.setdefault(id, Known(kind=kind))
            known.job, known.gone = known.job or _slim(job, kind), False
            self._added[id] = self._clock()
            for watched in (kind, "pods"):
                key = (watched, meta["namespace"], run)
                if key not in self._scopes:
                    scope = self._scopes[key] = _Scope(watched, meta["namespace"], run)
                    threading.Thread(
                        target=self._keep, args=(scope,), name=f"upshift-{watched}", daemon=True
                    ).start()

    def kind(self, id: str) -> str:
        """What a job is: one of :data:`PATHS`."""
        with self._lock:
            return self._known[id].kind if id in self._known else "jobs"

    def forget(self, id: str) -> None:
        """Let go of what is known of a job."""
        with self._lock:
            self._known.pop(id, None)
            self._added.pop(id, None)

    def known(self, ids: Collection[str]) -> dict[str, Known]:
        """What is known of these.

        Raises
        ------
        NotNow
            The cluster has not said anything yet, or for a while.
        """
        until = self._clock() + SYNCED
        for scope in list(self._scopes.values()):
            if not scope.synced.wait(max(0.0, until - self._clock())) or (
                scope.deaf is not None and self._clock() - scope.deaf > DEAF
            ):
                raise NotNow(scope.error or "Kubernetes has not answered yet")
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
                scope.deaf = self._clock()
            with self._lock:
                self._lock.wait_for(lambda: self._closed, AGAIN[min(tries, len(AGAIN) - 1)])
            tries += 1

    def _path(self, scope: _Scope) -> tuple[str, dict[str, Any]]:
        return PATHS[scope.kind].format(scope.namespace), {"labelSelector": f"{RUN}={scope.run}"}

    def _list(self, scope: _Scope) -> str:
        before = self._clock()
        path, query = self._path(scope)
        found, version = self._api.list(path, **query)
        with self._lock:
            if scope.kind != "pods":
                there = {f"{scope.namespace}/{item['metadata']['name']}" for item in found}
                for id, known in self._known.items():
                    mine = id.startswith(f"{scope.namespace}/") and _run_of(known) == scope.run
                    if (
                        mine
                        and known.kind == scope.kind
                        and id not in there
                        and self._added.get(id, 0.0) < before
                    ):
                        known.gone = True
            else:
                there = {item["metadata"]["uid"] for item in found}
                for id, known in self._known.items():
                    if id.startswith(f"{scope.namespace}/") and _run_of(known) == scope.run:
                        for uid in known.pods.keys() - there:
                            known.pods[uid] = {**known.pods[uid], "deleted": True}
            for item in found:
                self._take(scope.kind, item, deleted=False)
        return version

    def _follow(self, scope: _Scope, version: str) -> None:
        """Watch, and again from where a watch has ended, until it is time for a list."""
        path, query = self._path(scope)
        since = self._clock()
        while not self._closed and self._clock() - since < WHOLE:
            for event, item in self._api.watch(path, version, **query):
                version = item["metadata"]["resourceVersion"]
                if event != "BOOKMARK":
                    with self._lock:
                        self._take(scope.kind, item, deleted=event == "DELETED")

    def _take(self, kind: str, item: Mapping[str, Any], *, deleted: bool) -> None:
        meta = item["metadata"]
        name = meta.get("labels", {}).get(NAMED) if kind == "pods" else meta["name"]
        known = self._known.get(f"{meta['namespace']}/{name}")
        if known is None:  # another engine's of the same run, or one that was forgotten
            return
        if kind == "pods":
            known.pods[meta["uid"]] = {**_slim(item, kind), **({"deleted": True} if deleted else {})}
        elif kind == known.kind:
            known.job, known.gone = _slim(item, kind), deleted


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
