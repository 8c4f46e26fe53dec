"""Looking whether a store is whole, in a folder or in a bucket: all that it holds is read, and compared."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import attrs

from upshift.errors import BlobDamaged, BlobMissing, NotFound, NotSerializable, StoreError
from upshift.model.spec.codec import from_json
from upshift.runs.catalog.rows import RunRow
from upshift.runs.needed import Claimed, References
from upshift.runtime.storage.blobs import digest_of_file
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.files import discard
from upshift.runtime.storage.objects import Objects
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.records import ARRAY, refuse_version, unpack_array, unpack_result, unpack_spec
from upshift.runtime.storage.replica import RUN_RECORD, blob_key

_AT_ONCE = 8

Tell = Callable[[str, int, int | None], None]
T = TypeVar("T")
R = TypeVar("R")


@attrs.define(kw_only=True)
class Checked:
    """What a store holds, and what is wrong with it."""

    runs: int = 0
    values: int = 0
    bytes: int = 0
    problems: list[str] = attrs.field(factory=list)


def check_store(objects: Objects, *, tell: Tell = lambda what, done, of: None) -> Checked:
    """Read everything in a store, and see that it is whole and what it should be.

    Raises
    ------
    StoreUnavailable
        The store cannot be read.
    """
    see_version(objects)
    values = Contents(objects, lazily=False)
    done = Checked(values=len(values.known), bytes=sum(size for _, size in values.known.values()))
    needed: dict[bytes, str] = {}
    files = values.runs.files
    for number, run in enumerate(sorted(files)):
        tell("reading the records of runs", number, len(files))
        if f"runs/{run}/{RUN_RECORD}" not in files[run]:
            continue
        done.runs += 1
        for key, content in read_all(objects, files[run]):
            if (problem := _wrong_with(key, content)) is not None:
                done.problems.append(f"{key}: {problem}")
            elif content is not None:
                references = References(values, needed=True)
                with contextlib.suppress(NotSerializable):  # of a serializer that is not installed here
                    references.add_record(key, content)
                for digest in references.needed:
                    needed.setdefault(digest, key)
                for task in sorted(references.task_paths()):
                    of_run = files.get(task.split("/")[0], ())
                    if not any(name.startswith(f"runs/{task}.") for name in of_run):
                        done.problems.append(f"{key}: the results of {task} are missing")
    done.problems += [
        f"blob {digest.hex()} is missing; {key} needs it"
        for digest, key in needed.items()
        if digest not in values.known
    ]
    with tempfile.TemporaryDirectory(prefix="upshift-check-") as drafts:

        def compare(digest: bytes) -> str | None:
            try:
                with values.file(digest, Path(drafts)):
                    return None
            except (BlobDamaged, BlobMissing) as error:
                for_whom = f"; {needed[digest]} needs it" if digest in needed else ""
                return f"blob {digest.hex()} is damaged: {error.why or error.what}{for_whom}"

        for number, wrong in enumerate(side_by_side(compare, sorted(values.known))):
            tell("comparing values with their digests", number, len(values.known))
            if wrong is not None:
                done.problems.append(wrong)
    return done


def see_version(objects: Objects, *, new: bool = False) -> None:
    """See that there is a store, or may be a ``new`` one, of a version that this Upshift knows."""
    found = objects.get("format")
    if found is None and not new:
        if next(objects.list("runs/"), next(objects.list("blobs/"), None)) is None:
            raise NotFound(f"there is no store {objects.address}", fix="See that its address is right.")
    elif found is not None:
        refuse_version(bytes(found.data).decode("ascii", "replace").strip(), objects.address)


class RunFiles:
    """The files of runs in a store, by the name of the run's folder; each with its size."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.files: dict[str, dict[str, int]] = {}
        for meta in objects.list("runs/"):
            self.files.setdefault(meta.key.split("/")[1], {})[meta.key] = meta.size
        self.live: set[str] = set()
        if isinstance(objects, FolderObjects) and self.files:
            claimed = Claimed(objects.address)
            claimed.look()
            self.live = claimed.runs


