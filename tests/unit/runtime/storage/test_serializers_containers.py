"""Files in containers of data are saved by content, wherever they are in it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import cloudpickle
import numpy as np
import pytest

from upshift import External
from upshift.errors import BlobMissing, NotSerializable
from upshift.runs.needed import References
from upshift.runtime.storage.artifacts import load, save, verify
from upshift.runtime.storage.store import Store, open_store


@dataclasses.dataclass
class Config:
    weights: Path
    rate: float = 0.1


@attrs.define
class Record:
    file: Path | None
    note: str = ""


class Pair(NamedTuple):
    score: float
    file: Path


class Settings:
    """Behaves like a pydantic model."""

    model_fields = {"data": Path}

    def __init__(self, data: Path) -> None:
        self.data = data


class Model:
    def __init__(self, home: Path) -> None:
        self.home = home


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.bin"
    path.write_bytes(b"weights")
    return path


def again(value: Any, store: Store, *files: Path) -> Any:
    """The value as it comes back once these files are gone."""
    artifact = save(value, store)
    assert artifact.serializer == "container"
    for path in files:
        path.unlink()
    verify(artifact, store)
    return load(artifact, store)


@pytest.mark.parametrize(
    ("build", "take"),
    [
        (lambda p: {"a": p, "b": 1}, lambda v: v["a"]),
        (lambda p: {p: 1}, lambda v: next(iter(v))),
        (lambda p: [p], lambda v: v[0]),
        (lambda p: (1, [{"x": (p,)}]), lambda v: v[1][0]["x"][0]),
        (lambda p: {p}, lambda v: next(iter(v))),
        (lambda p: frozenset({p}), lambda v: next(iter(v))),
        (lambda p: Config(p), lambda v: v.weights),
        (lambda p: [Record(p)], lambda v: v[0].file),
        (lambda p: Pair(0.5, p), lambda v: v.file),
        (lambda p: Settings(p), lambda v: v.data),
    ],
    ids=["dict", "key", "list", "nested", "set", "frozenset", "dataclass", "attrs", "namedtuple", "model"],
)
def test_a_file_is_saved_by_content(store: Store, file: Path, build: Any, take: Any) -> None:
    value = build(file)
    back = again(value, store, file)
    assert type(back) is type(value)
    assert take(back).name == "w.bin"
    assert take(back).read_bytes() == b"weights"


def test_the_rest_of_the_container_is_as_it_was(store: Store, file: Path) -> None:
    array = np.arange(100_000)
    value: dict[str, Any] = {"file": file, "again": [file], "array": array, "none": None}
    value["self"] = value
    back = again(value, store, file)
    assert back["file"] is back["again"][0], "one file stays one"
    assert back["self"] is back
    assert (back["array"] == array).all()
    back["array"][0] = 7
    back["file"].write_bytes(b"mine")
    other = load(save({"file": back["file"], "array": array}, store), store)
    assert isinstance(other, dict)
    assert (other["array"][0], other["file"].read_bytes()) == (0, b"mine")


def test_the_content_decides_and_not_the_place(store: Store, file: Path, tmp_path: Path) -> None:
    first = save({"a": file}, store)
    moved = tmp_path / "elsewhere" / "w.bin"
    moved.parent.mkdir()
    file.rename(moved)
    assert save({"a": moved}, store) == first
    moved.write_bytes(b"other")
    assert save({"a": moved}, store).digest != first.digest
    assert first.bytes > len(b"weights")


def test_data_that_is_only_named_counts_by_its_key(store: Store, file: Path) -> None:
    first = save({"data": External(file)}, store)
    assert load(first, store) == {"data": External(file)}
    os.utime(file, (1, 1))
    assert save({"data": External(file)}, store).digest != first.digest


def test_a_file_that_is_not_there_is_refused_with_its_place(store: Store, file: Path) -> None:
    file.unlink()
    with pytest.raises(NotSerializable) as caught:
        save({"models": [Config(file)]}, store)
    assert str(caught.value).startswith(f"['models'][0].weights: the path {file} cannot be saved")
    assert "No such file or directory" in str(caught.value)


def test_its_files_are_known_to_belong_to_it(store: Store, file: Path) -> None:
    artifact = save([file], store)
    digest, _ = store.put_file(file)
    references = References(store)
    references.add(b'{"serializer":"container","digest":"%s","inline":"%s"}' % (
        artifact.digest.encode(), (artifact.inline or "").encode()
    ))  # fmt: skip
    assert bytes.fromhex(digest.partition(":")[2]) in references.blobs
    store.blob_path(digest).unlink()
    with pytest.raises(BlobMissing):
        verify(artifact, store)


def test_what_is_no_container_of_data_keeps_its_path_as_a_name(store: Store, file: Path) -> None:
    back = load(save(Model(file), store), store)
    assert isinstance(back, Model)
    assert back.home == file

    def step() -> bytes:
        return file.read_bytes()

    artifact = save(cloudpickle.loads(cloudpickle.dumps(step)), store)
    assert artifact.serializer == "pickle"
