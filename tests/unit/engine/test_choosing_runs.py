"""Which runs gc removes, and what it tidies up in the home."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from upshift.engine.gc import Choice, choose, gc, rebuild_catalog, tidy
from upshift.errors import NotFound, StoreError, UsageError
from upshift.model.configuration import Configuration
from upshift.model.settings.sizes import parse_span
from upshift.report.terminal.catalog import Ticker, cleaned_text, rebuilt_text
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.catalog.rebuild import Rebuilt
from upshift.runs.catalog.rows import RunRow
from upshift.runs.collect import Collected, Tally
from upshift.runs.lease import Lease, leases
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.files import boot_id
from upshift.runtime.storage.store import open_store

DAY = 86_400.0


@pytest.fixture
def catalog(upshift_home: Path) -> Catalog:
    return open_catalog(Configuration())


def add(
    catalog: Catalog, id: str, *, days: float = 0, pipeline: str = "p", store: str = "/s", **more: object
) -> None:
    started = 100 * DAY - days * DAY
    fields = {"status": "completed", "ended": started + 1, **more}
    row = RunRow(id=id, pipeline=pipeline, target="t", store=store, started=started, **fields)  # type: ignore[arg-type]
    catalog.add_run(row)


def chosen(catalog: Catalog, **choice: object) -> list[str]:
    return [row.id for row in choose(Choice(**choice), catalog, 100 * DAY)]  # type: ignore[arg-type]


def test_runs_are_chosen_by_age_number_and_pipeline(catalog: Catalog) -> None:
    for days in range(6):
        add(catalog, f"p{days}", days=days)
    add(catalog, "q9", days=9, pipeline="q")
    add(catalog, "r9", days=9, pipeline="r", status="running", ended=None)
    assert chosen(catalog) == []
    assert chosen(catalog, older_than=3.5 * DAY) == ["p4", "p5", "r9", "q9"]
    assert chosen(catalog, keep_last=4) == ["p4", "p5"]
    assert chosen(catalog, keep_last=2, older_than=3.5 * DAY) == ["p4", "p5"]
    assert chosen(catalog, keep_last=5, older_than=3.5 * DAY) == ["p5"]
    assert chosen(catalog, pipeline="q", older_than=0) == ["q9"]
    assert chosen(catalog, runs=("p0", "q", "latest", "p0")) == ["p0", "q9"]


def test_a_run_whose_end_was_recorded_with_a_clock_set_back_is_as_old_as_its_start(catalog: Catalog) -> None:
    add(catalog, "fresh", days=0, ended=98 * DAY)
    assert chosen(catalog, older_than=DAY) == []


def test_a_run_is_as_old_as_its_end(catalog: Catalog) -> None:
    add(catalog, "long", days=40, ended=99 * DAY)
    assert chosen(catalog, older_than=30 * DAY) == []


def test_a_choice_that_says_nothing_is_refused(catalog: Catalog) -> None:
    add(catalog, "one")
    with pytest.raises(UsageError, match="needs another option that selects them"):
        chosen(catalog, pipeline="p")
    with pytest.raises(NotFound, match="no run of a pipeline 'x'"):
        chosen(catalog, pipeline="x", keep_last=1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 30 * DAY), ("1.5h", 5400), ("2w", 14 * DAY), ("90m", 5400), (" 0 s ", 0)]
)
def test_spans_of_time(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1 year", "", "1d2h"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number and one of s, m, h, d, w"):
        parse_span(text)


def test_runs_in_a_store_that_is_not_there_stay(catalog: Catalog, tmp_path: Path) -> None:
    add(catalog, "away", store=str(tmp_path / "unmounted"))
    (tmp_path / "unmounted").mkdir()
    cleaned = gc(Configuration(), Choice(older_than=0.0), now=lambda: 200 * DAY)
    assert cleaned.missing == {str(tmp_path / "unmounted"): 1}
    assert [row.id for row in catalog.runs()] == ["away"]
    assert list((tmp_path / "unmounted").iterdir()) == []
    with pytest.raises(StoreError, match="its store is not there") as caught:
        gc(Configuration(), Choice(runs=("away",)))
    assert "--rebuild-catalog" in str(caught.value)
    rebuilt, aside, missing = rebuild_catalog(Configuration())
    assert (rebuilt.runs, aside) == (1, None)
    assert str(tmp_path / "unmounted") in missing


def test_every_store_that_a_run_or_a_target_names_is_cleaned(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("one", "two"):
        store = open_store(str(tmp_path / name))
        store.put(b"orphan")
        store.claims.release()
    add(catalog, "run", store=str(tmp_path / "one"))
    cleaned = gc(Configuration(store=str(tmp_path / "two")), Choice())
    assert cleaned.stores == (str(tmp_path / "two"), str(tmp_path / "one"))
    assert cleaned.collected.removed.counts == {"values": 2}


# The home


def old(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")


def test_what_dead_processes_left_in_the_home_goes(
    upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = home_folders.new_folder()
    folder = home_folders.place() / "killed"
    old(
        folder / "deep" / "copy",
        upshift_home / "code" / ("a" * 64) / "x.py",
        upshift_home / "code" / ("b" * 64) / "y",
        upshift_home / "code" / f".{'c' * 64}.0123456789ab" / "half",
    )
    old(
        upshift_home / "memo" / "answer.json",
        upshift_home / "fingerprints" / ".draft",
        upshift_home / ".catalog.db.ab",
        upshift_home / "logs" / "builds" / "failed.log",
    )
    kept = upshift_home / "cache" / "images"
    old(kept / "parents" / "a.json", kept / "layers" / "key" / ".half", kept / "building-one" / "layer")
    old(*(upshift_home / "forkservers" / f"dead.{end}" for end in ("lock", "err")))
    old(upshift_home / "engines" / "gone.sock", upshift_home / "engines" / "live.sock")
    store = str(upshift_home / "store")
    with Lease("live", store):
        for dry in (True, False):
            young = tidy({bytes.fromhex("b" * 64)}, [store], dry_run=dry)
            assert young.counts == {"scratch": 1, "unpacked": 1, "processes": 1}
            assert young.bytes == {"scratch": 5, "unpacked": 5, "processes": 5}
        later = time.time() + 31 * DAY
        monkeypatch.setattr(time, "time", lambda: later)
        for dry in (True, False):
            assert tidy({bytes.fromhex("b" * 64)}, [store], dry_run=dry).counts == {
                "memos": 3,
                "images": 2,
                "logs": 1,
                "processes": 2,
                "unpacked": 1,
            }
    assert Path(used).is_dir()
    assert sorted(path.name for path in (upshift_home / "code").iterdir()) == ["b" * 64]
    assert os.listdir(upshift_home / "engines") == ["live.sock"]
    for name in ("forkservers", "memo", "fingerprints", "logs/builds"):
        assert list((upshift_home / name).iterdir()) == []


def test_a_fork_server_that_lives_keeps_its_files(
    upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(upshift_home / "forkservers" / "busy.lock")
    later = time.time() + DAY
    monkeypatch.setattr(time, "time", lambda: later)
    with open(upshift_home / "forkservers" / "busy.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert tidy((), dry_run=False).counts == {}
    assert os.listdir(upshift_home / "forkservers") == ["busy.lock"]
    assert tidy((), dry_run=False).counts == {"processes": 1}


def test_the_socket_of_an_engine_that_lives_stays(upshift_home: Path) -> None:
    (upshift_home / "engines").mkdir(parents=True)
    store = str(upshift_home / "store")
    with Lease("run", store), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(upshift_home / "engines" / "run.sock"))
        assert tidy((), [store], dry_run=False).counts == {}
        assert (upshift_home / "engines" / "run.sock").exists()


def test_the_leases_of_dead_engines_go_from_their_stores(upshift_home: Path) -> None:
    store = str(upshift_home / "store")
    dead = {"pid": 1, "boot": boot_id(), "locks": True}
    for run in ("killed", "ended"):
        path = Path(store, "leases", run, "1")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(dead))
    open_store(store).put(b"x")
    with Lease("live", store):
        assert gc(Configuration(), Choice(), dry_run=True).collected.removed.counts["processes"] == 2
        assert gc(Configuration(), Choice()).collected.removed.counts["processes"] == 2
        assert leases(store) == ["live"]


def test_what_vanishes_while_it_is_looked_at_is_not_counted(
    upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder of copies, and of a run's socket, the size is asked after the names were listed."""
    old(home_folders.place() / "killed" / "gone", home_folders.place() / "killed" / "there")
    old(upshift_home / "engines" / "gone.sock")
    real = os.lstat

    def lstat(path: str | Path) -> os.stat_result:
        if os.path.basename(path).startswith("gone"):
            raise FileNotFoundError
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", lstat)
        done = tidy((), dry_run=True)
    assert done.bytes == {"scratch": 5}


