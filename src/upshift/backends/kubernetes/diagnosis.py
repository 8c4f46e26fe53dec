"""What a cluster is asked where something is lacking: rights in a namespace, queues, and why jobs wait.

Rights and queues are looked at by ``upshift doctor``. Why a job waits is asked now and then, where its own
conditions do not say it: of its events, and of Kueue, which admits all pods of a job at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from upshift.backends.base import Finding
from upshift.backends.kubernetes.api import Api, Forbidden, Missing
from upshift.backends.kubernetes.manifest import GANG
from upshift.backends.kubernetes.states import Known, explained
from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError


@attrs.frozen
class Rule:
    """A rule of a Role."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    needed: bool = True  # whether steps on one node need it

    def __str__(self) -> str:
        return (
            f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], '
            f"verbs: {json.dumps(self.verbs)}}}"
        )


RULES = (
    Rule("batch", "jobs", ("create", "delete", "get", "list")),
    Rule("", "pods", ("delete", "list", "watch")),
    Rule("", "pods/log", ("get",), needed=False),
    Rule("", "secrets", ("create", "delete", "patch")),
    Rule("", "services", ("create", "patch"), needed=False),
    Rule("", "events", ("list",), needed=False),
)
QUEUES = Rule("kueue.x-k8s.io", "workloads", ("list",), needed=False)
"""Beside them, where Kueue admits jobs: why it has not yet."""
JOBSETS = Rule("jobset.x-k8s.io", "jobsets", ("create", "delete", "get", "list"))
"""Beside them, for steps that are JobSets."""


def findings_of_rights(api: Api, namespace: str, *more: Rule) -> Iterator[Finding]:
    """Which of the rights there are."""
    lacking = [(rule, lacks) for rule in (*RULES, *more) if (lacks := _lacking(api, namespace, rule))]
    if not lacking:
        yield Finding(name="rights", text=f"all that is needed in namespace {namespace!r}")
    for rule, lacks in lacking:
        yield Finding(
            name="rights",
            text=f"may not {' or '.join(lacks)} {rule.resource} in namespace {namespace!r}",
            status="problem" if rule.needed else "warning",
            remedy=f"Add this rule to the Role: {rule}.",
        )


def findings_of_account(api: Api, namespace: str, account: str) -> Iterator[Finding]:
    """Which of the rights a service account has, ``NAMESPACE:NAME``, as far as we may ask."""
    try:
        lacking = [(rule, lacks) for rule in RULES if (lacks := _lacking(api, namespace, rule, account))]
    except Forbidden:
        yield Finding(
            name="engine", text=f"--detach: whether service account {account} has the rights may not be asked"
        )
        return
    if not lacking:
        yield Finding(name="engine", text=f"--detach: service account {account} has all the rights it needs")
        return
    missing = "; ".join(f"{' or '.join(lacks)} {rule.resource}" for rule, lacks in lacking)
    yield Finding(
        name="engine",
        text=f"--detach: service account {account} may not {missing} in namespace {namespace!r}",
        status="warning",
        remedy="Bind it to a Role that may, and name it: "
        'options = { detach = { service_account = "…" } }. The page on Kubernetes has a manifest.',
    )


def _lacking(api: Api, namespace: str, rule: Rule, account: str | None = None) -> list[str]:
    """The verbs of a rule that are refused to us, or to a service account."""
    resource, _, sub = rule.resource.partition("/")
    about = {"namespace": namespace, "group": rule.group, "resource": resource}
    about |= {"subresource": sub} if sub else {}
    return [verb for verb in rule.verbs if not _may(api, {**about, "verb": verb}, account)]


def _may(api: Api, attributes: dict[str, str], account: str | None) -> bool:
    kind = "SelfSubjectAccessReview" if account is None else "SubjectAccessReview"
    who: dict[str, Any] = {}
    if account is not None:
        everyone = ["system:serviceaccounts", f"system:serviceaccounts:{account.partition(':')[0]}"]
        who = {"user": f"system:serviceaccount:{account}", "groups": [*everyone, "system:authenticated"]}
    review = api.ask(
        "POST",
        f"/apis/authorization.k8s.io/v1/{kind.lower()}s",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "spec": {**who, "resourceAttributes": attributes},
        },
    )
    return bool(review.get("status", {}).get("allowed"))


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
