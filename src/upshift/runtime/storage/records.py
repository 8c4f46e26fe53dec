"""The files of a store that say what a run is, what was asked of an attempt, and what became of it.

::

    format                            the version of all this: a newer one is refused, never guessed at
    runs/RUN/run.json, graph.json, sources.json, tasks.json
    runs/RUN/removed.json             instead of run.json: gc removed the run
    runs/RUN/tasks/STEP/INDEX.ATTEMPT.spec.json
    runs/RUN/tasks/STEP/INDEX.ATTEMPT.claim           by its supervisor, or by an engine that gave it up
    runs/RUN/tasks/STEP/INDEX.ATTEMPT.stop            by an engine that has cancelled it: a signal
    runs/RUN/tasks/STEP/INDEX.ATTEMPT.result.json
    runs/RUN/tasks/STEP/INDEX.ATTEMPT.log, .series, .metrics, .cards
    runs/RUN/tasks/STEP/INDEX.ATTEMPT.rankRANK.log     of each of several processes
    runs/RUN/tasks/STEP/NAME.array    which element of an array of jobs has the task of which spec
    runs/RUN/live/STEP.INDEX.ATTEMPT  how an attempt goes, for an engine that looks now and then

A claim or a result is created by ``link(2)``, which succeeds for one writer only. A result begins with a line
that holds the checksum of the rest, so that one torn by a power loss reads as none at all.

In a folder each spec is a file. In a bucket that would be one request to put each spec and one to read it, so
there the list of an array also holds the specs of tasks that are tried for the first time, compressed, as
they are much alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from upshift.errors import ConfigError, StoreError
from upshift.model.spec.codec import from_json, to_json
from upshift.model.spec.task import VERSION, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage.files import (
    available,
    create,
    discard,
    exists,
    fresh,
    link,
    move,
    temporary,
    write_all,
)
from upshift.runtime.storage.objects import Objects

_UNSAFE = frozenset('/\\\0%:*?"<>|')
_LONGEST = 180
REMOVED = "removed.json"
"""What the record ``run.json`` is called once the run was removed; what is left of it belongs to others."""
ARRAY = ".array"
"""What the name of an array's list ends with."""
STORE_VERSION = 1
"""What this Upshift writes, and the newest that it reads. A store that says none is of version 1."""


class Records:
    """The records of a store in a folder."""

    def __init__(self, root: str, *, power: bool) -> None:
        self._root = root
        self._tmp = f"{root}/tmp"
        self._power = power

    def write(self, relative: str, content: bytes) -> None:
        """Put a record in its place, instead of an older one of that name."""
        path = f"{self._root}/{relative}"
        with available("written", path), self._temporary(content) as name:
            move(name, path, power=self._power)

    def create(self, relative: str, content: bytes) -> bool:
        """Put a record in its place, unless there is one already: False then."""
        path = f"{self._root}/{relative}"
        with available("written", path), self._temporary(content) as name:
            created = link(name, path, power=self._power)
            discard(name)
            return created

    def read(self, relative: str) -> bytes | None:
        """The record, or None."""
        path = f"{self._root}/{relative}"

        def read() -> bytes:
            with open(path, "rb", buffering=0) as file:
                return file.read()

        with available("read", path):
            try:
                return fresh(path, read)
            except FileNotFoundError:
                return None

    def has(self, relative: str) -> bool:
        """Whether the record is there."""
        path = f"{self._root}/{relative}"
        with available("read", path):
            return exists(path)

    def remove(self, relative: str) -> None:
        """Remove a record, if it is there."""
        path = f"{self._root}/{relative}"
        with available("written", path), contextlib.suppress(FileNotFoundError):
            fresh(path, lambda: os.unlink(path))

    def names(self, relative: str) -> list[str]:
        """What a folder of records holds, in order; nothing where there is no such folder."""
        path = f"{self._root}/{relative}"
        with available("read", path):
            try:
                return sorted(fresh(path, lambda: os.listdir(path)))
            except (FileNotFoundError, NotADirectoryError):
                return []

    @contextlib.contextmanager
    def _temporary(self, content: bytes) -> Iterator[str]:
        name = temporary(self._tmp)
        fd = create(name)
        try:
            try:
                write_all(fd, memoryview(content))
                if self._power:
                    os.fsync(fd)
            finally:
                os.close(fd)
            yield name
        except BaseException:
            discard(name)
            raise


class BucketRecords(Records):
    """The records of a store in a bucket; the folder that follows it keeps what was read or written here."""

    def __init__(self, root: str, objects: Callable[[], Objects], *, power: bool) -> None:
        super().__init__(root, power=power)
        self._objects = objects  # the bucket is opened at its first use

    def write(self, relative: str, content: bytes) -> None:
        self._objects().put(relative, content)
        self.keep(relative, content)

    def create(self, relative: str, content: bytes) -> bool:
        created = self._objects().put(relative, content, absent=True) is not None
        if created:
            self.keep(relative, content)
        return created

    def read(self, relative: str) -> bytes | None:
        here = super().read(relative)
        if here is not None:
            return here
        found = self._objects().get(relative)
        if found is None:
            return None
        content = bytes(found.data)
        self.keep(relative, content)
        return content

    def remove(self, relative: str) -> None:
        if super().read(relative) is not None:  # who has not written it, nor read it, need not remove it
            self._objects().delete([relative])
        super().remove(relative)

    def names(self, relative: str) -> list[str]:
        listed = self._objects().list(f"{relative}/")
        return sorted({meta.key[len(relative) + 1 :].partition("/")[0] for meta in listed})

    def keep(self, relative: str, content: bytes) -> None:
        """Copy a record from the bucket to this machine."""
        super().write(relative, content)


