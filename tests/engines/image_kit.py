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

import attrs
import base_image
from registries import LoopbackRegistry

from upshift.images.containers.engine import ContainerEngine

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
