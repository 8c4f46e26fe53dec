"""A returned path is stored by content, and comes back as a copy that cannot harm the store."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import BlobDamaged, BlobMissing, NotSerializable, StoreUnavailable
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.artifacts import load, save, verify
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data set"
    (folder / "inner" / "empty").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "inner" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "inner" / "run.sh").chmod(0o755)
    (folder / "inner" / "big").write_bytes(bytes(3 << 20))
    (folder / "inner" / "link").symlink_to("../a.txt")
    (folder / "to inner").symlink_to("inner")
    return folder


def there(artifact: Any, store: Store) -> Path:
    path = load(artifact, store)
    assert isinstance(path, Path)
    return path


def test_a_file_comes_back_under_its_name(store: Store, folder: Path) -> None:
    artifact = save(folder / "inner" / "run.sh", store)
    path = there(artifact, store)
    assert artifact.serializer == "path"
    assert path.name == "run.sh"
    assert path.read_text() == "#!/bin/sh\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert path != folder / "inner" / "run.sh"


def test_a_folder_comes_back_with_files_links_and_permissions(store: Store, folder: Path) -> None:
    (folder / "a.txt").chmod(0o440)
    (folder / "inner").chmod(0o550)
    artifact = save(folder, store)
    path = there(artifact, store)
    assert path.name == "data set"
    expected = {p.relative_to(folder): p for p in folder.rglob("*")}
    found = {p.relative_to(path): p for p in path.rglob("*")}
    assert found.keys() == expected.keys()
    for name, original in expected.items():
        copy = found[name]
        assert copy.is_symlink() == original.is_symlink()
        assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE(original.stat().st_mode)
        if original.is_symlink():
            assert os.readlink(copy) == os.readlink(original)
        elif original.is_file():
            assert copy.read_bytes() == original.read_bytes()
    assert artifact.bytes > 3 << 20


def test_equal_folders_are_equal_artifacts(store: Store, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, other, symlinks=True)
    assert save(other, store) == save(folder, store)
    os.utime(other / "a.txt", (1, 1))
    assert save(other, store) == save(folder, store)
    (other / "a.txt").write_text("b")
    assert save(other, store).digest != save(folder, store).digest


def test_what_is_done_to_the_copy_touches_neither_store_nor_other_copies(store: Store, folder: Path) -> None:
    artifact = save(folder, store)
    mine = there(artifact, store)
    (mine / "a.txt").write_text("changed")
    (mine / "inner" / "big").unlink()
    verify(artifact, store)
    other = there(artifact, store)
    assert (other / "a.txt").read_text() == "a"
    assert (other / "inner" / "big").stat().st_nlink == 1


def test_a_link_out_of_the_folder_is_saved_as_what_it_leads_to(store: Store, tmp_path: Path) -> None:
    blobs = tmp_path / "cache" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "123").write_text("weights")
    snapshot = tmp_path / "cache" / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.bin").symlink_to("../blobs/123")
    (snapshot / "all").symlink_to(blobs)
    path = there(save(snapshot, store), store)
    assert not (path / "model.bin").is_symlink()
    assert (path / "model.bin").read_text() == "weights"
    assert (path / "all" / "123").read_text() == "weights"


def test_names_that_are_not_utf_8_survive(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    name = os.fsdecode(b"caf\xe9 \n.txt")
    (folder / name).write_text("x")
    assert [p.name for p in there(save(folder, store), store).iterdir()] == [name]


def test_a_relative_path_is_that_of_the_working_folder(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert there(save(Path("a.txt"), store), store).read_text() == "a"
    assert there(save(Path("."), store), store).name == "data set"


def test_what_cannot_be_saved_is_named_with_the_reason(store: Store, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSerializable, match=r"missing\.txt cannot be saved") as caught:
        save(tmp_path / "missing.txt", store)
    assert "No such file or directory" in str(caught.value)
    assert "there when the step ends" in str(caught.value)
    (folder / "dangling").symlink_to("../nowhere")
    with pytest.raises(NotSerializable, match="data set/dangling cannot be saved"):
        save(folder, store)
    (folder / "dangling").unlink()
    above = tmp_path / "above"
    above.mkdir()
    folder.rename(above / "data set")
    (above / "data set" / "up").symlink_to(above)
    with pytest.raises(NotSerializable, match="leads back to a folder that it is in"):
        save(above / "data set", store)


def test_a_socket_cannot_be_saved(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(NotSerializable, match="neither a file nor a folder"):
            save(Path("socket"), store)


def test_a_missing_or_damaged_file_of_a_folder_is_noticed(store: Store, folder: Path) -> None:
    artifact = save(folder, store)
    digest, size = store.put_file(folder / "a.txt")
    verify(artifact, store)
    blob = store.blob_path(digest)
    blob.chmod(0o644)
    blob.write_text("b")
    with pytest.raises(BlobDamaged, match=digest):
        verify(artifact, store)
    with pytest.raises(BlobDamaged, match=digest):
        load(artifact, store)
    blob.unlink()
    with pytest.raises(BlobMissing, match=digest):
        verify(artifact, store)
    with pytest.raises(BlobMissing, match=digest):
        load(artifact, store)
    assert size == 1


READ = """
import os, signal, sys, pathlib
from upshift.runtime.storage.store import open_store
from upshift.runtime.storage.artifacts import save, load
store = open_store(sys.argv[1])
print(load(save(pathlib.Path(sys.argv[2]), store), store), flush=True)
"""


def read_elsewhere(program: str, store: Store, folder: Path) -> Path:
    """The path of the copy that a process of its own has made."""
    command = [sys.executable, "-c", program, store.address, folder]
    return Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.rstrip("\n"))


def test_copies_are_in_the_home_and_go_when_the_process_ends(
    store: Store, folder: Path, upshift_home: Path
) -> None:
    (folder / "inner").chmod(0o550)
    copy = read_elsewhere(READ, store, folder)
    assert copy.is_relative_to(upshift_home / "scratch")
    assert list((upshift_home / "scratch").iterdir()) == []


def test_copies_of_a_process_that_was_killed_go_when_another_one_comes(
    store: Store, folder: Path, upshift_home: Path
) -> None:
    copy = read_elsewhere(READ + "os.kill(os.getpid(), signal.SIGKILL)", store, folder)
    assert (copy / "a.txt").read_text() == "a"
    mine = there(save(folder, store), store)
    assert not copy.exists()
    home_folders.sweep()
    assert (mine / "a.txt").read_text() == "a", "what is in use stays"


def test_processes_of_a_task_share_the_copy_of_each_input(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loads the same values in the same order; what a killed process has left half done is redone."""
    monkeypatch.setenv(home_folders.VARIABLE, str(tmp_path / "task"))
    whole, file = save(folder, store), save(folder / "a.txt", store)
    (tmp_path / "task" / "input0.part" / "half").mkdir(parents=True)
    found = []
    for _ in range(2):
        with home_folders.shared():
            found.append([there(artifact, store) for artifact in (whole, file, whole)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
    assert (found[0][0] / "inner" / "big").stat().st_size == 3 << 20
    assert not (tmp_path / "task" / "input0.part").exists()
    assert there(whole, store) not in found[0]


def test_a_home_that_cannot_be_written_is_named(store: Store, folder: Path, upshift_home: Path) -> None:
    artifact = save(folder, store)
    upshift_home.write_text("a file")
    with pytest.raises(StoreUnavailable, match="files cannot be copied from the store") as caught:
        load(artifact, store)
    assert str(upshift_home) in str(caught.value)
    assert "Set UPSHIFT_HOME" in str(caught.value)


def test_a_link_within_the_folder_to_what_is_not_there_stays_one(store: Store, folder: Path) -> None:
    (folder / "latest").symlink_to("checkpoint-7")
    (folder / "inner" / "above").symlink_to("../checkpoint-7/model")
    copy = there(save(folder, store), store)
    assert os.readlink(copy / "latest") == "checkpoint-7"
    assert os.readlink(copy / "inner" / "above") == "../checkpoint-7/model"
