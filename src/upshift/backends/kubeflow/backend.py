"""The backend ``kubeflow``: what a target of Kubeflow Pipelines can do, and its runs.

Kubeflow takes whole pipelines (:mod:`.pipeline`), which it runs itself, and no single step. Runs are
submitted, looked at, terminated and retried by its API: fields are those of
``backend/api/v2beta1/run.proto`` and ``experiment.proto``, kubeflow/pipelines 2.17. What tasks wait for is
not in them: that is in the workflow of Argo, which the older API shows.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from upshift.backends.base import (
    DEVICES,
    Ask,
    Capabilities,
    Capacity,
    Ended,
    Finding,
    Handle,
    Job,
    Offer,
    Sink,
)
from upshift.backends.kubeflow.api import OPTIONS, V1, V2, NoHost, PipelinesApi, access_of, checked_options
from upshift.backends.kubernetes.access import IN_POD
from upshift.backends.kubernetes.api import Missing
from upshift.backends.kubernetes.nodes import offer
from upshift.backends.registry import options_of, text_option
from upshift.backends.scheduler import Document, Gone, NotNow, Standing
from upshift.errors import BackendError, ConfigError, NotFound, RequestRefused, suggestion
from upshift.images.building.builder import Destination
from upshift.model.configuration import Target
from upshift.model.settings.kubernetes import KubeflowSettings

_PHASES = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "completed",
    "SKIPPED": "completed",
    "FAILED": "failed",
    "CANCELING": "running",
    "CANCELED": "cancelled",
    "PAUSED": "running",
}
_SUBMITTING = (1.0, 2.0, 5.0, 10.0, 15.0)
"""Seconds between two tries to submit a run, before each of which it is looked for."""
_PAGE = 200
_WAITING = ("Pending", "Error", "Failed")
"""Phases of a node of Argo's workflow in which its message says why."""


