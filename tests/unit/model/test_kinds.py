"""The catalogue of accelerators: what people, drivers, schedulers and clouds call them."""

from __future__ import annotations

import pytest

from upshift.errors import SettingsError
from upshift.model.settings.kinds import KINDS, kind_named, kind_of_model, members, most_memory
from upshift.model.settings.resources import VENDORS


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "H100"),
        ("H100 SXM", "H100-SXM"),
        ("A100-80GB", "A100-80GB"),
        ("a100_80gb", "A100-80GB"),
        ("A100-80GB-SXM", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("V100-32GB", "V100-32GB"),
        ("RTX4090", "RTX4090"),
        ("RTX 5090", "RTX5090"),
        ("RTX A6000", "RTX-A6000"),
        ("A10G", "A10G"),
        ("MI300X", "MI300X"),
        ("AMD Instinct MI250X", "MI250X"),
        ("Intel(R) Data Center GPU Max 1550", "Max-1550"),
        ("Gaudi HL-205", "Gaudi"),
        ("Gaudi 2", "Gaudi2"),
        ("AWS Trainium", "Trainium"),
        ("trn2", "Trainium2"),
        ("Inferentia1", "Inferentia"),
        ("v5litepod", "tpu-v5e"),
        ("tpu-v5-lite-podslice", "tpu-v5e"),
        ("tpu7x", "tpu-v7"),
    ],
)
def test_a_kind_is_found_by_every_spelling_that_people_use(text: str, name: str) -> None:
    assert kind_named(text).name == name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA-GH200-480GB", "GH200-96GB"),
        ("Tesla T4", "T4"),
        ("Tesla-T4-SHARED", "T4"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla P100-PCIE-16GB", "P100-16GB"),
        ("Tesla K80", "K80"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("Quadro RTX 6000", "Quadro-RTX-6000"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("TPU v5 lite", "tpu-v5e"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),  # it has less memory
        ("NVIDIA Something 9000", None),
        ("", None),
        (None, None),
    ],
)
def test_a_device_is_known_by_what_its_driver_or_its_node_calls_it(
    model: str | None, name: str | None
) -> None:
    kind = kind_of_model(model)
    assert (kind and kind.name) == name


def test_who_asks_for_a_family_is_content_with_each_of_its_kinds() -> None:
    large, small = kind_of_model("NVIDIA A100-SXM4-80GB"), kind_of_model("NVIDIA A100-PCIE-40GB")
    assert large is not None
    assert small is not None
    assert large.meets(kind_named("A100"))
    assert small.meets(kind_named("A100"))
    assert large.meets(kind_named("A100-80GB"))
    assert not small.meets(kind_named("A100-80GB"))
    assert not kind_named("A100").meets(kind_named("A100-80GB"))
    assert not kind_named("H100").meets(kind_named("A100"))


def test_the_largest_device_of_a_family_counts_where_memory_is_checked() -> None:
    assert most_memory(kind_named("A100")) == 80 * 10**9
    assert most_memory(kind_named("V100")) == 32 * 10**9
    assert most_memory(kind_named("RTX 3080")) is None  # there are two
    assert {kind.name for kind in members(kind_named("V100-16GB"))} >= {"V100-SXM2-16GB", "V100-PCIe-16GB"}


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("H1OO", "'H100'?"),
        ("H10", "'H100'"),
        ("A100-80G", "'A100-80GB'?"),
        ("MI300", "'MI300X'"),
        ("trainum", "'Trainium'"),
    ],
)
def test_a_misspelt_kind_is_shown_the_nearest_name(text: str, near: str) -> None:
    with pytest.raises(SettingsError) as caught:
        kind_named(text)
    assert caught.value.what == f"no accelerator is called {text!r}"
    assert caught.value.fix is not None
    assert near in caught.value.fix
    assert caught.value.where is not None
    assert "test_kinds.py:" in caught.value.where


def test_where_no_name_is_near_a_few_are_shown_and_where_all_are() -> None:
    with pytest.raises(SettingsError) as caught:
        kind_named("zzzzzz")
    assert caught.value.fix is not None
    assert "reference/accelerators" in caught.value.fix
    assert "H100" in caught.value.fix
    assert len(caught.value.fix) < 150


def test_no_two_kinds_share_a_spelling() -> None:
    seen: dict[str, str] = {}
    for kind in KINDS:
        for text in (kind.name, *kind.aliases):
            found = kind_named(text).name
            assert found == kind.name, f"{text} of {kind.name} is {found}"
            assert seen.setdefault(text, kind.name) == kind.name


def test_the_catalogue_is_whole() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names))
    for kind in KINDS:
        assert kind.vendor in VENDORS
        assert set(kind.families) <= set(names)
        for family in map(kind_named, kind.families):
            assert family.vendor == kind.vendor
            assert family.capability == kind.capability
            assert family.memory in (None, kind.memory)
            assert set(family.families) <= set(kind.families)
        if kind.vendor in ("nvidia", "amd"):
            assert kind.capability
        if kind.vendor == "neuron":
            assert kind.cores
        if kind.vendor == "tpu":
            assert kind.slices
