"""The folder that images are made in."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from upshift.errors import ImageError
from upshift.images.cache import build_folder, build_lock

KILLED = """
import os, signal
from upshift.images.cache import build_folder
with build_folder() as folder:
    (folder / "context").mkdir()
    (folder / "context" / "data").write_text("half")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path))
    return tmp_path


def test_nobody_else_reads_it_and_nothing_is_left_of_it(home: Path) -> None:
    with build_folder() as folder, build_folder() as other:
        assert folder != other and folder.stat().st_mode & 0o777 == 0o700
    assert list(home.rglob("building-*")) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(home: Path) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL
    left = Path(died.stdout.strip())
    assert (left / "context" / "data").exists()
    with build_folder() as folder:
        assert set(home.rglob("building-*")) == {folder, folder.with_suffix(".lock")}


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


def test_whoever_waits_for_the_same_image_may_give_up(home: Path) -> None:
    def give_up() -> None:
        raise KeyboardInterrupt

    with (
        build_lock("one", waiting=lambda: None),
        pytest.raises(KeyboardInterrupt),
        build_lock("one", waiting=give_up),
    ):
        raise AssertionError
