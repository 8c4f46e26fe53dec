"""The jobs of a cluster: which of them a scheduler takes as one, their records, and how their end is told.

An array is such a job, whose elements are the tasks of a mapped step. Which elements an array has is a list
beside the specs of its tasks, so that a job is found again whatever was recorded before the engine was
killed. An element may run tasks of elements that have not started
(:mod:`upshift.runtime.supervisor.array_element`): whose job an attempt is, its claim says.

The thread that submits and the thread that watches share the records, under one lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.base import Ended, Handle, Job, Sink, Waiting
from upshift.backends.scheduler import Arrays, Launch, State, nodes_of
from upshift.errors import BackendError, UpshiftError
from upshift.model.settings.secrets import at_node
from upshift.model.spec import TaskSpec
from upshift.runtime.storage.objects import side_by_side
from upshift.runtime.storage.records import ARRAY, ArrayList, attempt_path, pack_array, unpack_array
from upshift.runtime.storage.store import Store, open_direct, store_of
from upshift.runtime.supervisor.protocol import leave

if TYPE_CHECKING:
    from upshift.runs.publishing import Uploads


@attrs.frozen
class JobLaunch:
    """A job, and how it is launched if it is one by itself."""

    job: Job
    launch: Launch

    @property
    def index(self) -> int:
        """Its task's number in its step."""
        return self.job.spec.task.index or 0


@attrs.frozen
class Submission:
    """What is submitted at once: a job by itself, or an array."""

    launch: Launch
    parts: Mapping[int | None, JobLaunch]  # by element; that of no array is under None
    listed: ArrayList | None = None  # which is written before it is submitted
    path: str = ""  # of that list, relative to the store


