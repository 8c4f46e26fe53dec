"""The backend ``aws-batch``: a target's options, its images, and an engine in a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import attrs

from upshift.backends.base import Capabilities, Finding, Sink
from upshift.backends.batch.api import Api
from upshift.backends.batch.cluster import AwsBatch, soon
from upshift.backends.cluster import ClusterBackend
from upshift.backends.engines import Engines, Journey
from upshift.backends.scheduler import NotNow, Reach, options_of
from upshift.errors import BackendError, ConfigError
from upshift.model.configuration import Target
from upshift.model.settings.batch import BatchSettings
from upshift.model.spec import TaskSpec

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination


class BatchBackend(ClusterBackend):
    """Runs tasks as jobs of AWS Batch."""

    name: ClassVar[str] = "aws-batch"
    settings: ClassVar[type] = BatchSettings
    capabilities: Capabilities = Capabilities(
        fields=frozenset(
            {
                *("cpu_count", "memory", "disk", "shared_memory", "num_nodes"),
                *("gpu_count", "accelerator", "gpu_memory", "gpu_vendor"),
            }
        ),
        secrets=frozenset({"aws"}),
        images=True,
        remote=True,
        strict=True,
        buckets=True,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        own = ("image", "profile", "region")
        options = options_of(target, BatchSettings, own=(*own, "detach"))
        owner = f"target {target.name!r}"
        for name in own:
            if not isinstance(target.options.get(name, ""), str):
                raise ConfigError(
                    f"{owner}: {name} = {target.options[name]!r} is invalid", fix="Write a text."
                )
        if not store.startswith("s3://"):
            raise ConfigError(
                f"{owner}: its store is {store}",
                why="Jobs of AWS Batch hand on their results through a bucket in S3.",
                fix='Name one: store = "s3://BUCKET/PREFIX".',
            )
        self._target = target
        batch = AwsBatch(Api(target.options.get("region"), target.options.get("profile")))
        super().__init__(
            batch, name=self.name, store=store, sink=sink, options=options, arrays=batch, is_seen=True
        )
        self._batch_api = batch
        self.engines = Engines(
            target,
            batch,
            BatchSettings,
            options,
            private=False,
            seen=self._seen,
            journey=Journey(extras=("aws",)),
        )

    def _seen(self, target: Target) -> Target | None:
        """A target as an engine has it in a job: the role of that says who asks, and nothing says where."""
        if target.backend != self.name or target.options.get("profile") != self._target.options.get(
            "profile"
        ):
            return None
        options = {name: value for name, value in target.options.items() if name != "profile"}
        return attrs.evolve(target, options={"region": self._batch_api.api.region, **options})

    def reach(self, spec: TaskSpec) -> Reach:
        """The Python of its image, and nothing of this machine."""
        return Reach(python=spec.interpreter or "python3", bootstrap=True)

    def destination(self) -> Destination:
        """The registry of the target, for the machines of its queue."""
        from upshift.images.building.builder import Destination

        architectures = set()
        if self._options.get("queue"):
            queue = soon(lambda: self._batch_api.queue(self._options["queue"]))
            architectures = {one.architecture for one in queue.types}
        arm = architectures == {"arm64"}
        return Destination(
            platform=f"linux/{'arm64' if arm else 'amd64'}",
            registry=self._target.registry,
            parent=self._target.options.get("image"),
        )

    def findings(self) -> Iterator[Finding]:
        """The queue, its compute environments, the roles, and where images are."""
        try:
            yield from self._batch_api.findings(self._options)
        except NotNow as error:
            raise BackendError(str(error), fix="Try again in a moment.") from None
        registry = self._target.registry
        yield Finding(
            name="images",
            text=f"in {registry}"
            if registry
            else "no registry is named: steps run in images that are there already",
            status="ok" if registry else "warning",
            remedy=None if registry else 'Name one: registry = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME".',
        )
