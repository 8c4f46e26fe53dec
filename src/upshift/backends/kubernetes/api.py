"""The API server: HTTP as ``kubectl`` speaks it, its refusals in words, and the rights that it gives us.

No client library: what is needed are eight verbs on plain dictionaries, watches that a closing engine can
interrupt, and connections that no fork shares.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

import attrs

from upshift.backends.base import Finding
from upshift.backends.kubernetes.access import Access, read_access
from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError, ConfigError
from upshift.runtime.storage.objects.connections import Connections, Stale

SILENCE = 60.0
"""Seconds after which an answer is not waited for any more."""
WATCHED = 300
"""Seconds after which the server ends a watch; a bookmark comes about every minute."""
PAGE = 500
"""Objects in one answer to a list."""
BUSY = frozenset({408, 429, 500, 502, 503, 504})
_AGAIN = (0.2, 0.5, 1.0, 2.0)
"""Seconds until a request is made again that the server was too busy for."""


class Missing(Exception):
    """There is no such object."""


class Exists(Exception):
    """There is one of this name already."""


class Gone(Exception):
    """The server does not know any more what was so long ago: list again."""


class Forbidden(BackendError):
    """The credentials do not allow the request."""


class Api:
    """One cluster. Threads may share it."""

    title: ClassVar[str] = "Kubernetes"
    distrusted: ClassVar[str] = "See the certificate-authority of the cluster in {source}."

    def __init__(
        self,
        access: Access | None = None,
        *,
        read: Callable[[], Access] = read_access,
    ) -> None:
        self._access = access
        self._read = read
        self._made: tuple[Connections, Connections] | None = None

    @property
    def access(self) -> Access:
        """Which cluster, and as whom: read at the first question."""
        if self._access is None:
            self._access = self._read()
        return self._access

    @property
    def _connections(self) -> tuple[Connections, Connections]:
        if self._made is None:
            context = self.access.context()
            self._made = (
                Connections(silence=SILENCE, context=context),
                Connections(silence=WATCHED + SILENCE, context=context),
            )
        return self._made

    def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        kind: str = "application/json",
        **query: Any,
    ) -> Any:
        """What the server answers, as plain data; text where it is no JSON.

        Raises
        ------
        Missing, Exists, Gone
            So it says.
        BackendError
            It refuses.
        NotNow
            It does not answer, or not now.
        """
        return self._asked(method, path, content, kind, query, once=False)

    def post_once(self, path: str, content: Any) -> Any:
        """As :meth:`ask`, for what may not be done twice: nothing is sent again, whatever becomes of it."""
        self._connections[0].close()  # one that was kept may be dead already, which is seen only afterwards
        return self._asked("POST", path, content, "application/json", {}, once=True)

    def _asked(
        self, method: str, path: str, content: Any, kind: str, query: Mapping[str, Any], *, once: bool
    ) -> Any:
        body = [] if content is None else [memoryview(json.dumps(content).encode())]
        target = _target(path, query)
        fresh = False
        for pause in (None,) if once else (*_AGAIN, None):
            try:
                status, headers, text = self._answer(method, target, body, kind)
            except (ssl.SSLCertVerificationError, ConfigError) as error:
                raise BackendError(
                    f"{self.access.server} cannot be trusted: {error}",
                    fix=self.distrusted.format(source=self.access.source),
                ) from None
            except (OSError, http.client.HTTPException) as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise NotNow(f"{self.title} does not answer at {self.access.server}: {why}") from None
            if status == 401 and not fresh and not once:
                fresh = True
                self.access.refresh()
                continue
            if status in BUSY and pause is not None and not self._final(status, text):
                time.sleep(min(float(headers.get("Retry-After") or pause), 10.0))
                continue
            break
        return self._read_answer(status, text, method, path)

    def _read_answer(self, status: int, text: str, method: str, path: str) -> Any:
        if status < 300:
            try:
                return json.loads(text)
            except ValueError:
                if path.endswith("/log"):
                    return text
                raise BackendError(
                    f"{self.access.server} is no API server of Kubernetes",
                    why=f"It answers {path} with something else.",
                    fix=f"See the cluster's server in {self.access.source}.",
                ) from None
        said = message_of(text) or f"HTTP {status}"
        if status == 404:
            raise Missing(said)
        if status == 409:
            raise Exists(said)
        if status == 410:
            raise Gone(said)
        if status in BUSY:
            raise NotNow(f"Kubernetes does not answer at {self.access.server}: {said}")
        if status == 401:
            raise BackendError(
                f"Kubernetes at {self.access.server} does not know who asks: {said}",
                why=f"The credentials of {self.access.source} are not valid, or have expired.",
                fix="Log in again, as for kubectl: kubectl auth whoami shows whether it works.",
            )
        if status == 403:
            raise Forbidden(
                f"Kubernetes refuses it: {said}",
                why=remedy_of(text, method, path),
                fix="Ask whoever runs the cluster for it: upshift doctor TARGET shows all that is needed.",
            )
        raise BackendError(f"Kubernetes refuses it: {said}")

    def _final(self, status: int, text: str) -> bool:
        """Whether it does not help to ask again: a quota that was changed in the same moment does."""
        return status == 500 and "admission webhook" in text

    def _answer(
        self, method: str, target: str, body: list[memoryview], kind: str
    ) -> tuple[int, Mapping[str, str], str]:
        url = urlsplit(self.access.server)
        headers = {"Accept": "application/json", "User-Agent": "upshift", **self.access.headers()}
        if body:
            headers["Content-Type"] = kind
        if method != "GET":
            headers["Content-Length"] = str(sum(map(len, body)))
        while True:
            try:
                with self._connections[0].response(
                    method, url, f"{url.path.rstrip('/')}{target}", headers, body
                ) as response:
                    return response.status, response.headers, response.read().decode(errors="replace")  # type: ignore[return-value]
            except Stale:  # it closed a connection that had been kept: nothing was asked
                continue

    def list(self, path: str, **query: Any) -> tuple[list[dict[str, Any]], str]:
        """All objects of a path, in pages, and the version of the whole that they are of."""
        found: list[dict[str, Any]] = []
        more: str | None = None
        while True:
            answer = self.ask("GET", path, limit=PAGE, **query, **({"continue": more} if more else {}))
            found += answer["items"]
            more = answer["metadata"].get("continue")
            if not more:
                return found, answer["metadata"].get("resourceVersion", "")

    def watch(self, path: str, version: str, **query: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """What happens to the objects of a path from a version on, until the server ends it.

        Raises
        ------
        Gone
            That version is too old.
        NotNow
            The connection is lost, or the server is busy.
        BackendError
            The server refuses.
        """
        query |= {"watch": 1, "allowWatchBookmarks": "true", "resourceVersion": version}
        target = _target(path, {**query, "timeoutSeconds": WATCHED})
        url = urlsplit(self.access.server)
        headers = {"Accept": "application/json", "User-Agent": "upshift", **self.access.headers()}
        try:
            with self._connections[1].response(
                "GET", url, f"{url.path.rstrip('/')}{target}", headers
            ) as response:
                if response.status >= 300:
                    if response.status == 401:
                        self.access.refresh()
                        raise NotNow("the credentials have just been renewed")
                    said = response.read().decode(errors="replace")
                    self._read_answer(response.status, said, "WATCH", path)
                while line := response.readline():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        if event["object"].get("code") == 410:
                            raise Gone(event["object"].get("message", ""))
                        raise NotNow(event["object"].get("message", "the watch failed"))
                    yield event["type"], event["object"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotNow(f"Kubernetes does not answer at {self.access.server}: {error}") from None

    def interrupt(self, *, all: bool = False) -> None:
        """End what is being watched; or whatever is under way."""
        if self._made is not None:
            for connections in self._made[0 if all else 1 :]:
                connections.interrupt()

    def close(self) -> None:
        """Close its connections."""
        if self._made is not None:
            for connections in self._made:
                connections.close()
        if self._access is not None:
            self._access.close()


def remedy_of(text: str, method: str, path: str) -> str | None:
    """The line of a Role that is missing, from a refusal; None: it is about something else."""
    if "cannot" not in text:
        return None
    with contextlib.suppress(ValueError, KeyError, IndexError):
        parts = [part for part in urlsplit(path).path.split("/") if part]
        group = parts[1] if parts[0] == "apis" else ""
        at = (
            parts.index("namespaces") + 2
            if "namespaces" in parts and len(parts) > parts.index("namespaces") + 2
            else None
        )
        resource = "/".join(parts[at:][::2]) if at is not None else parts[-1]
        named = parts[at:] if at is not None else parts[-1:]
        if len(named) == 3:  # pods/NAME/log
            resource = f"{named[0]}/{named[2]}"
        elif len(named) == 2:
            resource = named[0]
        verbs = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update", "WATCH": "watch"}
        verb = verbs.get(method)
        verb = verb or ("get" if len(named) >= 2 else "list")
        where = "Role" if at is not None else "ClusterRole"
        return (
            f"Whoever may has this rule in a {where}: "
            f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
        )
    return None


def _target(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def message_of(text: str) -> str:
    """The message in a status object."""
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(text).get("message") or "").strip()
    return text.strip()[:500]


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
