"""The log of a task of several processes: whole lines of each, whoever writes at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.model.spec import Code, EntryPoint, Rank, TaskId, TaskSpec
from upshift.runtime.loop import Loop
from upshift.runtime.masking import Mask
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor import logs
from upshift.runtime.supervisor.logs import Losses, RankLines, TaskLog

SPEC = TaskSpec(
    task=TaskId(run="r", step="train"),
    attempt=1,
    pipeline="p",
    entry=EntryPoint(module="m", qualname="train"),
    code=Code(project="/"),
    store="",
)
LOSSES = Losses(0.0, tell=lambda line: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / "store"))
    store.write_spec(SPEC)
    return store


def test_lines_are_whole_and_say_whose_they_are(store: Store) -> None:
    sizes: list[int] = []
    log = TaskLog(Loop(), SPEC, store, grew=sizes.append, losses=LOSSES, mask=None)
    one, two = (log.of(Rank(rank=number, world_size=2)) for number in (0, 1))
    one.feed(b"epoch 1: ")
    two.feed(b"epoch 1: loss 2.0\nepoch 2")
    one.feed(b"loss 1.0\n")
    log.remark("something of ours")
    for each in (one, two):
        each.close()
    log.settle()
    log.close()
    text = log.path.read_bytes()
    assert text == (
        b"[rank 1] epoch 1: loss 2.0\n[rank 0] epoch 1: loss 1.0\n"
        b"upshift: something of ours\n[rank 1] epoch 2\n"
    )
    assert log.size == len(text) and sizes
    assert store.rank_log_path(SPEC.task, 1, 0).read_bytes() == b"epoch 1: loss 1.0\n"
    assert store.rank_log_path(SPEC.task, 1, 1).read_bytes() == b"epoch 1: loss 2.0\nepoch 2"


def test_of_a_bar_the_last_frame_is_among_the_lines() -> None:
    out: list[bytes] = []
    lines = RankLines(3, out.append)
    lines.feed(b"\r10 %\r50 %")
    lines.feed(b"\r100 %\nnext\n")
    assert b"".join(out) == b"[rank 3] 100 %\n[rank 3] next\n"


def test_secrets_are_masked_in_both(store: Store) -> None:
    log = TaskLog(Loop(), SPEC, store, grew=lambda size: None, losses=LOSSES, mask=Mask(["hush-hush"]))
    rank = log.of(Rank(rank=1, world_size=2))
    rank.feed(b"token hush-")
    rank.feed(b"hush\n")
    rank.close()
    log.remark("rank 1 is at hush-hush.py:3")
    log.settle()
    log.close()
    for path in (log.path, store.rank_log_path(SPEC.task, 1, 1)):
        assert b"hush" not in path.read_bytes() and b"token" in path.read_bytes()


def test_a_line_without_an_end_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LONGEST_LINE", 10)
    out: list[bytes] = []
    lines = RankLines(0, out.append)
    for _ in range(3):
        lines.feed(b"x" * 10)
    lines.close()
    assert out == [b"[rank 0] " + b"x" * 10 + b"\n"] * 3
