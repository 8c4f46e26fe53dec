"""Tensors and state dicts: as safetensors where that keeps everything, else in torch's own format."""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from mapped import is_mapped
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.serializers.pickled import pickled
from upshift.runtime.storage.store import Store, open_store

torch = pytest.importorskip("torch")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool complex64"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_tensors_of_each_type_come_back_as_safetensors(store: Store, name: str) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    artifact = save(tensor, store)
    again: Any = load(artifact, store)
    assert artifact.serializer == "safetensors"
    assert again.dtype == tensor.dtype
    assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(3.0),
        lambda: torch.empty(0, 3),
        lambda: torch.rand(300, 400).T,
        lambda: torch.rand(100)[::2],
        lambda: torch.rand(3, requires_grad=True),
        lambda: torch.rand(3, dtype=torch.complex64).conj(),
    ],
    ids=["number", "empty", "transposed", "strided", "gradient", "conjugate"],
)
def test_unusual_tensors_come_back_equal(store: Store, make: Any) -> None:
    tensor = make()
    artifact = save(tensor, store)
    again: Any = load(artifact, store)
    assert artifact.serializer == "safetensors"
    assert torch.equal(again, tensor)
    assert again.requires_grad == tensor.requires_grad


def test_complex_tensors_of_double_precision_use_torchs_own_format(store: Store) -> None:
    tensor = torch.rand(3, dtype=torch.complex128)
    artifact = save(tensor, store)
    assert artifact.serializer == "torch"
    assert torch.equal(load(artifact, store), tensor)


def test_a_tensor_is_mapped_copy_on_write_and_aligned(store: Store) -> None:
    tensor = torch.rand(500, 500)
    artifact = save(tensor, store)
    again: Any = load(artifact, store)
    assert again.data_ptr() % 64 == 0
    again.zero_()
    assert torch.equal(load(artifact, store), tensor)


def test_a_state_dict_with_tied_weights_comes_back(store: Store) -> None:
    def model() -> Any:
        layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
        layers[2].weight = layers[0].weight
        return layers

    state = model().state_dict()
    artifact = save(state, store)
    again: Any = load(artifact, store)
    assert artifact.serializer == "safetensors"
    assert type(again) is OrderedDict
    assert list(again) == list(state)
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert again["0.weight"] is again["2.weight"]
    assert again._metadata == state._metadata
    model().load_state_dict(again)


def test_tensors_that_overlap_still_do(store: Store) -> None:
    whole = torch.rand(10)
    artifact = save({"a": whole[:6], "b": whole[4:]}, store)
    again: Any = load(artifact, store)
    assert artifact.serializer == "torch"
    again["a"][5] = 9
    assert again["b"][1] == 9


def test_parts_of_one_tensor_that_do_not_overlap_are_saved_alone(store: Store) -> None:
    whole = torch.rand(1_000_000)
    artifact = save({"a": whole[:5], "b": whole[5:10]}, store)
    assert artifact.serializer == "safetensors"
    assert artifact.bytes < 1000
    assert torch.equal(load(artifact, store)["b"], whole[5:10])  # type: ignore[index]


def test_a_blob_is_a_safetensors_file(store: Store) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"a": torch.rand(1000), "b": torch.arange(3, dtype=torch.int8)}
    again = safetensors.load_file(store.blob_path(save(state, store).digest))
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_models_and_checkpoints_come_back(store: Store) -> None:
    model = torch.nn.Linear(2, 2)
    again: Any = load(save({"model": model, "state": model.state_dict(), "epoch": 3}, store), store)
    assert torch.equal(again["model"].weight, model.weight)
    assert torch.equal(again["state"]["bias"], model.bias)


def test_the_tensors_of_a_module_are_views_of_one_mapped_file(store: Store) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    artifact = save(model, store)
    again: Any = load(artifact, store)
    state = again.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(is_mapped(tensor.numpy()) for tensor in state.values())
    assert [type(one) for one in again.parameters()] == [torch.nn.Parameter] * 4
    again(torch.ones(2, 300)).sum().backward()
    with torch.no_grad():
        again[0].weight.zero_()  # which nobody else sees: the mapping is private
    assert torch.equal(load(artifact, store)[0].weight, model[0].weight)  # type: ignore[index]


def test_tensors_in_other_values_share_memory_as_before_and_keep_their_kind(store: Store) -> None:
    whole = torch.arange(10_000.0)
    value = {
        "parts": [whole[:10], whole[10:], whole.view(100, 100).t()],
        "half": torch.ones(3, dtype=torch.bfloat16),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "none": torch.empty(0),
        "sparse": torch.eye(3).to_sparse(),
        "storage": whole.untyped_storage(),
    }
    artifact = save(value, store)
    again: Any = load(artifact, store)
    assert artifact.serializer == "pickle"
    assert artifact.bytes < 50_000  # the memory is there once
    again["parts"][0][3] = -1.0
    assert again["parts"][2][3, 0] == -1.0
    assert again["storage"].data_ptr() == again["parts"][0].data_ptr()
    assert torch.equal(again["parts"][1], whole[10:])
    for name in ("half", "conjugate", "none"):
        assert torch.equal(again[name], value[name])  # type: ignore[arg-type]
        assert again[name].dtype == value[name].dtype  # type: ignore[attr-defined]
    assert torch.equal(again["sparse"].to_dense(), torch.eye(3))


def test_a_pickle_with_tensors_is_read_without_upshift() -> None:
    content, _ = pickled(torch.nn.Linear(3, 3))
    names = [str(argument) for _, argument, _ in pickletools.genops(bytes(content[1]))]
    assert "frombuffer" in names
    assert not any("upshift" in name for name in names)
