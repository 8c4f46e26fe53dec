"""What can be asked for of accelerators, and what is refused where the user wrote it."""

from __future__ import annotations

import decimal
from typing import Any

import pytest

from upshift.config import ResourceSettings
from upshift.errors import SettingsError
from upshift.model.settings.accelerator import Wanted
from upshift.model.spec.codec import from_json, to_json
from upshift.model.spec.hardware import Hardware

GB = 10**9


def words(**request: Any) -> list[str]:
    return [str(wanted) for wanted in ResourceSettings(**request).alternatives]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, []),
        ({"cpu_count": 4}, []),
        ({"gpu_count": 0}, ["0 × GPU"]),
        ({"gpu_count": 2}, ["2 × GPU"]),
        ({"gpu_count": 2, "gpu_vendor": "amd"}, ["2 × AMD GPU"]),
        ({"gpu_vendor": "NVIDIA"}, ["1 × NVIDIA GPU"]),
        ({"gpu_memory": "40GB"}, ["1 × GPU, ≥ 40 GB"]),
        ({"gpu_memory": ">= 40 GB", "gpu_count": 2}, ["2 × GPU, ≥ 40 GB each"]),
        ({"gpu_memory": 40 * GB}, ["1 × GPU, ≥ 40 GB"]),
        ({"accelerator": "H100"}, ["1 × H100"]),
        ({"accelerator": "H100:8"}, ["8 × H100"]),
        ({"accelerator": "H100:8", "gpu_count": 8}, ["8 × H100"]),
        ({"accelerator": "H-100 : 8"}, ["8 × H100"]),
        ({"accelerator": " A100-80GB / 1g.10gb: 2"}, ["2 × A100-80GB/1g.10gb"]),
        ({"accelerator": "H100", "gpu_count": 8}, ["8 × H100"]),
        ({"accelerator": "H100", "gpu_count": 0}, ["0 × GPU"]),
        ({"accelerator": "nvidia h100 80gb hbm3:2"}, ["2 × H100-SXM"]),
        ({"accelerator": "H100:8", "gpu_memory": "40GB"}, ["8 × H100, ≥ 40 GB each"]),
        ({"accelerator": ["H100:8", "A100-80GB:8"]}, ["8 × H100", "8 × A100-80GB"]),
        ({"accelerator": ["H100:8", "MI300X:4"]}, ["8 × H100", "4 × MI300X"]),
        ({"accelerator": ["H100", "A100:16"], "gpu_count": 8}, ["8 × H100", "16 × A100"]),
        ({"accelerator": ["H100"]}, ["1 × H100"]),
        ({"accelerator": "A100-80GB/1g.10gb:2"}, ["2 × A100-80GB/1g.10gb"]),
        ({"accelerator": "H100/1g.12gb"}, ["1 × H100/1g.12gb"]),
        ({"accelerator": "Trainium:16"}, ["16 × Trainium"]),
        ({"accelerator": "tpu-v5e-8"}, ["tpu-v5e-8"]),
        ({"accelerator": "tpu-v5e-8:2x4"}, ["tpu-v5e-8 (2x4)"]),
        ({"accelerator": "tpu-v5e:8"}, ["tpu-v5e-8"]),
        ({"accelerator": "v5litepod-16"}, ["tpu-v5e-16"]),
        ({"accelerator": "v4-8"}, ["tpu-v4-8 (4 chips)"]),
        ({"accelerator": "tpu-v4:2x2x2"}, ["tpu-v4-16 (2x2x2)"]),
        ({"accelerator": "other:B900:8"}, ["8 × B900"]),
        ({"accelerator": "other:H100:8"}, ["8 × H100"]),
        ({"accelerator": "other:GB300/7g.251gb"}, ["1 × GB300/7g.251gb"]),
    ],
)
def test_what_is_asked_for_is_a_list_of_what_would_do(request_: dict[str, Any], said: list[str]) -> None:
    assert words(**request_) == said
    request = ResourceSettings(**request_)
    assert request == ResourceSettings(**request.explicit())
    assert from_json(ResourceSettings, to_json(request)) == request


