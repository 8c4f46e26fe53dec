"""The backend ``kubernetes``: steps as Jobs, followed by watches.

Cancelling goes through the store: a pod that is deleted gets SIGTERM as one that is evicted, and its
supervisor could not tell the one from the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from upshift.backends.base import Ask, Capabilities, Ended, Finding, Handle, Job, Offer, Sink
from upshift.backends.cluster import ClusterBackend
from upshift.backends.kubernetes.access import read_access
from upshift.backends.kubernetes.api import Api, Exists, Forbidden, Missing
from upshift.backends.kubernetes.manifest import MANAGED, Mount, Site, job_name, manifests
from upshift.backends.kubernetes.nodes import Node, findings, offer, read_nodes
from upshift.backends.kubernetes.states import Known, element_of, explained, state_of, words_of
from upshift.backends.kubernetes.watching import Watching
from upshift.backends.scheduler import Full, Launch, NotNow, Reach, State, options_of
from upshift.errors import BackendError, ConfigError, RequestRefused, UpshiftError
from upshift.model.configuration import Target
from upshift.model.settings.kubernetes import KubernetesSettings
from upshift.model.spec import Hardware, TaskSpec

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination

JOBS = "/apis/batch/v1/namespaces/{}/jobs"
PATHS = {"Secret": "/api/v1/namespaces/{}/secrets", "Service": "/api/v1/namespaces/{}/services", "Job": JOBS}
FEW = 5
"""Jobs that are asked for one by one; more of them by a list of all that are Upshift's."""
EVENTS = (5, 10.0)
"""For how many jobs events are asked at once, and after how many seconds again for one job."""
SHARE = 20.0
"""Seconds for which an element of an array may begin further tasks."""
CLOSING = 5.0
"""Seconds for removing what has ended when a run is over."""
LEAVING = 10.0
"""Seconds that a supervisor is left to go by itself before its Job is removed."""
RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "delete", "get", "list", "watch")),
    ("", "pods", ("delete", "list", "watch")),
    ("", "pods/log", ("get",)),
    ("", "secrets", ("create", "delete", "patch")),
    ("", "services", ("create", "patch")),
    ("", "events", ("list",)),
)
"""What Upshift has to be allowed in the namespace: API group, resource, verbs."""
_OPTIONAL = ("services", "events", "pods/log")
"""What of it steps of one node run without."""
_OWN = ("kubeconfig", "context", "image", "autoscaling")
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
    title: str = "Kubernetes"
    signals: bool = False
    seat: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # each manifest has its own
    noise: re.Pattern[str] = re.compile(r"(?!)")
    _namespaces: set[str] = attrs.field(factory=set, repr=False)
    _tested: set[str] = attrs.field(factory=set, repr=False)
    _asked: dict[str, float] = attrs.field(factory=dict, repr=False)  # when events of a job were
    dense: bool = True
    largest: int = 10_000
    _elements: dict[str, Known] = attrs.field(factory=dict, repr=False)  # what is known of them, by id
    _ended: deque[tuple[float, str]] = attrs.field(factory=deque, repr=False)

    @cached_property
    def namespace(self) -> str:
        """The target's."""
        return self.options.get("namespace") or self.api.access.namespace

    @cached_property
    def watching(self) -> Watching:
        """What is known of jobs."""
        return Watching(self.api)

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
        """What all manifests have in common."""
        return Site(namespace=self.namespace, mounts=self.mounts, user=self.user)

    # -- before a job ------------------------------------------------------------------------------

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What the nodes have that are there; and the API server takes such a Job, if only for a try."""
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
        namespace = items[0]["metadata"]["namespace"]
        try:
            for item in items:
                with contextlib.suppress(Exists):
                    self._create(item, dryRun="All")
        except Missing as error:
            raise _no_namespace(namespace, error) from None
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
        yield from self._findings_of_rights(namespace)
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
        yield from self._findings_of_kueue(settings, namespace)
        self.offer(Ask(), settings)
        yield Finding(name="submission", text=f"namespace {namespace!r} would take a job")

    def _findings_of_rights(self, namespace: str) -> Iterator[Finding]:
        lacking: list[tuple[str, str, list[str]]] = []
        for group, resource, verbs in RULES:
            base, _, sub = resource.partition("/")
            lacks = []
            for verb in verbs:
                attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": base}
                review = self.api.ask(
                    "POST",
                    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                    {
                        "apiVersion": "authorization.k8s.io/v1",
                        "kind": "SelfSubjectAccessReview",
                        "spec": {
                            "resourceAttributes": {**attributes, **({"subresource": sub} if sub else {})}
                        },
                    },
                )
                if not review.get("status", {}).get("allowed"):
                    lacks.append(verb)
            if lacks:
                lacking.append((group, resource, lacks))
        if not lacking:
            yield Finding(name="rights", text=f"all that is needed in namespace {namespace!r}")
        for group, resource, lacks in lacking:
            yield Finding(
                name="rights",
                text=f"may not {' or '.join(lacks)} {resource} in namespace {namespace!r}",
                status="warning" if resource in _OPTIONAL else "problem",
                remedy="Add this rule to the Role: "
                f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: {json.dumps(verbs)}}}.',
            )

    def _findings_of_kueue(self, settings: Mapping[str, Any], namespace: str) -> Iterator[Finding]:
        queue = settings.get("queue")
        try:
            version = self._kueue
            if not queue:
                text = "there; queue = … of the target has jobs wait in one of its queues"
                yield Finding(name="Kueue", text=text)
                return
            self.api.ask("GET", f"/apis/{version}/namespaces/{namespace}/localqueues/{queue}")
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

    @cached_property
    def _kueue(self) -> str:
        """Its API as the cluster prefers it. Raises ``Missing``."""
        return str(self.api.ask("GET", "/apis/kueue.x-k8s.io")["preferredVersion"]["groupVersion"])

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
        container = job["spec"]["template"]["spec"]["containers"][0]
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
                made = self.api.ask("GET", f"{JOBS.format(namespace)}/{job['metadata']['name']}")
            self.watching.add(made)
            owner = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": made["metadata"]["name"],
                "uid": made["metadata"]["uid"],
            }
            for item in before:
                with contextlib.suppress(Missing):
                    self._patch(item, {"metadata": {"ownerReferences": [owner]}})
        except Missing as error:
            raise BackendError(_no_namespace(namespace, error).what) from None
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
        self._ask_events(known, now)
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
        """Have jobs looked for in the namespaces that their steps name."""
        for job in jobs:
            named = job.spec.settings.backends.get("kubernetes", {}).get("namespace")
            if named:
                self._namespaces.add(named)

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
        with contextlib.suppress(Missing, Exists):
            self.api.ask("DELETE", f"{JOBS.format(namespace)}/{name}", propagationPolicy="Background")

    def _jobs(self, namespace: str, names: Collection[str]) -> Iterator[Mapping[str, Any]]:
        path = JOBS.format(namespace)
        try:
            if len(names) > FEW:
                listed, _ = self.api.list(path, labelSelector=f"{MANAGED}=upshift")
                yield from (job for job in listed if job["metadata"]["name"] in names)
                return
            for name in names:
                with contextlib.suppress(Missing):
                    yield self.api.ask("GET", f"{path}/{name}")
        except BackendError as error:
            raise NotNow(error.in_short) from None

    def _ask_events(self, known: Mapping[str, Known], now: float) -> None:
        """Have events say why jobs wait of which their own conditions do not."""
        most, again = EVENTS
        for id, one in known.items():
            if most == 0:
                return
            about = _unexplained(one)
            if about != one.about:
                one.told, one.about = None, about
                self._asked.pop(id, None)
            if about is None or now - self._asked.get(id, -again) < again:
                continue
            most -= 1
            self._asked[id] = now
            with contextlib.suppress(BackendError, Missing, NotNow):
                one.told = self._workload(one) if about == "workload" else self._events(one, about)

    def _events(self, known: Known, uid: str) -> str | None:
        namespace = (known.job or {})["metadata"]["namespace"]
        selector = f"involvedObject.uid={uid}"
        listed, _ = self.api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector=selector)
        return explained(listed)

    def _workload(self, known: Known) -> str | None:
        """What Kueue says of a job that it has not admitted."""
        meta = (known.job or {})["metadata"]
        listed, _ = self.api.list(
            f"/apis/{self._kueue}/namespaces/{meta['namespace']}/workloads",
            labelSelector=f"kueue.x-k8s.io/job-uid={meta['uid']}",
        )
        conditions = [c for one in listed for c in one.get("status", {}).get("conditions") or ()]
        held = [
            c for c in conditions if c["type"] in ("QuotaReserved", "Admitted") and c["status"] == "False"
        ]
        return next((c["message"] for c in held if c.get("message")), None)


def _unexplained(known: Known) -> str | None:
    """Whose events say why a job waits: the uid of a pod or of the Job; None: it does not, or it is known."""
    job = known.job or {}
    if job.get("spec", {}).get("suspend"):
        return "workload"
    for pod in known.pods.values():
        status = pod.get("status", {})
        if status.get("phase") == "Pending" and not pod.get("deleted"):
            scheduled = all(
                c["status"] == "True" for c in status.get("conditions") or () if c["type"] == "PodScheduled"
            )
            return str(pod["metadata"]["uid"]) if scheduled else None
    return None if known.pods else job.get("metadata", {}).get("uid")


def _no_namespace(namespace: str, error: Exception) -> RequestRefused:
    return RequestRefused(
        f"the cluster has no namespace {namespace!r}",
        why=str(error),
        fix="See kubectl get namespaces; the option namespace of the target, or of @kubernetes, names one.",
    )


class KubernetesBackend(ClusterBackend):
    """Runs tasks as Jobs of Kubernetes."""

    name: ClassVar[str] = "kubernetes"
    settings: ClassVar[type] = KubernetesSettings
    capabilities: Capabilities = Capabilities(
        fields=frozenset(
            {
                *("cpu_count", "memory", "disk", "shared_memory", "num_nodes"),
                *("gpu_count", "accelerator", "gpu_memory", "gpu_vendor"),
            }
        ),
        secrets=frozenset({"env", "file", "k8s"}),
        images=True,
        remote=True,
        strict=True,
        buckets=True,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        options = options_of(
            target, KubernetesSettings, store=store, title="Kubernetes", own=_OWN, buckets=True, mounts=True
        )
        said = {name: target.options[name] for name in _OWN if name in target.options}
        owner = f"target {target.name!r}"
        for name, value in said.items():
            if name == "autoscaling" and not isinstance(value, bool):
                raise ConfigError(f"{owner}: autoscaling = {value!r} is invalid", fix="Write true or false.")
            if name != "autoscaling" and not (isinstance(value, str) and value.strip()):
                raise ConfigError(f"{owner}: {name} = {value!r} is invalid", fix="Write a string.")
        self._kubernetes = Kubernetes(
            Api(read=lambda: read_access(said.get("kubeconfig"), said.get("context"))),
            options=options,
            mounts=tuple(_mount(owner, path, outside) for path, outside in target.mounts.items()),
            user=None if "://" in store or os.getuid() == 0 else (os.getuid(), os.getgid()),
            grows=bool(said.get("autoscaling", False)),
        )
        self._image = said.get("image")
        self._registry = target.registry
        super().__init__(
            self._kubernetes,
            name=self.name,
            store=store,
            sink=sink,
            options=options,
            arrays=self._kubernetes,
        )

    def offer(self, ask: Ask) -> Offer:
        """What a pod would get, if it sees the store."""
        found = super().offer(ask)
        claims = {
            **self._options.get("persistent_volume_claims", {}),
            **ask.settings.get("persistent_volume_claims", {}),
        }
        paths = [*(mount.path for mount in self._kubernetes.mounts), *claims.values()]
        store = self._address
        if "://" not in store and not any(PurePosixPath(store).is_relative_to(path) for path in paths):
            raise RequestRefused(
                f"pods do not see the store {store}",
                why="Steps hand on their results through it, and none of the target's mounts has it.",
                fix='Name a bucket: store = "s3://ml-team/upshift"; or a folder that pods have under its '
                'path: mounts = { "/shared" = "pvc:team" } for a claim, { "/shared" = "/shared" } for one '
                "of all nodes.",
            )
        return found

    def findings(self) -> Iterator[Finding]:
        """The cluster, and where its images come from."""
        try:
            yield from self._kubernetes.findings(self._options)
        except NotNow as error:
            raise BackendError(str(error), fix="Try again in a moment.") from None
        except Missing as error:
            raise BackendError(f"{self._kubernetes.api.access.server} has no such API: {error}") from None
        yield Finding(
            name="images",
            text=f"pushed to {self._registry}"
            if self._registry
            else "as their registries have them; to build some, name a registry: registry = … of the target",
        )

    def destination(self) -> Destination:
        """The registry of the target."""
        from upshift.images.building.builder import Destination

        nodes = self._kubernetes.nodes or ()
        machines = Counter(
            node.labels.get("kubernetes.io/arch", "amd64") for node in nodes if node.takes_pods
        )
        machine = machines.most_common(1)[0][0] if machines else "amd64"
        return Destination(platform=f"linux/{machine}", registry=self._registry, parent=self._image)

    def reach(self, spec: TaskSpec) -> Reach:
        """The image has a Python, and the bootstrap does the rest."""
        from upshift.backends.kubernetes.manifest import HOME

        return Reach(python=spec.interpreter or "python3", home=HOME, bootstrap=True)

    def scripts(self, jobs: Sequence[Job]) -> list[str]:
        """The manifests as YAML, for ``kubectl apply -f -``."""
        import yaml

        class Dumper(yaml.SafeDumper):  # type: ignore[misc]
            """Texts of several lines, as the bootstrap is, stay that."""

        Dumper.add_representer(
            str,
            lambda dumper, text: dumper.represent_scalar(
                "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
            ),
        )
        known = [self._with_image(job) for job in jobs]
        return [
            yaml.dump_all(
                json.loads(text)["items"],
                Dumper=Dumper,
                sort_keys=False,
                allow_unicode=True,
                explicit_start=True,
            )
            for text in super().scripts(known)
        ]

    def _with_image(self, job: Job) -> Job:
        """With the target's own image, where nothing else is to be in it."""
        if job.spec.image is not None or job.spec.settings.docker is not None or self._image is None:
            return job
        return attrs.evolve(job, spec=attrs.evolve(job.spec, image=self._image))

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """As for any scheduler, in all namespaces that these name."""
        self._kubernetes.note(list(jobs.values()))
        return super().attach(jobs)

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """As for any scheduler, in all namespaces that these name."""
        self._kubernetes.note(jobs)
        return super().find(jobs)

    def forget(self, id: str) -> None:
        """A Job is removed."""
        self._kubernetes.forget(id)

    def close(self) -> None:
        """Let go of the jobs, which go on."""
        timer = self._kubernetes.hurry()
        super().close()
        self._kubernetes.close()
        timer.cancel()


def _mount(owner: str, path: str, outside: str) -> Mount:
    """A folder that all pods of a target see: ``pvc:CLAIM``, ``pvc:CLAIM/FOLDER``, or one of each node."""
    if not PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ConfigError(
            f"{owner}: mounts: {path!r} is not an absolute path",
            fix='Write mounts = { "/data" = "pvc:team-data" }: the path in the step first.',
        )
    claim, _, inside = outside.removeprefix("pvc:").partition("/")
    if outside.startswith("pvc:"):
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", claim):
            raise ConfigError(
                f"{owner}: mounts: {outside!r} names no claim",
                fix='Write "pvc:team-data", or "pvc:team-data/folder".',
            )
        return Mount(path=path.rstrip("/"), claim=claim, inside=inside or None)
    if not PurePosixPath(outside).is_absolute():
        raise ConfigError(
            f"{owner}: mounts: {outside!r} is neither a claim nor a folder of the nodes",
            fix='Write "pvc:team-data", or an absolute path: "/shared/data".',
        )
    return Mount(path=path.rstrip("/"), host=outside)
