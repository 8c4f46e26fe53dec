"""Everything else goes through cloudpickle; what cannot be saved or read is explained."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upshift.errors import BlobDamaged, NotSerializable
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.store import Store, open_store

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
keys = st.integers() | st.text(max_size=5) | st.tuples(st.integers(), st.booleans())
anything = st.recursive(
    keys | st.complex_numbers(allow_nan=False) | st.datetimes() | st.decimals(allow_nan=False) | st.binary(),
    lambda inner: (
        st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=4)
        | st.frozensets(keys, max_size=4)
    ),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@many
@given(value=anything)
def test_values_come_back_equal_and_of_the_same_type(store: Store, value: object) -> None:
    again = load(save(value, store), store)
    assert again == value
    assert type(again) is type(value)


@dataclasses.dataclass
class Model:
    weights: Any
    helper: Any = None


class Slots:
    __slots__ = ("handle",)


@contextlib.contextmanager
def module(folder: Path, name: str, text: str) -> Iterator[Any]:
    (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)


def test_objects_functions_and_containers_come_back(store: Store) -> None:
    factor = 3
    assert load(save(Model([1, 2]), store), store) == Model([1, 2])
    assert load(save(lambda x: x * factor, store), store)(2) == 6  # type: ignore[operator]
    for value in (OrderedDict(b=1, a=2), deque([1]), {1, 2}, bytearray(5000), range(3)):
        assert load(save(value, store), store) == value


def test_a_class_that_can_be_imported_is_saved_by_reference(store: Store, tmp_path: Path) -> None:
    with module(tmp_path, "features_a", "class Scaler:\n    factor = 2\n") as features:
        artifact = save(features.Scaler(), store)
        features.Scaler.factor = 5
        assert load(artifact, store).factor == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"model": Model(1, threading.Lock())}, "output['model'].helper"),
        ([1, (2, {3: threading.Lock()})], "output[1][1][3]"),
        (Model(Model(Model(threading.Lock()))), "output.weights.weights.weights"),
        ((lambda lock: lambda: lock)(threading.Lock()), "output (uses 'lock')"),
    ],
    ids=["attribute", "containers", "deep", "closure"],
)
def test_the_part_that_cannot_be_saved_is_named(store: Store, value: object, place: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        save(value, store)
    text = str(caught.value)
    assert text.startswith(f"{place} of type _thread.lock cannot be saved\n")
    assert "cannot pickle" not in text  # that is said already
    assert "__getstate__" in text


def test_a_slot_that_cannot_be_saved_is_named(store: Store) -> None:
    value = Slots()
    value.handle = threading.Lock()
    with pytest.raises(NotSerializable, match=r"scores\.handle of type _thread\.lock"):
        save(value, store, name="scores")


def test_the_output_and_its_type_are_named(store: Store) -> None:
    with pytest.raises(NotSerializable) as caught:
        save((number for number in range(3)), store, name="scores")
    assert caught.value.what == "scores of type generator cannot be saved"
    assert caught.value.fix == "A generator can be read once only. Make it a list: list(…)."
    with open(__file__, "ab") as file, pytest.raises(NotSerializable, match=r"pathlib\.Path"):
        save(file, store)


def test_a_class_that_refuses_to_be_pickled_is_named_with_its_own_words(store: Store) -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise ValueError("I stay here")

    with pytest.raises(NotSerializable, match=r"output\[0\]") as caught:
        save((Stubborn(),), store)
    assert "I stay here" in str(caught.value)


def test_a_value_whose_module_is_gone_says_what_to_install(store: Store, tmp_path: Path) -> None:
    with module(tmp_path, "features_b", "class Scaler:\n    pass\n") as features:
        artifact = save(features.Scaler(), store)
    (tmp_path / "features_b.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(NotSerializable, match=r"features_b\.Scaler cannot be read back") as caught:
        load(artifact, store)
    assert "No module named 'features_b'" in str(caught.value)
    assert "Install 'features_b' here" in str(caught.value)


def test_a_value_whose_class_has_moved_says_so(store: Store, tmp_path: Path) -> None:
    with module(tmp_path, "features_c", "class Scaler:\n    pass\n") as features:
        artifact = save(features.Scaler(), store)
        del features.Scaler
        with pytest.raises(NotSerializable, match="cannot be read back") as caught:
            load(artifact, store)
    assert "moved or renamed" in str(caught.value)


def test_a_pickle_damaged_behind_its_seal_is_damage_and_not_a_moved_class(store: Store) -> None:
    import os

    artifact = save(("x" * 5000, 1), store)
    path = store.blob_path(artifact.digest)
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    with pytest.raises(BlobDamaged):
        load(artifact, store)


# the code that a value names


def make_model() -> Model:
    return Model(1)


def test_a_pickle_names_the_classes_and_functions_in_it(store: Store) -> None:
    artifact = save({"k": [Model(1)], "f": make_model, "c": Model}, store)
    assert {f"{__name__}:Model", f"{__name__}:make_model"} <= set(artifact.code)


def test_of_an_installed_package_one_name_stands_for_all(store: Store) -> None:
    import numpy as np
    import pandas as pd

    artifact = save({"a": np.arange(2), "b": np.float32(1), "c": {1, 2}, "d": pd.Timestamp(0)}, store)
    assert sorted(name.partition(":")[0].partition(".")[0] for name in artifact.code) == ["numpy", "pandas"]


def test_values_of_other_serializers_name_their_type(store: Store) -> None:
    import numpy as np

    assert save(np.arange(3), store).code == ("numpy:ndarray",)
    assert save([1, "two", None], store).code == ()
    assert save(b"raw", store).code == ()


def test_a_list_of_items_names_what_its_items_name(store: Store) -> None:
    assert save([Model(1), 3], store, by_item=True).code == (f"{__name__}:Model",)


def test_a_local_class_travels_by_value_and_needs_no_name(store: Store) -> None:
    class Local:
        pass

    assert save(Local(), store).code == ()