def test_a_home_that_is_not_there_is_not_made(upshift_home: Path) -> None:
    assert tidy((), dry_run=False).counts == {}
    assert not upshift_home.exists()


# What is said


def tally(amounts: dict[str, tuple[int, int]]) -> Tally:
    """So many things of each kind, with so many bytes."""
    counts = Counter({kind: number for kind, (number, _) in amounts.items()})
    return Tally(counts, Counter({kind: size for kind, (_, size) in amounts.items()}))


def test_what_was_done_is_said_in_a_table() -> None:
    removed, kept = {"runs": (1, 2000), "values": (1234, 5 * 10**9)}, {"runs": (3, 10), "results": (2, 4)}
    collected = Collected(removed=tally(removed), kept=tally(kept))
    assert cleaned_text(collected, missing={}, failed={}, dry_run=False) == (
        "removed  1 run                      2 KB\n"
        "         1,234 values               5 GB\n"
        "kept     3 runs                     10 B\n"
        "         2 results of removed runs   4 B\n"
        "5 GB freed."
    )
    assert cleaned_text(
        Collected(later=tally({"values": (1, 5)}), waiting={"b"}, live={"a"}),
        missing={"/s": 2, "/t": 1},
        failed={"/u": "torn"},
        dry_run=True,
    ) == (
        "Nothing to remove now.\n"
        "later  1 value  5 B\n"
        "5 B more can be freed after the end of 1 run that is at work: b.\n"
        "Run a would stay: it is live.\n"
        "2 runs would stay: the store /s is not there.\n"
        "1 run would stay: the store /t is not there.\n"
        "The store /u would not be cleaned, or in part only."
    )


