"""A cluster of Kubernetes through its API server: what it would take, and its jobs.

Cancelling goes through the store: a pod that is deleted gets SIGTERM as one that is evicted, and its
supervisor could not tell the one from the other.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from upshift.backends.base import Ask, Finding, Job, Offer
from upshift.backends.kubernetes import watching
from upshift.backends.kubernetes.api import (
    JOBSETS,
    QUEUES,
    Api,
    Exists,
    Forbidden,
    Missing,
    findings_of_account,
    findings_of_rights,
)
from upshift.backends.kubernetes.manifest import MANAGED, Mount, Site, job_name, manifests, template_of
from upshift.backends.kubernetes.nodes import Node, findings, offer, read_nodes
from upshift.backends.kubernetes.states import Known, element_of, state_of, words_of
from upshift.backends.kubernetes.watching import Reasons, findings_of_queue
from upshift.backends.scheduler import Full, Launch, NotNow, State
from upshift.errors import BackendError, RequestRefused, UpshiftError
from upshift.model.spec import Hardware

PATHS = {
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "Job": watching.PATHS["jobs"],
    "JobSet": watching.PATHS["jobsets"],
}
FEW = 5
"""Jobs that are asked for one by one; more of them by a list of all that are Upshift's."""
SHARE = 20.0
"""Seconds for which an element of an array may begin further tasks."""
CLOSING = 5.0
"""Seconds for removing what has ended when a run is over."""
LEAVING = 10.0
"""Seconds that a supervisor is left to go by itself before its Job is removed."""
_WITHOUT_JOBSET = "Leave jobset out, which makes an Indexed Job of them, or have JobSet installed."
_NOT_BUILT = "not-built.invalid/upshift"
"""The image of a step in a manifest that is shown before it is built."""


