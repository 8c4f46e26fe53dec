"""How attempts go: told by their supervisors, heard by engines that look now and then.

::

    folder    runs/RUN/live/STEP.INDEX.ATTEMPT              a record, replaced each time
    bucket    runs/RUN/live/STEP.INDEX.ATTEMPT/00000001     bulletins: the record, and what is new in the
              runs/RUN/live/STEP.INDEX.ATTEMPT/00000002     attempt's files (log, metrics, usage, result)
              runs/RUN/live/STEP.INDEX.ATTEMPT/lost         by a further node, when the first one is gone

One list tells an engine what is new of all attempts of a run. What it reads of a bulletin goes into the files
of its own folder, at the same places, so that whoever follows a log there need not know of any of this.

Bulletins are put by a thread: however slow the bucket, nothing waits for it before the end of the attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from upshift.errors import StoreError, UpshiftError
from upshift.model.configuration import make_folder
from upshift.model.spec.task import TaskId
from upshift.runtime import children
from upshift.runtime.storage.files import Signature, available, fresh, signature
from upshift.runtime.storage.objects import side_by_side
from upshift.runtime.storage.records import Records, attempt_path, live_folder, live_path
from upshift.runtime.storage.replica import APPENDED, Replica

FIRST, EVERY, SELDOM = 1.0, 2.0, 5.0
"""Seconds before the first bulletin, between two of them, and once an attempt has run for :data:`LONG`."""
LONG = 120.0
MOST = 8 << 20
"""Bytes of new content in a bulletin; the next one follows at once."""
FEW = 50
"""Bulletins that are kept; then the files themselves are put where they belong, if that is not much."""
LITTLE = 1 << 20
TOGETHER = 200
"""Bulletins that are removed together: one request, and a list of live records has no more of them."""
RESULT = "result.json"
REWRITTEN = ".series"
"""Files that now and then are written anew, shorter than before."""
_LOST = "lost"

Said = Mapping[str, Any]


class Live(Protocol):
    """The live records of a store."""

    def say(self, task: TaskId, attempt: int, said: Said, *, last: bool = False) -> None:
        """Say how an attempt goes, in place of what was said before."""

    def lose(self, task: TaskId, attempt: int, why: str) -> None:
        """Say for the first node, which cannot any more, why a further one has left."""

    def hear(self, run: str, names: Collection[str]) -> Iterator[tuple[str, Said]]:
        """What is new of these attempts of a run, each named as by :func:`name_of`."""

    def forget(self, tasks: Collection[tuple[TaskId, int]], *, later: bool = False) -> None:
        """Remove what was said of attempts whose ends are known; ``later``: together with that of others."""

    def tidy(self) -> None:
        """Remove what was left for later."""


def name_of(task: TaskId, attempt: int) -> str:
    """What the live record of an attempt is called among those of its run."""
    return live_path(task, attempt).rpartition("/")[2]


class LiveFolder:
    """Live records in a folder that engine and nodes see."""

    def __init__(self, root: str, records: Records) -> None:
        self._root = root
        self._records = records
        self._seen: dict[str, Signature] = {}  # by path

    def say(self, task: TaskId, attempt: int, said: Said, *, last: bool = False) -> None:
        self._records.write(live_path(task, attempt), json.dumps(said).encode())

    def lose(self, task: TaskId, attempt: int, why: str) -> None:
        content = self._records.read(live_path(task, attempt))
        if content is not None and "ended" not in (said := json.loads(content)):  # begun, and not over
            self.say(task, attempt, {**said, "lost": _of_node(why, said)})

    def hear(self, run: str, names: Collection[str]) -> Iterator[tuple[str, Said]]:
        folder = f"{self._root}/{live_folder(run)}"
        with contextlib.suppress(FileNotFoundError), fresh(folder, lambda: os.scandir(folder)) as entries:
            for entry in entries:
                if entry.name not in names:
                    continue
                try:
                    stamp = signature(os.stat(entry.path))
                    if stamp == self._seen.get(entry.path):
                        continue
                    said = json.loads(Path(entry.path).read_bytes())
                except (OSError, ValueError):  # it has just been replaced
                    continue
                self._seen[entry.path] = stamp
                yield entry.name, said

    def forget(self, tasks: Collection[tuple[TaskId, int]], *, later: bool = False) -> None:
        for task, attempt in tasks:
            path = f"{self._root}/{live_path(task, attempt)}"
            self._seen.pop(path, None)
            with contextlib.suppress(OSError):
                os.unlink(path)

    def tidy(self) -> None:
        """Nothing is left for later."""


class LiveBucket:
    """Live records in a bucket; ``keep`` puts a record into the folder that follows it."""

    def __init__(self, replica: Replica, keep: Callable[[str, bytes], None]) -> None:
        self._replica = replica
        self._keep = keep
        self._bulletins: dict[str, _Bulletins] = {}
        self._heard: dict[str, int] = {}  # the last bulletin, by the folder of an attempt
        self._said: dict[str, dict[str, Any]] = {}
        self._there: dict[str, list[str]] = {}  # keys as they were listed last
        self._over: list[str] = []  # keys of bulletins that are to be removed

    def say(self, task: TaskId, attempt: int, said: Said, *, last: bool = False) -> None:
        where = live_path(task, attempt)
        own = self._bulletins.get(where)
        if own is None:
            own = self._bulletins[where] = _Bulletins(self._replica, task, attempt)
        own.say(said)
        if last:
            del self._bulletins[where]
            own.end()

    def lose(self, task: TaskId, attempt: int, why: str) -> None:
        self._replica.objects.put(f"{live_path(task, attempt)}/{_LOST}", json.dumps({"lost": why}).encode())

    def hear(self, run: str, names: Collection[str]) -> Iterator[tuple[str, Said]]:
        folder = f"{live_folder(run)}/"
        found: dict[str, list[str]] = {}
        for meta in self._replica.objects.list(folder):
            found.setdefault(meta.key.rpartition("/")[0], []).append(meta.key)
        self._there.update(found)
        wanted = {f"{folder}{name}" for name in names} & found.keys()
        new = {where: found[where] for where in wanted if self._is_new(where, found[where])}
        side_by_side(lambda where: self._read(where, new[where]), new)
        for where in new:
            said = self._said.get(where)
            if said:
                yield where.removeprefix(folder), dict(said)

    def forget(self, tasks: Collection[tuple[TaskId, int]], *, later: bool = False) -> None:
        keys: list[str] = []
        for task, attempt in tasks:
            where = live_path(task, attempt)
            keys += self._there.pop(where, [])
            self._heard.pop(where, None)
            self._said.pop(where, None)
        if later:
            self._over += keys
            if len(self._over) >= TOGETHER:
                self.tidy()
        elif keys:
            self._replica.objects.delete(keys)

    def tidy(self) -> None:
        keys, self._over = self._over, []
        if keys:
            self._replica.objects.delete(keys)

    def _is_new(self, where: str, keys: list[str]) -> bool:
        numbers = [int(name) for key in keys if (name := key.rpartition("/")[2]) != _LOST]
        return max(numbers, default=0) > self._heard.get(where, 0) or (
            len(numbers) < len(keys) and "lost" not in self._said.get(where, {})
        )

    def _read(self, where: str, keys: list[str]) -> None:
        said = self._said.setdefault(where, {})
        for key in sorted(keys):
            name = key.rpartition("/")[2]
            if name == _LOST or int(name) <= self._heard.get(where, 0):
                continue
            found = self._replica.objects.get(key)
            if found is not None:  # else the files themselves have been put meanwhile
                lost = {"lost": said["lost"]} if "lost" in said else {}
                self._said[where] = said = {**self._take(bytes(found.data)), **lost}
            self._heard[where] = int(name)
        if any(key.endswith(f"/{_LOST}") for key in keys) and "lost" not in said:
            found = self._replica.objects.get(f"{where}/{_LOST}")
            if found is not None:
                said["lost"] = _of_node(json.loads(bytes(found.data))["lost"], said)

    def _take(self, content: bytes) -> dict[str, Any]:
        """What a bulletin says; what it has of files goes into those of this machine."""
        line, _, rest = content.partition(b"\n")
        header = json.loads(line)
        body, at = memoryview(rest), 0
        for relative, start, size in header["parts"]:
            part = body[at : at + size]
            at += size
            if relative.endswith(RESULT):
                self._keep(relative, bytes(part))
            else:
                self._append(relative, start, part)
        for relative, size in header["sizes"].items():
            if _size(f"{self._replica.root}/{relative}") < size:  # parts of it came and went unheard
                self._replica.objects.download(relative, Path(self._replica.root, relative))
        said: dict[str, Any] = header["said"]
        return said

    def _append(self, relative: str, start: int, part: memoryview) -> None:
        path = f"{self._replica.root}/{relative}"
        if _size(path) < start:
            return
        with available("written", path):
            make_folder(Path(path).parent)
            anew = os.O_TRUNC if relative.endswith(REWRITTEN) and not start else 0
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | anew, 0o666)
            try:
                while part:
                    written = os.pwrite(descriptor, part, start)
                    part, start = part[written:], start + written
            finally:
                os.close(descriptor)


class _Bulletins:
    """The bulletins of one attempt, as its supervisor writes them."""

    def __init__(self, replica: Replica, task: TaskId, attempt: int) -> None:
        self._replica = replica
        self._where = live_path(task, attempt)
        self._base = attempt_path(task, attempt, "")  # what the names of its files begin with
        self._said: Said = {}
        self._changed = False
        self._number = 0
        self._first = 1  # the oldest that is there
        self._told: dict[str, int] = {}  # bytes of each file that were told
        self._inodes: dict[str, int] = {}
        self._put: dict[str, int] = {}  # bytes of each that were put where they belong
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, said: Said) -> None:
        """To be told at the next opportunity."""
        self._said, self._changed = json.loads(json.dumps(said)), True
        if self._thread is None and "ended" not in said:
            self._thread = threading.Thread(target=self._work, name="upshift-bulletins", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Tell the last thing, now."""
        self._ended.set()
        if self._thread is not None:
            children.join(self._thread)
        while self._tell():
            pass

    def _work(self) -> None:
        passed, pause, more = 0.0, FIRST, False
        while not self._ended.wait(0.0 if more else pause):
            passed, more = passed + pause, False
            with contextlib.suppress(UpshiftError, OSError):  # the next one tells it
                more = self._tell()
                self._settle()
            pause = EVERY if passed < LONG else SELDOM

    def _tell(self) -> bool:
        """Put a bulletin, if there is news; whether there is more than fits."""
        parts, content, left = [], [], MOST
        for relative, status in self._files().items():
            if self._inodes.setdefault(relative, status.st_ino) != status.st_ino:
                self._inodes[relative], self._told[relative] = status.st_ino, 0  # it was written anew
            start, size = self._told.get(relative, 0), status.st_size
            if size > start and left > 0:
                part = self._part(relative, start, min(size - start, left))
                parts.append((relative, start, len(part)))
                content.append(part)
                left -= len(part)
        if not parts and not self._changed:
            return False
        self._changed = False
        more = left <= 0
        # The end is heard once everything is that came before it.
        said = {k: v for k, v in self._said.items() if k != "ended"} if more else self._said
        sizes = self._told | {relative: start + size for relative, start, size in parts}
        sizes = {relative: size for relative, size in sizes.items() if not relative.endswith(RESULT)}
        header = json.dumps({"said": said, "parts": parts, "sizes": sizes}).encode()
        try:
            key = f"{self._where}/{self._number + 1:08d}"
            self._replica.objects.put(key, b"".join([header, b"\n", *content]))
        except StoreError:
            self._changed = True
            raise
        self._number += 1
        self._told.update({relative: start + size for relative, start, size in parts})
        self._changed = self._changed or more
        return more

    def _files(self) -> dict[str, os.stat_result]:
        """The attempt's files that are there, by their paths in the store."""
        folder, begin = self._base.rpartition("/")[::2]
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(f"{self._replica.root}/{folder}")):
                if name.startswith(begin) and name.endswith((*APPENDED, RESULT)):
                    found[f"{folder}/{name}"] = os.stat(f"{self._replica.root}/{folder}/{name}")
        return found

    def _part(self, relative: str, start: int, size: int) -> bytes:
        with open(f"{self._replica.root}/{relative}", "rb") as file:
            return os.pread(file.fileno(), size, start)

    def _settle(self) -> None:
        """Have the files where they belong, so that there are not more and more bulletins."""
        if self._number - self._first < FEW:
            return
        due = {relative: size for relative, size in self._told.items() if size != self._put.get(relative)}
        if any(s > LITTLE and s < self._put.get(r, 0) * 5 // 4 for r, s in due.items()):
            return
        for relative, size in due.items():
            self._replica.upload(relative, f"{self._replica.root}/{relative}")
            self._put[relative] = size
        old = range(self._first, self._number)  # the last one stays: it says how the attempt goes
        self._replica.objects.delete([f"{self._where}/{number:08d}" for number in old])
        self._first = self._number


def _of_node(why: str, said: Said) -> str:
    return why.replace("node 0 is", f"node 0 ({said['node']}) is", 1) if "node" in said else why


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
