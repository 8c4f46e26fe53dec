"""Objects of buckets, as ``upshift.S3`` gives and takes them."""

from __future__ import annotations

import io
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from upshift.errors import NotFound, UsageError
from upshift.model.checks import shown
from upshift.runtime.storage.digest import Bytes

METADATA = "metaflow-user-attributes"
"""Where an object has what its author says of it, as JSON; as Metaflow, which reads what this writes."""


class S3GetObject(NamedTuple):
    """A part of an object: ``length`` bytes from ``offset`` on; None: to its end; negative: its last ones."""

    key: str
    offset: int = 0
    length: int | None = None


class S3PutObject(NamedTuple):
    """An object to write, from a value or a file, and what is said of it."""

    key: str
    value: Any = None
    path: str | None = None
    content_type: str | None = None
    encryption: str | None = None
    metadata: Mapping[str, Any] | None = None


class RangeInfo(NamedTuple):
    """Which part of an object was read, in bytes."""

    total_size: int
    request_offset: int = 0
    request_length: int = -1


@attrs.frozen(kw_only=True, repr=False)
class S3Object:
    """An object in a bucket, or a place where there is none.

    Attributes
    ----------
    url, key, prefix
        ``s3://BUCKET/…``; what was asked for, or what follows the prefix that was listed; that prefix.
    path
        The file that it was read into, until the client is closed; None: it was not read.
    size
        Bytes; None: there is no such object.
    content_type, metadata, encryption, last_modified
        What was said of it when it was written, and when that was (seconds since 1970); None: not known.
    range_info
        Which part of it was read: ``total_size``, ``request_offset``, ``request_length``.
    """

    url: str
    key: str
    prefix: str | None = None
    path: str | None = None
    size: int | None = None
    content_type: str | None = None
    metadata: dict[str, Any] | None = None
    range_info: RangeInfo | None = None
    last_modified: float | None = None
    encryption: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there is such an object; of a prefix that was listed there is none."""
        return self.size is not None

    @property
    def downloaded(self) -> bool:
        """Whether it was read."""
        return self.path is not None

    @property
    def has_info(self) -> bool:
        """Whether it is known what was said of it."""
        return any((self.content_type, self.metadata, self.range_info, self.encryption))

    @property
    def blob(self) -> bytes | None:
        """Its content; None: it was not read."""
        return None if self.path is None else Path(self.path).read_bytes()

    @property
    def text(self) -> str | None:
        """Its content as UTF-8."""
        blob = self.blob
        return None if blob is None else blob.decode("utf-8", "replace")

    def __repr__(self) -> str:
        if self.size is None:
            return f"<S3Object {self.url} (object does not exist)>"
        return f"<S3Object {self.url} ({self.size} bytes, {'local' if self.downloaded else 'in S3'})>"


def to_put(given: tuple[str, Any] | S3PutObject) -> S3PutObject:
    """What is to be written, from a pair of key and value, too."""
    return given if isinstance(given, S3PutObject) else S3PutObject(*given)


def content_of(one: S3PutObject) -> Bytes:
    """The bytes of a value."""
    value = one.value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value
    if isinstance(value, (io.RawIOBase, io.BufferedIOBase)) and value.readable() and value.seekable():
        value.seek(0)
        return value.read() or b""
    raise UsageError(
        f"{one.key}: {shown(value)} is no text, no bytes, and no binary file that is open",
        fix="Write json.dumps(value), or pickle.dumps(value); of files give the paths to put_files.",
    )


def content_of_file(one: S3PutObject) -> Bytes:
    """The bytes of a file, mapped where it can be."""
    try:
        with open(str(one.path), "rb") as file:
            try:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError:  # it is empty, or no file that can be mapped
                return file.read()
    except OSError as error:
        raise NotFound(
            f"{one.key}: {one.path} cannot be read",
            why=error.strerror,
            fix="Give the path of a file.",
        ) from None


def headers_of(one: S3PutObject, encryption: str | None) -> dict[str, str]:
    """What is said of an object when it is written."""
    said = {
        "content-type": one.content_type,
        f"x-amz-meta-{METADATA}": json.dumps(one.metadata) if one.metadata else None,
        "x-amz-server-side-encryption": one.encryption or encryption,
    }
    return {name: value for name, value in said.items() if value}


def range_of(headers: Mapping[str, str], read: int) -> RangeInfo:
    """Which part of an object an answer holds."""
    part, _, total = headers.get("content-range", "").removeprefix("bytes ").partition("/")
    return RangeInfo(int(total), int(part.partition("-")[0]), read) if total else RangeInfo(read, 0, read)