def test_what_became_of_the_catalog_is_said() -> None:
    text = rebuilt_text(
        Rebuilt(runs=2, dropped=1, interrupted=("a",), damaged={"b": "torn", "c": "torn"}, kept=("c",)),
        aside=Path("/old"),
        missing=["/s"],
    )
    assert text == (
        "The catalog has 2 runs.\n"
        "1 run of it was in no store any more.\n"
        "Run a was interrupted: what it had reused or skipped is known again once it is resumed.\n"
        "Run b is not in it: its record cannot be read: torn\n"
        "Run c is as it was: its record cannot be read: torn\n"
        "The store /s is not there: its runs are as they were.\n"
        "The one that could not be read is /old."
    )


class Stream:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def ticked(*, terminal: bool) -> str:
    stream = Stream(terminal)
    ticker = Ticker(stream)  # type: ignore[arg-type]
    for done in range(0, 4000, 1000):
        ticker("reading", done, 4000)
        ticker("reading", done + 1, 4000)
    ticker("sweeping", 1, 3)
    ticker.close()
    return stream.text


def test_how_far_it_is_is_shown_in_place_on_a_terminal_and_once_elsewhere() -> None:
    assert ticked(terminal=False) == "reading: 4,000\n"
    shown = ticked(terminal=True).split("\r\x1b[K")
    assert shown == ["", *(f"reading: {p} % of 4,000" for p in (0, 25, 50, 75)), "sweeping: 33 % of 3", ""]
