"""What nodes and engines that share nothing but a bucket hand each other through it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from buckets import BucketHere
from upshift.errors import StoreUnavailable
from upshift.model.spec import Code, EntryPoint, TaskId, TaskResult, TaskSpec, to_json
from upshift.runs.catalog.rows import RunRow
from upshift.runs.checking import check_store
from upshift.runs.copying import copy_store
from upshift.runs.needed import References
from upshift.runtime.step.checkpoint import checkpoints_of
from upshift.runtime.storage import artifacts, live
from upshift.runtime.storage.checkpoints import Name, Part, discard
from upshift.runtime.storage.live import name_of
from upshift.runtime.storage.objects import open_objects
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.records import ArrayList, attempt_path, pack_array
from upshift.runtime.storage.store import Store, open_direct, open_store

TASK = TaskId(run="r", step="train")
NAME = name_of(TASK, 1)
Machine = Callable[[str], Store]


@pytest.fixture
def machine(bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The store as a machine of this name has it."""

    def opened(name: str) -> Store:
        monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / name))
        return open_direct(f"{bucket.address}/team")

    return opened


def result(*, attempt: int = 1, **fields: Any) -> TaskResult:
    made: dict[str, Any] = {"status": "completed", "node": "n", "backend": "slurm"}
    return TaskResult(task=TASK, attempt=attempt, started=1.0, ended=2.0, **{**made, **fields})


def spec(store: str) -> TaskSpec:
    entry = EntryPoint(module="m", qualname="f")
    return TaskSpec(task=TASK, attempt=1, pipeline="p", entry=entry, code=Code(project="/p"), store=store)


def appended(store: Store, content: bytes, ending: str = "log") -> None:
    path = Path(store.address, attempt_path(TASK, 1, ending))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


def test_an_attempt_is_claimed_once_whoever_asks(machine: Machine, tmp_path: Path) -> None:
    node, other = machine("node"), machine("other")
    engine = open_store(node.name)  # as an engine opens it, which has written the spec
    engine.write_spec(spec(node.name))
    assert node.claim_attempt(TASK, 1, by="a node")
    assert not other.claim_attempt(TASK, 1, by="another node")
    assert not engine.claim_attempt(TASK, 1, by="an engine")
    assert other.claimed_by(TASK, 1) == "a node"


def test_a_result_is_recorded_once_and_what_it_needs_is_there_before(
    machine: Machine, bucket: BucketHere
) -> None:
    node, other, late = machine("node"), machine("other"), machine("late")
    value = artifacts.save(b"\x07" * 3_000_000, node)
    appended(node, b"printed\n")
    assert node.create_result(result(outputs={"output": value}))
    assert not other.create_result(result(status="failed"))
    keys = [found["Key"] for found in bucket.boto3.list_objects_v2(Bucket=bucket.name)["Contents"]]
    assert "team/runs/r/tasks/train/0.1.log" in keys
    found = late.read_result(TASK, 1)
    assert found is not None and artifacts.load(found.outputs["output"], late) == b"\x07" * 3_000_000


