"""What a supervisor keeps of what a step says, whatever comes through the pipe and whatever the disk does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import upshift
from upshift.model.spec import Card, encode
from upshift.runs.history.attempts import read_cards
from upshift.runtime.loop import Loop
from upshift.runtime.masking import Mask
from upshift.runtime.messages import channel, understood
from upshift.runtime.storage.metrics import first_of, read_by_rank
from upshift.runtime.supervisor import recorder
from upshift.runtime.supervisor.logs import Losses
from upshift.runtime.supervisor.recorder import Recorder


class Kept:
    """A ledger with files in a folder, fed with what this process logs."""

    def __init__(self, folder: Path, descriptor: int, mask: Mask | None = None) -> None:
        self.metrics = folder / "0.1.metrics"
        self.cards = folder / "0.1.cards"
        self.loop = Loop()
        self.origin = time.monotonic()
        self.news: list[tuple[float | None, dict[str, Any]]] = []
        self.told: list[str] = []
        self.losses = Losses(self.origin, tell=self.told.append)
        self.ledger = self.open(mask)
        self._descriptor = descriptor

    def open(self, mask: Mask | None = None) -> Recorder:
        return Recorder(
            self.loop,
            self.metrics,
            self.cards,
            origin=self.origin,
            losses=self.losses,
            mask=mask,
            news=lambda step, values: self.news.append((step, dict(values))),
        )

    def sent(self) -> list[bytes]:
        return os.read(self._descriptor, 1 << 16).splitlines()

    def values(self) -> dict[str, list[object]]:
        return {name: list(curve.values) for name, curve in first_of(read_by_rank(self.metrics)).items()}


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    ours, theirs = os.pipe()
    channel.open(theirs)
    yield Kept(tmp_path, ours)
    channel.close()
    os.close(ours)
    os.close(theirs)


def test_what_is_logged_is_in_the_file_at_once(kept: Kept) -> None:
    upshift.log(step=1, loss=0.5)
    upshift.log(step=1, lr=0.1, phase="a")
    upshift.log(step=2, loss=0.25)
    kept.ledger.logged(kept.sent())
    assert kept.values() == {"loss": [0.5, 0.25], "lr": [0.1], "phase": ["a"]}
    upshift.log(step=3, loss=0.125)
    kept.ledger.logged(kept.sent())
    summaries = kept.ledger.close()
    assert (summaries["loss"].last, summaries["loss"].count, summaries["loss"].max) == (0.125, 3, 0.5)
    assert kept.metrics.read_bytes().count(b"names") == 2


def test_what_each_rank_logs_is_kept_apart_and_the_first_one_is_told_by_its_rank(kept: Kept) -> None:
    upshift.log(step=7, loss=0.7)
    kept.ledger.logged(kept.sent(), rank=2)
    assert kept.news == [(7, {"loss (rank 2)": 0.7})]
    upshift.log(step=1, loss=0.5)
    kept.ledger.logged(kept.sent())
    upshift.log(step=9, loss=0.9, speed=3)
    kept.ledger.logged(kept.sent(), rank=1)
    by_rank = {
        rank: {name: list(curve.values) for name, curve in curves.items()}
        for rank, curves in read_by_rank(kept.metrics).items()
    }
    assert by_rank == {0: {"loss": [0.5]}, 1: {"loss": [0.9], "speed": [3]}, 2: {"loss": [0.7]}}
    assert list(by_rank) == [0, 1, 2]
    kept.loop.turn()
    assert kept.news[1:] == [(1, {"loss": 0.5, "speed (rank 1)": 3})]
    summaries = kept.ledger.close()
    loss, speed = summaries["loss"], summaries["speed"]
    assert (loss.last, loss.step, loss.count, loss.rank, loss.ranks) == (0.5, 1, 1, 0, 3)
    assert (speed.last, speed.rank, speed.ranks) == (3, 1, 1)


def test_a_card_says_which_rank_shows_it(kept: Kept) -> None:
    card = Card(title="Loss", media="image/png", digest="blake3:" + "0" * 64, bytes=3, at=kept.origin)
    kept.ledger.shown(json.loads(json.dumps(encode(card))), rank=1)
    assert [each.rank for each in read_cards(kept.cards)] == [1]


def test_nothing_is_made_where_nothing_is_logged(kept: Kept) -> None:
    assert kept.ledger.close() == {}
    assert not kept.metrics.exists() and not kept.cards.exists()


def test_notices_come_now_and_then_and_the_last_values_are_told(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "QUIET", 0.01)
    for i in range(50):
        upshift.log(step=i, loss=i)
        kept.ledger.logged(kept.sent())
    assert kept.news == [(0, {"loss": 0})]
    kept.loop.turn()
    assert kept.news == [(0, {"loss": 0}), (49, {"loss": 49})]
    kept.loop.turn()  # nothing is new
    assert len(kept.news) == 2
    upshift.log({f"m{i}": i for i in range(20)})
    kept.ledger.logged(kept.sent())
    assert list(kept.news[-1][1]) == ["loss", "m0", "m1", "m2", "m3", "m4"]


def test_what_somebody_else_wrote_into_the_pipe_is_left_out(kept: Kept) -> None:
    upshift.log(step=1, loss=0.5)
    good = kept.sent()
    for bad in (
        b'{"metric":[',
        b'{"metric":[["loss"],\t[]]}',
        b'{"metric":[["loss"],\t[1.0,1,0.5,0.7]]}',
        b'{"metric":[["loss"],\t[x,1,0.5]]}',
        b'{"metric":["loss",\t[1.0,1,0.5]]}',
        b'{"metric":[5,\t[1.0,1,0.5]]}',
        b'{"metric":[["loss"],\t[1.0,1,nonsense]]}',
        b'{"metric":\xff\x00',
    ):
        kept.ledger.logged([bad])
    kept.ledger.logged(good)
    assert kept.values()["loss"] == [0.5]
    assert kept.ledger.close()["loss"].count >= 1


NEARLY = (
    b'{"metric":[["a"],\t[1.0,3],[7,1,1,1]]}',
    b'{"metric":[["a"],\t[1.0,3],[1]]}',
    b'{"metric":[["a"],\t[1.0,null,[1]]]}',
    b'{"metric":[["a"],\t[1.0,null,null]]}',
    b'{"metric":[["a"],\t[1.0,null,NaN]]}',
    b'{"metric":[["a"],\t[1.0,"3",1]]}',
    b'{"metric":[["a"],\t[1.0,1e400,1]]}',
    b'{"metric":[["a"],\t[1.0,3,"x]]}',
    b'{"metric":[["a"],\t[1e400,3,1]]}',
    b'{"metric":[["a",1],\t[1.0,null,1,1]]}',
    b'{"metric":[[[]],\t[1.0,null,1]]}',
    b'{"metric":[[],\t[1.0,null]]}',
    b'{"metric":[["\\ud800"],\t[1.0,3,1]]}',
    b'{"metric":[' + b"[" * 60_000 + b",\t[1.0,3,1]]}",
    b'{"metric":[["a"],\t[1.0,3,' + b"[" * 60_000 + b"]]}",
    b'{"metric":[["a"],\t[1.0,3,1' + b"0" * 400 + b"]]}",
    b'{"metric":[["a"],\t[1.0,1' + b"0" * 400 + b",1]]}",
)


@pytest.mark.parametrize("bad", NEARLY)
def test_a_line_that_is_nearly_one_takes_no_other_with_it(kept: Kept, bad: bytes) -> None:
    kept.ledger = kept.open(Mask(["12345678"]))
    for _ in range(2):
        upshift.log(step=1, a=0.5)
        upshift.log(step=2, b=0.5)
    one, two, three, four = kept.sent()
    kept.ledger.logged([one, bad, two, bad, three, four])
    assert kept.values() == {"a": [0.5, 0.5], "b": [0.5, 0.5]}
    assert {name: s.count for name, s in kept.ledger.close().items()} == {"a": 2, "b": 2}
    assert kept.metrics.read_bytes().count(b"\n") == 6


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"5", b"[]", b"null", b"{", b"\xff", b'{"other": 1}', b'{"metric": 1}'),
        *(b"[" * 60_000, b'{"card":' + b"[" * 60_000),
    ],
)
def test_a_line_of_no_known_kind_is_nothing(line: bytes) -> None:
    assert understood(line) == []


def test_texts_without_secrets_and_numbers_as_they_are(tmp_path: Path, kept: Kept) -> None:
    kept.ledger = kept.open(Mask(["12345678"]))
    upshift.log({"a": "x 12345678", "n": 12345678, "of 12345678": 1}, step=12345678)
    kept.ledger.logged(kept.sent())
    assert kept.values() == {"a": ["x ***"], "n": [12345678], "of ***": [1]}
    assert kept.ledger.close()["a"].last == "x ***"


def test_a_disk_that_is_full_leaves_a_gap_that_is_told_and_all_else_is_right(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    upshift.log(step=1, loss=0.5)
    kept.ledger.logged(kept.sent())
    size = kept.metrics.stat().st_size

    def full(descriptor: int, data: memoryview) -> None:
        os.write(descriptor, data[:9])  # half of a line
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "write_all", full)
        upshift.log(step=2, loss=0.25)
        upshift.log(step=2, other=7)
        upshift.log(step=2, one_more="text")
        kept.ledger.logged(kept.sent())
    assert kept.values() == {"loss": [0.5]} and kept.metrics.stat().st_size > size
    (gap,) = kept.losses.gaps
    assert gap.what == "metrics" and gap.until is None and gap.why == "No space left on device"
    assert kept.told == [f"the file of metrics cannot be written: {gap.why} ({gap.path}); the step continues"]
    upshift.log(step=3, one_more="again")
    upshift.log(step=3, loss=0.125)
    upshift.log(step=3, other=8)
    kept.ledger.logged(kept.sent())
    assert kept.values() == {"one_more": ["again"], "loss": [0.5, 0.125], "other": [8]}
    summaries = kept.ledger.close()
    assert (summaries["loss"].count, summaries["other"].count) == (3, 2)
    (after,) = kept.losses.gaps
    assert after.bytes == gap.bytes and after.until is not None and len(kept.told) == 1


def test_sets_of_names_that_never_come_again_do_not_fill_memory(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_KNOWN", 3)
    for i in range(10):
        upshift.log({f"m{i % 5}": i})
        kept.ledger.logged(kept.sent())
    assert kept.values() == {f"m{i}": [i, i + 5] for i in range(5)}
    assert len(kept.ledger._names) <= 3


def test_cards_are_in_their_file_at_once_with_the_time_since_the_start(kept: Kept) -> None:
    card = Card(title="Loss", media="image/png", digest="blake3:" + "0" * 64, bytes=3, at=0.25)
    sent = attrs.evolve(card, at=kept.origin + 0.25)
    kept.ledger.shown(json.loads(json.dumps(encode(sent))))
    assert read_cards(kept.cards) == (card,)
    with open(kept.cards, "ab") as file:
        file.write(b'{"title":"to')
    assert read_cards(kept.cards) == (card,) and kept.ledger.cards == [card]
