"""What the records of runs refer to: blobs, and results of other runs.

A record is searched for digests as text, whatever its fields are, so that one with fields that only a
newer Upshift knows is searched as well. Only content that names further content (a list that was saved
item by item, a folder, a value of a third party's serializer) is looked into; which those are is in the
records, too.

Of an exported pipeline a bucket has ``exports/DIGEST.json``, a copy of the order that the blob DIGEST holds.
Somebody may run an exported file months later, and nothing here hears of it. ``gc`` keeps what its pods need
until the export itself is removed, and finds it by this object.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from upshift.errors import BlobDamaged, BlobMissing
from upshift.model.spec.task import TaskId
from upshift.runtime.storage import manifest
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.records import ARRAY, task_path, unpack_array
from upshift.runtime.storage.serializers import names_blobs, serializer_named
from upshift.runtime.storage.store import Store

_DIGEST = re.compile(rb"(?:blake3|sha256):([0-9a-f]{64})")
_SERIALIZER = re.compile(rb'"serializer":\s*"((?:[^"\\]|\\.)*)"')
_PLAIN = (".series", ".metrics", ".log")
"""What names nothing: usage over time, what a step logged, and what it printed."""


class Content(Protocol):
    """What gives the content of blobs: a store."""

    def read(self, digest: str, /) -> memoryview:
        """The content of a blob; raises :class:`BlobMissing` or :class:`BlobDamaged`."""


class References:
    """What is referred to, collected from one record after the other.

    Parameters
    ----------
    store
        Where the records are, and the content that names further content.
    needed
        Whether to tell content that has to be there from digests that are only mentioned: of values that a
        record holds itself, and of what a key was made from.
    """

    def __init__(self, store: Content, *, needed: bool = False) -> None:
        self.needed: set[bytes] = set()
        """Those of the digests without whose content a value cannot be read."""
        self._walks = needed
        self.blobs: set[bytes] = set()
        """Digests, as their bytes: there may be millions."""
        self.tasks: set[TaskId] = set()
        """Tasks whose results others have."""
        self._store = store
        self._naming: dict[str, bool] = {manifest.NAME: True}
        self._followed: set[str] = set()

    def add_file(self, path: str) -> None:
        """What one record refers to; nothing, if it is gone or no record."""
        if path.endswith(_PLAIN):
            return
        try:
            with open(path, "rb", buffering=0) as file:
                content = file.read()
        except FileNotFoundError:
            return
        self.add_record(path, content)

    def add_record(self, path: str, content: bytes) -> None:
        """What the content of a record refers to, by its path."""
        if path.endswith(_PLAIN):
            return
        if path.endswith(ARRAY):
            with contextlib.suppress(ValueError):  # one that is torn was never submitted
                for text in unpack_array(content).specs.values():
                    self.add(text.encode())
            return
        self.add(content)
        if b'"origin"' in content and path.endswith("/tasks.json"):
            # Of one that is torn, the digests are found all the same; origins are in the catalog, too.
            with contextlib.suppress(ValueError):
                rows = json.loads(content)["tasks"]
                self.tasks.update(origin_of(row["origin"]) for row in rows if row.get("origin"))

    def add(self, content: bytes) -> None:
        """What the text of a record refers to."""
        self.blobs.update(map(bytes.fromhex, (found[1].decode() for found in _DIGEST.finditer(content))))
        names = [self._names_blobs(name) for name in set(_SERIALIZER.findall(content))]
        if any(names) or (names and self._walks):
            for data in _documents(content):
                self._walk(data)

    def task_paths(self) -> set[str]:
        """The tasks, as what the paths of their files begin with; see :func:`task_path`."""
        return set(map(task_path, self.tasks))

    def _names_blobs(self, quoted: bytes) -> bool:
        name: str = json.loads(b'"' + quoted + b'"')
        known = self._naming.get(name)
        if known is None:
            known = self._naming[name] = names_blobs(name)
        return known

    def _walk(self, data: Any) -> None:
        pending = [data]
        while pending:
            item = pending.pop()
            if isinstance(item, list):
                pending.extend(item)
            elif isinstance(item, dict):
                name = item.get("serializer")
                if isinstance(name, str) and isinstance(item.get("digest"), str):
                    self._follow(name, item["digest"], item.get("inline"))
                pending.extend(item.values())

    def _follow(self, name: str, digest: str, inline: object) -> None:
        if inline is None and (found := _DIGEST.fullmatch(digest.encode())):
            self.needed.add(bytes.fromhex(found[1].decode()))
        if not self._naming.get(name) or digest in self._followed:
            return
        self._followed.add(digest)
        content = self._content(digest, inline)
        if content is None:
            return
        if name == manifest.NAME:
            self.add(bytes(content))
            return
        for reference, _ in serializer_named(name).references(content):
            self.blobs.add(bytes.fromhex(split(reference)[1]))
            self.needed.add(bytes.fromhex(split(reference)[1]))

    def _content(self, digest: str, inline: object) -> memoryview | None:
        """None: it is lost, and with it whatever it named."""
        if isinstance(inline, str):
            return memoryview(binascii.a2b_base64(inline))
        try:
            return self._store.read(digest)
        except (BlobMissing, BlobDamaged):
            return None


def files_of(folder: str) -> Iterator[str]:
    """The files below a folder, at any depth; none where there is no folder."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        yield entry.path
        except FileNotFoundError:
            continue


def origin_of(data: Iterable[Any]) -> TaskId:
    """The task in the JSON form of a row's ``origin``."""
    run, step, index, _ = data
    return TaskId(run=run, step=step, index=index)


def _documents(content: bytes) -> Iterator[Any]:
    """The JSON in a record: all of it, or what follows its first line."""
    for text in (content, content.partition(b"\n")[2]):
        try:
            yield json.loads(text)
            return
        except (
            ValueError
        ):  # a checksum or a mark before it; or it is damaged, and names what the search found
            continue


EXPORTS = "exports/"


def write_export(store: Store, digest: str, order: bytes) -> None:
    """Write down that a pipeline was exported, by the digest of its order; once more, if it was already."""
    if store.replica is not None:
        store.replica.objects.put(f"{EXPORTS}{split(digest)[1]}.json", order)