def test_an_engine_hears_what_a_node_says_and_has_its_log(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FIRST", 0.01)
    monkeypatch.setattr(live, "EVERY", 0.01)
    engine, node = machine("engine"), machine("node")
    assert list(engine.live.hear("r", [NAME])) == []
    appended(node, b"one\n")
    node.live.say(TASK, 1, {"node": "n1", "log": 4})
    said: list[Any] = []
    while not said:
        said += engine.live.hear("r", [NAME])
    assert said == [(NAME, {"node": "n1", "log": 4})]
    assert engine.log_path(TASK, 1).read_bytes() == b"one\n"
    appended(node, b"two\n")
    appended(node, b"{}\n", "metrics")
    node.create_result(result())
    node.live.say(TASK, 1, {"node": "n1", "log": 8, "ended": {}}, last=True)
    while "ended" not in said[-1][1]:
        said += engine.live.hear("r", [NAME])
    assert engine.log_path(TASK, 1).read_bytes() == b"one\ntwo\n"
    assert engine.metrics_path(TASK, 1).read_bytes() == b"{}\n"
    assert Path(engine.address, attempt_path(TASK, 1, "result.json")).exists()  # without a request of its own
    assert list(engine.live.hear("r", [NAME])) == []
    engine.live.forget([(TASK, 1)])
    assert list(machine("another").live.hear("r", [NAME])) == []


def test_an_engine_that_comes_late_has_all_of_a_long_log(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FEW", 3)
    monkeypatch.setattr(live, "MOST", 100)
    node, bulletins = machine("node"), []
    own = live._Bulletins(node.replica, TASK, 1)  # type: ignore[arg-type]
    for number in range(8):
        appended(node, f"line {number}\n".encode())
        own._said, own._changed = {"log": number}, True
        own._tell()
        own._settle()
    assert node.replica is not None
    bulletins = [meta.key for meta in node.replica.objects.list("runs/r/live/")]
    assert len(bulletins) < 5
    late = machine("late")
    ((_, said),) = late.live.hear("r", [NAME])
    assert said == {"log": 7}
    assert late.log_path(TASK, 1).read_text().splitlines() == [f"line {number}" for number in range(8)]


def test_a_further_node_says_that_the_first_one_is_gone(machine: Machine) -> None:
    engine, first, second = machine("engine"), machine("first"), machine("second")
    first.live.say(TASK, 1, {"node": "n1"}, last=True)
    second.live.lose(TASK, 1, "node 0 is not heard any more")
    ((_, said),) = engine.live.hear("r", [NAME])
    assert said["lost"] == "node 0 (n1) is not heard any more"


def test_a_retry_on_another_node_continues_from_the_last_complete_checkpoint(machine: Machine) -> None:
    first, second = machine("first"), machine("second")
    saved = checkpoints_of(first, TASK)
    for number in (1, 2):
        folder = saved.begin(Name(1, number), alone=True)
        (folder / "sub").mkdir()
        (folder / "sub" / "weights").write_bytes(bytes([number]) * 1000)
        assert saved.finish(Name(1, number), 0, Part(key="k")) == 1000
    torn = saved.begin(Name(1, 3), alone=True)
    (torn / "weights").write_bytes(b"half")
    found = checkpoints_of(second, TASK).newest("k")
    assert found is not None and found.name == Name(1, 2) and found.complete
    assert (found.folder / "sub" / "weights").read_bytes() == b"\x02" * 1000
    assert checkpoints_of(second, TASK).newest("of other work") is None
    assert second.replica is not None
    there = {meta.key.split("/")[4] for meta in second.replica.objects.list("checkpoints/")}
    assert there == {"1.2", "1.2.rank0"}  # older ones go
    discard(second, result(attempt=2), wait=True)
    assert list(second.replica.objects.list("checkpoints/")) == []


def test_a_checkpoint_of_several_nodes_is_complete_when_all_have_put_their_part(machine: Machine) -> None:
    nodes = [checkpoints_of(machine(name), TASK, ranks=2) for name in ("first", "second")]
    part, sizes = Part(ranks=4, world_size=4, key="k"), []
    for rank in range(4):
        saved = nodes[rank // 2]
        with_others = saved.folder / str(Name(1, 1))
        folder = with_others if with_others.exists() else saved.begin(Name(1, 1), alone=False)
        (folder / f"part{rank}").write_bytes(bytes(10 + rank))
    for rank in range(4):
        assert checkpoints_of(machine("late"), TASK).newest("k") is None
        sizes.append(nodes[rank // 2].finish(Name(1, 1), rank, part))
    assert sizes == [None, None, None, 46]
    found = checkpoints_of(machine("late"), TASK, ranks=4).newest("k")
    assert found is not None and sorted(os.listdir(found.folder)) == [f"part{rank}" for rank in range(4)]


def a_row(store: str) -> RunRow:
    return RunRow(
        id="r", pipeline="p", status="completed", target="there", store=store, started=1.0, user="ada",
        tags=(), source={}, params={},
    )  # fmt: skip


def listed(node: Store, inputs: Any = None) -> tuple[str, ArrayList]:
    """A list of an array with the spec of its only task, and where it is."""
    made = attrs.evolve(spec(node.name), inputs=inputs or {})
    name = Path(node.spec_path(TASK, 1)).name
    text = to_json(made).decode()
    return f"{Path(node.spec_path(TASK, 1)).parent}/train.array", ArrayList(1.0, {7: name}, {name: text})


def test_another_machine_has_the_specs_that_are_in_the_list_of_an_array(machine: Machine) -> None:
    engine = machine("engine")
    path, said = listed(engine)
    assert engine.put_array(path, said)
    engine.write_record("r", "run.json", b'{"status": "running"}')
    late = machine("late")
    assert late.replica is not None
    late.replica.bring_run("r")
    here = open_store(late.name)
    assert [one.task for one in here.unfinished("r")] == [TASK]
    assert here.read_spec(here.spec_path(TASK, 1)) == spec(engine.name)


def test_of_two_engines_that_put_the_list_of_an_array_the_first_one_counts(machine: Machine) -> None:
    one, other = machine("one"), machine("other")
    path, said = listed(one)
    assert one.put_array(path, said)
    assert other.put_array(path, said)  # as when an answer was lost
    assert not machine("third").put_array(path, said._replace(share=2.0))


def test_what_the_specs_in_a_list_name_is_known_to_gc_and_copies_have_them_by_themselves(
    machine: Machine, tmp_path: Path
) -> None:
    engine = machine("engine")
    value = artifacts.save(b"\x07" * 3_000_000, engine)
    path, said = listed(engine, {"x": value})
    assert engine.put_array(path, said)
    engine.write_record("r", "run.json", to_json(a_row(engine.address)))
    references = References(engine)
    references.add_record(path, pack_array(said))
    assert references.blobs == {bytes.fromhex(value.digest.partition(":")[2])}
    assert copy_store(open_objects(engine.name), FolderObjects(tmp_path / "copy")).problems == []
    copied = open_store(str(tmp_path / "copy"))
    assert copied.read_spec(copied.spec_path(TASK, 1)).inputs == {"x": value}
    copied.check(value.digest)
    assert check_store(open_objects(engine.name)).problems == []
    engine.write_array(path, pack_array(said._replace(specs={"0.1.spec.json": "{"})))
    (problem,) = check_store(open_objects(engine.name)).problems
    assert "train.array" in problem and "cannot be read" in problem


def test_processes_of_a_node_may_all_remove_what_one_has_removed(machine: Machine) -> None:
    node = machine("node")
    path, said = listed(node)
    assert node.replica is not None and node.put_array(path, said)
    for _ in range(2):  # the second finds neither the list nor its folder
        node.replica.forget_attempt(path)
    assert not Path(node.address, path).exists()
    assert node.read_array(path)  # from the bucket


def test_what_is_said_twice_within_a_tick_of_the_clock_is_heard_twice(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    record = tmp_path / "store" / live.live_path(TASK, 1)
    heard = []
    for number in (1, 2):
        store.live.say(TASK, 1, {"node": "n1", "log": number})
        os.utime(record, ns=(5, 5))
        heard += store.live.hear("r", [NAME])
    assert heard == [(NAME, {"node": "n1", "log": 1}), (NAME, {"node": "n1", "log": 2})]


def test_a_bulletin_that_cannot_be_put_is_tried_again_after_a_pause(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although there was more to tell than had fit into the one before."""
    node = machine("node")
    tries: list[float] = []
    assert node.replica is not None
    put = node.replica.objects.put

    def fail(key: str, data: bytes, **options: Any) -> Any:
        if "/00000001" in key:
            return put(key, data, **options)
        tries.append(time.monotonic())
        raise StoreUnavailable("the bucket is away")

    monkeypatch.setattr(node.replica.objects, "put", fail)
    monkeypatch.setattr(live, "FIRST", 0.01)
    monkeypatch.setattr(live, "EVERY", 0.2)
    monkeypatch.setattr(live, "MOST", 10)
    appended(node, b"x" * 25)
    node.live.say(TASK, 1, {"node": "n1", "log": 25})
    deadline = time.monotonic() + 60
    while len(tries) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setattr(node.replica.objects, "put", put)
    assert min(later - earlier for earlier, later in itertools.pairwise(tries[1:])) > 0.1
