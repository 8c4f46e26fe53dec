"""The store: content and task records in one folder. It decides what is done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from upshift.errors import ConfigError, StoreError, StoreUnavailable
from upshift.model.checks import BUCKETS, PLACES, in_bucket, local_path, shown
from upshift.model.configuration import DURABILITIES, VERIFY
from upshift.model.spec.codec import to_json
from upshift.model.spec.task import TaskId, TaskResult, TaskSpec
from upshift.runtime.storage.blobs import Blobs
from upshift.runtime.storage.claims import Claims
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.files import ask_again
from upshift.runtime.storage.live import Live, LiveBucket, LiveFolder
from upshift.runtime.storage.records import (
    REMOVED,
    ArrayList,
    BucketRecords,
    Records,
    attempt_path,
    pack_array,
    pack_result,
    refuse_newer,
    safe,
    task_path,
    unpack_array,
    unpack_result,
    unpack_spec,
)
from upshift.runtime.storage.replica import Replica, replica_at, replica_of


def open_store(address: str, *, durability: str = "process", verify: str = "changed") -> Store:
    """Open the store at an address; one in a bucket is a folder that follows it, which engines publish."""
    scheme, separator, _ = address.partition("://")
    if separator and scheme not in ("file", *BUCKETS):
        raise ConfigError(f"runs cannot have their store at {scheme}://", where=address, fix=f"Use {PLACES}.")
    if not address:
        raise ConfigError("the store's address is empty", fix=f"Set store = … to {PLACES}.")
    for name, value, known in (("durability", durability, DURABILITIES), ("verify", verify, VERIFY)):
        if value not in known:
            raise ConfigError(f"{name} = {value!r} is invalid", fix=f"Expected one of {', '.join(known)}.")
    if in_bucket(address):
        replica = replica_of(address)
        return Store(Path(replica.root), durability=durability, verify=verify, replica=replica)
    try:
        root = local_path(address)
    except ValueError as error:
        raise ConfigError(
            f"store = {shown(address)} {error}", fix='Name a folder: store = "/shared/upshift".'
        ) from None
    refuse_newer(str(root))
    return Store(root, durability=durability, verify=verify, replica=replica_at(str(root)))


def open_direct(address: str, *, durability: str = "process", verify: str = "changed") -> Store:
    """Open a store as nodes do, which share nothing else: what is written to a bucket is there at once."""
    store = open_store(address, durability=durability, verify=verify)
    if "://" not in address or store.replica is None:
        return store
    return Store(store.root, durability=durability, verify=verify, replica=store.replica, direct=True)


def store_of(spec: TaskSpec) -> Store:
    """The store of an attempt, as whoever starts it and its own processes work with it."""
    return open_direct(spec.store, **spec.store_options)


class Store:
    """Content-addressed blobs, and the records of runs and tasks.

    Safe to use from several processes, machines and threads at once. Every method that touches the
    file system raises :class:`~upshift.errors.StoreUnavailable` where that fails.
    """

    def __init__(
        self,
        root: Path,
        *,
        durability: str = "process",
        verify: str = "changed",
        replica: Replica | None = None,
        direct: bool = False,
    ) -> None:
        self.root = root
        self.address = str(root)
        self.replica = replica  # None: the store is this folder, and in no bucket
        self.durability = durability
        self.verify = verify
        power = durability == "power"
        self.claims = Claims(self.address)
        self.direct = replica is not None and direct
        self._blobs = Blobs(
            self.address,
            self.claims,
            power=power,
            always=verify == "always",
            replica=replica,
            through=self.direct,
        )
        self._records = Records(self.address, power=power)
        self.live: Live = LiveFolder(self.address, self._records)
        if self.direct and replica is not None:
            shared = BucketRecords(self.address, lambda: replica.objects, power=power)
            self._records, self.live = shared, LiveBucket(replica, shared.keep)

    def with_options(self, *, durability: str, verify: str) -> Store:
        """The same store, by the same connections, with other options."""
        return Store(
            self.root, durability=durability, verify=verify, replica=self.replica, direct=self.direct
        )

    @property
    def name(self) -> str:
        """Where it is, for people: the folder, or the bucket that the folder follows."""
        return self.address if self.replica is None else self.replica.address

    def __repr__(self) -> str:
        return f"Store({self.address!r}, durability={self.durability!r})"

    # Blobs

    def put(self, *buffers: Bytes, algorithm: str | None = None) -> tuple[str, int]:
        """Store contiguous buffers, one after the other, as one blob.

        Their memory is written as it is, without a copy; it must not change during the call. ``algorithm``
        names the one of its digest, where whoever reads it knows that one only.

        Returns
        -------
        digest, size
            ``algorithm:hex``, and bytes.
        """
        return self._blobs.put(buffers, name=algorithm)

    def put_file(self, path: Path) -> tuple[str, int]:
        """Store the content of a file: its digest, and its size in bytes."""
        return self._blobs.put_file(path)

    def take(self, digest: str, draft: Path) -> None:
        """Put a file that is below :attr:`temporaries` in place as a blob, if it has that digest."""
        self._blobs.take(digest, str(draft))

    def blob_path(self, digest: str) -> Path:
        """Where the blob is, or would be. It must never be written to."""
        return Path(self._blobs.local(digest))

    def find(self, digest: str) -> bool:
        """Whether there is a blob of this digest; if so, ``gc`` leaves it until a record names it."""
        return self._blobs.find(digest)

    def check(self, digest: str, size: int | None = None) -> None:
        """See that a blob is there and intact: size and stamp; the whole digest where its stamp differs."""
        self._blobs.check(digest, size)

    def compare(self, digest: str) -> None:
        """Compute a blob's digest, whatever its stamp says."""
        self._blobs.compare(digest)

    def read(self, digest: str, size: int | None = None) -> memoryview:
        """The content of a blob, checked, as private memory: mapped copy-on-write where it is large."""
        return self._blobs.read(digest, size)

    # Task records

    def spec_path(self, task: TaskId, attempt: int) -> str:
        """Where the spec of an attempt is, relative to the store."""
        return attempt_path(task, attempt, "spec.json")

    def log_path(self, task: TaskId, attempt: int) -> Path:
        """The log of an attempt; its folder is there once the spec is written."""
        return self._here(attempt_path(task, attempt, "log"))

    def rank_log_path(self, task: TaskId, attempt: int, rank: int) -> Path:
        """What one of several processes of an attempt printed; the attempt's log has the lines of all."""
        return self._here(attempt_path(task, attempt, f"rank{rank}.log"))

    def series_path(self, task: TaskId, attempt: int, node: int = 0) -> Path:
        """The usage of an attempt on a node over time; its folder is there once the spec is written."""
        return self._here(attempt_path(task, attempt, f"node{node}.series" if node else "series"))

    @property
    def temporaries(self) -> str:
        """Folder for files that are not complete yet."""
        return f"{self.root}/tmp"

    def metrics_path(self, task: TaskId, attempt: int) -> Path:
        """What an attempt has logged over time; its folder is there once the spec is written."""
        return self._here(attempt_path(task, attempt, "metrics"))

    def cards_path(self, task: TaskId, attempt: int) -> Path:
        """What an attempt has to show so far, a card's record on each line; likewise."""
        return self._here(attempt_path(task, attempt, "cards"))

    def write_spec(self, spec: TaskSpec) -> str:
        """Write the spec of an attempt; give its path relative to the store."""
        relative = self.spec_path(spec.task, spec.attempt)
        self._records.write(relative, to_json(spec))
        return relative

    def create_spec(self, spec: TaskSpec) -> bool:
        """Write the spec of an attempt that nobody else has made. False: somebody has."""
        return self._records.create(self.spec_path(spec.task, spec.attempt), to_json(spec))

    def attempts_of(self, run: str, step: str) -> dict[int, list[int]]:
        """The numbers of the attempts that have a spec, in order, by the index of their tasks."""
        found: dict[int, list[int]] = {}
        for name in self.names_beside(self.spec_path(TaskId(run=run, step=step), 1)):
            index, number, *rest = name.split(".")
            if rest == ["spec", "json"]:
                found.setdefault(int(index), []).append(int(number))
        return {index: sorted(numbers) for index, numbers in found.items()}

    def put_spec(self, relative: str, content: bytes) -> bool:
        """Have a spec of this machine in the bucket as well. False: there is another one of that name."""
        assert self.replica is not None
        if self.replica.objects.put(relative, content, absent=True) is not None:
            return True
        found = self.replica.objects.get(relative)
        return found is not None and bytes(found.data) == content

    def has_spec(self, task: TaskId, attempt: int) -> bool:
        """Whether there is a spec of an attempt."""
        return self._records.has(self.spec_path(task, attempt))

    def read_spec(self, relative: str) -> TaskSpec:
        """The spec at a path relative to the store."""
        content = self._records.read(relative)
        if content is None:
            raise StoreError(
                f"there is no task spec {relative}",
                where=self.address,
                fix="See that the store's address is right and that this machine sees the same files.",
            )
        return unpack_spec(content, f"{self.address}/{relative}")

    def claim_attempt(self, task: TaskId, attempt: int, *, by: str) -> bool:
        """Take an attempt: for its supervisor, or for an engine that gives it up. False: somebody has."""
        return self.claim_spec(self.spec_path(task, attempt), by=by)

    def claim_spec(self, relative: str, *, by: str) -> bool:
        """The same for the attempt whose spec is at a path relative to the store."""
        claim = f"{relative.removesuffix('spec.json')}claim"
        return self._deciding(relative).create(claim, f"{by}\n".encode())

    def claimed_by(self, task: TaskId, attempt: int) -> str | None:
        """Who has taken an attempt, as that one said; None: nobody."""
        said = self._records.read(attempt_path(task, attempt, "claim"))
        return None if said is None else said.decode(errors="replace").strip()

    def create_result(self, result: TaskResult) -> bool:
        """Record what became of an attempt. False: that was recorded before, and stays as it is."""
        if self.direct and self.replica is not None:
            self.replica.upload_appended(attempt_path(result.task, result.attempt, ""))
        return self._records.create(
            attempt_path(result.task, result.attempt, "result.json"), pack_result(result)
        )

    def read_result(self, task: TaskId, attempt: int) -> TaskResult | None:
        """What became of an attempt; None where nothing is recorded, or the record is torn."""
        relative = attempt_path(task, attempt, "result.json")
        content = self._records.read(relative)
        if content is None and self.replica is not None:
            content = self._deciding(self.spec_path(task, attempt)).read(relative)
        return None if content is None else unpack_result(content, f"{self.address}/{relative}")

    def result_record(self, task: TaskId, attempt: int) -> bytes | None:
        """The record of what became of an attempt."""
        return self._records.read(attempt_path(task, attempt, "result.json"))

    def claim_result(self, task: TaskId, attempt: int) -> TaskResult | None:
        """As :meth:`read_result`; what is there stays, since a record is about to refer to it.

        A result that a newer Upshift wrote is as good as none here.
        """
        with self.claims.claimed(f"task:{task_path(task)}"):
            try:
                return self.read_result(task, attempt)
            except StoreError as error:
                if isinstance(error, StoreUnavailable):
                    raise
                return None

    # What engines and supervisors say to each other

    def write_stop(self, task: TaskId, attempt: int, how: str) -> None:
        """Tell the supervisor of an attempt to stop it, where no signal reaches it."""
        self._records.write(attempt_path(task, attempt, "stop"), how.encode())

    def read_stop(self, task: TaskId, attempt: int) -> str | None:
        """How an attempt is to be stopped, or "": as its signal says; None: it is not to be."""
        said = self._records.read(attempt_path(task, attempt, "stop"))
        return None if said is None else said.decode(errors="replace")

    def forget_stop(self, task: TaskId, attempt: int) -> None:
        """Remove it again, once the attempt has ended."""
        self._records.remove(attempt_path(task, attempt, "stop"))

    def write_trouble(self, task: TaskId, attempt: int, node: int, why: str) -> None:
        """Say for a further node why it cannot reach the first one; "": it can."""
        relative = attempt_path(task, attempt, f"node{node}.trouble")
        if why:
            self._records.write(relative, f"{why}\n".encode())
        else:
            self._records.remove(relative)

    def read_trouble(self, task: TaskId, attempt: int, node: int) -> str | None:
        """What a further node of an attempt has to say that cannot reach the first one."""
        said = self._records.read(attempt_path(task, attempt, f"node{node}.trouble"))
        return None if said is None else said.decode(errors="replace").strip()

    def write_array(self, relative: str, content: bytes) -> None:
        """Write the list of an array of attempts, beside their specs."""
        self._records.write(relative, content)

    def put_array(self, relative: str, listed: ArrayList) -> bool:
        """Have the list of an array, and the specs in it, in the bucket. False: there is another one."""
        if self._records.create(relative, pack_array(listed)):
            return True
        found = self._records.read(relative)
        return found is not None and unpack_array(found) == listed

    def keep_spec(self, relative: str, text: str) -> None:
        """Have a spec here that the list of an array has in the bucket."""
        assert self.replica is not None
        self.replica.replace_record(relative, text.encode())

    def read_array(self, relative: str) -> bytes:
        """The list of an array."""
        content = self._records.read(relative)
        if content is None:
            raise StoreError(f"there is no list {relative}", where=self.address)
        return content

    def names_beside(self, relative: str) -> list[str]:
        """The names of all records in the folder of one."""
        return self._records.names(os.path.dirname(relative))

    # Run records

    def claim_run(self, run: str) -> bool:
        """Say that this process works on a run: ``gc`` does not remove it. False: it was removed before."""
        with self.claims.claimed(f"run:{safe(run)}"):
            return not self._records.has(f"runs/{safe(run)}/{REMOVED}")

    def write_record(self, run: str, name: str, content: bytes) -> None:
        """Write a record of a run, such as ``run.json``, in place of the one before."""
        self._records.write(f"runs/{safe(run)}/{safe(name)}", content)

    def create_record(self, run: str, name: str, content: bytes) -> bool:
        """Write a record of a run that is not there yet. False: it is."""
        return self._records.create(f"runs/{safe(run)}/{safe(name)}", content)

    def read_record(self, run: str, name: str) -> bytes | None:
        """A record of a run, or None."""
        return self._records.read(f"runs/{safe(run)}/{safe(name)}")

    def bring_run(self, run: str) -> None:
        """Have the records of a run here, where the store is in a bucket."""
        if self.replica is not None:
            self.replica.bring_run(run)

    def runs(self) -> Iterator[str]:
        """The ids of the runs, in alphabetical order."""
        here = self._records.names("runs")
        return iter(here if self.replica is None else sorted({*here, *self.replica.runs()}))

    def results(self, run: str) -> Iterator[TaskResult]:
        """Every result of a run that is intact."""
        tasks = f"runs/{safe(run)}/tasks"
        for step in self._records.names(tasks):
            for name in self._records.names(f"{tasks}/{step}"):
                if name.endswith(".result.json"):
                    result = self._result(f"{tasks}/{step}/{name}")
                    if result is not None:
                        yield result

    def unfinished(self, run: str) -> Iterator[TaskSpec]:
        """The specs of a run's attempts that have left no result; one that is torn was never submitted."""
        tasks = f"runs/{safe(run)}/tasks"
        for step in self._records.names(tasks):
            names = set(self._records.names(f"{tasks}/{step}"))
            for name in sorted(names):
                attempt = name.removesuffix("spec.json")
                if attempt == name or f"{attempt}result.json" in names:
                    continue
                try:
                    spec = self.read_spec(f"{tasks}/{step}/{name}")
                except StoreUnavailable:
                    raise
                except StoreError:
                    continue
                yield spec

    def _deciding(self, relative: str) -> Records:
        """The records that decide of the attempt of a spec: the bucket's, if its nodes have nothing else."""
        replica = self.replica
        if replica is not None and not self.direct:
            spec = self._records.read(relative)
            if spec is not None and json.loads(spec).get("store") == replica.address:
                return BucketRecords(self.address, lambda: replica.objects, power=False)
        return self._records

    def _here(self, relative: str) -> Path:
        path = self.root / relative
        if self.replica is not None:
            self.replica.bring_file(relative)
        else:
            with suppress(OSError):  # whoever opens it says so
                ask_again(str(path))
        return path

    def _result(self, relative: str) -> TaskResult | None:
        content = self._records.read(relative)
        return None if content is None else unpack_result(content, f"{self.address}/{relative}")
