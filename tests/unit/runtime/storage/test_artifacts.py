"""Lists saved item by item, and whether everything that an artifact needs is there."""

from __future__ import annotations

import subprocess
import sys
from collections import UserList, deque
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import pandas as pd
import pytest

from upshift.errors import BlobMissing, NotSerializable
from upshift.model.plain import opaque
from upshift.model.spec import Artifact, from_json, to_json
from upshift.model.spec.task import Collected
from upshift.runtime.storage import manifest
from upshift.runtime.storage.artifacts import described, items_of, load, save, verify
from upshift.runtime.storage.digest import digest_of
from upshift.runtime.storage.manifest import State
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


class Unreadable:
    def __reduce__(self) -> Any:
        return (_refuse, ())


def _refuse() -> None:
    raise AssertionError("unpickled")


@pytest.mark.parametrize("value", [[], [1, "x", None], (1, (2, 3)), [[1], [2]], list(range(500))])
def test_a_list_or_tuple_saved_by_item_comes_back(store: Store, value: Any) -> None:
    artifact = from_json(Artifact, to_json(save(value, store, by_item=True)))
    assert artifact.serializer == "items"
    assert artifact.items == len(value)
    verify(artifact, store)
    again = load(artifact, store)
    assert again == value
    assert type(again) is type(value)


def test_items_are_artifacts_of_their_own_read_without_unpickling(store: Store) -> None:
    value = [1, np.arange(1000), Unreadable()]
    artifact = save(value, store, by_item=True)
    items = items_of(artifact, store)
    assert items[0] == save(1, store)
    assert items[1] == save(np.arange(1000), store)
    assert items[2].serializer == "pickle"
    assert artifact.bytes > 8000


@pytest.mark.parametrize("value", [deque([1, 2]), range(3), UserList([5]), {"a": 1}.keys()], ids=repr)
def test_any_sequence_has_items(store: Store, value: Any) -> None:
    artifact = save(value, store, by_item=True)
    assert artifact.items == len(value)
    assert load(artifact, store) == list(value)


