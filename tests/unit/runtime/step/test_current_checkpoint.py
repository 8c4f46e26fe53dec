"""``upshift.current.checkpoint`` and ``upshift.current.stopping``, as a step's process has them."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import upshift
from upshift.errors import UsageError
from upshift.model.spec import Code, EntryPoint, Rank, TaskId, TaskSpec
from upshift.runtime import marks
from upshift.runtime.messages import channel
from upshift.runtime.step.checkpoint import CurrentCheckpoint, checkpoint
from upshift.runtime.storage.store import Store, open_store

TASK = TaskId(run="r1", step="train")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def spec(store: Store, attempt: int = 1, key: str = "blake2b:one") -> TaskSpec:
    return TaskSpec(
        task=TASK,
        attempt=attempt,
        pipeline="training",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=store.address,
        key=key,
    )


Entered = Callable[..., CurrentCheckpoint]


@pytest.fixture
def entered(store: Store) -> Entered:
    """Makes what a process has that works for an attempt: one of several, if so many are said."""

    def enter(
        attempt: int = 1, *, rank: int = 0, ranks: int = 1, key: str = "blake2b:one"
    ) -> CurrentCheckpoint:
        made = CurrentCheckpoint()
        made.open(
            spec(store, attempt, key), store, rank=Rank(rank=rank, world_size=ranks) if ranks > 1 else None
        )
        return made

    return enter


def save(process: CurrentCheckpoint, text: str = "", *, alone: bool = False) -> None:
    with process.save(alone=alone) as folder:
        (folder / f"of-{id(process)}").write_text(text)


def name_of(process: CurrentCheckpoint) -> str | None:
    return None if process.latest is None else process.latest.name


def test_the_next_attempt_goes_on_from_the_newest_one_and_says_so(
    entered: Entered, capfd: pytest.CaptureFixture[str]
) -> None:
    first = entered()
    assert first.latest is None
    save(first)
    save(first)
    assert name_of(first) == "1.2"
    assert capfd.readouterr().err == ""
    second = entered(2)
    assert name_of(second) == "1.2"
    assert capfd.readouterr().err == "upshift: train continues from checkpoint 1.2\n"
    save(second)
    assert name_of(second) == "2.1"
    assert capfd.readouterr().err == ""


def test_a_block_that_raises_saves_nothing_and_leaves_nothing(entered: Entered, store: Store) -> None:
    process = entered()
    save(process)
    with pytest.raises(ZeroDivisionError), process.save() as folder:
        (folder / "half").write_text(str(1 / 0))
    assert not folder.exists()
    assert name_of(process) == "1.1"
    save(process)
    assert name_of(process) == "1.3"


def test_a_block_that_writes_nothing_is_a_mistake_and_said(entered: Entered) -> None:
    process = entered()
    with pytest.raises(UsageError, match=r"checkpoint 1\.1 is empty") as caught, process.save():
        pass
    assert "folder that current.checkpoint.save() gives" in str(caught.value)
    assert process.latest is None


def test_one_is_saved_at_a_time(entered: Entered) -> None:
    process = entered()
    with process.save() as folder:
        (folder / "x").write_text("x")
        with pytest.raises(UsageError, match="is being saved already"), process.save():
            pass
    assert name_of(process) == "1.1"


def test_all_ranks_save_into_one_folder_which_is_there_when_the_last_is_through(entered: Entered) -> None:
    ranks = [entered(rank=rank, ranks=3) for rank in range(3)]
    for process in ranks[:2]:
        save(process)
    assert [name_of(process) for process in ranks] == [None, None, None]
    save(ranks[2])
    assert [name_of(process) for process in ranks] == ["1.1", "1.1", "1.1"]
    folder = ranks[0].latest
    assert folder is not None
    assert len(list(folder.iterdir())) == 3


def test_one_rank_may_save_for_all(entered: Entered) -> None:
    main, other = (entered(rank=rank, ranks=2) for rank in range(2))
    save(main, alone=True)
    assert name_of(main) == name_of(other) == "1.1"
    with pytest.raises(UsageError, match=r"rank 1 saves checkpoint 1\.1 alone, and so does another rank"):
        save(other, alone=True)
    with pytest.raises(UsageError, match="saves a checkpoint with the others, and saved the last one alone"):
        save(main)


def test_a_rank_that_saves_while_the_others_never_do_is_told(
    entered: Entered, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = entered(1, rank=0, ranks=3)
    for _ in range(5):
        save(hasty)
    assert capfd.readouterr().err == ""  # the others may be slower
    monkeypatch.setattr("upshift.runtime.step.checkpoint.PATIENCE", 0.0)
    main = entered(2, rank=0, ranks=3)
    save(main)
    assert capfd.readouterr().err == ""
    save(main)
    assert capfd.readouterr().err == (
        "upshift: checkpoint 2.1 is not complete, since ranks 1, 2 did not save: "
        "every rank has to, or one with save(alone=True)\n"
    )
    save(main)
    assert capfd.readouterr().err == ""
    assert entered(3, rank=0, ranks=3).latest is None
    assert "checkpoint 2.3 is not complete: ranks 1, 2 did not save to the end" in capfd.readouterr().err


def test_another_number_of_processes_is_said(entered: Entered, capfd: pytest.CaptureFixture[str]) -> None:
    for process in [entered(rank=rank, ranks=2) for rank in range(2)]:
        save(process)
    assert name_of(entered(2)) == "1.1"
    expected = "train continues from checkpoint 1.1; it was saved by 2 processes, and now there are 1\n"
    assert capfd.readouterr().err == f"upshift: {expected}"


def test_one_of_other_code_is_not_offered_and_that_is_said(
    entered: Entered, capfd: pytest.CaptureFixture[str]
) -> None:
    save(entered(key="blake2b:old"))
    assert entered(2, key="blake2b:new").latest is None
    assert capfd.readouterr().err == (
        "upshift: checkpoint 1.1 is of other code, inputs or settings, and is not used; "
        "train begins from the start\n"
    )
    assert name_of(entered(3, key="blake2b:old")) == "1.1"


def test_the_supervisor_is_told_what_was_saved_and_gone_on_from(entered: Entered) -> None:
    ours, theirs = os.pipe()
    channel.open(theirs)
    try:
        save(entered(), "12345")
        assert name_of(entered(2)) == "1.1"
    finally:
        channel.close()
    said = [json.loads(line)["checkpoint"] for line in os.read(ours, 1 << 16).splitlines()]
    assert said == [{"saved": 1, "newest": "1.1", "bytes": 5}, {"resumed_from": "1.1"}]
    os.close(ours)
    os.close(theirs)


def _save_in_a_child(process: CurrentCheckpoint, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        save(process)
    except UsageError as error:
        answers.put(error.what)


def test_a_process_that_the_step_has_started_cannot_save(
    entered: Entered, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "upshift.current.checkpoint was used in a process that the step has started"
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    child = context.Process(target=_save_in_a_child, args=(entered(), answers))
    child.start()
    assert answers.get() == expected
    child.join()
    monkeypatch.setenv(marks.VARIABLE, "a supervisor")  # as a fresh interpreter below a step has it
    with pytest.raises(UsageError, match=expected):
        save(CurrentCheckpoint())


@pytest.mark.parametrize("key", ["blake2b:one", "once:debugged:blake2b:one"])
def test_what_is_saved_under_a_debugger_goes_elsewhere(
    key: str, store: Store, tmp_path: Path, entered: Entered
) -> None:
    save(entered(), "recorded")
    process, aside = CurrentCheckpoint(), open_store(str(tmp_path / "aside"))
    process.open(spec(store, 2, key), store, into=aside)
    assert process.latest is not None
    assert store.root in process.latest.parents
    save(process, "tried")
    assert aside.root in process.latest.parents
    assert name_of(entered(2)) == "1.1"


@pytest.fixture
def outside() -> Iterator[CurrentCheckpoint]:
    """That of this process, which runs no step."""
    yield checkpoint
    checkpoint.close()


def test_outside_of_a_step_it_works_in_a_temporary_folder(outside: CurrentCheckpoint) -> None:
    assert upshift.current.checkpoint is outside
    assert outside.latest is None
    save(outside, "x")
    save(outside, "y")
    folder = outside.latest
    assert folder is not None
    assert [path.read_text() for path in folder.iterdir()] == ["y"]
    outside.close()
    assert not folder.exists()
    assert outside.latest is None
    assert not upshift.current.stopping


@upshift.step
def count(to: int) -> int:
    latest = upshift.current.checkpoint.latest
    start = 0 if latest is None else int((latest / "n").read_text())
    for n in range(start, to):
        with upshift.current.checkpoint.save() as folder:
            (folder / "n").write_text(str(n + 1))
    return to - start


@upshift.step
def twice(to: int) -> tuple[int, int]:
    return count(to), count(to + 1)


def test_a_call_of_a_step_as_a_function_does_not_go_on_where_another_one_was() -> None:
    assert count(3) == 3
    assert count(4) == 4
    assert twice(3) == (3, 1)  # they are one call, as they would be one step
    assert checkpoint.latest is None
    checkpoint.close()


def test_threads_of_a_step_may_save(entered: Entered) -> None:
    process = entered()
    thread = threading.Thread(target=save, args=(process,))
    thread.start()
    thread.join()
    assert name_of(process) == "1.1"
