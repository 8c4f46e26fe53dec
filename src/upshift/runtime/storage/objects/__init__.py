"""Objects by their keys, in a folder or in a bucket of any cloud: one interface, and :func:`open_objects`.

::

    put(absent=True)     one writer wins; a try whose answer was lost knows its own object again
    put(match=version)   replaces exactly the version that was read
    put(), upload()      the last whole object counts: no reader ever sees a part of one
    get(), download()    whole and of one version, or None; what arrives cut or changed is asked for again
"""

from __future__ import annotations

import calendar
import contextlib
import email.utils
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NewType, Protocol, TypeVar

import attrs

from upshift.errors import ConfigError, StoreError
from upshift.model.checks import PLACES, local_path, shown, unfit
from upshift.runtime.storage.digest import Bytes

T = TypeVar("T")
R = TypeVar("R")
Version = NewType("Version", str)
"""Tells one content of an object from the next; nothing else may be read from it."""

MOST_KEY = 1024
"""Bytes of a key with the prefix of its store, as S3 and Google limit it, and Azure in characters:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html"""


@attrs.frozen
class Got:
    """The content that was read of an object."""

    data: memoryview
    version: Version


@attrs.frozen
class Meta:
    """An object in a listing."""

    key: str
    size: int  # bytes
    version: Version
    changed: str = ""  # when it was written, by the clock of the place and in its words

    @property
    def modified(self) -> float:
        """The same in seconds since the epoch; to be compared with that of other objects there only."""
        return seconds(self.changed)


@attrs.frozen
class UnfinishedUpload:
    """Parts of an object that was never completed."""

    key: str
    begun: float  # by the server's clock, in seconds since the epoch
    size: int  # bytes of its parts
    drop: Callable[[], None]  # removes them


class Objects(Protocol):
    """Named bytes. Safe to use from several processes, threads and forks at once.

    Every method raises :class:`~upshift.errors.StoreUnavailable` where the place cannot be reached.
    """

    address: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables by which a process on another machine finds this place; no credentials."""

    def get(self, key: str, *, offset: int = 0, size: int | None = None) -> Got | None:
        """An object, or ``size`` bytes of it from ``offset`` on; None: there is no such object."""

    def put(
        self, key: str, data: Bytes, *, absent: bool = False, match: Version | None = None
    ) -> Version | None:
        """Write an object whole. None: there is one already, or it is not the ``match`` any more."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        """The objects whose keys begin with ``prefix`` and come after ``after``, ordered by bytes."""

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows ``prefix`` up to the next slash in the keys that have one, each once, ordered."""

    def delete(self, keys: Collection[str]) -> None:
        """Remove objects; those that are not there are none the less gone."""

    def now(self) -> float:
        """The time by the place's own clock, in seconds since the epoch: what :attr:`Meta.modified` is of."""

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Uploads in parts that nobody has completed, and that the place keeps until somebody drops them."""

    def upload(self, key: str, buffers: Sequence[Bytes]) -> Version:
        """Write an object of any size from buffers, one after the other; their memory is not copied."""

    def download(self, key: str, path: Path) -> Version | None:
        """Write an object of any size into a file, which appears whole; None: there is no such object."""


def seconds(stamp: str) -> float:
    """A time as servers write it, in seconds since the epoch: ``2026-11-24T20:00:00.000Z``, or as mails do.

    Raises
    ------
    StoreError
        It is none: how old something is must not be guessed.
    """
    with contextlib.suppress(ValueError, TypeError):
        if stamp[:4].isdigit():
            return float(calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")))
        return email.utils.parsedate_to_datetime(stamp).timestamp()
    raise StoreError(
        "the object store does not say how old an object is",
        why=f"It says {stamp!r} where a time should be.",
        fix="Use one that sends LastModified in its lists and the header Date.",
    )


def checked(key: str, prefix: str = "") -> str:
    """The key with a prefix before it, if it can be one in a bucket and a path in a folder."""
    whole = prefix + key
    problem = unfit(key)
    if problem is None and len(whole.encode()) > MOST_KEY:
        problem = f"has {len(whole.encode()):,} bytes; S3 allows {MOST_KEY:,}"
    if problem is None and not {"", ".", ".."}.isdisjoint(key.split("/")):
        problem = "has a part that is empty, '.' or '..'"
    if problem is not None:
        raise ConfigError(f"the key {shown(key)} {problem}", fix="Rename the file.")
    return whole


def open_objects(address: str) -> Objects:
    """The objects at an address: a folder, or ``s3://…``, ``gs://…``, ``az://…``.

    What takes time to import is imported for the address that needs it.
    """
    scheme, separator, rest = address.partition("://")
    if separator and scheme == "s3":
        from upshift.runtime.storage.objects.s3 import open_bucket

        return open_bucket(rest)
    if separator and scheme == "gs":
        from upshift.runtime.storage.objects.google import open_google

        return open_google(rest)
    if separator and scheme == "az":
        from upshift.runtime.storage.objects.azure import open_azure

        return open_azure(rest)
    if separator and scheme != "file":
        raise ConfigError(f"a store at {scheme}:// is not supported", where=address, fix=f"Give {PLACES}.")
    from upshift.runtime.storage.objects.folder import FolderObjects

    if not address:
        raise ConfigError("the store's address is empty", fix=f"Give {PLACES}.")
    try:
        return FolderObjects(local_path(address))
    except ValueError as error:
        raise ConfigError(f"the store {shown(address)} {error}", fix="Give a folder.") from None


def side_by_side(work: Callable[[T], R], items: Collection[T], most: int = 16) -> list[R]:
    """What the work makes of each item; as many as ``most`` are done at once."""
    if len(items) <= 1:  # no thread where a process may have to fork
        return [work(item) for item in items]
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(min(most, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
