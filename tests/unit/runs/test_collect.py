"""What gc removes from a store, and what it leaves alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from upshift.errors import StoreError, UsageError
from upshift.model.graph import Constant, Graph, Node, StepDefinition
from upshift.model.spec import Artifact, Code, EntryPoint, TaskId, TaskResult, TaskSpec, encode, to_json
from upshift.runs import collect
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rebuild import Ending
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runtime.storage import claims, files
from upshift.runtime.storage.artifacts import save
from upshift.runtime.storage.checkpoints import Name, Part, TaskCheckpoints, put_aside
from upshift.runtime.storage.files import stale
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "catalog.db")


@attrs.define
class Runs:
    """Writes runs as an engine does."""

    store: Store
    catalog: Catalog | None = None

    def add(
        self, run: str, *tasks: TaskRow | TaskResult, graph: Graph | None = None, package: str | None = None
    ) -> str:
        row = RunRow(
            id=run,
            pipeline="p",
            status="completed",
            target="local",
            store=self.store.address,
            started=1.0,
            ended=2.0,
            source={"code": encode(Code(project="/p", package=package))},
        )
        self.store.write_record(run, "run.json", to_json(row))
        self.store.write_record(run, "graph.json", to_json(graph or Graph(pipeline="p")))
        rows = [
            t if isinstance(t, TaskRow) else TaskRow(task=t.task, status=t.status, key=t.key) for t in tasks
        ]
        self.store.write_record(run, "tasks.json", to_json(Ending(tasks=tuple(rows))))
        results = [task for task in tasks if isinstance(task, TaskResult)]
        for result in results:
            self.store.create_result(result)
            self.store.log_path(result.task, result.attempt).write_bytes(b"it printed this\n")
        if self.catalog is not None:
            self.catalog.add_run(row)
            attempts = [
                AttemptRow(task=r.task, number=r.attempt, status=r.status, backend="local", result=r)
                for r in results
            ]
            self.catalog.record(rows, attempts)
        return run


@pytest.fixture
def runs(store: Store, catalog: Catalog) -> Runs:
    return Runs(store, catalog)


def made(run: str, value: Artifact, *, step: str = "make", index: int | None = None) -> TaskResult:
    task = TaskId(run=run, step=step, index=index)
    return TaskResult(
        task=task, attempt=1, status="completed", outputs={"output": value}, key=f"key of {value.digest}"
    )


def reused(run: str, result: TaskResult) -> TaskRow:
    origin = (result.task.run, result.task.step, result.task.index, result.attempt)
    task = attrs.evolve(result.task, run=run)
    return TaskRow(task=task, status="completed", cached=True, key=result.key, origin=origin)


def blob(store: Store, content: bytes) -> Artifact:
    """A value that is too large to be in its record, which nobody claims any more."""
    artifact = save(content * 3000, store)
    assert artifact.inline is None
    store.claims.release()
    return artifact


def is_there(store: Store, artifact: Artifact) -> bool:
    return store.blob_path(artifact.digest).exists()


def everything(store: Store) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(store.root.rglob("*")) if path.is_file()}


# What nobody refers to


def test_what_a_run_refers_to_is_kept_and_the_rest_removed(store: Store, runs: Runs) -> None:
    output, constant, param, package, runtime, orphan = (blob(store, bytes([n])) for n in range(1, 7))
    entry = EntryPoint(module="m", qualname="f", payload=blob(store, b"payload"))
    graph = Graph(
        pipeline="p",
        steps={"make": StepDefinition(entry=entry)},
        nodes=(Node(name="make", step="make", inputs={"x": Constant(artifact=constant)}),),
        params={"x": param},
    )
    result = made("one", output)
    runs.add("one", result, graph=graph, package=package.digest)
    code = Code(project="/p", package=package.digest)
    spec = TaskSpec(
        task=result.task, attempt=1, pipeline="p", entry=entry, code=code, store="", runtime=runtime.digest
    )
    store.write_spec(spec)
    before = everything(store)

    done = collect.collect(store, runs.catalog)

    assert done.removed.counts == {"values": 1}
    assert done.removed.bytes == {"values": orphan.bytes}
    assert done.kept.counts["values"] == 6
    assert done.kept.counts["runs"] == 1
    assert not is_there(store, orphan)
    del before[str(store.blob_path(orphan.digest))]
    assert everything(store).items() >= before.items()


def test_a_dry_run_says_the_same_and_touches_nothing(store: Store, runs: Runs) -> None:
    runs.add("one", made("one", blob(store, b"a")))
    runs.add("two", made("two", blob(store, b"b")))
    blob(store, b"orphan")
    before = everything(store)
    told: set[str] = set()
    said = collect.collect(
        store, runs.catalog, forget=["one"], dry_run=True, tell=lambda what, done, of: told.add(what)
    )
    assert "looking at runs" in told and not any("remov" in what for what in told)
    assert everything(store) == before
    assert [row.id for row in runs.catalog.runs()] == ["two", "one"]
    done = collect.collect(store, runs.catalog, forget=["one"])
    assert (said.removed.counts, said.kept.counts) == (done.removed.counts, done.kept.counts)
    assert said.removed.bytes["values"] == done.removed.bytes["values"] > 6000
    assert done.removed.counts["runs"] == 1


def test_the_items_of_a_list_and_the_files_of_a_folder_are_kept(
    store: Store, runs: Runs, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_bytes(name.encode() * 4000)
    few = save([bytes([n]) * 3000 for n in range(3)], store, by_item=True)
    many = save([bytes([n]) * 3000 for n in range(3, 103)], store, by_item=True)
    folders = save([folder], store, by_item=True)
    small, large = save(folder, store), save(folder, store)
    for n in range(40):
        (folder / f"{n:03}").write_bytes(bytes([200 + n]) * 4000)
    large = save(folder, store)
    assert [few.inline is None, many.inline is None, small.inline is None, large.inline is None] == [
        False,
        True,
        False,
        True,
    ]
    runs.add(
        "one", *(made("one", value, index=n) for n, value in enumerate((few, many, folders, small, large)))
    )
    store.claims.release()
    before = everything(store)
    done = collect.collect(store, runs.catalog)
    assert done.removed.counts == {}
    assert {path for path in before if "/claims/" not in path} <= set(everything(store))
    assert (
        collect.collect(store, runs.catalog, forget=["one"]).removed.counts["values"]
        == 3 + 100 + 1 + 3 + 40 + 1
    )
    assert not [path for path in (store.root / "blobs").rglob("*") if path.is_file()]


def test_a_field_that_only_a_newer_upshift_knows_keeps_what_it_names(store: Store, runs: Runs) -> None:
    value = blob(store, b"x")
    runs.add("one")
    store.write_record("one", "novelty.json", b'{"version":7,"what":"' + value.digest.encode() + b'"}')
    assert collect.collect(store, runs.catalog).removed.counts == {}
    assert is_there(store, value)


def test_a_record_that_is_torn_keeps_what_it_still_names(store: Store, runs: Runs) -> None:
    orphan, wanted = blob(store, b"orphan"), made("one", blob(store, b"wanted"))
    runs.add("one", wanted)
    runs.add("two", reused("two", wanted))
    record = store.read_record("two", "tasks.json")
    assert record is not None
    assert b'"origin"' in record
    store.write_record("two", "tasks.json", record[:-9])
    assert collect.collect(store, runs.catalog, forget=["one"]).removed.counts == {"runs": 1, "values": 1}
    assert store.read_result(wanted.task, 1) == wanted
    assert not is_there(store, orphan)


def test_content_that_nobody_here_can_read_stops_it(store: Store, runs: Runs) -> None:
    orphan = blob(store, b"orphan")
    artifact = attrs.evolve(save(1, store), serializer="plugin:strange")
    runs.add("one", made("one", artifact))
    with pytest.raises(StoreError, match="gc cannot know what") as caught:
        collect.collect(store, runs.catalog)
    assert "plugin:strange" in str(caught.value)
    assert is_there(store, orphan)


def test_temporary_files_go_when_nobody_has_written_to_them_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(b"x")
    store.claims.release()
    (store.root / "tmp" / "left").write_bytes(b"half")
    os.utime(store.root / "tmp" / "left", ns=(0, 0))  # a stamp says nothing about age
    assert collect.collect(store, None).removed.counts == {"values": 1}
    later = time.time() + collect.ABANDONED + 60
    monkeypatch.setattr(files.time, "time", lambda: later)
    done = collect.collect(store, None)
    assert done.removed.counts == {"temporary": 1}
    assert done.removed.bytes == {"temporary": 4}
    assert os.listdir(store.root / "tmp") == []


# Runs that are removed


def test_a_removed_run_is_gone_with_what_only_it_referred_to(store: Store, runs: Runs) -> None:
    shared, own = blob(store, b"shared"), blob(store, b"own")
    runs.add("one", made("one", shared), made("one", own, step="other"))
    runs.add("two", made("two", shared))
    done = collect.collect(store, runs.catalog, forget=["one"])
    assert done.removed.counts == {"runs": 1, "values": 1}
    assert (is_there(store, shared), is_there(store, own)) == (True, False)
    assert [row.id for row in runs.catalog.runs()] == ["two"]
    assert runs.catalog.tasks("one") == [] == runs.catalog.attempts("one")
    assert os.listdir(store.root / "runs") == ["two"]


def test_results_that_a_kept_run_reuses_outlive_their_run(store: Store, runs: Runs) -> None:
    wanted, own = made("one", blob(store, b"wanted")), made("one", blob(store, b"own"), step="other")
    runs.add("one", wanted, own)
    runs.add("two", reused("two", wanted))

    done = collect.collect(store, runs.catalog, forget=["one"])

    assert done.removed.counts == {"runs": 1, "values": 1}
    assert done.kept.counts["results"] == 1
    assert store.read_result(wanted.task, 1) == wanted
    assert store.log_path(wanted.task, 1).read_bytes() == b"it printed this\n"
    assert store.read_result(own.task, 1) is None
    assert is_there(store, wanted.outputs["output"])
    assert runs.catalog.find_results(str(wanted.key), store=store.address) == [(wanted.task, 1)]
    assert runs.catalog.find_results(str(own.key), store=store.address) == []
    assert collect.collect(store, runs.catalog).removed.counts == {}, "the next one finds nothing to do"

    done = collect.collect(store, runs.catalog, forget=["two"])
    assert done.removed.counts == {"runs": 1, "results": 1, "values": 1}
    assert os.listdir(store.root / "runs") == []
    assert runs.catalog.attempts("one") == []


def test_what_a_killed_run_reuses_is_in_the_catalog_only_and_kept(store: Store, runs: Runs) -> None:
    wanted = made("one", blob(store, b"wanted"))
    runs.add("one", wanted)
    runs.add("two")
    runs.catalog.record([reused("two", wanted)])
    collect.collect(store, runs.catalog, forget=["one"])
    assert store.read_result(wanted.task, 1) == wanted


def test_runs_of_another_catalog_are_kept(store: Store, runs: Runs, tmp_path: Path) -> None:
    value = blob(store, b"theirs")
    theirs = Runs(store, Catalog(tmp_path / "theirs.db"))
    theirs.add("one", made("one", value))
    assert collect.collect(store, runs.catalog).kept.counts["runs"] == 1
    assert is_there(store, value)


def test_a_run_whose_record_is_lost_is_kept_as_long_as_the_catalog_knows_it(store: Store, runs: Runs) -> None:
    value = blob(store, b"value")
    runs.add("one", made("one", value))
    (store.root / "runs" / "one" / "run.json").unlink()
    assert collect.collect(store, runs.catalog).removed.counts == {}
    assert collect.collect(store, None).removed.counts == {"runs": 1, "values": 1}


def test_a_run_that_is_in_the_catalog_only_can_be_removed(store: Store, runs: Runs) -> None:
    store.put(b"x")
    runs.catalog.add_run(RunRow(id="lost", pipeline="p", status="failed", target="t", store="", started=1.0))
    assert collect.collect(store, runs.catalog, forget=["lost"]).removed.counts["runs"] == 1
    assert runs.catalog.runs() == []


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = collect.collect(open_store(str(tmp_path / "none")), None, dry_run=True)
    assert (done.removed.counts, done.kept.counts) == ({}, {})
    assert list(tmp_path.glob("none")) == []


# What running processes need


def elsewhere(act: Callable[[], None]) -> Callable[[], None]:
    """Do something in another process; what is given back lets that process end and waits for it."""
    ready, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(go)
            act()
            os.write(tell, b"1")
            os.read(wait, 1)
            code = 0
        finally:
            os._exit(code)
    os.close(tell)
    os.close(wait)
    assert os.read(ready, 1) == b"1"

    def end() -> None:
        os.close(go)
        os.close(ready)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return end


def test_a_run_that_somebody_works_on_is_never_removed(store: Store, runs: Runs) -> None:
    value = blob(store, b"value")
    runs.add("one", made("one", value))
    end = elsewhere(lambda: assert_true(store.claim_run("one")))
    for dry in (True, False):
        done = collect.collect(store, runs.catalog, forget=["one"], dry_run=dry)
        assert done.live == {"one"}
        assert done.removed.counts == {}
    assert is_there(store, value)
    end()
    assert collect.collect(store, runs.catalog, forget=["one"]).removed.counts == {"runs": 1, "values": 1}
    assert not store.claim_run("one") or not (store.root / "runs" / "one").exists()
    store.claims.release()


def assert_true(value: object) -> None:
    assert value


def test_content_that_no_record_names_yet_is_kept_for_its_writer(store: Store) -> None:
    old = blob(store, b"old")
    end = elsewhere(lambda: assert_true(store.put(b"new" * 3000) and store.find(old.digest)))
    assert collect.collect(store, None, dry_run=True).removed.counts == {}
    assert collect.collect(store, None).removed.counts == {}
    end()
    assert collect.collect(store, None).removed.counts == {"values": 2}
    assert os.listdir(store.root / "claims") == []


def test_claims_that_are_let_go_while_it_works_count_to_its_end(store: Store, runs: Runs) -> None:
    """What is claimed after gc read the records may be recorded, and let go, before gc decides."""
    value = blob(store, b"value")

    def meanwhile(what: str, done: int, of: int | None) -> None:
        if what.startswith("looking") and not done:
            with store.claims.held():
                assert store.find(value.digest)
                Runs(store).add("late", made("late", value))

    runs.add("early")
    collect.collect(store, runs.catalog, tell=meanwhile)
    assert is_there(store, value)
    assert collect.collect(store, runs.catalog).removed.counts == {}
    assert os.listdir(store.root / "claims") == []


def test_a_result_that_is_found_while_its_run_is_removed_stays_with_its_content(
    store: Store, runs: Runs
) -> None:
    output = save([b"x" * 3000, b"y" * 3000], store, by_item=True)
    result = made("one", output)
    store.claims.release()
    runs.add("one", result)
    runs.add("two")
    found: list[TaskResult | None] = []

    def meanwhile(what: str, done: int, of: int | None) -> None:
        if what.startswith("removing") and not found:
            pid = os.fork()
            if pid == 0:
                os._exit(0 if store.claim_result(result.task, 1) == result else 1)
            found.append(result if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else None)

    done = collect.collect(store, runs.catalog, forget=["one"], tell=meanwhile)
    assert found == [result]
    assert store.read_result(result.task, 1) == result
    assert done.removed.counts == {"runs": 1}
    assert collect.collect(store, runs.catalog).removed.counts == {"results": 1, "values": 2}


def test_the_attempts_of_a_result_that_is_about_to_be_reused_stay_in_the_catalog(
    store: Store, runs: Runs
) -> None:
    wanted, own = made("one", blob(store, b"x")), made("one", blob(store, b"y"), step="other")
    runs.add("one", wanted, own)
    end = elsewhere(lambda: assert_true(store.claim_result(wanted.task, 1) == wanted))
    collect.collect(store, runs.catalog, forget=["one"])
    end()
    assert [attempt.task for attempt in runs.catalog.attempts("one")] == [wanted.task]
    collect.collect(store, runs.catalog)
    assert runs.catalog.attempts("one") == []


def test_two_at_once_are_refused(store: Store, runs: Runs) -> None:
    runs.add("one")

    def meanwhile(what: str, done: int, of: int | None) -> None:
        with pytest.raises(UsageError, match="another gc"):
            collect.collect(store, runs.catalog)

    collect.collect(store, runs.catalog, tell=meanwhile)
    assert claims.gc_works(store.address) is False
    collect.collect(store, runs.catalog)


class Killed(Exception):
    pass


def test_one_that_was_killed_anywhere_is_finished_by_the_next(
    store: Store, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = made("one", blob(store, b"wanted"))
    runs.add("one", wanted, *(made("one", blob(store, bytes([n])), step="many", index=n) for n in range(3)))
    runs.add("two", reused("two", wanted))
    blob(store, b"orphan")
    left = 0
    real = {name: getattr(os, name) for name in ("unlink", "rename", "rmdir")}
    forget = Catalog.forget_runs

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def act(*args: object, **kwargs: object) -> object:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return call(*args, **kwargs)

        return act

    for step in range(100):
        left = step
        with monkeypatch.context() as patch:
            for name, call in real.items():
                patch.setattr(collect.os, name, dying(call))
            patch.setattr(Catalog, "forget_runs", dying(forget))
            try:
                collect.collect(store, runs.catalog, forget=["one"])
                break
            except Killed:
                assert store.read_result(wanted.task, 1) == wanted
                assert is_there(store, wanted.outputs["output"])
    assert step > 1
    assert [row.id for row in runs.catalog.runs()] == ["two"]
    assert collect.collect(store, runs.catalog).removed.counts == {}
    left_files = [p for p in (store.root / "blobs").rglob("*") if p.is_file()]
    assert left_files == [store.blob_path(wanted.outputs["output"].digest)]
    assert sorted(os.listdir(store.root / "runs")) == ["one", "two"]


# Checkpoints


def checkpointed(store: Store, task: TaskId) -> Path:
    """A checkpoint of a task: its folder."""
    kept = TaskCheckpoints(store.address, task)
    folder = kept.begin(Name(1, 1), alone=True)
    (folder / "model").write_bytes(b"x" * 1000)
    kept.finish(Name(1, 1), 0, Part())
    return folder


def test_checkpoints_go_with_their_run_and_when_their_task_has_completed(store: Store, runs: Runs) -> None:
    done, failed, old = (TaskId(run=run, step=step) for run, step in (("a", "x"), ("a", "y"), ("b", "x")))
    folders = {task: checkpointed(store, task) for task in (done, failed, old)}
    for task in (done, failed, old):
        status = "completed" if task is done else "failed"
        store.create_result(TaskResult(task=task, attempt=1, status=status))
    runs.add("a")
    runs.add("b")
    before = everything(store)
    dry = collect.collect(store, None, forget=["b"], dry_run=True)
    assert everything(store) == before
    cleaned = collect.collect(store, None, forget=["b"])
    assert dry.removed == cleaned.removed
    assert cleaned.removed.counts["checkpoints"] == 2
    assert [folder.exists() for folder in folders.values()] == [False, True, False]
    assert list((store.root / "tmp").iterdir()) == []


def test_checkpoints_of_a_live_run_stay(store: Store, runs: Runs) -> None:
    task = TaskId(run="a", step="x")
    folder = checkpointed(store, task)
    store.create_result(TaskResult(task=task, attempt=1, status="completed"))
    runs.add("a")
    store.claim_run("a")
    collect.collect(store, None)
    assert folder.exists()


def test_checkpoints_that_somebody_was_killed_removing_go(
    store: Store, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.add("a")
    checkpointed(store, TaskId(run="a", step="x"))
    put_aside(store.address, f"{store.address}/checkpoints/a")
    monkeypatch.setattr(collect, "ABANDONED", -1.0)
    collect.collect(store, None)
    assert list((store.root / "tmp").iterdir()) == []


def test_a_temporary_file_that_vanishes_meanwhile_hides_no_other(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / name).write_text("left")
    listed = [entry.name for entry in os.scandir(tmp_path)]
    found = stale(str(tmp_path), older=-1.0)
    assert Path(next(found)[0]).name == listed[0]
    (tmp_path / listed[1]).unlink()
    assert [Path(path).name for path, _ in found] == listed[2:]
