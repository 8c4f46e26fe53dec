"""Which devices a request gets, and what is said where there are not enough."""

from __future__ import annotations

from typing import Any

import pytest

from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators.matching import choose, listing, match
from upshift.runtime.accelerators.vendor import Inventory

H100, A100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"
GB = 10**9


def gpus(*models: str, first: int = 0, memory: int = 80 * GB) -> tuple[Device, ...]:
    return tuple(
        Device(
            vendor="nvidia",
            model=model,
            index=number,
            uuid=f"GPU-{number}",
            memory=24 * GB if model == L4 else memory,
        )
        for number, model in enumerate(models, first)
    )


def slices(count: int, profile: str = "1g.10gb", model: str = H100) -> tuple[Device, ...]:
    return tuple(
        Device(
            vendor="nvidia",
            model=model,
            index=0,
            uuid=f"MIG-{n}",
            memory=10 * GB,
            partition=profile,
            parent="GPU-0",
        )
        for n in range(count)
    )


def matched(devices: tuple[Device, ...], links: Any = (), **request: Any) -> list[str]:
    found = match(ResourceSettings(**request), (Inventory(vendor="nvidia", devices=devices, links=links),))
    assert found.lack is None, found.lack
    return [" ".join(device.uuid or "" for device in each) for each in found.sets]


def lacking(
    devices: tuple[Device, ...], problems: tuple[str, ...] = (), **request: Any
) -> tuple[str, str, str]:
    inventory = Inventory(vendor="nvidia", devices=devices, problems=problems)
    found = match(ResourceSettings(**request), (inventory,) if devices or problems else ())
    assert found.lack is not None
    assert found.lack.got == listing(found.sets[0])
    return found.lack.asked, found.lack.got, found.lack.why


def test_a_count_alone_takes_any_model_the_largest_first() -> None:
    assert matched(gpus(L4, H100), gpu_count=1) == ["GPU-1", "GPU-0"]


def test_devices_of_one_model_are_taken_together() -> None:
    assert matched(gpus(L4, H100, L4), gpu_count=2) == ["GPU-0 GPU-2"]


def test_models_are_mixed_where_no_model_has_enough() -> None:
    assert matched(gpus(L4, H100, L4), gpu_count=3) == ["GPU-0 GPU-1 GPU-2"]


def test_a_kind_is_what_its_driver_calls_it() -> None:
    assert matched(gpus(L4, H100, H100), accelerator="H100:1") == ["GPU-1"]
    assert matched(gpus(A100), accelerator="A100-80GB") == ["GPU-0"]


def test_alternatives_come_in_the_order_in_which_they_are_preferred() -> None:
    devices = gpus(A100, A100, L4, L4)
    assert matched(devices, accelerator=["H100:1", "L4:2", "A100:1"]) == ["GPU-2 GPU-3", "GPU-0"]


def test_memory_at_least() -> None:
    assert matched(gpus(L4, H100), gpu_memory=">=40GB") == ["GPU-1"]


def test_neighbours_on_nvlink_are_taken_together() -> None:
    devices = gpus(H100, H100, H100, H100)
    links = (("GPU-0", "GPU-2"), ("GPU-1", "GPU-3"))
    assert matched(devices, links, gpu_count=2) == ["GPU-0 GPU-2"]
    chosen = choose(devices[:2], devices[1:], links)
    assert chosen is not None
    assert [device.uuid for device in chosen] == ["GPU-1", "GPU-3"]


def test_without_links_the_lowest_numbers_are_taken() -> None:
    assert matched(gpus(H100, H100, H100), gpu_count=2) == ["GPU-0 GPU-1"]


def test_what_is_chosen_is_of_the_models_that_were_promised_or_nothing_is() -> None:
    devices = gpus(H100, L4, L4)
    assert choose(devices[1:2], devices[:1], ()) is None
    assert choose(devices[:2], devices, ()) == devices[:2]


def test_slices_are_asked_for_by_profile() -> None:
    devices = (*slices(2), *slices(1, "2g.20gb"))
    assert matched(devices, accelerator="H100/1g.10gb:2") == ["MIG-0 MIG-1"]


def test_a_slice_is_no_whole_device() -> None:
    asked, got, _ = lacking(slices(2), accelerator="H100:1")
    assert asked == "1 × H100"
    assert got == f"1 × {H100}/1g.10gb"
    assert matched((*slices(2), *gpus(H100, first=1)), gpu_count=1) == ["GPU-1"]


def test_too_few_are_granted_as_far_as_they_go() -> None:
    assert lacking(gpus(L4, L4), accelerator="L4:8") == (
        "8 × L4",
        "2 × NVIDIA L4",
        "this machine has 2 × NVIDIA L4, 24 GB each",
    )


def test_another_kind_of_the_same_vendor_is_better_than_none() -> None:
    asked, got, why = lacking(gpus(L4, L4), accelerator="H100:8")
    assert (asked, got) == ("8 × H100", "2 × NVIDIA L4")
    assert "2 × NVIDIA L4" in why


def test_a_device_of_another_vendor_is_no_substitute() -> None:
    assert lacking(gpus(L4), accelerator="Trainium:1")[1] == "none"
    assert lacking(gpus(L4), gpu_count=1, gpu_vendor="amd")[1] == "none"


def test_instead_of_slices_one_whole_device_is_enough() -> None:
    assert lacking(gpus(L4, L4), accelerator="A100-40GB/1g.5gb:2")[1] == "1 × NVIDIA L4"


def test_what_a_variable_hides_is_named() -> None:
    one, other = gpus(L4, L4)
    by = "CUDA_VISIBLE_DEVICES='1'"
    some = Inventory(vendor="nvidia", devices=(other,), hidden=(one,), hidden_by=by)
    none = Inventory(vendor="nvidia", hidden=(one, other), hidden_by="CUDA_VISIBLE_DEVICES=''")
    request = ResourceSettings(gpu_count=2)
    lack, nothing = match(request, [some]).lack, match(request, [none]).lack
    assert lack is not None and nothing is not None
    has = "this machine has 2 × NVIDIA L4, 24 GB each, of which"
    assert lack.why == f"{has} {by} of this shell shows 1 × NVIDIA L4"
    assert nothing.why == f"{has} CUDA_VISIBLE_DEVICES='' of this shell shows none"


def test_what_could_not_be_asked_is_unknown() -> None:
    unknown = Inventory(vendor="nvidia", problems=("it hangs",), unknown=True)
    lack = match(ResourceSettings(gpu_count=1), [unknown]).lack
    assert lack is not None
    assert (lack.got, lack.why) == ("none", "what this machine has is unknown; it hangs")


def test_none_at_all() -> None:
    assert lacking((), gpu_count=2)[1:] == ("none", "this machine has none")


def test_why_there_are_none_is_said() -> None:
    assert (
        "did not answer within 20 s"
        in lacking((), ("nvidia: it did not answer within 20 s",), gpu_count=2)[2]
    )


@pytest.mark.parametrize(("chips", "whole"), [(8, True), (4, False)])
def test_a_tpu_slice_is_handed_out_as_a_whole(chips: int, whole: bool) -> None:
    devices = tuple(Device(vendor="tpu", kind="tpu-v5e", index=n, uuid=f"tpu-{n}") for n in range(chips))
    inventory = Inventory(vendor="tpu", devices=devices)
    found = match(ResourceSettings(accelerator="tpu-v5e-8:2x4"), (inventory,))
    assert (found.lack is None) is whole
    assert len(found.sets[0]) == chips
