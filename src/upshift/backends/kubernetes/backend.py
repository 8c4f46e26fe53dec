"""The backend ``kubernetes``: steps as Jobs, followed by watches."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from upshift.backends.base import DEVICES, Ask, Capabilities, Ended, Finding, Handle, Job, Offer, Sink
from upshift.backends.cluster import ClusterBackend
from upshift.backends.engines import Engines, Journey
from upshift.backends.kubernetes.access import read_access
from upshift.backends.kubernetes.api import Api, Missing
from upshift.backends.kubernetes.cluster import Kubernetes
from upshift.backends.kubernetes.manifest import HOME, Mount, patched
from upshift.backends.registry import flag_option, invalid_option, options_of, text_option
from upshift.backends.scheduler import Reach
from upshift.errors import BackendError, ConfigError, RequestRefused
from upshift.model.configuration import Target
from upshift.model.settings.kubernetes import KubernetesSettings
from upshift.model.spec import TaskSpec

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination

_OWN = ("kubeconfig", "context", "image", "autoscaling", "code_cache", "detach")
_CLUSTER = ("kubeconfig", "context")
"""Which of these say where the API server is."""


class KubernetesBackend(ClusterBackend):
    """Runs tasks as Jobs of Kubernetes."""

    name: ClassVar[str] = "kubernetes"
    settings: ClassVar[type] = KubernetesSettings
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "disk", "shared_memory", "num_nodes"},
        secrets=frozenset({"env", "file", "k8s"}),
        images=True,
        buckets=True,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        options = options_of(target, KubernetesSettings, own=_OWN, mounts=True)
        kubeconfig, context = (text_option(target, name) for name in _CLUSTER)
        cache = text_option(target, "code_cache")
        if cache is not None and not PurePosixPath(cache).is_absolute():
            raise invalid_option(target, "code_cache", 'Name a folder of the nodes: "/var/lib/upshift".')
        owner = f"target {target.name!r}"
        self._kubernetes = Kubernetes(
            Api(read=lambda: read_access(kubeconfig, context)),
            options=options,
            mounts=tuple(_mount(owner, path, outside) for path, outside in target.mounts.items()),
            user=None if "://" in store or os.getuid() == 0 else (os.getuid(), os.getgid()),
            grows=flag_option(target, "autoscaling"),
            code_cache=cache,
        )
        self._image = text_option(target, "image")
        self._registry = target.registry
        super().__init__(
            self._kubernetes,
            name=self.name,
            store=store,
            sink=sink,
            options=options,
            arrays=self._kubernetes,
        )
        self._target = target
        self.engines = Engines(
            target,
            self._kubernetes,
            KubernetesSettings,
            options,
            private=True,
            complete=_for_engine,
            seen=self._seen,
            journey=Journey(home=HOME),
        )
        self._kubernetes.note_namespace(self.engines.settings.get("namespace"))

    def _seen(self, target: Target) -> Target | None:
        """A target as an engine in the cluster has it: where that is, its pod says."""
        if target.backend != self.name or any(
            target.options.get(name) != self._target.options.get(name) for name in _CLUSTER
        ):
            return None
        options = {name: value for name, value in target.options.items() if name not in _CLUSTER}
        return attrs.evolve(target, options={"namespace": self._kubernetes.api.access.namespace, **options})

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

    def findings_of_cluster(self) -> Iterator[Finding]:
        """The cluster, and what an engine may do there."""
        try:
            yield from super().findings_of_cluster()
            yield from self._kubernetes.findings_of_engine(self.engines.settings)
        except Missing as error:
            raise BackendError(f"{self._kubernetes.api.access.server} has no such API: {error}") from None

    def images(self) -> Finding:
        """Where images come from."""
        untold = "as their registries have them; to build some, name a registry: registry = … of the target"
        return Finding(name="images", text=f"pushed to {self._registry}" if self._registry else untold)

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
        """Stop watching; the jobs continue."""
        timer = self._kubernetes.hurry()
        super().close()
        self._kubernetes.close()
        timer.cancel()


def _for_engine(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """An engine asks the API server by the token of its service account, which pods of steps do not get."""
    patch = patched({"spec": {"automountServiceAccountToken": True}}, settings.get("pod_patch", {}))
    return {**settings, "pod_patch": patch}


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
