"""An image registry in memory that does what a test tells it: wants a login, loses connections, says nothing.

::

    with StandInRegistry() as registry:
        image = registry.add("ml/base", "1")
        registry.goes_wrong("GET", "/manifests/", status=500, times=2)
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import socket
import ssl
import tarfile
import threading
from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@attrs.define(kw_only=True)
class Fault:
    """What goes wrong with requests whose method and path fit.

    ``status``: that is the answer, with ``body``. ``cut``: the answer ends after so many bytes of its body.
    ``silent``: there is none until the registry ends. ``lose``: the connection is closed once so many bytes
    of the request's body have arrived; ``keep`` says whether these are kept. ``drip``: the ``"head"`` or the
    ``"body"`` of the answer comes byte by byte, with ``pause`` seconds between.
    """

    method: str
    path: str
    times: int
    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    cut: int | None = None
    silent: bool = False
    drip: str | None = None
    pause: float = 0.02
    lose: int | None = None
    keep: bool = True


@attrs.frozen
class Seen:
    """A request that arrived."""

    method: str
    path: str
    headers: Mapping[str, str]


class StandInRegistry:
    """The registry; ``name`` is its address for a reference.

    Parameters
    ----------
    login
        User and password that it wants.
    bearer
        Whether the login is to be exchanged for a token first.
    ranges
        Whether a part of a blob can be asked for.
    tag_deletion
        Whether a tag can be removed without its image.
    tls
        Certificate and key to speak https with.
    port
        Where it listens; 0: anywhere.
    """

    def __init__(
        self,
        *,
        login: tuple[str, str] | None = None,
        bearer: bool = False,
        ranges: bool = True,
        tag_deletion: bool = False,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.login = login
        self.bearer = bearer
        self.ranges = ranges
        self.tag_deletion = tag_deletion
        self.tls = tls
        self.port = port
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.seen: list[Seen] = []
        self.page = 1000
        self.faults: list[Fault] = []
        self.ending = threading.Event()
        self.lock = threading.RLock()

    def __enter__(self) -> StandInRegistry:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.registry = self
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.name = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def goes_wrong(self, method: str, path: str, *, times: int = 1, **what: Any) -> None:
        """Have something go wrong with the next requests of this method whose path has this in it."""
        self.faults.append(Fault(method=method, path=path, times=times, **what))

    def add_blob(self, repository: str, content: bytes) -> str:
        digest = digest_of(content)
        self.blobs[repository, digest] = content
        return digest

    def add_manifest(self, repository: str, reference: str, kind: str, content: Mapping[str, Any]) -> str:
        body = json.dumps(content).encode()
        digest = digest_of(body)
        self.manifests[repository, reference] = self.manifests[repository, digest] = (kind, body)
        return digest

    def add(
        self,
        repository: str,
        tag: str,
        *,
        architecture: str = "amd64",
        config: Mapping[str, Any] | None = None,
        layers: tuple[bytes, ...] = (b"a layer",),
    ) -> str:
        """An image; returns its digest."""
        described = {"architecture": architecture, "os": "linux", "config": dict(config or {})}
        content = json.dumps(described).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": OCI_CONFIG,
                "digest": self.add_blob(repository, content),
                "size": len(content),
            },
            "layers": [
                {"mediaType": OCI_LAYER, "digest": self.add_blob(repository, layer), "size": len(layer)}
                for layer in layers
            ],
        }
        return self.add_manifest(repository, tag, OCI_MANIFEST, manifest)

    def asked(self, method: str, path: str = "") -> list[Seen]:
        """The requests of this method whose path has this in it."""
        return [seen for seen in self.seen if seen.method == method and path in seen.path]

    def tags(self, repository: str) -> list[str]:
        return sorted(tag for name, tag in self.manifests if name == repository and ":" not in tag)


def layer_with_python() -> bytes:
    """What is looked at to see that an image has a Python."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in ("usr/local/bin/python3", "usr/local/lib/python3.11/os.py"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return content.getvalue()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    registry: StandInRegistry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has had enough is no error of the test."""


def _titled(headers: Message) -> dict[str, str]:
    return {name.title(): value for name, value in headers.items()}