def attempt_path(task: TaskId, attempt: int, ending: str) -> str:
    """The path of something about an attempt, relative to the store."""
    return f"runs/{task_path(task)}.{attempt}.{ending}"


def live_path(task: TaskId, attempt: int) -> str:
    """The path of the live record of an attempt, relative to the store: one folder has those of a run."""
    return f"{live_folder(task.run)}/{safe(task.step)}.{task.index or 0}.{attempt}"


def live_folder(run: str) -> str:
    """The folder of the live records of a run, relative to the store."""
    return f"runs/{safe(run)}/live"


def task_path(task: TaskId) -> str:
    """What the paths of everything about a task begin with, relative to the folder of all runs."""
    return f"{safe(task.run)}/tasks/{safe(task.step)}/{task.index or 0}"


def safe(name: str) -> str:
    """A file name for any name: itself, where it is fit to be one."""
    if name.isidentifier() and len(name) <= _LONGEST and name.isascii():
        return name
    if not name.startswith(".") and _UNSAFE.isdisjoint(name) and name and len(name.encode()) <= _LONGEST:
        return name
    quoted = "".join(c if (c.isalnum() and c.isascii()) or c in "-_ ()[]" else f"%{ord(c):02X}" for c in name)
    return f"{quoted[:_LONGEST]}%{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def pack_result(result: TaskResult) -> bytes:
    """A result with its checksum."""
    body = to_json(result)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpack_result(content: bytes, where: str) -> TaskResult | None:
    """The result, or None where the checksum is not that of the rest."""
    checksum, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        return None
    result = from_json(TaskResult, body)
    _refuse_newer(result.version, where)
    return result


def unpack_spec(content: bytes, where: str) -> TaskSpec:
    """The spec in the bytes of its record."""
    try:
        spec = from_json(TaskSpec, content)
    except ValueError as error:
        raise StoreError("a task spec is damaged", where=where, why=str(error), fix="Run again.") from None
    _refuse_newer(spec.version, where)
    return spec


def _refuse_newer(version: int, where: str) -> None:
    if version > VERSION:
        raise StoreError(
            f"a record has version {version}, and this Upshift reads up to {VERSION}",
            where=where,
            fix="Upgrade Upshift here: pip install --upgrade upshift.",
        )


class ArrayList(NamedTuple):
    """The list of the elements of an array."""

    share: float  # seconds in which an element takes further tasks
    names: Mapping[int, str]  # file names of specs, by element
    specs: Mapping[str, str] = {}  # the texts of those that are nowhere else, by file name


def pack_array(listed: ArrayList) -> bytes:
    """The content of an array's list."""
    said = {"share": listed.share, "specs": listed.names}
    if not listed.specs:
        return json.dumps(said).encode()
    return zlib.compress(json.dumps({**said, "texts": listed.specs}).encode())


def unpack_array(content: bytes) -> ArrayList:
    """What the content of an array's list says. Raises ``ValueError`` where it is none."""
    try:
        said = json.loads(content if content.startswith(b"{") else zlib.decompress(content))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    names = {int(number): name for number, name in said["specs"].items()}
    return ArrayList(float(said["share"]), names, said.get("texts", {}))


# The version of a store


def refuse_newer(root: str) -> None:
    """See that this Upshift knows the form of a store; one that is not there yet will have it."""
    path = f"{root}/format"
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = file.read(64).strip()
    except OSError:  # no store yet, or one that cannot be read: whoever uses it will say so
        return
    refuse_version(found, root)


def refuse_version(found: str, root: str) -> None:
    """See that this Upshift knows a version, which the store at ``root`` says it is of."""
    if not found.isdecimal():
        raise ConfigError(
            f"{root} is not a store",
            why=f"Its file format holds {found!r}, where the version of a store should be.",
            fix="See that the store's address is right. If it is, write 1 into that file.",
        )
    if int(found) > STORE_VERSION:
        raise ConfigError(
            f"the store {root} was made by a newer version of Upshift",
            why=f"It is of version {found}; this Upshift supports versions up to {STORE_VERSION}.",
            fix="Upgrade: pip install --upgrade upshift",
        )


def mark(root: str) -> None:
    """Write the version into a store that has none."""
    path = f"{root}/format"
    if os.path.exists(path):
        return
    # Flushed, once for a store: an empty one, after a power loss, would be refused.
    with Records(root, power=True)._temporary(f"{STORE_VERSION}\n".encode()) as draft:
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            os.link(draft, path)
        discard(draft)
