"""Checkpoints of a task whose nodes share a bucket: saved on the node, then put there, the records last.

The files of all ranks of a node are put by the one of them that is through last, so that nobody puts what
another one still writes. A node that is asked for the latest one has it brought, once for all of its ranks.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from upshift.model.spec.codec import from_json, to_json
from upshift.model.spec.task import TaskId
from upshift.runtime.storage.checkpoints import Checkpoint, Name, Part, TaskCheckpoints, fits, flush, name_in
from upshift.runtime.storage.files import available, make_folder
from upshift.runtime.storage.objects import side_by_side
from upshift.runtime.storage.records import attempt_path
from upshift.runtime.storage.replica import Replica, alone, upload


class BucketCheckpoints(TaskCheckpoints):
    """The checkpoints of one task, in a bucket and on this node."""

    def __init__(self, store: str, task: TaskId, replica: Replica, ranks: int) -> None:
        super().__init__(store, task)
        self._objects = replica.objects
        self._here = ranks

    def finish(self, name: Name, rank: int, part: Part) -> int | None:
        folder = self.folder / str(name)
        with available("written", str(folder)):
            flush(str(folder))
        if self._superseded(name):
            return None
        self._records.write(f"{self._relative}/{name}.rank{rank}", to_json(part))
        mine = [e for e in self._records.names(self._relative) if e.startswith(f"{name}.rank")]
        if len(mine) < min(part.ranks, self._here):
            return None
        files = [os.path.join(at, file) for at, _, those in os.walk(folder) for file in those]
        side_by_side(self._upload, [path for path in files if os.path.isfile(path)])
        for record in mine:
            self._objects.put(f"{self._relative}/{record}", Path(self.folder, record).read_bytes())
        there = self._there()
        records, sizes = there[name]
        if len(records) < part.ranks:
            return None
        if not sizes:
            self.drop(name)
            raise FileNotFoundError(str(folder))
        for older in [one for one in there if one < name]:
            self.drop(older)
        return sum(sizes.values())

    def newest(self, key: str | None) -> Checkpoint | None:
        there = self._there()
        for name in sorted(there, reverse=True):
            records, sizes = there[name]
            parts = {}
            for rank, record in records.items():
                found = self._objects.get(record)
                if found is not None:
                    with contextlib.suppress(ValueError):  # damaged
                        parts[rank] = from_json(Part, bytes(found.data))
            if not parts or not sizes:
                continue
            part = parts[min(parts)]
            if len(parts) >= part.ranks and fits(part.key, key):
                with alone(f"{self.folder}/.lock"):
                    lacking = [file for file, size in sizes.items() if self._size(file) != size]
                    side_by_side(self._download, lacking)
                return Checkpoint(name, self.folder / str(name), parts)
        return None

    def drop(self, name: Name) -> None:
        records, sizes = self._there(f"{name}").get(name, ({}, {}))
        self._objects.delete([*records.values()])
        self._objects.delete([*sizes])
        super().drop(name)

    def _there(self, begin: str = "") -> dict[Name, tuple[dict[int, str], dict[str, int]]]:
        """Those in the bucket: of each the keys of its records by rank, and of its files with their sizes."""
        found: dict[Name, tuple[dict[int, str], dict[str, int]]] = {}
        for meta in self._objects.list(f"{self._relative}/{begin}"):
            entry, inside, _ = meta.key[len(self._relative) + 1 :].partition("/")
            name = name_in(entry)
            if name is None:
                continue
            records, sizes = found.setdefault(name, ({}, {}))
            if inside:
                sizes[meta.key] = meta.size
            elif ".rank" in entry:
                records[int(entry.rpartition(".rank")[2])] = meta.key
        return found

    def _superseded(self, name: Name) -> bool:
        return self._objects.get(attempt_path(self._task, name.attempt + 1, "spec.json"), size=0) is not None

    def _upload(self, path: str) -> None:
        upload(self._objects, os.path.relpath(path, self.store), path)

    def _download(self, key: str) -> None:
        path = Path(self.store, key)
        with available("written", str(path)):
            make_folder(str(path.parent))
        self._objects.download(key, path)

    def _size(self, key: str) -> int | None:
        try:
            return os.stat(f"{self.store}/{key}").st_size
        except OSError:
            return None