def test_an_alternative_says_all_that_a_backend_has_to_know() -> None:
    slices, chips = ResourceSettings(
        accelerator=["A100-80GB/1g.10gb:2", "tpu-v4-8:2x2x1"], gpu_memory="10GB"
    ).alternatives
    assert slices.kind is not None
    assert (slices.count, slices.kind.name, slices.vendor, slices.memory, slices.partition) == (
        2,
        "A100-80GB",
        "nvidia",
        10 * GB,
        "1g.10gb",
    )
    assert chips.kind is not None
    assert (chips.count, chips.kind.name, chips.vendor, chips.topology) == (4, "tpu-v4", "tpu", "2x2x1")
    for wanted in (slices, chips):
        assert Wanted.from_json(wanted.as_json()) == wanted


def test_a_kind_that_is_not_known_is_of_the_vendor_that_is_named() -> None:
    (wanted,) = ResourceSettings(accelerator="other:B900:8", gpu_vendor="nvidia").alternatives
    assert (wanted.name, wanted.kind, wanted.vendor, wanted.count) == ("B900", None, "nvidia", 8)
    assert wanted.admits(vendor="nvidia", model="NVIDIA B900 SXM", memory=1)
    assert not wanted.admits(vendor="nvidia", model="NVIDIA B90", memory=1)