@attrs.define(eq=False, slots=False)
class Kubernetes:
    """A cluster through its API server."""

    api: Api
    options: Mapping[str, Any] = attrs.field(factory=dict)
    mounts: tuple[Mount, ...] = ()
    user: tuple[int, int] | None = None
    grows: bool = False  # whether an autoscaler adds nodes
    code_cache: str | None = None  # a folder of each node for code
    title: str = "Kubernetes"
    signals: bool = False
    seat: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # each manifest has its own
    noise: re.Pattern[str] = re.compile(r"(?!)")
    _namespaces: set[str] = attrs.field(factory=set, repr=False)
    _jobsets: bool = False  # whether some jobs may be JobSets
    _tested: set[str] = attrs.field(factory=set, repr=False)
    dense: bool = True
    largest: int = 10_000
    _elements: dict[str, Known] = attrs.field(factory=dict, repr=False)  # what is known of them, by id
    _ended: deque[tuple[float, str]] = attrs.field(factory=deque, repr=False)

    @cached_property
    def namespace(self) -> str:
        """The target's."""
        return self.options.get("namespace") or self.api.access.namespace

    @cached_property
    def watching(self) -> watching.Watching:
        """The watch over jobs and their pods."""
        return watching.Watching(self.api)

    @cached_property
    def reasons(self) -> Reasons:
        """Why jobs wait."""
        return Reasons(self.api)

    @cached_property
    def nodes(self) -> tuple[Node, ...] | None:
        """The nodes, looked at once; None: they may not be listed."""
        try:
            return read_nodes(self.api.list("/api/v1/nodes")[0])
        except Forbidden:
            return None
        except NotNow as error:
            raise BackendError(str(error), fix="See whether kubectl version answers.") from None

    @property
    def site(self) -> Site:
        """The settings that all manifests share."""
        return Site(namespace=self.namespace, mounts=self.mounts, user=self.user, code_cache=self.code_cache)

    # -- before a job ------------------------------------------------------------------------------

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What the nodes have, and whether a dry run of such a Job is accepted."""
        if ask.avoid is not None:
            self.__dict__.pop("nodes", None)  # they have changed since
        found = offer(ask.request, settings, self.nodes, grows=self.grows, avoid=ask.avoid or ())
        if found.granted is not None and not found.shortfalls:
            self._test(found.granted, settings)
        return found

    def _test(self, granted: Hardware, settings: Mapping[str, Any]) -> None:
        key = repr((granted, settings))
        if key in self._tested:
            return
        sketch = Launch(
            name="try-0", comment="upshift a try", command=("true",), granted=granted, settings=settings
        )
        items = manifests(attrs.evolve(sketch, image=_NOT_BUILT), self.site)
        try:
            for item in items:
                with contextlib.suppress(Exists):
                    self._create(item, dryRun="All")
        except Missing as error:
            raise self._missing(items[-1], error) from None
        except Full as error:
            raise RequestRefused(str(error), fix="Have other jobs end, or a larger quota.") from None
        except NotNow as error:
            raise BackendError(str(error), fix="See whether kubectl version answers.") from None
        except Forbidden as error:
            raise RequestRefused(error.what, why=error.why, fix=error.fix) from None
        except BackendError as error:
            said = error.in_short.removeprefix("Kubernetes refuses it: ")
            raise RequestRefused(
                f"Kubernetes would not take a job like this: {said}",
                fix="See the settings of the step, and options of the target; pod_patch among them.",
            ) from None
        self._tested.add(key)

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """What the API server says of itself, of the rights that there are, and of nodes."""
        version = self.api.ask("GET", "/version").get("gitVersion", "")
        yield Finding(name="access", text=f"Kubernetes {version} answers at {self.api.access.server}")
        namespace = settings.get("namespace") or self.namespace
        more = [QUEUES] if settings.get("queue") else []
        if settings.get("jobset"):
            more.append(JOBSETS)
        yield from findings_of_rights(self.api, namespace, *more)
        nodes = self.nodes
        if nodes is None:
            yield Finding(
                name="nodes",
                text="they may not be listed: requests are not compared with them",
                status="warning",
                remedy="A ClusterRole lets Upshift look: "
                '{apiGroups: [""], resources: ["nodes"], verbs: ["list"]}.',
            )
        else:
            yield from findings(nodes, settings)
        yield from findings_of_queue(self.api, namespace, settings.get("queue"))
        if settings.get("jobset"):
            yield self._finding_of_jobset()
        self.offer(Ask(), settings)
        yield Finding(name="submission", text=f"namespace {namespace!r} would take a job")

    def findings_of_engine(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """Whether the service account of engines may do what they do."""
        where = settings.get("namespace") or self.namespace
        account = settings.get("service_account") or "default"
        yield from findings_of_account(self.api, self.namespace, f"{where}:{account}")

    # -- jobs --------------------------------------------------------------------------------------

    def render(self, launch: Launch) -> str:
        """As :func:`.manifest.manifests`, in a list of JSON."""
        image = launch.image or _NOT_BUILT
        items = manifests(
            attrs.evolve(launch, image=image),
            self.site if launch.user is None else attrs.evolve(self.site, user=None),
        )
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, ensure_ascii=False)

    def submit(self, script: str, more: Mapping[str, str]) -> str:
        """The Secret and the Service first: the pod needs them; they belong to the Job, and go with it."""
        *before, job = json.loads(script)["items"]
        container = template_of(job)["spec"]["containers"][0]
        if container["image"] == _NOT_BUILT:
            raise BackendError("it has no image to run in", fix="Name one: the option image of the target.")
        told = {one["name"] for one in container["env"]}
        namespace = job["metadata"]["namespace"]
        made: Any = None
        try:
            for item in before:
                if item["kind"] == "Secret":
                    item["stringData"] = {name: value for name, value in more.items() if name not in told}
                try:
                    self._create(item)
                except Exists:
                    if item["kind"] == "Secret":  # of an engine that was killed then: a seat's token is new
                        self._patch(item, {"stringData": item["stringData"]})
            try:
                made = self._create(job)
            except Exists:
                made = self.api.ask(
                    "GET", f"{PATHS[job['kind']].format(namespace)}/{job['metadata']['name']}"
                )
            self.watching.add({**made, "kind": job["kind"]})
            owner = {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "name": made["metadata"]["name"],
                "uid": made["metadata"]["uid"],
            }
            for item in before:
                with contextlib.suppress(Missing):
                    self._patch(item, {"metadata": {"ownerReferences": [owner]}})
        except Missing as error:
            raise BackendError(self._missing(job, error).what) from None
        except BackendError:
            if made is None:
                self._take_back(before)
            raise
        return f"{namespace}/{made['metadata']['name']}"

    def _take_back(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Remove what was made for a job that is refused, as far as that is allowed."""
        for item in items:
            path = PATHS[item["kind"]].format(item["metadata"]["namespace"])
            with contextlib.suppress(BackendError, NotNow, Missing, Exists):
                self.api.ask("DELETE", f"{path}/{item['metadata']['name']}")

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        """As watches have told it; why a job waits, events say."""
        self._remove(time.monotonic())
        known, now = self._known(ids), time.monotonic()
        self.reasons.ask(known, now)
        return {id: state_of(one, now) for id, one in known.items()}

    def share(self, launch: Launch) -> float:
        """A pod takes a while to start: it goes on with further tasks for about as long."""
        return SHARE

    def withdraw(self, ids: Collection[str]) -> None:
        """Their pods; a Job goes once all of its elements have been told of."""
        for id, known in self._known(ids).items():
            self._delete_pods(id, known)

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """The Jobs of these names, wherever jobs of this target are."""
        wanted = {job_name(name): name for name in names}
        found: dict[str, str] = {}
        for namespace in {self.namespace, *self._namespaces}:
            for job in self._jobs(namespace, wanted):
                self.watching.add(job)
                found[wanted[job["metadata"]["name"]]] = f"{namespace}/{job['metadata']['name']}"
        return found

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        """What waits is deleted; what runs has word in the store unless it is to be killed."""
        now = time.monotonic()
        for id, known in self._known(ids).items():
            if not kill and state_of(known, now).phase != "pending":
                continue
            if "_" in id:
                self._delete_pods(id, known)
            else:
                self._delete(id)

    def words(self, id: str) -> str | None:
        """Exit code and last lines of its container."""
        known = self._known([id]).get(id)
        if known is None:
            return None
        said = words_of(known)
        for pod in known.pods.values():
            with contextlib.suppress(Missing, BackendError):
                meta = pod["metadata"]
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
                lines = str(self.api.ask("GET", path, tailLines=5, container="step")).strip().splitlines()
                if lines and (said is None or lines[-1].strip() not in said):
                    return f"{said}; it printed: {' / '.join(lines[-3:])}" if said else " / ".join(lines[-3:])
        return said

    def note(self, jobs: Collection[Job]) -> None:
        """Have jobs looked for in the namespaces that their steps name, and as what they are."""
        for job in jobs:
            said = job.spec.settings.backends.get("kubernetes", {})
            self.note_namespace(said.get("namespace"))
            self._jobsets |= bool(said.get("jobset"))

    def note_namespace(self, name: str | None) -> None:
        """Look for jobs in this namespace, too."""
        if name:
            self._namespaces.add(name)

    def forget(self, id: str) -> None:
        """Remove a job whose end was told, once its supervisor has had time to go."""
        self._ended.append((time.monotonic() + LEAVING, id))

    def hurry(self) -> threading.Timer:
        """See that nothing is waited for any more in a moment, whether the server answers or not."""
        timer = threading.Timer(CLOSING, lambda: self.api.interrupt(all=True))
        timer.daemon = True
        timer.start()
        return timer

    def close(self) -> None:
        """Remove what has ended, and let go of the rest: after a week, the cluster removes that."""
        with contextlib.suppress(NotNow, UpshiftError):
            self._remove(float("inf"), until=time.monotonic() + CLOSING)
        if "watching" in self.__dict__:
            self.watching.close()
        self.api.close()

    # -- beside them -------------------------------------------------------------------------------

    def _remove(self, now: float, until: float = float("inf")) -> None:
        while self._ended and self._ended[0][0] <= now and time.monotonic() < until:
            _, id = self._ended.popleft()
            self._delete(id)
            self.watching.forget(id)
            for element in [one for one in self._elements if one.startswith(f"{id}_")]:
                del self._elements[element]

    def _known(self, ids: Collection[str]) -> dict[str, Known]:
        """What is known of these jobs, and elements of arrays."""
        bases = self.watching.known({id.partition("_")[0] for id in ids})
        found: dict[str, Known] = {}
        for id in ids:
            base, _, number = id.partition("_")
            if base in bases and number:
                found[id] = self._elements[id] = element_of(bases[base], int(number), self._elements.get(id))
            elif base in bases:
                found[id] = bases[base]
        return found

    def _delete_pods(self, id: str, known: Known) -> None:
        """Those of an element: the Job does not make others in their place."""
        for pod in known.pods.values():
            meta = pod["metadata"]
            if pod.get("status", {}).get("phase") in ("Pending", "Running") and not pod.get("deleted"):
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                with contextlib.suppress(Missing, Exists):
                    self.api.ask("DELETE", path)

    def _create(self, item: Mapping[str, Any], **query: str) -> Any:
        path = PATHS[item["kind"]].format(item["metadata"]["namespace"])
        try:
            return self.api.ask("POST", path, item, fieldValidation="Strict", **query)
        except Forbidden as error:
            if "exceeded quota" in error.what:
                raise Full(f"Kubernetes takes no more for now: {error.what}") from None
            raise

    def _patch(self, item: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        path = PATHS[item["kind"]].format(item["metadata"]["namespace"])
        self.api.ask(
            "PATCH", f"{path}/{item['metadata']['name']}", change, kind="application/merge-patch+json"
        )

    def _delete(self, id: str) -> None:
        namespace, _, name = id.partition("/")
        path = watching.PATHS[self.watching.kind(id)].format(namespace)
        with contextlib.suppress(Missing, Exists):
            self.api.ask("DELETE", f"{path}/{name}", propagationPolicy="Background")

    def _jobs(self, namespace: str, names: Collection[str]) -> Iterator[Mapping[str, Any]]:
        kinds = ["Job", *(["JobSet"] if self._jobsets or self.options.get("jobset") else [])]
        try:
            for kind in kinds:
                path = PATHS[kind].format(namespace)
                if len(names) > FEW:
                    listed, _ = self.api.list(path, labelSelector=f"{MANAGED}=upshift")
                    yield from ({**job, "kind": kind} for job in listed if job["metadata"]["name"] in names)
                    continue
                for name in names:
                    with contextlib.suppress(Missing):
                        yield {**self.api.ask("GET", f"{path}/{name}"), "kind": kind}
        except BackendError as error:
            raise NotNow(error.in_short) from None

    def _has_jobset(self) -> bool:
        try:
            self.api.ask("GET", "/apis/jobset.x-k8s.io")
        except Missing:
            return False
        return True

    def _finding_of_jobset(self) -> Finding:
        if self._has_jobset():
            return Finding(name="JobSet", text="there: steps on several nodes are JobSets")
        return Finding(
            name="JobSet",
            text="not there: steps on several nodes are refused",
            status="problem",
            remedy=_WITHOUT_JOBSET,
        )

    def _missing(self, job: Mapping[str, Any], error: Exception) -> RequestRefused:
        """What the cluster has not that a job is to be made of: the namespace, or JobSet."""
        if job["kind"] == "JobSet" and not self._has_jobset():
            return RequestRefused(
                "the cluster has no JobSet",
                why="jobset=True has steps on several nodes be JobSets, which are no part of Kubernetes.",
                fix=_WITHOUT_JOBSET,
            )
        namespace = job["metadata"]["namespace"]
        return RequestRefused(
            f"the cluster has no namespace {namespace!r}",
            why=str(error),
            fix="See kubectl get namespaces. The target's option namespace, or @kubernetes, names one.",
        )
