"""External data is named and never copied; its key tells whether it changed."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import attrs
import pytest

import upshift
from upshift.errors import UsageError
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.external import External
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def test_it_is_public_and_frozen() -> None:
    assert upshift.External is External
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        External("/data").uri = "/other"  # type: ignore[misc]


def test_only_its_name_is_saved(store: Store, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(100_000))
    artifact = save(External(data), store)
    assert artifact.serializer == "external"
    assert artifact.inline is not None
    assert not store.root.exists()
    again = load(artifact, store)
    assert again == External(data)
    assert isinstance(again, External)
    assert again.path == data
    assert again.version is None


def test_its_digest_changes_with_a_file(store: Store, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"one")
    first = save(External(data), store)
    assert save(External(data), store) == first
    data.write_bytes(b"four")
    second = save(External(data), store)
    os.utime(data, (1, 1))
    assert len({first.digest, second.digest, save(External(data), store).digest}) == 3


def test_its_digest_changes_with_anything_in_a_folder(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    digests = [save(External(folder), store).digest]
    for change in (
        lambda: (folder / "inner" / "a").write_text("x"),
        lambda: (folder / "inner" / "a").write_text("xy"),
        lambda: os.utime(folder / "inner" / "a", (1, 1)),
        lambda: (folder / "inner" / "a").rename(folder / "inner" / "b"),
        lambda: (folder / "new").mkdir(),
        lambda: (folder / "link").symlink_to("nowhere"),
    ):
        change()
        digests.append(save(External(folder), store).digest)
        assert save(External(folder), store).digest == digests[-1]
    assert len(set(digests)) == len(digests)


def test_with_a_version_the_data_is_not_looked_at(store: Store) -> None:
    one, two = (save(External("s3://bucket/data", version=v), store) for v in ("1", "2"))
    assert one.digest != two.digest
    again = load(one, store)
    assert again == External("s3://bucket/data", version="1")
    assert save(External("/nowhere", "1"), store).digest != one.digest


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert External("data").path == tmp_path / "data"
    assert External(f"file://{tmp_path}/x").path == tmp_path / "x"
    monkeypatch.setenv("HOME", "/home/me")
    assert External("~/data").uri == "/home/me/data"


def test_data_that_is_not_there_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"External data cannot be read: {tmp_path}/missing") as caught:
        save(External(tmp_path / "missing"), store)
    assert "No such file or directory" in str(caught.value)
    assert "mounted" in str(caught.value)


def test_remote_data_has_no_path() -> None:
    with pytest.raises(UsageError, match="s3://bucket/data has no path here"):
        _ = External("s3://bucket/data").path


@pytest.mark.parametrize("uri", ["", "  ", 3, b"bytes"])
def test_a_name_that_means_nothing_is_refused_where_it_is_written(uri: Any) -> None:
    with pytest.raises(UsageError) as caught:
        External(uri)
    assert "names nothing" in str(caught.value)
    assert "test_external.py" in str(caught.value)


def test_a_version_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"External\(version=1\.5\) is invalid"):
        External("/data", version=1.5)  # type: ignore[arg-type]
    assert External("/data", version=3).version == "3"  # type: ignore[arg-type]


def test_remote_data_without_fsspec_needs_a_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match="it cannot be known when s3://bucket/data changes") as caught:
        save(External("s3://bucket/data"), store)
    assert "fsspec" in str(caught.value)
    assert 'version="…"' in str(caught.value)


class Bucket:
    """A storage that knows these objects."""

    def __init__(self, **objects: dict[str, Any]) -> None:
        self._objects = objects

    def filesystem(self, scheme: str) -> Bucket:
        assert scheme == "s3"
        return self

    def info(self, uri: str) -> dict[str, Any]:
        name = uri.rpartition("/")[2]
        if name not in self._objects:
            raise FileNotFoundError(uri)
        return self._objects[name]


def test_remote_data_is_known_by_its_etag(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def artifact(etag: str) -> Any:
        bucket = Bucket(data={"ETag": etag}, plain={"size": 3})
        module = types.ModuleType("fsspec")
        module.filesystem = bucket.filesystem  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "fsspec", module)
        return save(External("s3://bucket/data"), store)

    assert artifact("a") == artifact("a")
    assert artifact("a").digest != artifact("b").digest
    with pytest.raises(UsageError, match="has no etag"):
        save(External("s3://bucket/plain"), store)
    with pytest.raises(UsageError, match="cannot be reached: s3://bucket/missing") as caught:
        save(External("s3://bucket/missing"), store)
    assert "FileNotFoundError" in str(caught.value)