class KubeflowRuns:
    """The runs of one target; as :class:`~upshift.backends.scheduler.Orchestrator` says."""

    title = "Kubeflow"

    def __init__(self, target: str, options: Mapping[str, Any]) -> None:
        self._target = target
        self._options = options
        self._api = PipelinesApi(read=lambda: access_of(target, options))
        self._many_users: bool | None = None

    @property
    def server(self) -> str:
        """Its address."""
        return self._api.access.server

    @property
    def many_users(self) -> bool:
        """Whether its users have namespaces of their own; asked once."""
        if self._many_users is None:
            try:
                answer = self._api.ask("GET", f"{V2}/healthz")
            except Missing as error:
                raise self._no_api(str(error)) from None
            self._many_users = bool(answer.get("multi_user"))
        return self._many_users

    def confirm(self) -> None:
        with self._answering():
            self._experiment(make=False)

    def told(self) -> str:
        """Where runs go, in words."""
        where = [self.server, f"namespace {self._namespace}" if self._namespace else "for one user"]
        if named := self._options.get("experiment"):
            where.append(f"experiment {named}")
        return ", ".join(where)

    def submit(self, name: str, documents: Sequence[Document], *, description: str) -> str:
        with self._answering():
            experiment = self._experiment()
        asked: dict[str, Any] = {
            "display_name": name,
            "description": description,
            "pipeline_spec": _spec_of(documents),
            "runtime_config": {"parameters": {}},
        }
        if experiment is not None:
            asked["experiment_id"] = experiment
        if account := self._options.get("service_account"):
            asked["service_account"] = account
        for pause in (*_SUBMITTING, None):
            try:
                found = self.find(name)
                return found or str(self._api.post_once(f"{V2}/runs", asked)["run_id"])
            except Missing as error:
                raise BackendError(f"Kubeflow refuses it: {error}") from None
            except NotNow as error:
                if pause is None:
                    raise BackendError(
                        str(error),
                        why=f"Whether it has taken the run {name} is not known.",
                        fix=f"Look for {name} on its page before you run the pipeline again.",
                    ) from None
                time.sleep(pause)
        raise AssertionError

    def find(self, name: str) -> str | None:
        """The id of the run of this name; None: there is none."""
        for run in self._listed("runs", name):
            return str(run["run_id"])
        return None

    def standing(self, run: str) -> Standing:
        try:
            said = self._api.ask("GET", f"{V2}/runs/{run}")
        except Missing as error:
            raise Gone(str(error)) from None
        state = said.get("state") or "PENDING"
        history = [one["error"] for one in said.get("state_history") or () if one.get("error")]
        errors = [said.get("error") or {}, *reversed(history)]
        return Standing(
            phase=_PHASES.get(state, "running"),
            message=next((one["message"] for one in errors if one.get("message")), None),
        )

    def words(self, run: str) -> Sequence[tuple[str, str]]:
        found: dict[str, str] = {}
        with contextlib.suppress(Missing, BackendError):  # a newer one may not have the older API
            found = dict(_of_tasks(self._api.ask("GET", f"{V2}/runs/{run}")))
            if not found:
                found = dict(_of_workflow(self._api.ask("GET", f"{V1}/runs/{run}")))
        return tuple(found.items())

    def stop(self, run: str) -> None:
        self._act(run, "terminate")

    def retry(self, run: str) -> None:
        self._act(run, "retry")

    def link(self, run: str) -> str | None:
        if "kube_context" in self._options:
            return None
        return f"{self.server}/#/runs/details/{run}"

    def close(self) -> None:
        self._api.close()

    # -- parts -------------------------------------------------------------------------------------

    def _act(self, run: str, verb: str) -> None:
        try:
            self._api.ask("POST", f"{V2}/runs/{run}:{verb}")
        except Missing as error:
            raise Gone(str(error)) from None

    @property
    def _namespace(self) -> str | None:
        """That of the runs; None: all of them are in one."""
        named = self._options.get("namespace")
        if not self.many_users:
            if named:
                raise BackendError(
                    f"target {self._target!r} names a namespace, and Kubeflow has none of users",
                    why=f"That at {self.server} is installed for one user.",
                    fix="Leave namespace out.",
                )
            return None
        if named:
            return str(named)
        own = IN_POD / "namespace"
        if own.exists():
            return own.read_text().strip()
        raise BackendError(
            f"target {self._target!r} names no namespace",
            why=f"The users of Kubeflow at {self.server} have one each.",
            fix='Name that of your profile: options = { namespace = "…" }.',
        )

    def _experiment(self, *, make: bool = True) -> str | None:
        """The id of the experiment for runs; None: that which Kubeflow takes by itself."""
        namespace, named = self._namespace, self._options.get("experiment")
        if named is None and namespace is None:
            return None
        name = named or "Default"
        found = list(self._listed("experiments", name, **_given(namespace=namespace)))
        if found:
            return str(found[0]["experiment_id"])
        if named is None:  # each namespace has its own, once something has made it
            if not make:
                return None
            asked = {"display_name": name, **_given(namespace=namespace)}
            return str(self._api.ask("POST", f"{V2}/experiments", asked)["experiment_id"])
        every = self._listed("experiments", None, **_given(namespace=namespace))
        others = [one["display_name"] for one in every]
        where = f" in namespace {namespace}" if namespace else ""
        raise NotFound(
            f"Kubeflow at {self.server} has no experiment {name!r}{where}",
            fix=f"{suggestion(name, others)}\nOr make it, on its page or with kfp experiment create {name}.",
        )

    def _listed(self, what: str, name: str | None, **query: str) -> Iterator[dict[str, Any]]:
        """The runs or experiments of this name, or all of them, newest first."""
        if what == "runs" and (namespace := self._namespace):
            query["namespace"] = namespace
        if name is not None:
            predicate = {"operation": "EQUALS", "key": "display_name", "string_value": name}
            query["filter"] = json.dumps({"predicates": [predicate]})
        token = ""
        while True:
            paged = _given(page_token=token or None)
            try:
                answer = self._api.ask(
                    "GET", f"{V2}/{what}", page_size=_PAGE, sort_by="created_at desc", **query, **paged
                )
            except Missing as error:
                raise self._no_api(str(error)) from None
            yield from answer.get(what) or ()
            token = answer.get("next_page_token") or ""
            if not token:
                return

    def _no_api(self, said: str) -> BackendError:
        try:
            self._api.ask("GET", f"{V1}/healthz")
        except (Missing, BackendError, NotNow):
            return BackendError(
                f"{self.server} is no API of Kubeflow Pipelines",
                why=f"It answers {V2}/healthz with 404: {said}",
                fix="Name its address in host: behind the page of Kubeflow it often ends with /pipeline.",
            )
        return BackendError(
            f"Kubeflow Pipelines at {self.server} is version 1, which has no API v2beta1",
            fix="Upshift needs version 2.4 or later: upgrade it, or name another host.",
        )

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except NotNow as error:
            raise BackendError(
                str(error),
                fix="Correct host in the configuration of the target, or try again when it answers. "
                f"To see whether it does, run: upshift doctor {self._target}",
            ) from None


def _given(**query: str | None) -> dict[str, str]:
    return {name: value for name, value in query.items() if value is not None}


def _spec_of(documents: Sequence[Document]) -> Document:
    """What a run says of its pipeline: as the SDK sends a file of one document, or two."""
    if len(documents) == 1:
        return documents[0]
    return {"pipeline_spec": documents[0], "platform_spec": documents[1]}