class Rows:
    """A table, a data set, a batch: it has a length and items, and is one value."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return [1, 2][index]


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    "value",
    [
        *(3, "text", b"bytes", {"a": 1}, None, (n for n in range(3))),
        *({5}, np.arange(3), pd.DataFrame({"a": [1], "b": [2]}), Rows(), Pair(1, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_one_value_is_not_mapped_over_with_the_output_named(store: Store, value: object) -> None:
    with pytest.raises(NotSerializable, match=r"a step is mapped over folds, which has type") as caught:
        save(value, store, by_item=True, name="folds")
    assert "and is not a list" in str(caught.value)
    fix = str(caught.value.fix)
    assert 0 < fix.find("unmapped(…)") < fix.find("return a list")


def test_an_item_that_cannot_be_saved_is_named(store: Store) -> None:
    with pytest.raises(NotSerializable, match=r"folds\[1\]"):
        save([1, (n for n in range(3))], store, by_item=True, name="folds")


def test_a_value_saved_as_a_whole_has_no_items(store: Store) -> None:
    with pytest.raises(NotSerializable, match="has no items in the store"):
        items_of(save([1, 2], store), store)


def test_equal_values_are_equal_artifacts_in_another_store_too(store: Store, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    for value in ({"a": [1, 2.5]}, np.arange(5000), (1, {"b": b"x"}), [1, 2]):
        assert save(value, store) == save(value, other)
        assert save([value], store, by_item=True) == save([value], other, by_item=True)


def test_looking_whether_a_value_is_there_imports_nothing_for_it(store: Store) -> None:
    artifacts = (save(np.arange(1000), store), save([np.arange(1000)], store, by_item=True))
    program = (
        "import sys\nfrom upshift.model.spec import Artifact, from_json\n"
        "from upshift.runtime.storage.artifacts import verify\n"
        "from upshift.runtime.storage.store import open_store\n"
        "for text in sys.argv[2:]:\n    verify(from_json(Artifact, text), open_store(sys.argv[1]))\n"
        "print('numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", program, store.address, *map(to_json, artifacts)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"False\n"


def test_a_missing_blob_of_a_value_or_of_an_item_is_noticed(store: Store) -> None:
    whole = save(np.arange(1000), store)
    listed = save([0, np.arange(1000), 2], store, by_item=True)
    verify(whole, store)
    verify(listed, store)
    store.blob_path(whole.digest).unlink()
    for artifact in (whole, listed):
        for use in (verify, load):
            with pytest.raises(BlobMissing, match=whole.digest):
                use(artifact, store)
    assert len(items_of(listed, store)) == 3


@attrs.frozen
class Config:
    lr: float
    depths: tuple[int, ...] = (1, 2)


PLAIN = {"$type": "test_artifacts.Config", "lr": 0.5, "depths": [1, 2]}


def test_an_artifact_says_what_is_in_it_and_its_digest_does_not_depend_on_that(store: Store) -> None:
    artifact = save(Config(0.5), store)
    assert from_json(Artifact, to_json(artifact)).plain == described(artifact) == PLAIN
    assert artifact == attrs.evolve(artifact, plain=None)
    listed = from_json(Artifact, to_json(save([Config(0.5), Config(1.0)], store, by_item=True)))
    bare = manifest.build("list", [attrs.evolve(item, plain=None) for item in items_of(listed, store)])
    assert listed.digest == digest_of(bare)
    assert [described(item) for item in items_of(listed, store)] == [PLAIN, {**PLAIN, "lr": 1.0}]
    assert [described(item)["lr"] for item in load_items(listed, store)] == [0.5, 1.0]


def load_items(artifact: Artifact, store: Store) -> list[Artifact]:
    value = Collected(items=items_of(artifact, store))
    assert described(value) == described(artifact)
    return [item for item in value.items if isinstance(item, Artifact)]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, None]}, {"a": [1, None]}),
        (float("nan"), "NaN"),
        ("NaN", "NaN"),
        (np.float64(0.5), 0.5),
        (np.eye(20), {"$type": "numpy.ndarray", "$text": "<ndarray, 3.33 KB>"}),
        (Unreadable(), {"$type": "test_artifacts.Unreadable", "$text": "<Unreadable, 128 B>"}),
    ],
)
def test_a_value_is_described_from_its_record_alone(store: Store, value: Any, plain: Any) -> None:
    assert described(save(value, store)) == plain


def test_large_json_is_described_where_the_store_is_at_hand(store: Store) -> None:
    artifact = save(list(range(1_000)), store)
    assert described(artifact) == {"$type": "list", "$text": "<list, 3.89 KB>"}
    assert described(artifact, store) == list(range(1_000))


def test_a_state_of_many_artifacts_is_written_once_and_its_successors_say_only_what_is_different(
    store: Store,
) -> None:
    values = {f"value_{number}": f"{number} {'x' * 50}" for number in range(40)}
    first = save(State(values), store)
    state = load(first, store)
    assert isinstance(state, State)
    kept = len(list((store.root / "blobs").rglob("*/*/*")))
    for number in range(3):  # each goes on from the one before
        saved = save(state.replaced(values={"value_7": number, "new": b"new"}), store)
        assert saved.inline is not None and len(saved.inline) < len(to_json(first)) * 2
        state = load(saved, store)
        assert isinstance(state, State)
        assert {name: state[name] for name in state} == {**values, "value_7": number, "new": b"new"}
    assert len(list((store.root / "blobs").rglob("*/*/*"))) == kept


def test_a_state_that_is_said_by_its_differences_equals_one_that_is_said_in_full(store: Store) -> None:
    values = {f"value_{number}": "x" * 50 for number in range(40)}
    state = load(save(State(values), store), store)
    assert isinstance(state, State)
    in_steps = save(state.replaced(values={"value_1": 1}), store)
    at_once = save(State({**values, "value_1": 1}), store)
    assert in_steps.digest != at_once.digest
    assert in_steps.identity == at_once.digest  # what is reused is found by that


def test_what_is_known_about_a_state_is_saved_with_it_and_not_inherited(store: Store) -> None:
    first = load(
        save(State({"long": "x" * 2_000, **{f"n{i}": i for i in range(20)}}, about={"step": "a"}), store),
        store,
    )
    assert isinstance(first, State)
    assert first.about == {"step": "a"}
    assert first.base is not None
    after = load(save(first.replaced(values={"m": 1}, about={"step": "b"}), store), store)
    assert isinstance(after, State)
    assert (after.about, after["m"], after["n3"]) == ({"step": "b"}, 1, 3)


def test_what_follows_a_state_of_many_is_in_no_file_of_its_own(store: Store) -> None:
    first = save(State({"text": "x" * 500}, many=True), store)
    assert first.inline is None
    state = load(first, store)
    assert isinstance(state, State)
    kept = len(list((store.root / "blobs").rglob("*/*/*")))
    for number in range(3):
        assert save(state.replaced(values={"y": [number] * 200}), store).inline is not None
    assert len(list((store.root / "blobs").rglob("*/*/*"))) == kept


def test_a_state_is_not_all_there_where_the_one_that_it_is_based_on_is_gone(store: Store) -> None:
    first = save(State({f"value_{number}": "x" * 50 for number in range(40)}), store)
    state = load(first, store)
    assert isinstance(state, State)
    after = save(state.replaced(values={"new": 1}), store)
    verify(after, store)
    store.blob_path(first.digest).unlink()
    with pytest.raises(BlobMissing):
        verify(after, store)


def test_what_a_state_has_set_is_told_without_the_store_where_it_is_short(store: Store) -> None:
    first = save(State({"n": 3, "none": None, "long": ["x" * 100] * 100, "@input.0": {}}), store)
    state = load(first, store)
    assert isinstance(state, State)
    assert described(first) == {"n": 3, "none": None, "long": opaque("list", "<list, 10.3 KB>")}
    after = save(state.replaced(values={"m": 4}), store)
    assert after.plain == {"m": 4}
    assert described(after, store)["n"] == 3
