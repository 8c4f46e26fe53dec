"""A real registry with a password, on loopback: Debian's ``docker-registry``."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

USER, PASSWORD = "tester", 'a "pass"word: $1\\'
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

_CONFIGURATION = """
version: 0.1
log: {{level: info, formatter: text}}
storage:
  filesystem: {{rootdirectory: {folder}/data}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:0"}}
auth: {{htpasswd: {{realm: tests, path: {folder}/passwords}}}}
"""


@attrs.frozen
class LoopbackRegistry:
    """A registry that runs.

    Parameters
    ----------
    address
        ``127.0.0.1:43211``.
    folder
        Its data, and ``login/config.json``: the credentials, in the form of Docker's configuration.
    """

    address: str
    folder: Path

    @property
    def login(self) -> Path:
        """The folder for ``DOCKER_CONFIG``."""
        return self.folder / "login"

    def name(self, image: str) -> str:
        """The full name of an image here."""
        return f"{self.address}/{image}"

    def push(self, image: str, layers: Sequence[tuple[Path, str]], config: Mapping[str, Any]) -> str:
        """Put an image here, made of layers and their uncompressed digests; returns its digest."""
        repository, _, tag = image.partition(":")
        # Podman builds on no image whose history does not account for its layers.
        history = [{"created_by": "tests", "created": "2026-01-01T00:00:00Z"} for _ in layers]
        said = dict(config, rootfs={"type": "layers", "diff_ids": [plain for _, plain in layers]})
        said.setdefault("history", history)
        body = json.dumps(said).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, **self._upload(repository, body)},
            "layers": [
                {"mediaType": LAYER, **self._upload(repository, path.read_bytes())} for path, _ in layers
            ],
        }
        text = json.dumps(manifest).encode()
        self.ask("PUT", f"{repository}/manifests/{tag}", text, {"Content-Type": MANIFEST})
        return "sha256:" + hashlib.sha256(text).hexdigest()

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Any:
        """One request, logged in; the answer, whose body was not read yet."""
        url = path if path.startswith("http") else f"http://{self.address}/v2/{path}"
        secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(
            url, body, {**headers, "Authorization": f"Basic {secret}"}, method=method
        )
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)

    def _upload(self, repository: str, blob: bytes) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(blob).hexdigest()
        with self.ask("POST", f"{repository}/blobs/uploads/", b"") as answer:
            place = answer.headers["Location"]
        mark = "&" if "?" in place else "?"
        octets = {"Content-Type": "application/octet-stream"}
        self.ask("PUT", f"{place}{mark}digest={digest}", blob, octets).close()
        return {"size": len(blob), "digest": digest}


@contextmanager
def running(folder: Path) -> Iterator[LoopbackRegistry]:
    """A registry whose data are in a folder, while the block runs."""
    (folder / "login").mkdir(parents=True)
    passwords = ["htpasswd", "-niB", USER]
    said = subprocess.run(passwords, input=PASSWORD, capture_output=True, text=True, check=True).stdout
    (folder / "passwords").write_text(said)
    (folder / "config.yml").write_text(_CONFIGURATION.format(folder=folder))
    process = subprocess.Popen(
        [shutil.which("docker-registry") or "docker-registry", "serve", str(folder / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process:
        try:
            address = _address(process.stderr)
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            login = {"auths": {address: {"auth": secret}}}
            (folder / "login/config.json").write_text(json.dumps(login))
            yield LoopbackRegistry(address, folder)
        finally:
            process.terminate()
            process.wait()
            drain.join()


def _address(log: Any) -> str:
    """Where it listens: it says so once it does."""
    said = []
    for line in log:
        said.append(line)
        if "listening on " in line:
            return str(line.partition("listening on ")[2].split('"')[0].split(",")[0].strip())
    raise RuntimeError("docker-registry did not start:\n" + "".join(said))
