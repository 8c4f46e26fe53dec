"""What objects in a bucket of any cloud have in common; a cloud adds its dialect.

Large objects go up and come down in parts, several at once. What arrives is as long as was announced and,
where the server keeps a checksum of the whole, has that; a part that was cut is continued where it ended.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import attrs

from upshift.errors import BlobDamaged, StoreError
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.files import available, create, discard, temporary
from upshift.runtime.storage.objects import (
    Got,
    Meta,
    UnfinishedUpload,
    Version,
    checked,
    seconds,
    side_by_side,
)
from upshift.runtime.storage.objects.transport import Answer, Cut, Request, Transport

PART = 16 << 20
"""Bytes of a part; larger ones where there would be more parts than are allowed."""
AT_ONCE = 8
"""Requests for objects, or parts of one."""
_PIECE = 1 << 20
_TRIES = 3
"""Of a download whose object is replaced, or damaged, on the way."""

_POLYNOMIAL = 0xEDB88320
"""Of CRC-32."""

S = TypeVar("S", bound="Sum")


class _Changed(Exception):
    """Another version, or other bytes, than those that were asked for."""


class RemoteObjects(ABC):
    """Objects in a bucket, below a prefix.

    Attributes
    ----------
    writer
        The header that says who wrote an object: whoever lost an answer knows its own by that.
    whole
        What is asked for beside the content of an object, such as its checksum.
    most_parts
        Of one object.
    """

    writer: ClassVar[str]
    whole: ClassVar[Mapping[str, str]] = {}
    most_parts: ClassVar[int]

    def __init__(self, bucket: Transport[Any], prefix: str = "", *, part: int = PART) -> None:
        self.bucket = bucket
        self.prefix = checked(prefix.strip("/")) + "/" if prefix.strip("/") else ""
        self.address = f"{bucket.scheme}://{bucket.name}/{self.prefix}".rstrip("/")
        self._part = part

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

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
            request.headers |= self.whole
        answer = self.bucket.consume(request, self._intact)
        if answer.status == 404:
            return None if self._is_absent(answer) else self.bucket.refuse(answer, request)
        if answer.status == 416:  # from its end on, or it is empty
            return self._nothing(whole)
        data = memoryview(answer.body)
        if answer.status == 200 and "range" in request.headers:  # a server that knows no ranges
            data = data[offset : None if size is None else offset + size]
        return Got(data, self._version(answer.headers))

    def put(
        self, key: str, data: Bytes, *, absent: bool = False, match: Version | None = None
    ) -> Version | None:
        whole, view = checked(key, self.prefix), memoryview(data).cast("B")
        request = self._put(whole, [view])
        if not absent and match is None:
            return self._version(self.bucket.ask(request).headers)
        done = request.expected
        writer = uuid.uuid4().hex
        request.headers[self.writer] = writer
        request.headers |= self._only_if(match)
        request.expected = (*done, 404, 409, 412)
        for _ in range(_TRIES):
            answer = self.bucket.ask(request)
            if answer.status in done:
                return self._version(answer.headers)
            if answer.status == 404 and (absent or not self._is_absent(answer)):
                self.bucket.refuse(answer, request)
            # A 409 is a conflict in flight, and a try whose answer was lost may have been the one that won.
            if answer.status == 409 or answer.doubtful:
                there = self._head(whole)
                if there is not None and there.headers.get(self.writer) == writer:
                    return self._version(there.headers)
                if there is None and absent:
                    continue
                if (
                    answer.status == 409
                    and not absent
                    and there is not None
                    and self._version(there.headers) == match
                ):
                    continue
            return None
        raise StoreError(
            f"others write to {self.address}/{key} all the time",
            why="The object store answers every conditional write with a conflict.",
            fix="Try again.",
        )

    def delete(self, keys: Collection[str]) -> None:
        self._delete_each(keys)

    def _delete_each(self, keys: Collection[str]) -> None:
        def remove(key: str) -> None:
            request = Request(method="DELETE", key=key, expected=(200, 202, 204, 404))
            answer = self.bucket.ask(request)
            if answer.status == 404 and not self._is_absent(answer):
                self.bucket.refuse(answer, request)

        side_by_side(remove, [checked(key, self.prefix) for key in keys], AT_ONCE)

    def folders(self, prefix: str) -> Iterator[str]:
        for found in self.list_level(prefix):
            if isinstance(found, str):
                yield found[len(prefix) : -1]

    def upload(self, key: str, buffers: Sequence[Bytes], headers: Mapping[str, str] = {}) -> Version:
        whole = checked(key, self.prefix)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        size = sum(view.nbytes for view in views)
        if size <= self._part:
            request = self._put(whole, views)
            request.headers |= headers
            return self._version(self.bucket.ask(request).headers)
        part = max(self._part, -(-size // self.most_parts))
        return self._in_parts(whole, list(_parts(views, part)), headers)

    def download(self, key: str, path: Path) -> Version | None:
        headers = self.fetch(key, path)
        return None if headers is None else self._version(headers)

    # What only buckets have

    def info(self, key: str) -> Mapping[str, str] | None:
        """The headers of an object; None: there is no such object."""
        answer = self._head(checked(key, self.prefix))
        return None if answer is None else answer.headers

    def now(self) -> float:
        answer = self.bucket.ask(
            Request(method="HEAD", key=checked("format", self.prefix), expected=(200, 404))
        )
        return seconds(answer.headers.get("date", ""))

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        return iter(())

    def read(self, key: str, part: str) -> Answer | None:
        """A part of an object, as the header Range names it; of status 416 where there is no such part."""
        request = Request(
            method="GET",
            key=checked(key, self.prefix),
            headers={"range": part},
            expected=(200, 206, 404, 416),
        )
        answer = self.bucket.consume(request, self._intact)
        if answer.status == 404:
            return None if self._is_absent(answer) else self.bucket.refuse(answer, request)
        return answer

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

    def _head(self, key: str) -> Answer | None:
        answer = self.bucket.ask(Request(method="HEAD", key=key, expected=(200, 404)))
        return answer if answer.status == 200 else None

    def _nothing(self, key: str) -> Got | None:
        answer = self._head(key)
        return None if answer is None else Got(memoryview(b""), self._version(answer.headers))

    def _intact(self, response: http.client.HTTPResponse, answer: Answer) -> Answer:
        try:
            read = attrs.evolve(answer, body=response.read())
        except http.client.IncompleteRead as error:
            raise Cut(f"it was cut after {len(error.partial):,} bytes") from None
        kept = self._sum(answer.headers) if answer.status == 200 else None
        if kept is not None and not kept.same(kept.of([memoryview(read.body)])):
            raise Cut("what came has another checksum than the object store keeps of it")
        return read

    def _into(self, key: str, descriptor: int, path: str) -> Mapping[str, str] | None:
        first = _Stretch(self, descriptor, path)
        if not self._read(key, first):
            return None
        at, rest = first.end, []
        while at < first.total:
            end = min(first.total, at + self._part)
            rest.append(_Stretch(self, descriptor, path, start=at, end=end, version=first.version))
            rest[-1].sum = None if first.sum is None else first.sum.of([])
            at = end
        if rest:
            side_by_side(lambda stretch: self._read(key, stretch), rest, AT_ONCE)
        total = first.sum
        for stretch in rest:
            total = None if total is None or stretch.sum is None else total.then(stretch.sum)
        if total is not None and first.kept is not None and not first.kept.same(total):
            raise _Changed("what came has another checksum than the object store keeps of it")
        return first.found

    def _read(self, key: str, stretch: _Stretch) -> bool:
        """Read a stretch; False: there is no such object."""
        request = Request(method="GET", key=key, headers=stretch.headers, expected=(200, 206, 404, 412))
        answer = self.bucket.consume(request, stretch.take)
        if answer.status == 404 and not stretch.version:
            return False if self._is_absent(answer) else self.bucket.refuse(answer, request)
        if answer.status in (404, 412):
            raise _Changed("somebody replaced it meanwhile")
        return True

    # The dialect of a cloud

    @abstractmethod
    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        """As :meth:`Objects.list`."""

    @abstractmethod
    def list_level(self, prefix: str) -> Iterator[Meta | str]:
        """The objects that begin with ``prefix`` and have no slash behind it; of others that first part."""

    @abstractmethod
    def _put(self, key: str, views: Sequence[memoryview]) -> Request:
        """The request that writes an object, or a part of one."""

    @abstractmethod
    def _in_parts(
        self, key: str, parts: Sequence[Sequence[memoryview]], headers: Mapping[str, str]
    ) -> Version:
        """Write an object from parts."""

    @abstractmethod
    def _only_if(self, match: Version | None) -> Mapping[str, str]:
        """Headers of a write that replaces exactly this version; None: that creates an object."""

    @abstractmethod
    def _only(self, version: Version) -> Mapping[str, str]:
        """Headers of a read that has this version, or none."""

    @abstractmethod
    def _version(self, headers: Mapping[str, str]) -> Version:
        """The version that an answer is about."""

    @abstractmethod
    def _sum(self, headers: Mapping[str, str]) -> Sum | None:
        """The checksum of the whole object, if the server keeps one."""

    @abstractmethod
    def _is_absent(self, answer: Answer) -> bool:
        """Whether it is the object that is not there, and not the bucket."""


class _Stretch:
    """A part of an object on its way into a file; where it was cut, the next try goes on."""

    def __init__(
        self,
        objects: RemoteObjects,
        descriptor: int,
        path: str,
        *,
        start: int = 0,
        end: int = -1,
        version: str = "",
    ) -> None:
        self._objects, self._descriptor, self._path = objects, descriptor, path
        self.start, self.at, self.end, self.total = start, start, end, -1
        self.version = Version(version)
        self.found: Mapping[str, str] = {}  # headers of the object
        self.kept: Sum | None = None  # of the whole object, by the server
        self.sum: Sum | None = None  # of what came; None: there is none to compare it with
        self.headers = dict(objects.whole)
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
                "the object store does not send parts of objects",
                fix="Use one that supports the header Range.",
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
            if self.sum is not None:
                self.sum.add(buffer[:number])
            self.at += number
            self._continue()
        return answer

    def _begin(self, answer: Answer) -> None:
        self.version, self.found = self._objects._version(answer.headers), answer.headers
        self.total = int(answer.headers.get("content-length", "-1"))
        if self.total < 0:
            raise StoreError(
                "the object store does not say how long an object is",
                fix="Use one that sends Content-Length.",
            )
        # One that is not much longer comes as a whole; of a longer one this is the first part.
        most = self._objects._part
        self.end = self.total if self.total <= 2 * most else most
        self.kept = self._objects._sum(answer.headers)
        if self.kept is not None and (self.kept.joins or self.end == self.total):
            self.sum = self.kept.of([])

    def _continue(self) -> None:
        self.headers["range"] = f"bytes={self.at}-{self.end - 1}"
        self.headers |= self._objects._only(self.version)


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


class Sum(ABC):
    """A checksum: one that is kept somewhere, or one of what has come."""

    joins: ClassVar[bool]  # whether the sums of two parts make that of both

    @property
    @abstractmethod
    def value(self) -> int | bytes:
        """What the object store says of the same content."""

    def of(self: S, views: Iterable[memoryview]) -> S:
        """A sum of this kind, of these buffers."""
        new = type(self)()
        for view in views:
            new.add(view)
        return new

    @abstractmethod
    def add(self, view: memoryview) -> None:
        """Go on with another buffer."""

    @abstractmethod
    def then(self, other: Any) -> Sum | None:
        """The sum of this content and another one behind it."""

    def same(self, other: Sum) -> bool:
        """Whether both are of the same content."""
        return self.value == other.value


class Crc(Sum):
    """CRC-32, and of how many bytes."""

    joins = True

    def __init__(self, value: int = 0, size: int = 0) -> None:
        self._value, self.size = value, size

    @property
    def value(self) -> int:
        return self._value

    def add(self, view: memoryview) -> None:
        self._value, self.size = zlib.crc32(view, self._value), self.size + view.nbytes

    def then(self, other: Crc) -> Crc:
        return Crc(crc_of_both(self.value, other.value, other.size), self.size + other.size)


class Md5(Sum):
    """MD5, which is of a whole only."""

    joins = False

    def __init__(self, kept: bytes = b"") -> None:
        self._kept, self._hasher = kept, hashlib.md5(usedforsecurity=False)

    @property
    def value(self) -> bytes:
        return self._kept or self._hasher.digest()

    def add(self, view: memoryview) -> None:
        self._hasher.update(view)

    def then(self, other: Md5) -> None:
        return None


def md5_of(views: Iterable[memoryview]) -> bytes:
    """The MD5 of buffers, one after the other: what servers compare a body with."""
    return Md5().of(views).value


def crc_of_both(first: int, second: int, size: int) -> int:
    """The CRC-32 of two contents, one after the other, of which the second has ``size`` bytes."""
    return _times(_shift(size), first) ^ second


def _times(a: int, b: int) -> int:
    """Product of two polynomials over GF(2), modulo that of the CRC; the highest bit is the power of 0."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
        a = (a << 1) & 0xFFFFFFFF
    return product


@functools.lru_cache(maxsize=64)
def _shift(size: int) -> int:
    """The polynomial by which to multiply in order to append ``size`` zero bytes: x to the power of bits."""
    result, square, bits = 0x80000000, 0x40000000, size * 8
    while bits:
        if bits & 1:
            result = _times(square, result)
        square, bits = _times(square, square), bits >> 1
    return result
