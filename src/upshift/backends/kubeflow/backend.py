"""The backend ``kubeflow``: what a target of Kubeflow Pipelines can do, and where its images come from.

Kubeflow takes whole pipelines (:mod:`.pipeline`), runs them itself (:mod:`.runs`), and takes no single step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import attrs

from upshift.backends.base import Ask, Capabilities, Capacity, Ended, Finding, Handle, Job, Offer, Sink
from upshift.backends.kubeflow.api import OPTIONS, NoHost, checked_options
from upshift.backends.kubeflow.runs import KubeflowRuns
from upshift.backends.kubernetes.nodes import offer
from upshift.backends.scheduler import options_of
from upshift.errors import BackendError, ConfigError, RequestRefused
from upshift.images.building.builder import Destination
from upshift.model.configuration import Target
from upshift.model.settings.kubernetes import KubeflowSettings

_OWN = ("image", *OPTIONS)


class KubeflowBackend:
    """A target of Kubeflow Pipelines."""

    name: ClassVar[str] = "kubeflow"
    settings: ClassVar[type] = KubeflowSettings
    capabilities: Capabilities = Capabilities(
        fields=frozenset(
            {
                *("cpu_count", "memory", "shared_memory"),
                *("gpu_count", "accelerator", "gpu_memory", "gpu_vendor"),
            }
        ),
        secrets=frozenset({"k8s"}),
        images=True,
        remote=True,
        strict=True,
        buckets=True,
        steps=False,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        self.options: Mapping[str, object] = options_of(target, KubeflowSettings, own=_OWN)
        owner = f"target {target.name!r}"
        image = target.options.get("image", "")
        if not isinstance(image, str):
            raise ConfigError(f"{owner}: image = {image!r} is invalid", fix="Write a string.")
        self.orchestrator = KubeflowRuns(target.name, checked_options(target))
        if "://" not in store:
            raise ConfigError(
                f"{owner}: its store is the folder {store}",
                why="Pods of Kubeflow see no folder of this machine: they hand on results through a bucket.",
                fix='Name one: store = "s3://ml-team/upshift".',
            )
        self._target = target

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
        image, registry = self._target.options.get("image"), self._target.registry
        if image is None and registry is None:
            yield Finding(
                name="images",
                text="none: neither the target nor a registry says which",
                status="warning",
                remedy='Name one for steps that name none, options = { image = "…" }, or a registry for '
                "those that are built.",
            )
        else:
            said = f"pushed to {registry}" if registry is not None else f"{image} for all steps"
            yield Finding(name="images", text=said)

    def destination(self) -> Destination:
        """Pods take images from a registry; a step that names none runs in that of the target."""
        return Destination(
            platform="linux/amd64", registry=self._target.registry, parent=self._target.options.get("image")
        )

    def scripts(self, jobs: Sequence[Job]) -> None:
        """A step has none of its own."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """It takes none."""
        return [BackendError("Kubeflow takes whole pipelines, and no step by itself") for _ in jobs]

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """It has none."""
        return {handle: Ended(handle=handle) for handle in jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """It has none."""
        return [None] * len(jobs)

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """It has none."""

    def close(self) -> None:
        """Close its connections."""
        self.orchestrator.close()
