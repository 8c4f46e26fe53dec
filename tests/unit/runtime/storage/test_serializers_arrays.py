"""NumPy arrays: exact, mapped copy-on-write, saved without a copy."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from upshift.errors import BlobDamaged
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.store import Store, open_store

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
dtypes = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.array_dtypes(hnp.scalar_dtypes())
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def same(one: Any, other: Any) -> bool:
    return (
        type(other) is np.ndarray
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.tobytes() == other.tobytes()
    )


@many
@given(array=hnp.arrays(dtypes, shapes), fortran=st.booleans(), reverse=st.booleans())
def test_arrays_come_back_exactly(store: Store, array: Any, fortran: bool, reverse: bool) -> None:
    if fortran:
        array = np.asfortranarray(array)
    if reverse and array.ndim:
        array = array[::-1]
    artifact = save(array, store)
    assert artifact.serializer == "numpy"
    again: Any = load(artifact, store)
    assert same(array, again)
    assert again.flags.writeable
    if array.flags.f_contiguous:
        assert again.flags.f_contiguous
    assert save(again, store).digest == save(array, store).digest


@many
@given(value=hnp.arrays(hnp.scalar_dtypes(), ()))
def test_numpy_numbers_come_back_as_such(store: Store, value: Any) -> None:
    scalar = value[()]
    artifact = save(scalar, store)
    assert artifact.serializer == "numpy-scalar"
    again: Any = load(artifact, store)
    assert type(again) is type(scalar)
    assert again.dtype == scalar.dtype
    assert again.tobytes() == scalar.tobytes()
    assert save(value, store).digest != artifact.digest


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.zeros(3, dtype=[("ä", "i4")]),
        np.zeros(2, dtype=[(f"field_{n}_{'x' * 40}", "f8") for n in range(2000)]),
        np.zeros(2, dtype=np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]})),
        np.array(["a\0b", "\udc80"], dtype="U4"),
        np.zeros((2, 0, 3)),
        np.zeros(3, dtype="V0"),
        np.zeros(2, dtype=">f8"),
        np.broadcast_to(np.arange(3), (4, 3)),
        np.array("2026-01-01T00:00", dtype="M8[m]"),
        np.array([1, "x", None], dtype=object),
        np.ma.array([1, 2, 3], mask=[0, 1, 0]),
        np.str_("ab"),
        np.void(b"abc"),
    ],
    ids=lambda array: f"{type(array).__name__}-{array.dtype.str[:8]}-{array.shape}",
)
def test_unusual_arrays_come_back_exactly(store: Store, array: Any) -> None:
    again: Any = load(save(array, store), store)
    assert type(again) is type(array)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert repr(again) == repr(array)


def test_typed_arrays_never_go_through_pickle_and_others_do(store: Store) -> None:
    assert save(np.zeros(3, dtype="M8[s]"), store).serializer == "numpy"
    assert save(np.zeros(3, dtype=[("a", "i4"), ("b", "S3", (2,))]), store).serializer == "numpy"
    assert save(np.array([None]), store).serializer == "pickle"
    assert save(np.ma.zeros(3), store).serializer == "pickle"


def test_a_mapped_array_may_be_changed_and_nobody_else_sees_it(store: Store) -> None:
    array = np.arange(100_000.0)
    artifact = save(array, store)
    mine: Any = load(artifact, store)
    mine[:] = -1
    mine.sort()
    assert same(array, load(artifact, store))
    store.compare(artifact.digest)


def test_data_is_aligned_to_64_bytes(store: Store) -> None:
    again: Any = load(save(np.arange(100_000.0), store), store)
    assert again.ctypes.data % 64 == 0


def test_a_blob_of_an_array_is_a_npy_file(store: Store) -> None:
    array = np.asfortranarray(np.arange(3000.0).reshape(30, 100))
    path = store.blob_path(save(array, store).digest)
    again = np.load(path, allow_pickle=False)
    assert same(array, again)
    assert again.flags.f_contiguous


def test_a_memmap_comes_back_as_an_array(store: Store, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    assert same(np.arange(1000), load(save(np.load(tmp_path / "x.npy", mmap_mode="r"), store), store))


@pytest.mark.parametrize("order", ["C", "F"])
def test_saving_and_loading_copies_nothing(store: Store, order: Any) -> None:
    array = np.zeros((2000, 1000), order=order)
    tracemalloc.start()
    artifact = save(array, store)
    again: Any = load(artifact, store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < array.nbytes / 10
    assert again.shape == array.shape


def test_an_array_in_another_value_is_mapped_too(store: Store) -> None:
    value = {"weights": np.arange(1_000_000.0), "names": ("a", "b")}
    tracemalloc.start()
    artifact = save(value, store)
    again: Any = load(artifact, store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert artifact.serializer == "pickle"
    assert peak < value["weights"].nbytes / 2  # type: ignore[union-attr]
    again["weights"][:] = 0
    again = load(artifact, store)
    assert same(value["weights"], again["weights"])
    assert again["weights"].ctypes.data % 64 == 0


def test_a_truncated_array_is_damaged_and_not_half_read(store: Store) -> None:
    artifact = save(np.arange(100_000.0), store)
    path = store.blob_path(artifact.digest)
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.truncate(4096)
    with pytest.raises(BlobDamaged, match="has 4096 bytes instead of 800128"):
        load(artifact, store)
