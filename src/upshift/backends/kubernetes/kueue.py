"""Kueue, which admits all pods of a job at once: its queues, and why it has a job wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from upshift.backends.base import Finding
from upshift.backends.kubernetes.api import Api, Forbidden, Missing

_GROUP = "/apis/kueue.x-k8s.io"


def _api(api: Api) -> str:
    """The version that the cluster prefers. Raises ``Missing``."""
    return f"/apis/{api.ask('GET', _GROUP)['preferredVersion']['groupVersion']}"


def findings(api: Api, namespace: str, queue: str | None) -> Iterator[Finding]:
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
