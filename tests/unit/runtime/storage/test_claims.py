"""What a process relies on is written down before it looks whether it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from upshift.errors import ConfigError, StoreError
from upshift.model.spec import TaskId, TaskResult
from upshift.runs import needed as everybody
from upshift.runs.collect import collect
from upshift.runs.needed import Claimed
from upshift.runtime.storage import claims
from upshift.runtime.storage.records import STORE_VERSION
from upshift.runtime.storage.store import Store, open_store

RESULT = TaskResult(task=TaskId(run="r", step="s", index=3), attempt=2, status="completed")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def claimed(store: Store) -> list[str]:
    files = sorted(Path(claims.folder_of(store.address)).iterdir())
    return [line for file in files for line in file.read_text().splitlines() if line]


def test_content_is_claimed_whether_it_was_there_or_not(store: Store, tmp_path: Path) -> None:
    with store.claims.held():
        small, _ = store.put(b"hello")
        large, _ = store.put(bytes(5 << 20))
        file = tmp_path / "file"
        file.write_bytes(b"content")
        copied, _ = store.put_file(file)
        assert store.put(b"hello") == (small, 5)
        assert store.find(large)
        assert claimed(store) == [small, large, copied, small, large]


def test_runs_and_results_are_claimed(store: Store) -> None:
    with store.claims.held():
        assert store.claim_run("r")
        assert store.claim_result(RESULT.task, 2) is None
        store.create_result(RESULT)
        assert store.claim_result(RESULT.task, 2) == RESULT
        assert claimed(store) == ["run:r", "task:r/tasks/s/3", "task:r/tasks/s/3"]


def test_a_claim_that_was_cut_short_takes_no_other_with_it(store: Store) -> None:
    with store.claims.held():
        digest, _ = store.put(b"hello")
        with open(store.claims.file(), "a") as file:
            file.write(digest[:9])
        assert store.claim_run("r")
        seen = Claimed(store.address)
        seen.look()
        assert seen.runs == {"r"}
        assert bytes.fromhex(digest.partition(":")[2]) in seen.blobs


def test_claims_go_when_the_last_who_holds_them_lets_go(store: Store) -> None:
    again = open_store(store.address)
    with store.claims.held():
        store.put(b"one")
        with again.claims.held():
            again.put(b"two")
        assert len(claimed(store)) == 2, "one file for the process, and it is still held"
    assert claimed(store) == []


def test_claims_of_a_process_go_when_it_ends(store: Store) -> None:
    code = (
        "import sys; from upshift.runtime.storage.store import open_store;"
        "s = open_store(sys.argv[1]); s.put(b'x');"
        "from pathlib import Path; assert len(list((s.root / 'claims').iterdir())) == 1"
    )
    subprocess.run([sys.executable, "-c", code, store.address], check=True)
    assert claimed(store) == []


def test_a_fork_has_claims_of_its_own(store: Store) -> None:
    with store.claims.held():
        store.put(b"parent")
        pid = os.fork()
        if pid == 0:
            store.put(b"child")
            os._exit(len(list(Path(claims.folder_of(store.address)).iterdir())))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        assert len(claimed(store)) == 2


def test_a_step_process_claims_in_the_file_of_its_supervisor(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with store.claims.held():
        monkeypatch.setenv(claims.VARIABLE, store.claims.file())
        pid = os.fork()
        if pid == 0:
            store.put(b"of the step")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(claimed(store)) == 1
        other = open_store(str(tmp_path / "another store"))
        with other.claims.held():
            other.put(b"not the supervisor's store")
            assert len(claimed(other)) == 1
            assert len(claimed(store)) == 1


def test_a_store_says_its_version(store: Store) -> None:
    store.put(b"x")
    assert (store.root / "format").read_text() == f"{STORE_VERSION}\n"
    store.claims.release()


def test_a_store_of_an_older_version_is_read_and_marked_when_it_is_written(store: Store) -> None:
    digest, size = store.put(b"x")
    store.claims.release()
    (store.root / "format").unlink()
    again = open_store(store.address)
    assert bytes(again.read(digest, size)) == b"x"
    assert not (store.root / "format").exists()
    again.put(b"y")
    assert (store.root / "format").exists()
    store.claims.release()


@pytest.mark.parametrize(
    ("content", "message"),
    [("2\n", "newer version of Upshift"), ("hello", "is not a store"), ("", "is not a")],
)
def test_a_store_of_another_form_is_refused(store: Store, content: str, message: str) -> None:
    store.root.mkdir()
    (store.root / "format").write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(store.address)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("nfs4", "rw,vers=4.2,local_lock=none,addr=10.0.0.1", None),
        ("nfs", "rw,vers=3,local_lock=posix", None),
        ("nfs", "rw,vers=3,nolock,local_lock=all", "local_lock=all"),
        ("nfs4", "rw,local_lock=flock", "local_lock=flock"),
        ("lustre", "rw,flock", None),
        ("lustre", "rw,localflock", "localflock"),
        ("ext4", "rw,nolock", None),
    ],
)
def test_locks_that_other_machines_do_not_see_stop_gc(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: str,
    expected: str | None,
) -> None:
    store.put(b"x")
    store.claims.release()
    number = store.root.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:1 / /elsewhere rw - nfs server:/other rw,nolock\n"
        f"23 1 {device} / /data rw,noatime shared:1 - {kind} server:/x {options}\n"
    )
    monkeypatch.setattr(everybody, "_MOUNTS", str(mounts))
    if expected is None:
        assert collect(store, None).removed.counts == {"values": 1}
        return
    with pytest.raises(StoreError, match="gc cannot work on the store") as caught:
        collect(store, None)
    assert f"because of the mount option {expected}" in str(caught.value)
    assert len(list((store.root / "blobs").glob("*/*/*"))) == 1