class _Lost(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is more than one packet
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        pass

    @property
    def registry(self) -> StandInRegistry:
        server = self.server
        assert isinstance(server, _Server)
        return server.registry

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (_Lost, ConnectionError, ssl.SSLError, TimeoutError):
            self.close_connection = True

    def do_any(self) -> None:
        registry = self.registry
        with registry.lock:
            registry.seen.append(Seen(self.command, self.path, _titled(self.headers)))
            fault = next(
                (
                    fault
                    for fault in registry.faults
                    if fault.times and fault.method == self.command and fault.path in self.path
                ),
                None,
            )
            if fault is not None:
                fault.times -= 1
        self.cut = fault.cut if fault else None
        self.drip = fault if fault is not None and fault.drip else None
        if fault is not None and fault.silent:
            registry.ending.wait()
            raise _Lost
        if fault is not None and fault.lose is not None:
            part = self.rfile.read(fault.lose)
            uuid = urlsplit(self.path).path.rpartition("/")[2]
            if fault.keep and uuid in registry.uploads:
                registry.uploads[uuid] += part
            self.connection.shutdown(socket.SHUT_RDWR)
            raise _Lost
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault is not None and fault.status is not None:
            return self.answer(fault.status, fault.body, fault.headers)
        self.routed(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_any  # noqa: N815

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        if self.cut == 0:  # all is done, and nobody learns of it
            self.connection.shutdown(socket.SHUT_RDWR)
            raise _Lost
        if self.drip is not None and self.drip.drip == "head":
            self.drop_by_drop(b"HTTP/1.1 200 OK\r\nX-Much: " + b"x" * 9999, self.drip.pause)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.drip is not None:
            self.drop_by_drop(body, self.drip.pause)
        if self.command == "HEAD":
            return
        self.wfile.write(body if self.cut is None else body[: self.cut])
        if self.cut is not None and self.cut < len(body):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            raise _Lost

    def drop_by_drop(self, content: bytes, pause: float) -> None:
        for byte in content:
            self.wfile.write(bytes((byte,)))
            self.wfile.flush()
            if self.registry.ending.wait(pause):
                break
        raise _Lost

    def says(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps({"errors": [{"code": code, "message": message, "detail": None}]}).encode()
        self.answer(status, body, {"Content-Type": "application/json", **(headers or {})})

    def routed(self, body: bytes) -> None:
        registry = self.registry
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/token":
            return self.token(body)
        if registry.login is not None and not self.allowed():
            scheme = 'Basic realm="stand-in"'
            if registry.bearer:
                scheme = f'Bearer realm="http://{registry.name}/token",service="stand-in"'
            return self.says(401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": scheme})
        if parts.path == "/v2/":
            return self.answer(200, b"{}")
        place = re.fullmatch(r"/v2/(.+)/(manifests|blobs|tags)/(.*)", parts.path)
        if place is None:
            return self.says(404, "NAME_UNKNOWN", "repository name not known")
        upload = re.fullmatch(r"/v2/(.+)/blobs/uploads/(.*)", parts.path)
        with registry.lock:
            if upload:
                self.upload(upload[1], upload[2], query, body)
            elif place[2] == "tags":
                self.tags(place[1], query)
            elif place[2] == "blobs":
                self.blob(place[1], place[3])
            else:
                self.manifest(place[1], place[3], body)

    def allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.registry.bearer:
            return given.removeprefix("Bearer ") in self.registry.tokens
        return given == self.basic()

    def basic(self) -> str:
        user, password = self.registry.login or ("", "")
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def token(self, body: bytes) -> None:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        secret = (self.registry.login or ("", ""))[1]
        if self.headers.get("Authorization") != self.basic() and form.get("refresh_token") != secret:
            return self.answer(401, b'{"details": "incorrect username or password"}')
        token = f"token-{len(self.registry.seen)}"
        self.registry.tokens.add(token)
        self.answer(200, json.dumps({"token": token, "expires_in": 300}).encode())

    def blob(self, repository: str, digest: str) -> None:
        content = self.registry.blobs.get((repository, digest))
        if content is None:
            return self.says(404, "BLOB_UNKNOWN", "blob unknown to registry")
        part = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
        if part and self.registry.ranges:
            return self.answer(206, content[int(part[1]) :])
        self.answer(200, content)

    def manifest(self, repository: str, reference: str, body: bytes) -> None:
        manifests = self.registry.manifests
        if self.command == "PUT":
            document = json.loads(body)
            needed = [document["config"]["digest"], *(layer["digest"] for layer in document["layers"])]
            if not all((repository, digest) in self.registry.blobs for digest in needed):
                return self.says(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry")
            digest, kind = digest_of(body), self.headers["Content-Type"]
            manifests[repository, reference] = manifests[repository, digest] = (kind, body)
            return self.answer(201, headers={"Docker-Content-Digest": digest})
        if (repository, reference) not in manifests:
            return self.says(404, "MANIFEST_UNKNOWN", "manifest unknown")
        kind, content = manifests[repository, reference]
        if self.command == "DELETE":
            if ":" not in reference and not self.registry.tag_deletion:
                return self.says(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
            gone = [key for key, value in manifests.items() if key[0] == repository and value[1] == content]
            for key in [(repository, reference)] if ":" not in reference else gone:
                del manifests[key]
            return self.answer(202)
        self.answer(200, content, {"Content-Type": kind, "Docker-Content-Digest": digest_of(content)})

    def tags(self, repository: str, query: Mapping[str, str]) -> None:
        there = self.registry.tags(repository)
        if not there and not any(name == repository for name, _ in self.registry.blobs):
            return self.says(404, "NAME_UNKNOWN", "repository name not known to registry")
        rest = [tag for tag in there if tag > query.get("last", "")]
        page, more = rest[: self.registry.page], rest[self.registry.page :]
        link = f'</v2/{repository}/tags/list?last={page[-1]}&n=1000>; rel="next"' if more else None
        body = json.dumps({"name": repository, "tags": page}).encode()
        self.answer(200, body, {"Link": link} if link else {})

    def upload(self, repository: str, uuid: str, query: Mapping[str, str], body: bytes) -> None:
        registry = self.registry
        if self.command == "POST":
            source = registry.blobs.get((query.get("from", ""), query.get("mount", "")))
            if source is not None:
                registry.add_blob(repository, source)
                return self.answer(201)
            uuid = f"upload-{len(registry.seen)}"
            registry.uploads[uuid] = b""
            return self.answer(202, headers={"Location": f"/v2/{repository}/blobs/uploads/{uuid}?_state=x"})
        if uuid not in registry.uploads:
            return self.says(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        if self.command == "DELETE":
            del registry.uploads[uuid]
            return self.answer(204)
        if self.command == "GET":
            kept = max(0, len(registry.uploads[uuid]) - 1)
            return self.answer(204, headers={"Range": f"0-{kept}", "Location": urlsplit(self.path).path})
        begin = int(self.headers.get("Content-Range", "0-").partition("-")[0])
        if begin != len(registry.uploads[uuid]):
            return self.says(416, "BLOB_UPLOAD_INVALID", "upload resumed at wrong offset")
        content = registry.uploads.pop(uuid) + body
        if digest_of(content) != query.get("digest"):
            return self.says(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        registry.add_blob(repository, content)
        self.answer(201)
