"""What is kept to save time: files appear whole, several at once, and reading one counts as using it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from upshift.engine.gc import tidy
from upshift.images import cache

DAY = 86_400.0


def test_threads_that_keep_the_same_file_do_not_disturb_each_other(upshift_home: Path) -> None:
    file = cache.folder(cache.SEEN) / "one.json"
    texts = [letter * 50_000 for letter in "abcdefgh"]
    all_write = Barrier(len(texts))

    def keep(text: str) -> None:
        with cache.keeping(file) as temporary:
            temporary.write_text(text)
            all_write.wait(30)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(keep, texts))
    assert file.read_text() in texts
    assert os.listdir(file.parent) == ["one.json"]


def test_what_fails_while_it_is_written_leaves_what_was_there(upshift_home: Path) -> None:
    file = cache.folder(cache.LAYERS) / "key" / "one.json"
    with cache.keeping(file) as temporary:
        temporary.write_text("whole")
    with cache.keeping(file) as temporary:
        temporary.write_text("ha")
        os.close(os.open(file / "no folder", os.O_RDONLY))
    with pytest.raises(KeyError), cache.keeping(file):
        raise KeyError
    assert file.read_text() == "whole"
    assert os.listdir(file.parent) == ["one.json"]


def test_where_nothing_can_be_kept_nothing_is(upshift_home: Path) -> None:
    upshift_home.mkdir(exist_ok=True)
    (upshift_home / "cache").write_text("a file")
    with cache.keeping(cache.folder(cache.SEEN) / "one.json") as temporary:
        temporary.write_text("lost")
    assert (upshift_home / "cache").read_text() == "a file"


def test_what_is_read_stays_and_what_nobody_reads_goes(
    upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [cache.folder(kind) / "below" / "one" for kind in cache.KINDS]
    for file in files:
        with cache.keeping(file) as temporary:
            temporary.write_text("12345")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * DAY)
    dry = tidy((), dry_run=True)
    assert (dry.counts["images"], dry.bytes["images"]) == (len(cache.KINDS), 5 * len(cache.KINDS))
    marked: list[Path] = []
    monkeypatch.setattr(os, "utime", marked.append)
    assert cache.used(files[0]).read_text() == "12345"
    assert marked == files[:1]
    monkeypatch.setattr(time, "time", lambda: now + 0.5 * DAY)
    assert cache.used(files[1]).read_text() == "12345"
    assert marked == files[:1]
    assert cache.used(files[0].with_name("nowhere")) is not None
    assert tidy((), dry_run=False).counts["images"] == 0
    monkeypatch.setattr(time, "time", lambda: now + 31 * DAY)
    assert tidy((), dry_run=False).counts["images"] == len(cache.KINDS)
    assert not any(map(Path.exists, files))