def _of_tasks(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The messages that a run has about its tasks."""
    for task in (run.get("run_details") or {}).get("task_details") or ():
        history = [one.get("error") for one in task.get("state_history") or ()]
        said = [
            one["message"] for one in (task.get("error"), *reversed(history)) if one and one.get("message")
        ]
        if said and task.get("state") in ("PENDING", "RUNNING", "FAILED", "CANCELED"):
            yield task.get("display_name") or task.get("task_id") or "a task", said[0]


def _of_workflow(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the nodes of Argo's workflow say: ``ImagePullBackOff: …``, ``Unschedulable: 0/3 nodes …``."""
    text = (answer.get("pipeline_runtime") or {}).get("workflow_manifest")
    with contextlib.suppress(ValueError, AttributeError):
        status = json.loads(text or "{}").get("status") or {}
        for node in (status.get("nodes") or {}).values():
            if node.get("type") == "Pod" and node.get("phase") in _WAITING and node.get("message"):
                parts = [part for part in str(node.get("name", "")).split(".") if part != "executor"]
                yield parts[-1] if parts else str(node.get("displayName")), str(node["message"])
        if status.get("phase") in ("Error", "Failed") and status.get("message"):
            yield "the workflow", str(status["message"])


_OWN = ("image", *OPTIONS)


class KubeflowBackend:
    """A target of Kubeflow Pipelines."""

    name: ClassVar[str] = "kubeflow"
    settings: ClassVar[type] = KubeflowSettings
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "shared_memory"},
        secrets=frozenset({"k8s"}),
        images=True,
        buckets=True,
        steps=False,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        self.options: Mapping[str, object] = options_of(target, KubeflowSettings, own=_OWN)
        self._image, self._registry = text_option(target, "image"), target.registry
        self.orchestrator = KubeflowRuns(target.name, checked_options(target))
        if "://" not in store:
            raise ConfigError(
                f"target {target.name!r}: its store is the folder {store}",
                why="Pods of Kubeflow see no folder of this machine; they hand on results through a bucket.",
                fix='Name one: store = "s3://ml-team/upshift".',
            )

    def capacity(self) -> Capacity | None:
        """It queues its pods itself."""
        return None

    def offer(self, ask: Ask) -> Offer:
        """What a pod asks for; its nodes cannot be looked at from here."""
        request = ask.request
        if request.least_nodes > 1:
            raise RequestRefused(
                f"Kubeflow runs a step in one pod, and this asks for num_nodes={request.least_nodes}",
                fix="Ask for one node, or run it elsewhere: upshift run --on kubernetes.",
            )
        if request.disk is not None:
            raise RequestRefused(
                "Kubeflow has no means to ask for room on a disk",
                fix="Leave disk out, and mount a claim: persistent_volume_claims of KubeflowSettings.",
            )
        settings = {**self.options, **ask.settings}
        found = offer(request, settings, None, grows=True)
        if found.granted is not None and (found.granted.nodes or 1) > 1:
            raise RequestRefused(
                f"Kubeflow runs a step in one pod, and this slice of TPUs has {found.granted.nodes} hosts",
                fix="Ask for a slice of one host, or run it elsewhere: upshift run --on kubernetes.",
            )
        return attrs.evolve(
            found,
            shortfalls=tuple(
                attrs.evolve(
                    one,
                    why="Kubeflow is not asked for a kind of GPU, but for a label of its nodes",
                    fix='Name it: KubeflowSettings(node_selector={"nvidia.com/gpu.product": "…"}).',
                )
                if one.field == "gpu_count"
                else one
                for one in found.shortfalls
            ),
        )

    def findings(self) -> Iterator[Finding]:
        """Whether it can be asked and takes runs, and where their images come from."""
        try:
            self.orchestrator.confirm()
            yield Finding(name="access", text=self.orchestrator.told())
        except NoHost as error:
            yield Finding(
                name="access",
                text="no host is named: pipelines can be exported to it, and not run on it",
                status="warning",
                remedy=error.fix,
            )
        image, registry = self._image, self._registry
        if image is None and registry is None:
            yield Finding(
                name="images",
                text="none is set by the target or a registry",
                status="warning",
                remedy='Name one for steps that name none, options = { image = "…" }, or a registry for '
                "those that are built.",
            )
        else:
            said = f"pushed to {registry}" if registry is not None else f"{image} for all steps"
            yield Finding(name="images", text=said)

    def destination(self) -> Destination:
        """Pods take images from a registry; a step that names none runs in that of the target."""
        return Destination(platform="linux/amd64", registry=self._registry, parent=self._image)

    def scripts(self, jobs: Sequence[Job]) -> None:
        """A step has no manifest of its own."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Single steps are refused."""
        return [BackendError("Kubeflow takes whole pipelines, and no step by itself") for _ in jobs]

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """There are no jobs of single steps."""
        return {handle: Ended(handle=handle) for handle in jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """There are no jobs of single steps."""
        return [None] * len(jobs)

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """There are no jobs of single steps."""

    def close(self) -> None:
        """Close its connections."""
        self.orchestrator.close()
