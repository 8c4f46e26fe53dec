"""A full disk, a read-only store, no permission: said in the user's words, nothing left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from upshift.errors import StoreUnavailable
from upshift.model.spec import TaskId, TaskResult
from upshift.runtime.storage.store import open_store

RESULT = TaskResult(task=TaskId(run="r", step="s"), attempt=1, status="completed")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


def test_a_full_disk_is_named_and_leaves_no_temporary_file(small: Path, tmp_path: Path) -> None:
    store = open_store(str(small / "store"))
    store.put(b"first")
    big = tmp_path / "big"
    big.write_bytes(bytes(8 << 20))
    for put in (
        lambda: store.put(os.urandom(2 << 20)),
        lambda: store.put(os.urandom(8 << 20)),
        lambda: store.put_file(big),
        lambda: store.write_record("r", "graph.json", bytes(2 << 20)),
    ):
        with pytest.raises(StoreUnavailable, match="the store cannot be written") as caught:
            put()
        assert str(small) in str(caught.value)
        assert "No space left on device" in str(caught.value)
        assert "Free some space" in str(caught.value)
        assert os.listdir(small / "store" / "tmp") == []
    store.put(b"still works")
    assert store.create_result(RESULT)


def test_a_read_only_store_can_be_read_and_says_why_it_cannot_be_written(small: Path) -> None:
    store = open_store(str(small / "store"))
    digest, size = store.put(b"hello")
    other, _ = store.put(b"other")
    os.utime(store.blob_path(digest))
    store.create_result(RESULT)
    remount(small, "ro")
    store = open_store(str(small / "store"))
    for _ in range(2):  # the seal cannot be mended
        store.check(digest, size)
    assert bytes(store.read(digest, size)) == b"hello"
    assert store.read_result(RESULT.task, 1) == RESULT
    assert store.put(b"other") == (other, 5)  # it is there already
    for write in (lambda: store.put(b"new"), lambda: store.write_record("r", "run.json", b"")):
        with pytest.raises(StoreUnavailable, match="Read-only file system") as caught:
            write()
        assert "UPSHIFT_STORE" in str(caught.value)


def test_a_store_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = open_store(str(tmp_path / "file" / "store"))
    with pytest.raises(StoreUnavailable, match="Not a directory") as caught:
        store.put(b"hello")
    assert str(tmp_path / "file" / "store") in str(caught.value)
    assert "must be a folder" in str(caught.value)
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        store.create_result(RESULT)


def test_a_store_of_somebody_else_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: root may write anywhere
    try:
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            open_store(str(tmp_path / "store")).put(b"hello")
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
