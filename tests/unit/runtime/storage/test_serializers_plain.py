"""Plain values and bytes come back exactly, and never through pickle."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upshift.model.spec import INLINE_LIMIT, Collected
from upshift.runtime.storage.artifacts import load, load_value, save, verify
from upshift.runtime.storage.store import Store, open_store

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
surrogates_too = st.text(st.characters(codec=None), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | surrogates_too
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(surrogates_too, inner, max_size=6)
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, of the same types, in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or one.hex() == other.hex()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@many
@given(value=plain)
def test_plain_values_come_back_exactly(store: Store, value: object) -> None:
    artifact = save(value, store)
    assert artifact.serializer == "json"
    assert same(load(artifact, store), value)
    assert save(value, store) == artifact


@many
@given(value=st.binary(max_size=3 * INLINE_LIMIT))
def test_bytes_come_back_exactly(store: Store, value: bytes) -> None:
    artifact = save(value, store)
    assert artifact.serializer == "bytes"
    assert load(artifact, store) == value


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {"a": (1,)}, Text("x"), {Text("k"): 1}, {1, 2}, 1j, bytearray(b"x"), [10**5000]],
    ids=lambda value: type(value).__name__,
)
def test_what_json_would_change_goes_through_pickle(store: Store, value: object) -> None:
    artifact = save(value, store)
    assert artifact.serializer == "pickle"
    again = load(artifact, store)
    assert again == value
    assert type(again) is type(value)


def test_a_list_that_holds_itself_comes_back(store: Store) -> None:
    value: list[object] = [1]
    value.append(value)
    again = load(save(value, store), store)
    assert isinstance(again, list)
    assert again[1] is again


def test_different_values_have_different_digests(store: Store) -> None:
    texts = ["1", b"1", "null", b"null", "", b"", "[]"]
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, [], [1], {}, {"a": 1}, *texts]
    assert len({save(value, store).digest for value in values}) == len(values)


def test_small_content_is_inline_and_writes_nothing(store: Store) -> None:
    small, large = bytes(INLINE_LIMIT - 1), bytes(INLINE_LIMIT)  # bytes have a mark of one byte
    artifact = save(small, store)
    assert artifact.inline is not None
    assert artifact.bytes == INLINE_LIMIT
    assert not store.root.exists()
    verify(artifact, store)
    assert load(artifact, store) == small
    artifact = save(large, store)
    assert artifact.inline is None
    assert store.blob_path(artifact.digest).stat().st_size == artifact.bytes == INLINE_LIMIT + 1


def test_a_collected_value_is_loaded_in_its_form(store: Store) -> None:
    items = tuple(save(value, store) for value in (1, "x"))
    assert load_value(items[0], store) == 1
    assert load_value(Collected(items=items), store) == [1, "x"]
    assert load_value(Collected(form="tuple", items=items), store) == (1, "x")
    nested = Collected(form="dict", items=(Collected(items=items), items[0]), keys=("b", "a"))
    value = load_value(nested, store)
    assert value == {"b": [1, "x"], "a": 1}
    assert list(value) == ["b", "a"]  # type: ignore[call-overload]


def test_plain_values_import_neither_numpy_nor_cloudpickle(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom upshift.runtime.storage.store import open_store\n"
        "from upshift.runtime.storage.artifacts import save, load\n"
        f"s = open_store({str(tmp_path)!r}); load(save({{'a': [1]}}, s), s)\n"
        "print(sorted({'numpy', 'pandas', 'cloudpickle', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
