"""Objects in a bucket of S3, or of what imitates it, with nothing but the standard library.

Large objects go up and come down in parts, several at once. What arrives is as long as was announced and,
where the server keeps a CRC-32 of the whole, has that; a part that was cut is continued where it ended.
Versions are ETags.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import uuid
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import attrs

from upshift.errors import BlobDamaged, StoreError
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.files import available, create, discard, temporary
from upshift.runtime.storage.objects.base import Got, Meta, Version, checked
from upshift.runtime.storage.objects.bucket import Answer, Bucket, Cut, Request
from upshift.runtime.storage.objects.crc import crc_of, crc_of_both

_PART = 16 << 20
"""Bytes of a part; larger ones where there would be more parts than are allowed."""
_MOST_PARTS = 10_000
_AT_ONCE = 8
_PIECE = 1 << 20
_MOST_LISTED = 1000
_TRIES = 3
"""Of a download whose object is replaced, or damaged, on the way."""
_WRITER = "x-amz-meta-upshift-writer"

T = TypeVar("T")
R = TypeVar("R")


def open_bucket(place: str) -> S3Objects:
    """The objects at ``BUCKET/PREFIX``."""
    name, _, prefix = place.partition("/")
    return S3Objects(Bucket(name), prefix)


class _Changed(Exception):
    """Another version, or other bytes, than those that were asked for."""


class S3Objects:
    """Objects in a bucket, below a prefix."""

    def __init__(self, bucket: Bucket, prefix: str = "", *, part: int = _PART) -> None:
        self.bucket = bucket
        self.prefix = checked(prefix.strip("/")) + "/" if prefix.strip("/") else ""
        self.address = f"s3://{bucket.name}/{self.prefix}".rstrip("/")
        self._part = part
        # Services that only imitate S3 may not know checksums; the variable is that of AWS's own tools.
        self._checksums = os.environ.get("AWS_REQUEST_CHECKSUM_CALCULATION", "").lower() != "when_required"

    def __repr__(self) -> str:
        return f"S3Objects({self.address!r})"

    @property
    def environment(self) -> Mapping[str, str]:
        return self.bucket.environment

    def get(self, key: str, *, offset: int = 0, size: int | None = None) -> Got | None:
        whole = checked(key, self.prefix)
        if size == 0:
            return self._nothing(whole)
        request = Request(method="GET", key=whole, expected=(200, 206, 404, 416))
        if offset or size is not None:
            request.headers["range"] = f"bytes={offset}-{'' if size is None else offset + size - 1}"
        else:
            request.headers["x-amz-checksum-mode"] = "ENABLED"
        answer = self.bucket.consume(request, _checked_whole)
        if answer.status == 404:
            return None if _is_absent(answer) else self._refuse(answer, request)
        if answer.status == 416:  # from its end on, or it is empty
            return self._nothing(whole)
        data = memoryview(answer.body)
        if answer.status == 200 and "range" in request.headers:  # a server that knows no ranges
            data = data[offset : None if size is None else offset + size]
        return Got(data, _version(answer))

    def put(
        self, key: str, data: Bytes, *, absent: bool = False, match: Version | None = None
    ) -> Version | None:
        whole, view = checked(key, self.prefix), memoryview(data).cast("B")
        request = self._put(whole, [view])
        if not absent and match is None:
            return _version(self.bucket.ask(request))
        writer = uuid.uuid4().hex
        request.headers[_WRITER] = writer
        request.headers |= {"if-none-match": "*"} if absent else {"if-match": match or ""}
        request.expected = (200, 404, 409, 412)
        for _ in range(_TRIES):
            answer = self.bucket.ask(request)
            if answer.status == 200:
                return _version(answer)
            if answer.status == 404 and (absent or not _is_absent(answer)):
                self._refuse(answer, request)
            # A 409 is a conflict in flight, and a try whose answer was lost may have been the one that won.
            if answer.status == 409 or answer.doubtful:
                there = self._head(whole)
                if there is not None and there.headers.get(_WRITER) == writer:
                    return _version(there)
                if there is None and absent:
                    continue
                if answer.status == 409 and not absent and there is not None and _version(there) == match:
                    continue
            return None
        raise StoreError(
            f"others write to {self.address}/{key} all the time",
            why="The object store answers every conditional write with a conflict.",
            fix="Try again.",
        )

    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        begin = [("start-after", self.prefix + after)] if after else []
        for page in self._pages([("prefix", self.prefix + prefix), *begin]):
            yield from self._listed(page)

    def folders(self, prefix: str) -> Iterator[str]:
        for found in self.list_level(prefix):
            if isinstance(found, str):
                yield found[len(prefix) : -1]

    def delete(self, keys: Collection[str]) -> None:
        every = [checked(key, self.prefix) for key in keys]
        for at in range(0, len(every), _MOST_LISTED):
            named = "".join(
                f"<Object><Key>{escape(key)}</Key></Object>" for key in every[at : at + _MOST_LISTED]
            )
            body = f"<Delete><Quiet>true</Quiet>{named}</Delete>".encode()
            md5 = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
            request = Request(
                method="POST", query=[("delete", "")], body=[memoryview(body)],
                headers={"content-md5": md5, "content-type": "application/xml"},
            )  # fmt: skip
            for error in self.bucket.ask(request).xml().iter("Error"):
                raise StoreError(
                    f"the object {error.findtext('Key')} cannot be removed",
                    where=self.address,
                    why=f"{error.findtext('Code')}: {error.findtext('Message')}",
                    fix="Allow s3:DeleteObject on the bucket in its policy.",
                )

    def upload(self, key: str, buffers: Sequence[Bytes], headers: Mapping[str, str] = {}) -> Version:
        whole = checked(key, self.prefix)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        size = sum(view.nbytes for view in views)
        if size <= self._part:
            request = self._put(whole, views)
            request.headers |= headers
            return _version(self.bucket.ask(request))
        part = max(self._part, -(-size // _MOST_PARTS))
        return self._in_parts(whole, list(_parts(views, part)), headers)

    def download(self, key: str, path: Path) -> Version | None:
        headers = self.fetch(key, path)
        return None if headers is None else Version(headers.get("etag", ""))

    # What only buckets have

    def info(self, key: str) -> Mapping[str, str] | None:
        """The headers of an object; None: there is no such object."""
        answer = self._head(checked(key, self.prefix))
        return None if answer is None else answer.headers

    def read(self, key: str, part: str) -> Answer | None:
        """A part of an object, as the header Range names it; of status 416 where there is no such part."""
        request = Request(
            method="GET",
            key=checked(key, self.prefix),
            headers={"range": part},
            expected=(200, 206, 404, 416),
        )
        answer = self.bucket.consume(request, _checked_whole)
        if answer.status == 404:
            return None if _is_absent(answer) else self._refuse(answer, request)
        return answer

    def list_level(self, prefix: str) -> Iterator[Meta | str]:
        """The objects that begin with ``prefix`` and have no slash behind it; of others that first part."""
        for page in self._pages([("prefix", self.prefix + prefix), ("delimiter", "/")]):
            yield from self._listed(page)
            for found in page.iter("CommonPrefixes"):
                yield unquote_plus(found.findtext("Prefix", ""))[len(self.prefix) :]

    def fetch(self, key: str, path: Path) -> Mapping[str, str] | None:
        """Write an object into a file, as :meth:`download` does; its headers."""
        whole = checked(key, self.prefix)
        draft = temporary(str(path.parent))
        for last in (False, False, True):
            with available("written", draft):
                descriptor = create(draft)
            try:
                headers = self._into(whole, descriptor, draft)
                if headers is not None:
                    with available("written", str(path)):
                        os.replace(draft, path)
                return headers
            except _Changed as error:
                if last:
                    raise BlobDamaged(
                        f"{self.address}/{key} cannot be read whole",
                        why=str(error),
                        fix="Try again; if that does not help, the object is damaged there.",
                    ) from None
            finally:
                os.close(descriptor)
                discard(draft)
        raise AssertionError("the last try returns or raises")

    # Requests

    def _pages(self, which: Sequence[tuple[str, str]]) -> Iterator[ElementTree.Element]:
        query = [("list-type", "2"), ("encoding-type", "url"), ("max-keys", str(_MOST_LISTED)), *which]
        following: str | None = ""
        while following is not None:
            token = [("continuation-token", following)] if following else []
            page = self.bucket.ask(Request(method="GET", query=[*query, *token])).xml()
            yield page
            cut = page.findtext("IsTruncated") == "true"
            following = page.findtext("NextContinuationToken") if cut else None

    def _listed(self, page: ElementTree.Element) -> Iterator[Meta]:
        for found in page.iter("Contents"):
            key = unquote_plus(found.findtext("Key", ""))
            if not key.endswith("/"):  # what a browser of buckets puts there for an empty folder
                size, version = int(found.findtext("Size", "0")), found.findtext("ETag", "")
                yield Meta(key[len(self.prefix) :], size, Version(version))

    def _put(self, key: str, views: Sequence[memoryview]) -> Request:
        request = Request(method="PUT", key=key, body=views)
        if self._checksums:
            request.headers["x-amz-sdk-checksum-algorithm"] = "CRC32"
            request.headers["x-amz-checksum-crc32"] = _text_of(crc_of(views))
        return request

    def _head(self, key: str) -> Answer | None:
        answer = self.bucket.ask(Request(method="HEAD", key=key, expected=(200, 404)))
        return answer if answer.status == 200 else None

    def _nothing(self, key: str) -> Got | None:
        answer = self._head(key)
        return None if answer is None else Got(memoryview(b""), _version(answer))

    # Parts

    def _in_parts(
        self, key: str, parts: Sequence[Sequence[memoryview]], headers: Mapping[str, str]
    ) -> Version:
        begin = Request(method="POST", key=key, query=[("uploads", "")], headers={**headers})
        if self._checksums:
            begin.headers |= {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT"}
        upload = self.bucket.ask(begin).xml().findtext("UploadId", "")

        def send(numbered: tuple[int, Sequence[memoryview]]) -> tuple[str, int]:
            number, views = numbered
            request = self._put(key, views)
            request.query = [("partNumber", str(number)), ("uploadId", upload)]
            crc = request.headers.get("x-amz-checksum-crc32")
            answer = self.bucket.ask(request)
            return _version(answer), 0 if crc is None else int.from_bytes(b64decode(crc), "big")

        try:
            sent = side_by_side(send, list(enumerate(parts, start=1)))
            return self._complete(key, upload, parts, sent)
        except BaseException:
            with contextlib.suppress(StoreError):  # what is wrong is told already
                abort = Request(
                    method="DELETE", key=key, query=[("uploadId", upload)], expected=(200, 204, 404)
                )
                self.bucket.ask(abort)
            raise

    def _complete(
        self, key: str, upload: str, parts: Sequence[Sequence[memoryview]], sent: Sequence[tuple[str, int]]
    ) -> Version:
        sizes = [sum(view.nbytes for view in views) for views in parts]
        listed, crc = "", 0
        for number, ((tag, one), size) in enumerate(zip(sent, sizes, strict=True), start=1):
            crc = crc_of_both(crc, one, size)
            checksum = f"<ChecksumCRC32>{_text_of(one)}</ChecksumCRC32>" if self._checksums else ""
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag>{checksum}</Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        request = Request(
            method="POST", key=key, query=[("uploadId", upload)], body=[memoryview(body)],
            headers={"content-type": "application/xml"}, expected=(200, 404),
        )  # fmt: skip
        if self._checksums:
            request.headers["x-amz-checksum-crc32"] = _text_of(crc)
            request.headers["x-amz-checksum-type"] = "FULL_OBJECT"
        answer = self.bucket.consume(request, _completed)
        if answer.status == 200:
            return Version(answer.xml().findtext("ETag", ""))
        # An earlier try may have completed it: then its ETag follows from those of the parts.
        digests = b"".join(bytes.fromhex(tag.strip('"')) for tag, _ in sent if _is_md5(tag))
        expected = f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(sent)}"'
        there = self._head(key) if answer.doubtful else None
        if there is not None and (_version(there) == expected or _crc_in(there) == crc):
            return _version(there)
        self._refuse(answer, request)

    def _into(self, key: str, descriptor: int, path: str) -> Mapping[str, str] | None:
        first = _Stretch(descriptor, path, self._part)
        if not self._read(key, first):
            return None
        at, crc, rest = first.end, first.crc, []
        while at < first.total:
            end = min(first.total, at + self._part)
            rest.append(_Stretch(descriptor, path, self._part, start=at, end=end, version=first.version))
            rest[-1].checked = first.checked
            at = end
        if rest:
            side_by_side(lambda stretch: self._read(key, stretch), rest)
        if first.checked:
            for stretch in rest:
                crc = crc_of_both(crc, stretch.crc, stretch.end - stretch.start)
        if first.checked and first.checksum != crc:
            raise _Changed("what came has another checksum than the object store keeps of it")
        return first.found

    def _read(self, key: str, stretch: _Stretch) -> bool:
        """Read a stretch; False: there is no such object."""
        request = Request(method="GET", key=key, headers=stretch.headers, expected=(200, 206, 404, 412))
        answer = self.bucket.consume(request, stretch.take)
        if answer.status == 404 and not stretch.version:
            return False if _is_absent(answer) else self._refuse(answer, request)
        if answer.status in (404, 412):
            raise _Changed("somebody replaced it meanwhile")
        return True

    def _refuse(self, answer: Answer, request: Request) -> NoReturn:
        self.bucket.refuse(answer, request)


class _Stretch:
    """A part of an object on its way into a file; where it was cut, the next try goes on."""

    def __init__(
        self, descriptor: int, path: str, most: int, *, start: int = 0, end: int = -1, version: str = ""
    ) -> None:
        self._descriptor, self._path, self._most = descriptor, path, most
        self.start, self.at, self.end, self.total = start, start, end, -1
        self.version = Version(version)
        self.found: Mapping[str, str] = {}  # headers of the object
        self.crc = 0
        self.checksum: int | None = None  # of the whole object, as the server keeps it
        self.checked = True  # whether there is one to compare with
        self.headers = {"x-amz-checksum-mode": "ENABLED"}
        if end >= 0:
            self._continue()

    def take(self, response: http.client.HTTPResponse, answer: Answer) -> Answer:
        """Read an answer."""
        if answer.status not in (200, 206):
            return attrs.evolve(answer, body=response.read())
        if answer.status == 200 and self.end < 0:
            self._begin(answer)
        elif answer.status == 200 and self.at > 0:
            raise StoreError(
                "the object store does not send parts of objects", fix="Use one that knows the header Range."
            )
        buffer = memoryview(bytearray(min(_PIECE, max(1, self.end - self.at))))
        while self.at < self.end:
            number = response.readinto(buffer[: self.end - self.at])
            if not number:
                raise Cut(f"it was cut after {self.at - self.start:,} of {self.end - self.start:,} bytes")
            with available("written", self._path):
                written = 0
                while written < number:
                    written += os.pwrite(self._descriptor, buffer[written:number], self.at + written)
            if self.checked:
                self.crc = zlib.crc32(buffer[:number], self.crc)
            self.at += number
            self._continue()
        return answer

    def _begin(self, answer: Answer) -> None:
        self.version, self.found = _version(answer), answer.headers
        self.checksum = _crc_in(answer)
        self.checked = self.checksum is not None
        self.total = int(answer.headers.get("content-length", "-1"))
        if self.total < 0:
            raise StoreError(
                "the object store does not say how long an object is",
                fix="Use one that sends Content-Length.",
            )
        # One that is not much longer comes as a whole; of a longer one this is the first part.
        self.end = self.total if self.total <= 2 * self._most else self._most

    def _continue(self) -> None:
        self.headers["range"] = f"bytes={self.at}-{self.end - 1}"
        self.headers["if-match"] = self.version


def _parts(views: Sequence[memoryview], size: int) -> Iterator[list[memoryview]]:
    part: list[memoryview] = []
    left = size
    for view in views:
        while view.nbytes:
            part.append(view[:left])
            left -= part[-1].nbytes
            view = view[part[-1].nbytes :]
            if not left:
                yield part
                part, left = [], size
    if part:
        yield part


def side_by_side(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What the work makes of each item, of which some are done at once."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)) or 1) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def _checked_whole(response: http.client.HTTPResponse, answer: Answer) -> Answer:
    try:
        read = attrs.evolve(answer, body=response.read())
    except http.client.IncompleteRead as error:
        raise Cut(f"it was cut after {len(error.partial):,} bytes") from None
    expected = _crc_in(answer) if answer.status == 200 else None
    if expected is not None and zlib.crc32(read.body) != expected:
        raise Cut("what came has another checksum than the object store keeps of it")
    return read


def _completed(response: http.client.HTTPResponse, answer: Answer) -> Answer:
    read = attrs.evolve(answer, body=response.read())
    if answer.status == 200:  # said before the work was done, which may fail still
        try:
            root = read.xml()
        except ElementTree.ParseError:
            raise Cut("its answer is not valid XML") from None
        if root.tag == "Error":
            raise Cut(f"{root.findtext('Code')}: {root.findtext('Message')}")
    return read


def _crc_in(answer: Answer) -> int | None:
    """The CRC-32 of the whole object, if the server keeps that, and not one of the checksums of parts."""
    text = answer.headers.get("x-amz-checksum-crc32", "")
    if not text or "-" in text or answer.headers.get("x-amz-checksum-type") == "COMPOSITE":
        return None
    return int.from_bytes(b64decode(text), "big")


def _text_of(crc: int) -> str:
    return b64encode(crc.to_bytes(4, "big")).decode()


def _version(answer: Answer) -> Version:
    return Version(answer.headers.get("etag", ""))


def _is_md5(tag: str) -> bool:
    return re.fullmatch(r'"?[0-9a-f]{32}"?', tag) is not None


def _is_absent(answer: Answer) -> bool:
    """Whether it is the object that is not there, and not the bucket."""
    return b"NoSuchBucket" not in answer.body
