"""Elements of an array whose nodes share nothing but a bucket: what a task costs there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from buckets import BucketHere
from server_before import Server, before
from upshift.code.packages import make_package
from upshift.model.spec import Code, EntryPoint, Hardware, TaskId, TaskSpec
from upshift.model.spec.codec import to_json
from upshift.runtime.storage.records import ArrayList
from upshift.runtime.storage.store import Store, open_direct
from upshift.runtime.supervisor import array_element
from upshift.runtime.supervisor.protocol import ORDER, order_of

TASKS = 6


@pytest.fixture
def server(bucket: BucketHere) -> Iterator[Server]:
    with before(bucket.endpoint) as rig:
        yield rig


@pytest.fixture
def store(bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store as the engine has it."""
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "engine"))
    return open_direct(f"{bucket.address}/team")


@pytest.fixture
def array_of(store: Store, tmp_path: Path) -> str:
    """The address of an array of some tasks in the bucket."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project/steps.py").write_text("def one():\n    return 1\n")
    package = make_package(tmp_path / "project", store)
    names, specs = {}, {}
    for index in range(TASKS):
        spec = TaskSpec(
            task=TaskId(run="r", step="one", index=index),
            attempt=1,
            pipeline="p",
            entry=EntryPoint(module="steps", qualname="one"),
            code=Code(project=str(tmp_path / "project"), paths=(".",), package=package.digest),
            store=store.name,
            granted=Hardware(),
        )
        names[index] = os.path.basename(store.spec_path(spec.task, 1))
        specs[names[index]] = to_json(spec).decode()
    listing = f"{os.path.dirname(store.spec_path(spec.task, 1))}/one.array"
    assert store.put_array(listing, ArrayList(600.0, names, specs))
    return f"{store.name}/{listing}"


def run_element(number: int, array_of: str, server: Server, home: Path) -> Counter[str]:
    """The requests of an element, by kind."""
    server.seen.clear()
    order = order_of(argv=("pipeline.py",), secrets={}, wait=60.0, stop_record=False).decode().strip()
    environment = {"UPSHIFT_HOME": str(home), "AWS_ENDPOINT_URL_S3": server.address, ORDER: order}
    command = [sys.executable, "-m", "upshift.runtime", "--scheduled", array_of, str(number)]
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=300)
    return Counter(kind_of(method, path) for method, path, _ in server.seen)


def kind_of(method: str, path: str) -> str:
    """``PUT claim``, ``GET spec``, ``LIST tasks``."""
    if "list-type=2" in path:
        return "LIST blobs" if "blobs" in path else "LIST tasks"
    found = re.search(r"/(blobs|live)/|\.1\.(\w+)(?:\.json)?$|\.(array)$", path)
    assert found is not None, path
    return f"{method} {found[1] or found[2] or found[3]}"


def test_a_further_task_of_an_element_costs_three_requests(
    array_of: str, store: Store, server: Server, tmp_path: Path
) -> None:
    """Half of the elements look for further tasks: with the first at work alone, it takes one more."""
    counts = run_element(0, array_of, server, tmp_path / "node")
    assert counts.pop("PUT live") >= 2  # more of what takes longer than a moment
    assert counts == {"GET array": 1, "LIST tasks": 1, "GET blobs": 1, "PUT claim": 2, "PUT result": 2}
    for index in (0, TASKS // 2):
        result = store.read_result(TaskId(run="r", step="one", index=index), 1)
        assert result is not None and result.status == "completed"


def test_an_element_whose_task_another_one_has_asks_twice(
    array_of: str, store: Store, server: Server, tmp_path: Path
) -> None:
    assert store.claim_attempt(TaskId(run="r", step="one", index=3), 1, by=array_element.claim_of(0))
    assert run_element(3, array_of, server, tmp_path / "node") == {"GET array": 1, "PUT claim": 1}
