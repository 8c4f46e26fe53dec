"""Machines that have a store in the same bucket, and runs that they have made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import attrs

from upshift.errors import StoreUnavailable
from upshift.model.spec import Artifact, Code, EntryPoint, TaskId, TaskResult, TaskSpec, to_json
from upshift.runs.catalog.rebuild import Ending
from upshift.runs.catalog.rows import RunRow, TaskRow
from upshift.runs.lease import Lease
from upshift.runs.publishing import Publisher
from upshift.runtime.storage.objects import Got, Meta, Version
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.store import Store

TASKS = 3
CONTENT = 70_000


class Away(StoreUnavailable):
    """The bucket cannot be reached any more."""


class Bucket(FolderObjects):
    """A bucket in a folder, which counts what is asked of it, and goes away after so many writes.

    ``before`` is told of each request.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []
        self.writes = 10**9
        self._count = threading.Lock()
        self.before: Callable[[str], None] = lambda what: None

    def _ask(self, what: str, *, writes: bool = False) -> None:
        self.before(what)
        with self._count:
            self.asked.append(what)
            if writes:
                self.writes -= 1
                if self.writes < 0:
                    raise Away("the bucket is away")

    def get(self, key: str, *, offset: int = 0, size: int | None = None) -> Got | None:
        self._ask(f"get {key}")
        return super().get(key, offset=offset, size=size)

    def put(
        self, key: str, data: bytes, *, absent: bool = False, match: Version | None = None
    ) -> Version | None:
        self._ask(f"put {key}", writes=not key.startswith("leases/"))
        return super().put(key, data, absent=absent, match=match)

    def upload(self, key: str, buffers: Sequence[object]) -> Version:
        self._ask(f"put {key}", writes=True)
        return super().upload(key, buffers)  # type: ignore[arg-type]

    def download(self, key: str, path: Path) -> Version | None:
        self._ask(f"get {key}")
        return super().download(key, path)

    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        self._ask(f"list {prefix}")
        return super().list(prefix, after=after)

    def delete(self, keys: Collection[str]) -> None:
        self._ask(f"delete {' '.join(keys)}")
        super().delete(keys)


@attrs.frozen
class Machine:
    """A machine with its own copy of the store."""

    store: Store
    bucket: Bucket

    @property
    def publisher(self) -> Publisher:
        lease = Lease("r1", self.store.address)
        return Publisher(self.store, "r1", lease, lambda line: None)

    def publish(self, run: str = "r1") -> None:
        with Lease(run, self.store.address) as lease:
            publisher = Publisher(self.store, run, lease, lambda line: None)
            publisher.begin(known=True)
            publisher.finish()


def a_run(
    store: Store, run: str = "r1", *, status: str = "completed", tasks: int = TASKS, content: str = ""
) -> None:
    """A run whose tasks have each a log, and a value beside the record, as the run ``content`` makes it."""
    rows = []
    for index in range(tasks):
        task = TaskId(run=run, step="train", index=index)
        spec = TaskSpec(
            task=task,
            attempt=1,
            pipeline="p",
            entry=EntryPoint(module="m", qualname="f"),
            code=Code(project="/p"),
            store=store.address,
        )
        store.write_spec(spec)
        store.log_path(task, 1).write_text(f"task {index}\n")
        digest, size = store.put(bytes([index]) * CONTENT, (content or run).encode())
        value = Artifact(digest=digest, serializer="bytes", type="bytes", bytes=size)
        made = TaskResult(
            task=task, attempt=1, status="completed", started=1.0, ended=2.0, node="n", backend="local",
            outputs={"output": value},
        )  # fmt: skip
        store.create_result(made)
        rows.append(TaskRow(task=task, status="completed", key=f"key{index}"))
    store.write_record(run, "graph.json", b"{}")
    store.write_record(run, "tasks.json", to_json(Ending(tasks=tuple(rows))))
    row = RunRow(
        id=run, pipeline="p", status=status, target="local", store=store.address, started=1.0, user="ada",
        tags=(), source={}, params={},
    )  # fmt: skip
    store.write_record(run, "run.json", to_json(row))
