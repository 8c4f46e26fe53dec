"""The backend ``aws-batch``: a target's options, its images, and an engine in a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from upshift.backends.base import DEVICES, Capabilities, Finding, Sink
from upshift.backends.batch.api import Api
from upshift.backends.batch.cluster import AwsBatch, soon
from upshift.backends.cluster import ClusterBackend
from upshift.backends.engines import Engines, Journey
from upshift.backends.registry import options_of, text_option
from upshift.backends.scheduler import Reach
from upshift.errors import ConfigError
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
        fields=DEVICES | {"cpu_count", "memory", "disk", "shared_memory", "num_nodes"},
        secrets=frozenset({"aws"}),
        images=True,
        buckets=True,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        options = options_of(target, BatchSettings, own=("image", "profile", "region", "detach"))
        self._image, self._profile = text_option(target, "image"), text_option(target, "profile")
        if not store.startswith("s3://"):
            raise ConfigError(
                f"target {target.name!r}: its store is {store}",
                why="Jobs of AWS Batch hand on their results through a bucket in S3.",
                fix='Name one: store = "s3://BUCKET/PREFIX".',
            )
        self._registry = target.registry
        batch = AwsBatch(Api(text_option(target, "region"), self._profile))
        super().__init__(
            batch, name=self.name, store=store, sink=sink, options=options, arrays=batch, is_seen=True
        )
        self._batch = batch
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
        if target.backend != self.name or target.options.get("profile") != self._profile:
            return None
        options = {name: value for name, value in target.options.items() if name != "profile"}
        return attrs.evolve(target, options={"region": self._batch.api.region, **options})

    def reach(self, spec: TaskSpec) -> Reach:
        """The Python of its image, and nothing of this machine."""
        return Reach(python=spec.interpreter or "python3", bootstrap=True)

    def destination(self) -> Destination:
        """The registry of the target, for the machines of its queue."""
        from upshift.images.building.builder import Destination

        architectures = set()
        if self._options.get("queue"):
            queue = soon(lambda: self._batch.queue(self._options["queue"]))
            architectures = {one.architecture for one in queue.types}
        arm = architectures == {"arm64"}
        return Destination(
            platform=f"linux/{'arm64' if arm else 'amd64'}",
            registry=self._registry,
            parent=self._image,
        )

    def images(self) -> Finding:
        """Where images are."""
        if self._registry:
            return Finding(name="images", text=f"in {self._registry}")
        return Finding(
            name="images",
            text="no registry is named: steps run in images that are there already",
            status="warning",
            remedy='Name one: registry = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME".',
        )
