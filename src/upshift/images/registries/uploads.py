"""A blob on its way into a registry: begun, sent, and finished by its digest. Before that it is nowhere.

::

    POST /v2/NAME/blobs/uploads/ ──▶ 202 Location ──▶ PUT Location?digest=… with the content ──▶ 201
                                          │   the connection is lost
                                          └──▶ GET Location ──▶ Range: 0-N ──▶ PUT the rest, or begin again
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlencode, urlsplit

import attrs

from upshift.errors import ImageError
from upshift.images.base import Progress, Tell
from upshift.images.reference import Reference
from upshift.images.registries.answers import unexpected
from upshift.images.registries.network import LOST, REFUSED, SLOW, NoAnswer, joined
from upshift.images.registries.session import LoginNeeded, Scope, Session
from upshift.images.registries.transport import Answer, Transport

_TRIES = 4
# Who is not there for a moment may be starting again; who says nothing twice is not asked for ever.
_TRIES_AFTER = {LOST: _TRIES, REFUSED: _TRIES, SLOW: 2}
_THERE = frozenset({200, 302, 303, 307})
_SLOWEST_STORAGE = 10_000_000
"""Bytes a second at which a registry may move a blob to its place before it says that it has it."""
_WORTH_ANOTHER_TRY = frozenset({404, 408, 416, 429, 500, 502, 503, 504})  # 404, 416: it lost what it had


@attrs.define(slots=False, eq=False)
class Upload:
    """Puts blobs into one repository."""

    _session: Session
    _transport: Transport
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

    def _send(self, location: str, source: _Source, offset: int, digest: str) -> Answer:
        mark = "&" if urlsplit(location).query else "?"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(source.total - offset)}
        if offset:
            headers["Content-Range"] = f"{offset}-{source.total - 1}"

        def send(url: str, sent: Mapping[str, str]) -> Answer:
            source.rewind(offset)
            slack = source.total // _SLOWEST_STORAGE
            opened = self._transport.open("PUT", url, headers=sent, body=source, slack=slack)
            body = b"".join(self._transport.read(opened, whole=True))
            return Answer(status=opened.status, headers=opened.headers, body=body, url=url)

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
