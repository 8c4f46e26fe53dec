"""Getting blobs into a repository of a registry, several at once: :class:`Push`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.images.base import Parent, Progress, Tell
from upshift.images.daemonless.layers import Layer
from upshift.images.reference import Reference
from upshift.model.settings.sizes import format_size

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries

_AT_ONCE = 4


class _Ended(Exception):
    """The building has ended otherwise; nobody sees this."""


class Helpers:
    """Threads that work on one image. When it is left by an error, what they do ends at its next word."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="image")
        self._started: list[Future[Any]] = []
        self._ended = False

    def start(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Do something meanwhile."""
        future = self._pool.submit(work, *args)
        self._started.append(future)
        return future

    def settle(self) -> None:
        """Wait until all of it is done; raises what one of them raised."""
        for started in self._started:
            started.result()

    def watched(self, tell: Tell) -> Tell:
        """Progress, that ends who tells it once nobody wants the image any more, or one of them failed."""

        def told(progress: Progress) -> None:
            if self._ended:
                raise _Ended
            for started in self._started:
                if started.done():
                    started.result()  # raises what it raised: the rest is for nothing
            tell(progress)

        return told

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended = error is not None
        self._pool.shutdown(cancel_futures=True)


class Push:
    """Puts blobs into one repository, unless it has them.

    Parameters
    ----------
    registries, repository
        Where.
    helpers
        What works meanwhile.
    folder
        Where the parent's layers are on their way.
    tell
        Takes progress.
    """

    def __init__(
        self, registries: Registries, repository: Reference, helpers: Helpers, folder: Path, tell: Tell
    ) -> None:
        self._registries = registries
        self._folder = folder
        self.repository = repository
        self.helpers = helpers
        self.tell: Tell = helpers.watched(tell)

    def has(self, digest: str, places: Sequence[str] = ()) -> bool:
        """Whether the repository has a blob, or gets it from another one of its registry."""
        if self._registries.has_blob(self.repository, digest):
            return True
        sources = [Reference.parse(place) for place in reversed(places) if place != self.repository.name]
        return any(
            self._registries.mount_blob(self.repository, digest, source)
            for source in sources
            if source.registry == self.repository.registry
        )

    def layer(self, layer: Layer, file: Path, what: str) -> None:
        """Push a layer, and remove its file."""
        if not self.has(layer.digest):
            text = f"{what}, {format_size(layer.bytes)}"
            self._registries.upload_blob(self.repository, file, layer.digest, tell=self.tell, text=text)
        file.unlink()

    def parents(self, parent: Parent, blob: tuple[str, int]) -> None:
        """Bring a layer of the parent; what is elsewhere is passed on, and kept on no disk for long."""
        digest, size = blob
        if self.has(digest, [parent.reference.name]):
            return
        text = f"a layer of {parent.reference}, {format_size(size)}"
        file = self._folder / digest.partition(":")[2]
        with open(file, "xb") as opened:
            done = 0
            for block in self._registries.blob(parent.reference, digest):
                opened.write(block)
                done += len(block)
                self.tell(Progress(stage="pull", text=text, done=done, total=size))
        self._registries.upload_blob(self.repository, file, digest, tell=self.tell, text=text)
        file.unlink()