@pytest.mark.parametrize(
    ("request_", "device", "does"),
    [
        ({"gpu_count": 1}, {"vendor": "amd"}, True),
        ({"gpu_vendor": "nvidia"}, {"vendor": "amd"}, False),
        ({"accelerator": "H100"}, {"vendor": "nvidia", "model": "NVIDIA H100 NVL"}, True),
        ({"accelerator": "H100-SXM"}, {"vendor": "nvidia", "model": "NVIDIA H100 NVL"}, False),
        ({"accelerator": "H100"}, {"vendor": "nvidia", "kind": "H100-SXM"}, True),
        ({"accelerator": "H100"}, {"vendor": "nvidia", "model": "NVIDIA Mystery"}, False),
        # A driver keeps some of it for itself: the data sheet counts, too.
        ({"gpu_memory": "16GB"}, {"vendor": "nvidia", "model": "Tesla T4", "memory": 15_843_721_216}, True),
        ({"gpu_memory": "16GB"}, {"vendor": "nvidia", "model": "Mystery", "memory": 15_843_721_216}, False),
        ({"gpu_memory": "16.5GB"}, {"vendor": "nvidia", "model": "Tesla T4", "memory": 17_000_000_000}, True),
        ({"gpu_memory": "40GB"}, {"vendor": "nvidia", "model": "Tesla T4", "memory": None}, False),
        ({"gpu_count": 1}, {"vendor": "nvidia", "partition": "1g.10gb"}, False),
        (
            {"accelerator": "A100/1g.10gb"},
            {"vendor": "nvidia", "kind": "A100-80GB", "partition": "1g.10gb"},
            True,
        ),
        ({"accelerator": "A100/1g.10gb"}, {"vendor": "nvidia", "kind": "A100-80GB"}, False),
        (
            {"accelerator": "A100/1g.10gb", "gpu_memory": "10GB"},
            {"vendor": "nvidia", "kind": "A100-80GB", "partition": "1g.10gb", "memory": 9_961_472_000},
            True,
        ),
    ],
)
def test_a_device_satisfies_a_request_or_not(
    request_: dict[str, Any], device: dict[str, Any], does: bool
) -> None:
    (wanted,) = ResourceSettings(**request_).alternatives
    assert wanted.admits(**device) is does


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"accelerator": "A100:"}, ["accelerator='A100:' is invalid", "'A100:8', 'A100'"]),
        ({"accelerator": "A100:-1"}, ["A100:-1' is invalid", "or no colon: 'A100:8', 'A100'."]),
        ({"accelerator": "A100:x"}, ["or no colon: 'A100:8', 'A100'."]),
        ({"accelerator": "cuda"}, ["no accelerator is called 'cuda'", "Any GPU: gpu_count=1."]),
        ({"accelerator": "gpu:2"}, ["Any GPU: gpu_count=2."]),
        (
            {"accelerator": "GPU-8a4d6c1e-1f0b-4c57-9e0a-2f3b4c5d6e7f"},
            ["One device cannot be named; CUDA_VISIBLE_DEVICES in the shell limits the run."],
        ),
        (
            {"accelerator": "H1OO:8"},
            ["no accelerator is called 'H1OO'", "Did you mean 'H100'?", "'other:H1OO:8'"],
        ),
        ({"accelerator": ["H100:8", "H1OO"]}, ["accelerator='H1OO': no accelerator is called 'H1OO'"]),
        ({"accelerator": "8xH100"}, ["the kind first, then a colon and the count: 'H100:8'"]),
        ({"accelerator": "H100 x 8"}, ["'H100:8'"]),
        ({"accelerator": "8:H100"}, ["'H100:8'"]),
        ({"accelerator": "H100:0"}, ["gpu_count=0 asks for none"]),
        ({"accelerator": "H100:0.5"}, ["a whole count", 'cut with MIG: accelerator="A100-80GB/1g.10gb"']),
        ({"accelerator": "H100:1g.10gb"}, ["the MIG profile after a slash: 'H100/1g.10gb'"]),
        ({"accelerator": "H100:1g.10gb:2"}, ["'H100/1g.10gb:2'"]),
        ({"accelerator": "H100:8|A100:8"}, ["a list of alternatives: ['H100:8', 'A100:8']"]),
        ({"accelerator": "H100:8, A100:8"}, ["['H100:8', 'A100:8']"]),
        ({"accelerator": ""}, ['such as "H100:8"']),
        ({"accelerator": 8}, ['such as "H100:8"']),
        ({"accelerator": []}, ["each alternative once"]),
        ({"accelerator": ["H100", "h100"]}, ["each alternative once"]),
        ({"accelerator": {"H100": 8}}, ['such as "H100:8"']),
        ({"accelerator": "other:"}, ['such as "H100:8"']),
        ({"accelerator": "T4/1g.5gb"}, ["whole devices: T4 has no MIG"]),
        (
            {"accelerator": "A100-80GB/1g.5gb"},
            ["the MIG profiles of A100-80GB are 1g.10gb", "'other:A100-80GB/1g.5gb'"],
        ),
        ({"accelerator": "other:B900/half"}, ['a MIG profile after the slash, for example "1g.10gb"']),
        (
            {"accelerator": "tpu-v5e-8:2x5"},
            ["a topology of 8 chips, which is what 'tpu-v5e-8' has; 2x5 has 10"],
        ),
        ({"accelerator": "tpu-v4-8:2x2"}, ["a topology of 3 dimensions for tpu-v4, such as 2x2x1"]),
        ({"accelerator": "tpu-v4-7"}, ["an even number", "counts TensorCores"]),
        ({"accelerator": "tpu-v5e-8:2"}, ["'tpu-v5e-8' alone: it is one slice"]),
        ({"accelerator": "H100:2x4"}, ["topologies such as 2x4 are of TPU slices"]),
        ({"gpu_count": 0.5}, ["gpu_count=0.5 is invalid", "a whole number", "cut with MIG"]),
        ({"accelerator": "RTX 6000"}, ["no accelerator is called 'RTX 6000'", "'Quadro-RTX-6000'"]),
        (
            {"accelerator": "tpu-v5e-16", "num_nodes": 2},
            ["contradicts num_nodes=2", "A machine has at most 8 chips of tpu-v5e", "Leave num_nodes out"],
        ),
        ({"trainium": 16}, ['Use accelerator="Trainium:16"']),
        ({"gpus": 2}, ["ResourceSettings has no field 'gpus'", "Use gpu_count."]),
        ({"accelerators": "H100"}, ["Did you mean 'accelerator'?"]),
        ({"gpu_count": -1}, ["from 0 to 10,000"]),
        ({"gpu_count": float("nan")}, ["from 0 to 10,000"]),
        ({"gpu_count": float("inf")}, ["from 0 to 10,000"]),
        ({"gpu_count": True}, ["from 0 to 10,000"]),
        ({"gpu_memory": "40"}, ["gpu_memory='40' is invalid", "a number alone is bytes"]),
        ({"gpu_memory": ">=40G"}, ["gpu_memory='>=40G' is invalid", "Did you mean '40GB'?"]),
        ({"memory": "1.5 t"}, ["Did you mean '1.5TB'?"]),
        ({"gpu_memory": 40}, ["a number alone is bytes, of which a GPU has more"]),
        ({"gpu_memory": "<=40GB"}, ['the least that will do: "40GB", or ">=40GB"']),
        ({"gpu_memory": ">40GB"}, ['"40GB", or ">=40GB"']),
        ({"gpu_memory": ">=forty"}, ["gpu_memory='>=forty' is invalid"]),
        ({"gpu_vendor": "nvida"}, ["'nvidia' perhaps"]),
        ({"gpu_vendor": 1}, ["one of nvidia, amd, intel"]),
        ({"accelerator": "MI300X", "gpu_vendor": "nvidia"}, ["contradicts gpu_vendor='nvidia'", "'amd'"]),
        ({"accelerator": ["H100", "MI300X"], "gpu_vendor": "nvidia"}, ["MI300X is of gpu_vendor 'amd'"]),
        ({"accelerator": "T4", "gpu_memory": "40GB"}, ["contradicts gpu_memory of 40 GB", "T4 has 16 GB"]),
        ({"accelerator": "A100/1g.10gb", "gpu_memory": "20GB"}, ["A100/1g.10gb has 10 GB"]),
        (
            {"accelerator": "H100:8", "gpu_count": 4},
            ["gpu_count=4 is invalid", "8, as in accelerator='H100:8'"],
        ),
        ({"accelerator": ["H100:8", "A100:16"], "gpu_count": 16}, ["8, as in"]),
    ],
)
def test_nonsense_is_refused_where_it_is_written(request_: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        ResourceSettings(**request_)
    text = str(caught.value)
    assert all(part in text for part in said), text
    assert "test_asking_for_accelerators.py:" in text


def test_the_record_of_a_request_has_the_devices_that_are_preferred_and_the_alternatives() -> None:
    asked = Hardware.asked(ResourceSettings(accelerator=["H100:8", "A100-80GB:4"], gpu_memory="40GB"))
    assert asked.gpus is not None
    assert len(asked.gpus) == 8
    first = asked.gpus[0]
    assert (first.vendor, first.kind, first.model, first.memory) == ("nvidia", "H100", "H100", 40 * GB)
    shown = asked.as_json()["alternatives"]
    assert [(one["count"], one["name"], one["memory"]) for one in shown] == [
        (8, "H100", 40 * GB),
        (4, "A100-80GB", 40 * GB),
    ]
    assert from_json(Hardware, to_json(asked)) == asked
    assert "alternatives" not in Hardware.asked(ResourceSettings(accelerator="H100:8")).as_json()
    assert Hardware.asked(ResourceSettings()).gpus is None
    assert Hardware.asked(ResourceSettings(gpu_count=0)).gpus == ()


@pytest.mark.parametrize("field", ["memory", "disk", "shared_memory"])
def test_what_is_accepted_travels_and_merges_and_less_is_refused(field: str) -> None:
    least = ResourceSettings(**{field: "1MB"})
    assert from_json(ResourceSettings, to_json(least)) == least
    assert least.over(ResourceSettings(cpu_count=1)).explicit() == {"cpu_count": 1, field: 10**6}
    with pytest.raises(SettingsError, match=r"at least 1 MB: a step needs more"):
        ResourceSettings(**{field: "999KB"})
    with pytest.raises(SettingsError, match="a number alone is bytes"):
        ResourceSettings(**{field: 16000})


def test_an_amount_is_exact_whatever_decimals_are_rounded_to() -> None:
    with decimal.localcontext(decimal.Context(prec=3, traps=[decimal.Inexact])):
        asked = ResourceSettings(memory="16.75GiB", disk=123456789)
    assert (asked.memory, asked.disk) == (17985175552, 123456789)
