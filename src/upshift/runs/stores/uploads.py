"""Content of this machine's folder that goes into the bucket which the folder follows, each blob once.

Whoever publishes a run, and whoever gives its tasks to a cluster, share what is known of the bucket.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Collection, Iterable
from concurrent.futures import Future

from upshift.errors import BlobMissing
from upshift.runs.stores.references import References
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.replica import Replica, blob_key
from upshift.runtime.storage.store import Store

_LOOKED_FOR = 1 << 20
"""Bytes from which on it is asked first whether the bucket has content already."""
_ALGORITHMS = ("blake3", "sha256")


class Uploads:
    """What goes into one bucket; safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        assert store.replica is not None
        self._store = store
        self._replica: Replica = store.replica
        self._blobs: dict[bytes, Future[None]] = {}
        self._guard = threading.Lock()

    def put(self, path: str, content: bytes) -> References:
        """Have the bucket hold all content that a record refers to.

        Raises
        ------
        BlobMissing
            It is neither here nor there.
        """
        references = References(self._store, needed=True)
        references.add_record(path, content)
        self._rescue(references.blobs)
        for digest in references.blobs:
            self._put_blob(digest, needed=digest in references.needed)
        return references

    def put_blobs(self, digests: Iterable[str]) -> None:
        """Have the bucket hold these blobs."""
        wanted = [bytes.fromhex(split(digest)[1]) for digest in digests]
        self._rescue(wanted)
        for digest in wanted:
            self._put_blob(digest, needed=True)

    def found(self, content: bytes) -> None:
        """A node has put all content that a record refers to."""
        references = References(self._store)
        references.add(content)
        with self._guard:
            for digest in references.blobs - self._blobs.keys():
                self._blobs[digest] = Future()
                self._blobs[digest].set_result(None)

    def _rescue(self, digests: Collection[bytes]) -> None:
        """See that ``gc`` removes none of these."""
        if digests:
            keys = [blob_key(f"{name}:{digest.hex()}") for digest in digests for name in _ALGORITHMS]
            self._replica.condemned.rescue(keys)

    def _put_blob(self, digest: bytes, *, needed: bool) -> None:
        """Have the bucket hold a blob, once; who needs it too waits for whoever puts it."""
        with self._guard:
            done = self._blobs.get(digest)
            mine = done is None
            if done is None:
                done = self._blobs[digest] = Future()
        if not mine:
            done.result()
            return
        try:
            self._put_one(digest.hex(), needed=needed)
        except BaseException as error:
            with self._guard:
                del self._blobs[digest]
            done.set_exception(error)
            raise
        done.set_result(None)

    def _put_one(self, hexadecimal: str, *, needed: bool) -> None:
        digests = [f"{name}:{hexadecimal}" for name in _ALGORITHMS]
        for digest in digests:
            path = f"{self._store.address}/{blob_key(digest)}"
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(path).st_size
                if size < _LOOKED_FOR or self._size_of(digest) != size:
                    self._store.check(digest, size)
                    self._replica.upload(blob_key(digest), path)
                return
        if needed and not any(self._is_there(digest) for digest in digests):
            raise BlobMissing(
                f"content {digests[0]} is neither in this machine's copy of the store nor in the bucket",
                where=self._replica.address,
                fix="Run again: the step that made it runs again.",
            )

    def _is_there(self, digest: str) -> bool:
        """Whether the bucket has a blob, though it may not have had it when it was listed."""
        return self._size_of(digest) is not None or any(
            meta.key == blob_key(digest) for meta in self._replica.objects.list(blob_key(digest))
        )

    def _size_of(self, digest: str) -> int | None:
        with self._guard:
            return self._replica.size_of(digest)


_known: weakref.WeakValueDictionary[str, Uploads] = weakref.WeakValueDictionary()


def uploads_of(store: Store) -> Uploads:
    """What goes into the bucket of a store: the same for all of this process that work with it."""
    found = _known.get(store.address)
    if found is None:
        found = _known[store.address] = Uploads(store)
    return found
