"""Why jobs wait, as events and Kueue say where their own conditions do not; asked for now and then.

Kueue admits all pods of a job at once, from its queues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from upshift.backends.base import Finding
from upshift.backends.kubernetes.api import Api, Forbidden, Missing
from upshift.backends.kubernetes.manifest import GANG
from upshift.backends.kubernetes.states import Known, explained
from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError

MOST = 5
"""Jobs that are asked about at once."""
AGAIN = 10.0
"""Seconds after which a job is asked about again."""
_QUEUE = "Kueue"


@attrs.define(eq=False)
class Reasons:
    """What was heard of jobs that wait."""

    api: Api
    _asked: dict[str, float] = attrs.field(factory=dict)  # when, by job

    def ask(self, known: Mapping[str, Known], now: float) -> None:
        """Ask about some of these jobs; what is said is kept with what is known of them."""
        most = MOST
        for id, one in known.items():
            if most == 0:
                return
            about = _unexplained(one)
            if about != one.about:
                one.told, one.about = None, about
                self._asked.pop(id, None)
            if about is None or now - self._asked.get(id, -AGAIN) < AGAIN:
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


_GROUP = "/apis/kueue.x-k8s.io"


def _api(api: Api) -> str:
    """The version that the cluster prefers. Raises ``Missing``."""
    return f"/apis/{api.ask('GET', _GROUP)['preferredVersion']['groupVersion']}"


def findings_of_queue(api: Api, namespace: str, queue: str | None) -> Iterator[Finding]:
    """Whether it is there, and the queue that jobs are to wait in."""
    try:
        version = _api(api)
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
        f"{_api(api)}/namespaces/{meta['namespace']}/workloads",
        labelSelector=f"kueue.x-k8s.io/job-uid={meta['uid']}",
    )
    conditions = [c for one in listed for c in one.get("status", {}).get("conditions") or ()]
    held = [c for c in conditions if c["type"] in ("QuotaReserved", "Admitted") and c["status"] == "False"]
    return next((c["message"] for c in held if c.get("message")), None)