class Contents:
    """The content of a store, by its digests; a :class:`~upshift.runs.needed.Content`."""

    def __init__(self, objects: Objects, *, lazily: bool) -> None:
        self.objects = objects
        self._lazily = lazily
        self.runs = RunFiles(objects)
        self.known: dict[bytes, tuple[str, int]] = {}
        """By the bytes of the digest: the digest itself, and the size of the content."""
        if not lazily:
            self._list("blobs/")

    def find(self, digest: bytes) -> tuple[str, int] | None:
        """The whole digest, and the size of its content; None: it is not there."""
        if digest not in self.known and self._lazily:
            hexadecimal = digest.hex()
            for name in ("blake3", "sha256"):
                self._list(f"blobs/{name}/{hexadecimal[:2]}/{hexadecimal[2:]}")
        return self.known.get(digest)

    def read(self, digest: str, /) -> memoryview:
        """The content of a blob that names other content, and is small."""
        found = self.objects.get(blob_key(digest))
        if found is None:
            raise BlobMissing(f"content {digest} is not in the store", where=self.objects.address)
        return found.data

    @contextlib.contextmanager
    def file(self, digest: bytes, folder: Path) -> Iterator[tuple[str, Path]]:
        """The digest, and a file with its content, which was compared, for as long as this block lasts."""
        found = self.find(digest)
        if found is None:
            raise BlobMissing(f"content {digest.hex()} is not in the store", where=self.objects.address)
        name, _ = found
        if isinstance(self.objects, FolderObjects):
            path = self.objects.root / blob_key(name)
            self._compare(name, path)
            yield name, path
            return
        path = folder / f"{os.urandom(8).hex()}"
        try:
            if self.objects.download(blob_key(name), path) is None:
                raise BlobMissing(f"content {name} is not in the store", where=self.objects.address)
            self._compare(name, path)
            yield name, path
        finally:
            discard(str(path))

    def _compare(self, digest: str, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                found = digest_of_file(file.fileno(), os.fstat(file.fileno()).st_size, split(digest)[0])
        except FileNotFoundError:
            raise BlobMissing(f"content {digest} is not in the store", where=self.objects.address) from None
        if found not in (digest, None):
            raise BlobDamaged(
                f"content {digest} is damaged",
                where=f"{self.objects.address}/{blob_key(digest)}",
                why=f"its content has the digest {found}",
            )

    def _list(self, prefix: str) -> None:
        for meta in self.objects.list(prefix):
            parts = meta.key.split("/")
            with contextlib.suppress(ValueError):  # nothing that Upshift has put there
                digest = f"{parts[1]}:{''.join(parts[2:])}"
                self.known[bytes.fromhex(split(digest)[1])] = (digest, meta.size)


def _wrong_with(key: str, content: bytes | None) -> str | None:
    """What is wrong with a record; None: nothing."""
    if content is None:
        return "it is missing"
    try:
        if key.endswith(".result.json"):
            return "it does not match its checksum" if unpack_result(content, key) is None else None
        if key.endswith(".spec.json"):
            unpack_spec(content, key)
        elif key.endswith(ARRAY):
            for text in unpack_array(content).specs.values():
                unpack_spec(text.encode(), key)
        elif key.endswith(f"/{RUN_RECORD}"):
            from_json(RunRow, content)
        elif key.endswith(".json"):
            json.loads(content)
    except (ValueError, StoreError) as error:
        return f"it cannot be read: {error if isinstance(error, ValueError) else error.in_short}"
    return None


def read_all(objects: Objects, keys: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    """Keys with the content of their objects, in order; None: it is gone."""

    def read(key: str) -> tuple[str, bytes | None]:
        found = objects.get(key)
        return key, None if found is None else bytes(found.data)

    return side_by_side(read, sorted(keys))


def side_by_side(work: Callable[[T], R], items: Collection[T]) -> Iterator[R]:
    """What ``work`` makes of each item, in order, several at once."""
    if not items:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
