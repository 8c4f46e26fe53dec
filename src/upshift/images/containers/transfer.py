"""Transfer of images into a container engine and out of it: :func:`pull`, :func:`push`, :func:`load`."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from upshift.errors import ImageError
from upshift.images.base import Progress, Tell, digest_of, layers_in, whole_id
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.images.registries.transport import may_lack_tls
from upshift.model.settings.sizes import format_size

_NOT_LET_IN = re.compile(r"unauthorized|authentication required|no basic auth|denied|access forbidden", re.I)
_BLOCK = 1 << 20


def tls_of(engine: ContainerEngine, registry: str) -> list[str]:
    """Options for a registry that may lack TLS; Docker's daemon has a setting of its own."""
    return ["--tls-verify=false"] if engine.name == PODMAN and may_lack_tls(registry) else []


def platform_of(engine: ContainerEngine, platform: str) -> list[str]:
    """Options for a platform, where it is another one than the engine's."""
    return [] if platform == engine.platform else ["--platform", platform]


def pull(engine: ContainerEngine, name: str, registry: str, platform: str, tell: Tell) -> None:
    options = [*tls_of(engine, registry), *platform_of(engine, platform)]
    _follow(engine, ["pull", *options, name], Progress(stage="pull", text=name), tell, registry)


def push(engine: ContainerEngine, name: str, registry: str, tell: Tell) -> None:
    _follow(
        engine, ["push", *tls_of(engine, registry), name], Progress(stage="push", text=name), tell, registry
    )


def _follow(engine: ContainerEngine, args: Sequence[str], first: Progress, tell: Tell, registry: str) -> None:
    told = [first]
    tell(first)

    def on_line(line: str) -> None:
        if line.strip():
            told[0] = Progress(stage=first.stage, text=line.strip())
            tell(told[0])

    status, last = engine.stream(args, on_line, idle=lambda: tell(told[0]))
    if status == 0:
        return
    engine.check()
    said = "\n".join(last)
    error = engine.failure(args, said)
    if error.fix is not None:
        raise error
    what = f"{registry} does not {'give' if first.stage == 'pull' else 'take'} {first.text}"
    if _NOT_LET_IN.search(said):
        raise ImageError(
            f"{what}: it wants other credentials",
            why=error.why,
            fix=f"Log in: {engine.name} login {registry}",
        )
    raise ImageError(what, why=error.why)


@attrs.frozen(kw_only=True)
class Composed:
    """An image's manifest and configuration, as they are stored, with the configuration's digest."""

    manifest: bytes = attrs.field(repr=False)
    media_type: str
    config: bytes = attrs.field(repr=False)
    config_digest: str


@attrs.frozen(kw_only=True)
class ImageToLoad:
    """A new image on top of one that an engine has."""

    parent: str  # what the engine calls the image below
    composed: Composed
    layers: Mapping[str, Path]  # files with the layers that the engine lacks, by digest
    name: str  # what the image is called: `upshift:upshift-0123…`


def load(engine: ContainerEngine, image: ImageToLoad, folder: Path, tell: Tell) -> str:
    """Load layers on top of an image that an engine has; returns the id of the new image.

    Engines take an archive without the layers that they have. One that does not gets all layers, from its own
    copy of the parent.
    """
    size = sum(file.stat().st_size for file in image.layers.values())
    tell(Progress(stage="load", text=f"{format_size(size)} into {engine.title}", done=0, total=size))
    problem = (
        _loaded_by_podman(engine, image, folder) if engine.name == PODMAN else _sent(engine, image, {}, tell)
    )
    identity = None if problem else _identity(engine, image)
    if identity is None:
        with _layers_of(engine, image.parent, folder) as below:
            problem = _sent(engine, image, below, tell)
        identity = None if problem else _identity(engine, image)
    if identity is None:
        raise engine.failure(
            ["load"], problem or f"{engine.title} has taken {image.name}, and does not have it"
        )
    return identity


def _identity(engine: ContainerEngine, image: ImageToLoad) -> str | None:
    """The id of the image of this name, if it has these layers."""
    said = engine.describe(image.name)
    if said is None:
        return None
    wanted = json.loads(image.composed.config)["rootfs"]["diff_ids"]
    if layers_in(said) != wanted:
        return None
    return whole_id(said)


