"""What Upshift has to be allowed in a namespace, and what of it is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs

from upshift.backends.base import Finding
from upshift.backends.kubernetes.api import Api, Forbidden


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


def findings(api: Api, namespace: str, *more: Rule) -> Iterator[Finding]:
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
