"""What a bucket has of runs, and what those that stay refer to, as ``gc`` has to know it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Mapping

from upshift.runs.catalog.catalog import Catalog
from upshift.runs.collect import Tell, refer
from upshift.runs.needed import EXPORTS, References, files_of
from upshift.runtime.storage.objects import Meta, Version
from upshift.runtime.storage.records import ARRAY, REMOVED, safe
from upshift.runtime.storage.replica import RUN_RECORD, Replica
from upshift.runtime.storage.store import Store

DAY = 86_400.0
"""Seconds after which an engine without a sign of life is dead, and content that no run ever named is old."""
_NAMING = (".json", ARRAY)
"""What records end with that name content."""
_BATCH = 1000
"""Runs whose records are brought here at once."""


class Survey:
    """The runs in a bucket. Exported pipelines count as runs: those older than ``exports_before`` go."""

    def __init__(
        self,
        store: Store,
        replica: Replica,
        catalog: Catalog | None,
        exports_before: float | None,
        tell: Tell,
    ) -> None:
        self.files: dict[str, dict[str, Meta]] = {}
        """The objects of each run."""
        self.references = References(store)
        """What runs and exports that stay refer to."""
        self._of_removed = References(store)
        self._read: dict[str, Version] = {}  # records that were searched, by key
        self._store = store
        self._replica = replica
        self._objects = replica.objects
        self._catalog = catalog
        self._exports_before = exports_before
        self._tell = tell

    @functools.cached_property
    def now(self) -> float:
        """The time by the bucket's clock, in seconds since the epoch."""
        return self._objects.now()

    def is_old(self, meta: Meta) -> bool:
        """Whether nothing that is at work now can have made an object."""
        return self.now - meta.modified > DAY

    def old_exports(self) -> list[Meta]:
        """Exported pipelines that are to go."""
        return [meta for meta in self._objects.list(EXPORTS) if self._is_to_go(meta)]

    def _is_to_go(self, export: Meta) -> bool:
        return self._exports_before is not None and self.now - export.modified > self._exports_before

    def list_runs(self) -> None:
        """See which objects there are."""
        self._tell("listing runs", 0, None)
        self.files = {}
        for meta in self._objects.list("runs/"):
            self.files.setdefault(meta.key.split("/")[1], {})[meta.key] = meta

    def gone(self, going: Collection[str] = ()) -> set[str]:
        """The runs that were removed, and those that a killed engine had just begun."""
        found = set(going) & self.files.keys()
        for run, files in self.files.items():
            if f"runs/{run}/{RUN_RECORD}" in files:
                continue
            if f"runs/{run}/{REMOVED}" in files or all(self.is_old(meta) for meta in files.values()):
                found.add(run)
        return found

    def look(self) -> None:
        """List the runs, and learn what those that stay refer to."""
        self.list_runs()
        self.read()

    def read(self, going: Collection[str] = ()) -> None:
        """Learn what the runs that stay refer to; what was learned before is not asked for again."""
        gone = self.gone(going)
        kept = sorted(self.files.keys() - gone)
        changed = [run for run in kept if self._has_changed(run)]
        for at in range(0, len(changed), _BATCH):
            self._tell("reading the records of runs", at, len(changed))
            batch = changed[at : at + _BATCH]
            self._replica.bring_runs(batch)
            for run in batch:
                self._add_run(run)
        for run in self._replica.unpublished():  # what this machine has not put there yet
            for path in files_of(f"{self._store.address}/runs/{run}"):
                refer(self.references, path)
        if self._catalog is not None:
            origins = self._catalog.origins()
            self.references.tasks.update(task for run, task in origins if safe(run) not in gone)
        for meta in self._objects.list(EXPORTS):
            if not self._is_to_go(meta) and self._read.get(meta.key) != meta.version:
                self._read[meta.key] = meta.version
                self._add_export(meta.key)
        wanted = self.references.task_paths()
        for run in sorted(gone):
            self._add_removed(run, wanted)

    def _add_export(self, key: str) -> None:
        """What an exported pipeline needs: its order, whose digest is in the key, and what that names."""
        found = self._objects.get(key)
        if found is not None:
            self.references.blobs.add(bytes.fromhex(key.removeprefix(EXPORTS).removesuffix(".json")))
            self.references.add_record(key, bytes(found.data))

    def _has_changed(self, run: str) -> bool:
        found = False
        for key, meta in self.files[run].items():
            if key.endswith(_NAMING) and self._read.get(key) != meta.version:
                self._read[key] = meta.version
                found = True
        return found

    def _add_run(self, run: str) -> None:
        for path in files_of(f"{self._store.address}/runs/{run}"):
            refer(self.references, path)
        for key in self.files[run]:
            # Of an attempt that has left no result, only what it has to show names what it has saved.
            if key.endswith(".cards") and f"{key.removesuffix('cards')}result.json" not in self.files[run]:
                self._add_object(key, self.references)

    def _add_removed(self, run: str, wanted: set[str]) -> None:
        """Results that others have refer to content; all others say what may go at once."""
        keys = [key for key in self.files[run] if key.endswith(_NAMING)]
        for key in keys:
            if self._read.get(key) == self.files[run][key].version:
                continue
            self._read[key] = self.files[run][key].version
            self._add_object(key, self._of_removed)
        for key in keys:
            if task_of(key) in wanted:
                self._add_object(key, self.references)

    def _add_object(self, key: str, references: References) -> None:
        path = f"{self._store.address}/{key}"
        with contextlib.suppress(FileNotFoundError):
            with open(path, "rb") as file:
                content = file.read()
            if len(content) == self.files[key.split("/")[1]][key].size:
                references.add_record(key, content)
                return
        found = self._objects.get(key)
        if found is not None:
            references.add_record(key, bytes(found.data))

    def unneeded(self, blobs: Mapping[str, Meta]) -> list[str]:
        """The keys of blobs that no kept run refers to; those that none ever did, only if they are old."""
        kept, of_removed = self.references.blobs, self._of_removed.blobs
        return [
            key
            for key, meta in blobs.items()
            if (digest := digest_of_key(key)) not in kept and (digest in of_removed or self.is_old(meta))
        ]


def task_of(key: str) -> str | None:
    """The task that an object is about, as its path below that of all runs; None: it is about the run."""
    folder, _, name = key.removeprefix("runs/").rpartition("/")
    return f"{folder}/{name.partition('.')[0]}" if folder.count("/") == 2 else None


def digest_of_key(key: str) -> bytes | None:
    """The digest of the blob at a key; None: nothing that Upshift has put there."""
    with contextlib.suppress(ValueError):
        _, _, begin, rest = key.split("/")
        if len(begin + rest) == 64:
            return bytes.fromhex(begin + rest)
    return None
