"""The cache of images, whose files appear complete, and the folders and locks of builds."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from upshift.engine.gc import tidy
from upshift.errors import ImageError
from upshift.images import cache
from upshift.images.cache import build_folder, build_lock

DAY = 86_400.0
KILLED = """
import os, signal
from upshift.images.cache import build_folder
with build_folder() as folder:
    (folder / "context").mkdir()
    (folder / "context" / "data").write_text("half")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


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


def test_nobody_else_reads_it_and_nothing_is_left_of_it(upshift_home: Path) -> None:
    with build_folder() as folder, build_folder() as other:
        assert folder != other and folder.stat().st_mode & 0o777 == 0o700
    assert list(upshift_home.rglob("building-*")) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(upshift_home: Path) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL
    left = Path(died.stdout.strip())
    assert (left / "context" / "data").exists()
    with build_folder() as folder:
        assert set(upshift_home.rglob("building-*")) == {folder, folder.with_suffix(".lock")}


def test_a_full_disk_is_told_in_a_users_words() -> None:
    with pytest.raises(ImageError, match="the disk is full") as caught, build_folder():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "UPSHIFT_HOME" in (caught.value.fix or "")


def test_two_that_make_the_same_image_do_so_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    waited = Event()

    def second() -> None:
        monkeypatch.setenv(
            "UPSHIFT_HOME", str(tmp_path / "other")
        )  # who has another home has the same engine
        with build_lock("one", waiting=waited.set):
            said.append("second")

    with build_lock("one", waiting=lambda: None), build_lock("other", waiting=lambda: None):
        thread = Thread(target=second)
        thread.start()
        assert waited.wait(30)
        said.append("first")
    thread.join(30)
    assert said == ["first", "second"]


def test_who_was_killed_while_making_an_image_keeps_nobody_waiting() -> None:
    code = (
        "from upshift.images.cache import build_lock\n"
        "with build_lock('killed', waiting=print): print('has it', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "has it\n"
        first.kill()
        first.wait()
    with build_lock("killed", waiting=lambda: pytest.fail("somebody has it")):
        pass


def test_whoever_waits_for_the_same_image_may_give_up(upshift_home: Path) -> None:
    def give_up() -> None:
        raise KeyboardInterrupt

    with (
        build_lock("one", waiting=lambda: None),
        pytest.raises(KeyboardInterrupt),
        build_lock("one", waiting=give_up),
    ):
        raise AssertionError
