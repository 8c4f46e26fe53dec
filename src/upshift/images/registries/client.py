"""Image registries, by the protocol of Docker and OCI: :class:`Registries`.

A blob on its way into a registry is begun, sent, and finished by its digest. Before that it is nowhere::

    POST /v2/NAME/blobs/uploads/ ──▶ 202 Location ──▶ PUT Location?digest=… with the content ──▶ 201
                                          │   the connection is lost
                                          └──▶ GET Location ──▶ Range: 0-N ──▶ PUT the rest, or begin again

https://github.com/opencontainers/distribution-spec/blob/main/spec.md, version 1.1, read in November 2026
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

import attrs

from upshift.errors import ImageError
from upshift.images.base import Parent, Progress, Reference, Tell, digest_of, is_digest
from upshift.images.registries.answers import (
    ACCEPT,
    chosen,
    configuration_of,
    damaged,
    document_of,
    hasher_of,
    is_index,
    keeps_everything,
    missing,
    parent_of,
    refuse_other,
    told,
    unexpected,
)
from upshift.images.registries.credentials import RegistryCredentials
from upshift.images.registries.session import LoginNeeded, Scope, Session
from upshift.images.registries.transport import (
    LARGEST,
    LOST,
    REFUSED,
    SLOW,
    TIMEOUT,
    NoAnswer,
    RegistryAnswer,
    RegistryTransport,
    joined,
)
from upshift.model.configuration import load_configuration

_DIGEST_HEADER = "Docker-Content-Digest"
_BREAKS = 5
"""How often in a row the reading of a blob may break before it has got on by :data:`_PROGRESS` bytes."""
_PROGRESS = 1 << 20

_TRIES = 4
# Who is not there for a moment may be starting again; who says nothing twice is not asked for ever.
_TRIES_AFTER = {LOST: _TRIES, REFUSED: _TRIES, SLOW: 2}
_THERE = frozenset({200, 302, 303, 307})
_SLOWEST_STORAGE = 10_000_000
"""Bytes a second at which a registry may move a blob to its place before it says that it has it."""
_WORTH_ANOTHER_TRY = frozenset({404, 408, 416, 429, 500, 502, 503, 504})  # 404, 416: it lost what it had


class Registries:
    """All registries, read and written with the logins of this user. Threads may share it.

    ::

        with Registries() as registries:
            parent = registries.parent(Reference.parse("python:3.11-slim"), "linux/amd64")

    Every method raises :class:`~upshift.errors.ImageError` where the registry cannot be reached, is slow or
    in trouble, wants a login, or talks nonsense. What is asked for by a digest, or comes with one, is
    compared with it.

    Raises MissingExtra: urllib3 is not installed.
    """

    def __init__(
        self,
        *,
        credentials: RegistryCredentials | None = None,
        timeout: float = TIMEOUT,
        insecure: Collection[str] | None = None,
        transport: RegistryTransport | None = None,
    ) -> None:
        self._transport = transport or RegistryTransport(timeout=timeout)
        self._credentials = credentials or RegistryCredentials()
        names = load_configuration().insecure_registries if insecure is None else insecure
        self._insecure = frozenset(name.lower() for name in names)
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Registries:
        return self

    def __exit__(self, *error: object) -> None:
        self._transport.close()

    def parent(self, reference: Reference, platform: str) -> Parent:
        """What an image is, for one platform. Its manifest and configuration are read, none of its layers."""
        what = f"{reference.brief} cannot be read"
        with told(what, reference):
            digest, manifest = self._manifest(what, reference, reference.version)
            if is_index(manifest):
                own = chosen(reference, manifest, platform)
                digest, manifest = self._manifest(what, reference, own)
            config = self._configuration(what, reference, manifest)
        return parent_of(reference, digest, platform, manifest, config)

    def manifest(self, reference: Reference) -> tuple[str, dict[str, Any]]:
        """The digest and the text of what a name stands for: an image, or a list of images."""
        what = f"{reference.brief} cannot be read"
        with told(what, reference):
            return self._manifest(what, reference, reference.version)

    def digest(self, reference: Reference) -> str | None:
        """The digest of what a name stands for now, an image or a list of them; None: it is not there."""
        what = f"{reference.brief} cannot be read"
        with told(what, reference):
            answer = self._ask("HEAD", reference, f"manifests/{reference.version}", headers=ACCEPT)
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise unexpected(what, reference, answer)
            stated = reference.digest or answer.headers.get(_DIGEST_HEADER)
            return stated if is_digest(stated) else self._manifest(what, reference, reference.version)[0]

    def blob(self, reference: Reference, digest: str) -> Iterator[bytes]:
        """A blob of an image's repository, in blocks as they arrive; goes on where a connection breaks.

        What was yielded counts only once the iteration has ended without an error: the digest is known at the
        end.
        """
        what = f"{digest[:19]}… of {reference.brief} cannot be read"
        hasher = hasher_of(what, digest)
        got, breaks, last_break = 0, 0, 0
        with told(what, reference):
            while True:
                try:
                    for block in self._blob_from(what, reference, digest, got):
                        hasher.update(block)
                        got += len(block)
                        yield block
                    break
                except NoAnswer as error:
                    breaks = breaks + 1 if got - last_break < _PROGRESS else 1
                    last_break = got
                    passes = error.kind in (LOST, SLOW) or (error.kind == REFUSED and got > 0)
                    if not passes or breaks >= _BREAKS:
                        raise
                    self._transport.pause(breaks)
        if f"{hasher.name}:{hasher.hexdigest()}" != digest:
            raise damaged(what, reference)

    def has_blob(self, reference: Reference, digest: str) -> bool:
        what = f"{digest[:19]}… of {reference.name} cannot be looked up"
        with told(what, reference):
            answer = self._ask("HEAD", reference, f"blobs/{digest}", follow=False)
            if answer.status not in (200, 302, 303, 307, 404):
                raise unexpected(what, reference, answer)
            return answer.status != 404  # or else it says where it keeps it

    def mount_blob(self, reference: Reference, digest: str, source: Reference) -> bool:
        """Have the registry take a blob over from another of its repositories, without a byte sent."""
        if source.registry != reference.registry:
            return False
        upload = self._upload(reference, f"{digest[:19]}… cannot be taken over into {reference.name}")
        with told(upload.what, reference):
            return upload.mount(digest, source.repository)

    def upload_blob(
        self,
        reference: Reference,
        content: Path | bytes,
        digest: str,
        *,
        tell: Tell | None = None,
        text: str | None = None,
    ) -> None:
        """Put a blob into a repository; goes on, or starts again, where a connection breaks."""
        upload = self._upload(reference, f"nothing can be pushed to {reference.name}")
        with told(upload.what, reference):
            upload.put(content, digest, tell=tell, text=text or digest[:19])

    def put_manifest(self, reference: Reference, body: bytes, media_type: str) -> str:
        """Give an image its name. Last of all: whoever sees the name gets all of the image."""
        what = f"{reference.brief} cannot be pushed"
        digest = digest_of(body)
        with told(what, reference):
            answer = self._ask(
                "PUT",
                reference,
                f"manifests/{reference.version}",
                actions="pull,push",
                headers={"Content-Type": media_type},
                body=body,
            )
        if answer.status not in (200, 201, 202):
            raise unexpected(what, reference, answer)
        refuse_other(what, reference, body, answer.headers.get(_DIGEST_HEADER, digest))
        return digest

    def tags(self, reference: Reference) -> list[str]:
        """The tags of a repository, in order; empty where it does not exist."""
        what = f"the tags of {reference.name} cannot be read"
        found, path = list[str](), "tags/list?n=1000"
        seen = set[str]()
        with told(what, reference):
            while path not in seen:  # a registry that gives the same page for ever does not keep anybody
                seen.add(path)
                answer = self._ask("GET", reference, path)
                if answer.status == 404:
                    break
                if answer.status != 200:
                    raise unexpected(what, reference, answer)
                page = document_of(what, reference, answer.body).get("tags")
                found += [tag for tag in page if isinstance(tag, str)] if isinstance(page, list) else []
                following = re.match(r"\s*<([^>]+)>", answer.headers.get("Link", ""))
                if not following:
                    break
                path = following[1]
        return sorted(set(found))

    def delete(self, reference: Reference) -> None:
        """Remove a tag; where the registry can remove whole images only, the image with all its tags.

        What is not there is removed already.
        """
        what = f"{reference.brief} cannot be removed"
        with told(what, reference):
            answer = self._ask("DELETE", reference, f"manifests/{reference.version}", actions="pull,delete")
            if answer.status in (400, 404, 405) and reference.digest is None:
                digest = self.digest(reference)
                if digest is None:
                    return
                answer = self._ask("DELETE", reference, f"manifests/{digest}", actions="pull,delete")
        if answer.status == 405:
            raise keeps_everything(what, reference)
        if answer.status not in (200, 202, 204, 404):
            raise unexpected(what, reference, answer)

    def check_writable(self, reference: Reference) -> None:
        """Begin an upload to a repository, and give it up."""
        upload = self._upload(reference, f"nothing can be pushed to {reference.name}")
        with told(upload.what, reference):
            upload.abandon(upload.start())

    def _session(self, registry: str) -> Session:
        with self._lock:
            if registry not in self._sessions:
                self._sessions[registry] = Session(
                    registry,
                    transport=self._transport,
                    credentials=self._credentials,
                    insecure=self._insecure,
                )
            return self._sessions[registry]

    def _upload(self, reference: Reference, what: str) -> Upload:
        return Upload(self._session(reference.registry), self._transport, reference, what)

    def _ask(
        self,
        method: str,
        reference: Reference,
        path: str,
        *,
        actions: str = "pull",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        follow: bool = True,
    ) -> RegistryAnswer:
        address = path if path.startswith(("/", "http")) else f"/v2/{reference.repository}/{path}"
        scopes = [Scope(reference.repository, actions)]
        session = self._session(reference.registry)
        return session.answer(method, address, scopes, headers=headers, body=body, follow=follow)

    def _manifest(self, what: str, reference: Reference, version: str) -> tuple[str, dict[str, Any]]:
        """A manifest or index, and its digest."""
        answer = self._ask("GET", reference, f"manifests/{version}", headers=ACCEPT)
        if answer.status == 404:
            raise self._missing(reference, version)
        if answer.status != 200:
            raise unexpected(what, reference, answer)
        digest = version if is_digest(version) else answer.headers.get(_DIGEST_HEADER)
        if digest is None:
            digest = digest_of(answer.body)
        refuse_other(what, reference, answer.body, digest)
        return digest, document_of(what, reference, answer.body)

    def _missing(self, reference: Reference, version: str) -> ImageError:
        """The error for an image that is not there, with what the user may have meant."""
        try:
            there = self.tags(reference)
        except ImageError:
            there = []
        return missing(reference, version, there)

    def _configuration(self, what: str, reference: Reference, manifest: dict[str, Any]) -> dict[str, Any]:
        content = b""
        for block in self.blob(reference, configuration_of(reference, manifest)):
            content += block
            if len(content) > LARGEST:
                raise ImageError(
                    what,
                    why=f"its configuration has more than {LARGEST >> 20} MiB",
                    fix="Name another image.",
                )
        return document_of(what, reference, content)

    def _blob_from(self, what: str, reference: Reference, digest: str, offset: int) -> Iterator[bytes]:
        session = self._session(reference.registry)
        address = f"/v2/{reference.repository}/blobs/{digest}"
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        opened = session.open("GET", address, [Scope(reference.repository)], headers=headers)
        if opened.status not in (200, 206):
            body = b"".join(self._transport.read(opened, whole=True))
            answer = RegistryAnswer(status=opened.status, headers=opened.headers, body=body, url=opened.url)
            if opened.status >= 500:
                raise NoAnswer(
                    f"{reference.registry} answers {opened.status}", fix="Try again later.", kind=LOST
                )
            if opened.status == 404:
                raise ImageError(what, why=f"{reference.name} has it not", fix="Push the image again.")
            raise unexpected(what, reference, answer)
        skip = offset if opened.status == 200 else 0
        for block in self._transport.read(opened):
            if skip:
                block, skip = block[skip:], max(0, skip - len(block))
            if block:
                yield block


@attrs.define(slots=False, eq=False)
class Upload:
    """Puts blobs into one repository."""

    _session: Session
    _transport: RegistryTransport
    _reference: Reference
    what: str  # cannot be done, where it fails

    def __attrs_post_init__(self) -> None:
        self._uploads = f"/v2/{self._reference.repository}/blobs/uploads/"
        self._scopes = (Scope(self._reference.repository, "pull,push"),)

    def start(self) -> str:
        """Begin; the address that the content goes to."""
        answer = self._session.answer("POST", self._uploads, self._scopes, body=b"")
        if answer.status != 202 or not answer.headers.get("Location"):
            raise unexpected(self.what, self._reference, answer)
        return joined(answer.url, answer.headers["Location"])

    def abandon(self, location: str) -> None:
        """Give up what was begun; a registry that keeps it removes it in time."""
        try:
            self._session.answer("DELETE", location, self._scopes, tries=1)
        except (NoAnswer, LoginNeeded):
            return

    def mount(self, digest: str, repository: str) -> bool:
        """Take the blob over from another repository, if the registry does that."""
        query = urlencode({"mount": digest, "from": repository})
        scopes = (*self._scopes, Scope(repository))
        try:
            answer = self._session.answer("POST", f"{self._uploads}?{query}", scopes, body=b"")
        except LoginNeeded:
            return False  # of the two repositories the other may be the one that is closed
        if answer.status == 202 and answer.headers.get("Location"):
            self.abandon(joined(answer.url, answer.headers["Location"]))
        return answer.status == 201

    def put(self, content: Path | bytes, digest: str, *, tell: Tell | None, text: str) -> None:
        """Send the content, all of it."""
        try:
            file: IO[bytes] = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
        except OSError as error:
            raise ImageError(self.what, why=f"{content!s} cannot be read: {error.strerror}") from None
        with file:
            total = file.seek(0, os.SEEK_END)
            source = _Source(file, total, tell, text)
            location, offset = self.start(), 0
            for tried in range(1, _TRIES + 1):
                try:
                    if tried > 1:
                        if self._is_there(digest):  # only the answer was lost
                            return
                        location, offset = self._resumed(location, total)
                    answer = self._send(location, source, offset, digest)
                except NoAnswer as error:
                    if tried >= _TRIES_AFTER.get(error.kind, tried):
                        error.why += f" while {total:,} bytes were sent, {tried} times" if tried > 1 else ""
                        raise
                else:
                    if answer.status in (201, 204):
                        return
                    if answer.status not in _WORTH_ANOTHER_TRY or tried == _TRIES:
                        raise unexpected(self.what, self._reference, answer)
                self._transport.pause(tried)

    def _send(self, location: str, source: _Source, offset: int, digest: str) -> RegistryAnswer:
        mark = "&" if urlsplit(location).query else "?"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(source.total - offset)}
        if offset:
            headers["Content-Range"] = f"{offset}-{source.total - 1}"

        def send(url: str, sent: Mapping[str, str]) -> RegistryAnswer:
            source.rewind(offset)
            slack = source.total // _SLOWEST_STORAGE
            opened = self._transport.open("PUT", url, headers=sent, body=source, slack=slack)
            body = b"".join(self._transport.read(opened, whole=True))
            return RegistryAnswer(status=opened.status, headers=opened.headers, body=body, url=url)

        address = f"{location}{mark}{urlencode({'digest': digest})}"
        try:
            answer = self._session.said_to(send, address, self._scopes, headers)
        finally:
            if source.error is not None:
                raise source.error
        self._session.refuse_if_denied(answer.status, answer.body, self._scopes)
        return answer

    def _is_there(self, digest: str) -> bool:
        address = f"/v2/{self._reference.repository}/blobs/{digest}"
        return self._session.answer("HEAD", address, self._scopes, follow=False).status in _THERE

    def _resumed(self, location: str, total: int) -> tuple[str, int]:
        """Where to go on after a break: how much the registry has kept, or a new beginning."""
        try:
            answer = self._session.answer("GET", location, self._scopes)
        except NoAnswer:
            answer = None
        if answer is not None and answer.status == 204:
            kept = re.fullmatch(r"(?:bytes=)?0-([0-9]+)", answer.headers.get("Range", ""))
            offset = int(kept[1]) + 1 if kept else 0
            if 1 < offset < total:  # 0-0 stands for nothing as well as for one byte
                return joined(answer.url, answer.headers.get("Location", location)), offset
            self.abandon(location)
        return self.start(), 0


@attrs.define(slots=False, eq=False)
class _Source:
    """A file as the body of a request, which tells how far it is."""

    _file: IO[bytes]
    total: int
    _tell: Tell | None
    _text: str
    _sent: int = 0
    error: BaseException | None = None

    def rewind(self, offset: int) -> None:
        self._file.seek(offset)
        self._sent = offset

    def read(self, size: int = -1) -> bytes:
        # What happens here is no fault of the connection, though it passes through the library that has it.
        try:
            block = self._file.read(size)
            self._sent += len(block)
            if self._tell is not None:
                self._tell(Progress(stage="push", text=self._text, done=self._sent, total=self.total))
        except BaseException as error:
            self.error = error
            raise
        return block