def submissions(store: str, jobs: Sequence[JobLaunch], arrays: Arrays | None) -> Iterator[Submission]:
    """Jobs as they are submitted: those that differ in their task alone are an array."""
    alike: dict[tuple[object, ...], list[JobLaunch]] = {}
    for one in jobs:
        alike.setdefault(_kind(one), []).append(one)
    for those in alike.values():
        if arrays is None or len(those) == 1 or (those[0].launch.granted.nodes or 1) > 1:
            yield from (Submission(one.launch, {None: one}) for one in those)
            continue
        chunks: dict[int, list[JobLaunch]] = {}
        for one in those:
            chunks.setdefault(one.index // arrays.largest, []).append(one)
        for chunk in chunks.values():
            yield submission(store, chunk, arrays)


def submission(store: str, jobs: Sequence[JobLaunch], arrays: Arrays) -> Submission:
    """These jobs as an array, if they are several; elements have the numbers of their tasks, if they can."""
    if len(jobs) == 1:
        return Submission(jobs[0].launch, {None: jobs[0]})
    first = jobs[0]
    spec, launch = first.job.spec, first.launch
    in_order = sorted(jobs, key=lambda one: one.index)
    numbered = {n if arrays.dense else one.index % arrays.largest: one for n, one in enumerate(in_order)}
    specs = {number: os.path.basename(one.job.spec_path) for number, one in numbered.items()}
    parts: dict[int | None, JobLaunch] = dict(numbered.items())
    said = f"{launch.name.rpartition('-')[2]}\0{sorted(specs.items())}"
    name = f"{_stem(first)}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    path = os.path.join(os.path.dirname(first.job.spec_path), name)
    there = launch.command[-1].removesuffix(first.job.spec_path)
    launch = attrs.evolve(
        launch,
        name=name,
        comment=f"upshift {spec.task.run} {spec.task.step}, {len(parts)} tasks",
        command=(*launch.command[:-1], f"{there}{path}{ARRAY}"),
        output=f"{os.path.join(store, path)}.out",
        elements=tuple(numbered),
    )
    return Submission(launch, parts, ArrayList(arrays.share(launch), specs), path + ARRAY)


def listed(folder: str) -> dict[str, list[tuple[str, int]]]:
    """The arrays of a folder of specs: of each spec their names, and its element."""
    found: dict[str, list[tuple[str, int]]] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(folder):
            if entry.endswith(ARRAY):
                with open(os.path.join(folder, entry), "rb") as file:
                    specs = unpack_array(file.read()).names
                for number, spec in specs.items():
                    found.setdefault(spec, []).append((entry.removesuffix(ARRAY), number))
    return found


def _kind(one: JobLaunch) -> tuple[object, ...]:
    """What jobs have in common that may be one array."""
    spec, launch = one.job.spec, one.launch
    same = attrs.evolve(launch, name="", comment="", command=launch.command[:-1], output=None)
    alone = spec.task.index is None and one.job.spec_path
    secrets = sorted(spec.settings.secret_sources.items())
    return (os.path.dirname(one.job.spec_path), alone, spec.attempt, repr(same), repr(secrets))


def _stem(one: JobLaunch) -> str:
    """The name of a job without its digest and its task's number."""
    return one.launch.name.rpartition("-")[0].removesuffix(f"-{one.index}")


@attrs.define(eq=False)
class Watched:
    """A job, from before the scheduler has it until its end was told."""

    job: Job
    handle: Handle
    base: str | None = None  # the id of the scheduler's job, or array
    own: int | None = None  # its element of an array
    element: int | None = None  # the element that has its task now
    printed: Path | None = None
    waits: str | None = None
    started: bool = False
    said: Mapping[str, Any] = attrs.field(factory=dict)
    told: float | None = None  # since when it is said to be over, by the monotonic clock
    over: State | None = None  # how it ended
    missing: float | None = None  # since when its result is looked for, by the monotonic clock
    cancelled: bool = False
    fenced: bool = False  # whether it begins no more, unless it had begun before
    stops: list[tuple[float, bool, bool]] = attrs.field(factory=list)  # when, with grace, by force

    @property
    def spec(self) -> TaskSpec:
        return self.job.spec

    @property
    def id(self) -> str | None:
        """The id of the job that it is in."""
        return self.base if self.base is None or self.element is None else f"{self.base}_{self.element}"


@attrs.define(eq=False)
class Batch:
    """Jobs that the scheduler is given in one submission."""

    submission: Submission
    script: str
    watched: list[Watched]


class Jobs:
    """The jobs, by handle, until their end is told."""

    def __init__(self, address: str, sink: Sink, *, is_seen: bool, forget: Callable[[str], None]) -> None:
        self.root = open_direct(address).address  # the folder that is there, or follows the bucket
        self.by_handle: dict[Handle, Watched] = {}
        self.changed = threading.Condition()
        self.closed = False
        self.is_seen = is_seen  # whether others see the environment of jobs
        self._sink = sink
        self._forget = forget
        self._stores: dict[str, Store] = {}
        self._uploads: Uploads | None = None
        self._over: list[Watched] = []  # whose live records may go

    def store_of(self, spec: TaskSpec) -> Store:
        """The store of an attempt, opened once."""
        found = self._stores.get(spec.store)
        if found is None:
            found = self._stores[spec.store] = store_of(spec)
        return found

    def tell(self, event: Any) -> None:
        """Tell the engine."""
        self._sink(event)

    def wait(self, watched: Watched, why: str) -> None:
        """Tell why a job waits, once."""
        if why != watched.waits and not watched.started:
            watched.waits = why
            self._sink(Waiting(handle=watched.handle, why=why))

    def end(self, watched: Watched, reason: str | None, message: str | None) -> None:
        """Tell the end of a job, once; reason and message are those of the scheduler."""
        with self.changed:
            if self.by_handle.get(watched.handle) is not watched:
                return
            del self.by_handle[watched.handle]
            last = not any(other.base == watched.base for other in self.by_handle.values())
        with contextlib.suppress(UpshiftError):  # then what it printed last is in the bucket only
            self._bring(watched, self.store_of(watched.spec))
        with self.changed:
            self._over.append(watched)
        if self.is_seen and needs_order(watched.spec):
            self._remove_order(watched)
        with contextlib.suppress(OSError):
            if watched.printed and (reason is None or not watched.printed.stat().st_size):
                watched.printed.unlink()
        if watched.base is not None and last:
            self._forget(watched.base)
        lost = watched.said.get("node") if watched.said.get("lost") else None
        self._sink(Ended(handle=watched.handle, reason=reason, message=message, node=lost))

    def sweep(self, *, last: bool = False) -> None:
        """Remove live records of attempts that are over; in a bucket several together, and the last ones."""
        with self.changed:
            over, self._over = self._over, []
        by_store: dict[str, list[Watched]] = {}
        for watched in over:
            by_store.setdefault(watched.spec.store, []).append(watched)
        for those in by_store.values():
            store = self.store_of(those[0].spec)
            for watched in those:
                store.forget_stop(watched.spec.task, watched.spec.attempt)
            store.live.forget([(watched.spec.task, watched.spec.attempt) for watched in those], later=True)
        for store in self._stores.values() if last else ():
            store.live.tidy()

    def put(self, batch: Batch) -> None:
        """Upload what the batch needs, if its nodes read from a bucket; a folder they see as it is."""
        first = batch.watched[0].spec
        store = self.store_of(first)
        if store.direct:
            uploads = self.uploads_of(store)
            uploads.put_blobs(filter(None, {watched.spec.runtime for watched in batch.watched}))
            self._put_specs(store, batch)
        elif batch.submission.listed is not None:
            store.write_array(batch.submission.path, pack_array(batch.submission.listed))

    def _put_specs(self, store: Store, batch: Batch) -> None:
        """Have specs in the bucket, and before them all that they name; those of an array in its list.

        What is tried again has specs by itself: whoever keeps checkpoints looks for them.
        """
        listed, texts = batch.submission.listed, dict[str, str]()
        together = listed is not None and batch.watched[0].spec.attempt == 1

        def put(path: str) -> None:
            content = Path(store.address, path).read_bytes()
            self.uploads_of(store).put(path, content)
            if together:
                texts[path.rpartition("/")[2]] = content.decode()
            elif not store.put_spec(path, content):
                raise _begun(path)

        side_by_side(put, [watched.job.spec_path for watched in batch.watched])
        if listed is not None:
            whole = listed._replace(specs=dict(sorted(texts.items())))
            if not store.put_array(batch.submission.path, whole):
                raise _begun(batch.submission.path)

    def place_of_order(self, watched: Watched) -> str:
        """Where nodes find the order of an attempt. In a folder, each of several nodes appends its number."""
        store = self.store_of(watched.spec)
        if store.direct and store.replica is not None:
            return f"{store.replica.address}/{_order_of(watched.job)}"
        files = self._order_files(watched)
        return str(files[0] if len(files) == 1 else files[0].with_suffix(""))

    def put_order(self, watched: Watched, content: bytes) -> None:
        """Write the order of an attempt to that place."""
        store = self.store_of(watched.spec)
        if store.direct and store.replica is not None:
            store.replica.objects.put(_order_of(watched.job), content)
        else:
            leave(self._order_files(watched), content)

    def _remove_order(self, watched: Watched) -> None:
        store = self.store_of(watched.spec)
        with contextlib.suppress(UpshiftError):
            if store.direct and store.replica is not None:
                store.replica.objects.delete([_order_of(watched.job)])
        for path in self._order_files(watched):
            with contextlib.suppress(OSError):
                path.unlink()

    def _order_files(self, watched: Watched) -> list[Path]:
        base = Path(self.root, _order_of(watched.job))
        return [base.with_name(f"{base.name}.{node}") for node in range(nodes_of(watched.spec))]

    def _bring(self, watched: Watched, store: Store) -> None:
        """Copy what a finished attempt has left in a bucket to this machine."""
        if not store.direct or store.replica is None:
            return
        base = attempt_path(watched.spec.task, watched.spec.attempt, "")
        if "ended" not in watched.said:  # nor what it printed last
            store.replica.bring_appended(base)
        content = store.result_record(watched.spec.task, watched.spec.attempt)
        if content is not None:
            self.uploads_of(store).found(content)

    def uploads_of(self, store: Store) -> Uploads:
        """The uploader for the bucket of a store."""
        from upshift.runs.publishing import (
            uploads_of,  # where all is in a folder, nothing goes anywhere
        )

        if self._uploads is None:
            self._uploads = uploads_of(store)
        return self._uploads


def needs_order(spec: TaskSpec) -> bool:
    """Whether an attempt is told what others must not see: secrets of this machine, or its nodes' token."""
    return nodes_of(spec) > 1 or bool(at_node(spec.settings.secret_sources, there=False))


def _order_of(job: Job) -> str:
    """The path of an attempt's order in the store."""
    return job.spec_path.removesuffix(".spec.json") + ".order"


def _begun(path: str) -> BackendError:
    return BackendError(f"another engine has begun {path}", fix="See who owns the run: upshift show RUN.")


def printed_of(output: str | None, element: int | None) -> Path | None:
    """The file of what a job prints."""
    if output is None:
        return None
    path = Path(output)
    return path if element is None else path.with_name(f"{path.stem}.{element}{path.suffix}")
