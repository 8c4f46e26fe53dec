"""What tests with real engines make images of, and wait for."""

from __future__ import annotations

import gzip
import hashlib
import io
import platform
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import base_image
import pytest
from registries import LoopbackRegistry

from upshift import DockerSettings
from upshift.errors import ImageError
from upshift.images.base import Image, Needs, Progress
from upshift.images.building.builder import Destination
from upshift.images.containers.engine import ContainerEngine
from upshift.images.preparing import Prepared, Preparer
from upshift.images.registries.client import Registries

SESSION_LABEL = "dev.upshift.tests"
ARCHITECTURE = {"aarch64": "arm64"}.get(platform.machine(), "amd64")


@contextmanager
def containers_removed(engine: ContainerEngine, session: str) -> Iterator[None]:
    """What the block left running, Docker's daemon removes by itself: it is gone after the block."""
    since = (
        engine.run(["info", "--format", "{{.SystemTime}}"]).stdout.strip() if engine.name == "docker" else ""
    )
    yield
    if not since:
        return
    label = f"label={SESSION_LABEL}={session}"
    left = set(engine.run(["ps", "--all", "--quiet", "--no-trunc", "--filter", label]).stdout.split())

    class Gone(Exception):
        pass

    def on_line(line: str) -> None:
        left.discard(line.strip())
        if not left:
            raise Gone

    if left:
        try:
            engine.stream(
                ["events", "--since", since, "--filter", "event=destroy", "--format", "{{.ID}}"], on_line
            )
        except Gone:
            return
        raise AssertionError(f"the daemon has gone, and has left {left}")


@attrs.frozen
class ImageMaker:
    """Makes images of the base image's layer, with this session's label, in the session's registry."""

    registry: LoopbackRegistry
    layer: Path
    plain: str
    session: str

    def push(
        self,
        image: str,
        *,
        environment: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        architecture: str = ARCHITECTURE,
        files: Mapping[str, str] | None = None,
        layers: tuple[tuple[Path, str], ...] = (),
        **config: object,
    ) -> str:
        """Push one; returns its full name.

        ``files`` are one more layer: path to text. ``config`` is more of the configuration: ``User="1000"``.
        """
        if files:
            layers = (*layers, self._layer(files))
        said = {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Env": [f"{k}={v}" for k, v in {**base_image.ENVIRONMENT, **(environment or {})}.items()],
                "Labels": {SESSION_LABEL: self.session, **(labels or {})},
                "Cmd": ["python3"],
                **config,
            },
        }
        self.registry.push(image, [(self.layer, self.plain), *layers], said)
        name: str = self.registry.name(image)
        return name

    def _layer(self, files: Mapping[str, str]) -> tuple[Path, str]:
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            for path, text in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        digest = hashlib.sha256(plain.getvalue()).hexdigest()
        packed = self.registry.folder / f"{digest}.tar.gz"
        packed.write_bytes(gzip.compress(plain.getvalue(), mtime=0))
        return packed, f"sha256:{digest}"


@attrs.frozen
class Workshop:
    """Prepares images of the settings of a step, and makes them, as a run does."""

    destination: Destination
    registries: Registries
    parent: str
    project: Path
    name: str
    told: list[Progress] = attrs.field(factory=list)

    @property
    def engine(self) -> ContainerEngine:
        assert self.destination.engine is not None
        return self.destination.engine

    def prepared(self, **said: Any) -> Prepared:
        """With a variable of this test: Docker's two builders share the images."""
        if "dockerfile" not in said:
            said = {"parent_image": self.parent, **said}
        if not said.get("skip_build"):
            said["environment"] = {"TEST": self.name, **said.get("environment", {})}
        preparer = Preparer(self.destination, self.registries, builds=True)
        return preparer.prepare(DockerSettings(**said), Needs(), project=self.project, origins={})

    def build(self, **said: Any) -> Image:
        """A new image, which is found from then on."""
        prepared = self.prepared(**said)
        assert (prepared.image, prepared.errors) == (None, ())
        made = prepared.make(self.told.append)
        again = self.prepared(**said)
        assert again.image is not None and again.image.reference == made.reference
        assert (again.digest, again.lock, again.builds) == (prepared.digest, prepared.lock, False)
        return made

    def fails(self, **said: Any) -> ImageError:
        """Why there is no such image."""
        with pytest.raises(ImageError) as caught:
            self.prepared(**said).make(self.told.append)
        assert self.prepared(**said).image is None
        return caught.value

    def pull(self) -> None:
        """Have the engine get the parent."""
        options = ["--tls-verify=false"] if self.engine.name == "podman" else []
        self.engine.run(["pull", *options, self.parent])

    def run(self, image: Image, *command: str) -> str:
        return self.engine.run(["run", "--rm", image.reference, *command]).stdout

    def python(self, image: Image, code: str) -> str:
        """What code prints, by the interpreter that a task runs with, as somebody else than root."""
        assert image.interpreter is not None
        command = ["run", "--rm", "--user", "1234:1234", image.reference, image.interpreter, "-c", code]
        return self.engine.run(command).stdout