def _sent(engine: ContainerEngine, image: ImageToLoad, below: Mapping[str, Path], tell: Tell) -> str | None:
    """Load an archive in Docker's and OCI's formats at once; returns the engine's complaint."""
    total = sum(file.stat().st_size for file in image.layers.values())
    process = subprocess.Popen(
        [*engine.command, "load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdin is not None
    done = 0

    def told(number: int) -> None:
        nonlocal done
        done += number
        tell(Progress(stage="load", text=f"{format_size(total)} into {engine.title}", done=done, total=total))

    try:
        with contextlib.suppress(BrokenPipeError):
            _write(process.stdin, image, below, told)
            process.stdin.close()
        process.stdin = None
        said = process.communicate()[0].decode(errors="replace")
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
    return (said.strip() or f"exit code {process.returncode}") if process.returncode else None


def _write(
    stream: IO[bytes], image: ImageToLoad, below: Mapping[str, Path], told: Callable[[int], None]
) -> None:
    """Write an archive with the documents of both formats, and the layers."""
    with tarfile.open(fileobj=stream, mode="w|", bufsize=_BLOCK) as archive:
        for path, content in _documents(image).items():
            _add(archive, path, io.BytesIO(content), len(content))
        for digest, file in (*below.items(), *image.layers.items()):
            with file.open("rb") as opened:
                _add(archive, _blob(digest), _Counted(opened, told), file.stat().st_size)


def _documents(image: ImageToLoad) -> dict[str, bytes]:
    """All of an archive but its layers: each of the two formats has its own table of contents."""
    config, manifest = _blob(image.composed.config_digest), json.loads(image.composed.manifest)
    layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
    of_docker = [{"Config": config, "RepoTags": [image.name], "Layers": layers}]
    return {
        config: image.composed.config,
        _blob(digest_of(image.composed.manifest)): image.composed.manifest,
        "manifest.json": json.dumps(of_docker).encode(),
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(_index(image)).encode(),
    }


def _index(image: ImageToLoad) -> dict[str, Any]:
    full = image.name if "/" in image.name else f"docker.io/library/{image.name}"
    entry = {
        "mediaType": image.composed.media_type,
        "digest": digest_of(image.composed.manifest),
        "size": len(image.composed.manifest),
        "annotations": {
            "io.containerd.image.name": full,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        },
    }
    return {"schemaVersion": 2, "manifests": [entry]}


def _loaded_by_podman(engine: ContainerEngine, image: ImageToLoad, folder: Path) -> str | None:
    """Load by ``podman pull oci:FOLDER``: Podman loads no archive without the layers that it has."""
    layout = folder / f"load-{image.composed.config_digest[-12:]}"
    for path, content in _documents(image).items():
        if path != "manifest.json":
            (layout / path).parent.mkdir(parents=True, exist_ok=True)
            (layout / path).write_bytes(content)
    for digest, file in image.layers.items():
        (layout / _blob(digest)).symlink_to(file)
    answer = engine.run(["pull", "--quiet", f"oci:{layout}"], check=False)
    if answer.returncode:
        return answer.stderr
    identity = answer.stdout.split()[-1]
    engine.run(["tag", identity, image.name])
    named = (engine.describe(identity) or {}).get("RepoTags") or ()
    for name in named:  # Podman calls it after the folder, in full or by its last part
        if f"/{layout.name}:" in name:
            engine.run(["untag", identity, name], check=False)
    return None


@contextlib.contextmanager
def _layers_of(engine: ContainerEngine, parent: str, folder: Path) -> Iterator[dict[str, Path]]:
    """The layers of an image that an engine has, as files, by digest of what they hold."""
    saved, unpacked = folder / "parent.tar", folder / "parent"
    engine.run(["save", "--output", str(saved), parent])
    with tarfile.open(saved) as archive:
        table = archive.extractfile("manifest.json")
        assert table is not None
        said = json.load(table)[0]
        text = archive.extractfile(said["Config"])
        assert text is not None
        ids = json.load(text)["rootfs"]["diff_ids"]
        unpacked.mkdir()
        found = {}
        for digest, path in zip(ids, said["Layers"], strict=True):
            content = archive.extractfile(path)
            assert content is not None
            found[digest] = unpacked / digest.partition(":")[2]
            with found[digest].open("wb") as out:
                while block := content.read(_BLOCK):
                    out.write(block)
    saved.unlink()
    yield found


def _add(archive: tarfile.TarFile, path: str, content: IO[bytes] | _Counted, size: int) -> None:
    header = tarfile.TarInfo(path)
    header.size = size
    archive.addfile(header, content)


class _Counted:
    """A file that reports how much of it was read."""

    def __init__(self, file: IO[bytes], told: Callable[[int], None]) -> None:
        self._file = file
        self._told = told

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._told(len(block))
        return block


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"
