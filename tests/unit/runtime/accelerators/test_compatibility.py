"""Which driver runs which CUDA, and which build has kernels for which device."""

from __future__ import annotations

import pytest

from upshift.runtime.accelerators import compatibility as c


@pytest.mark.parametrize(
    ("cuda", "driver", "says", "runs"),
    [
        ("12.8", "525.60.13", None, True),  # minor version compatibility
        ("12.8", "535.161.08", "12.2", True),
        ("13.0", "535.161.08", "12.2", False),
        ("13.0", "535.161.08", None, False),
        ("13.0", "580.65.06", None, True),
        ("11.8", "580.65.06", "13.0", True),  # newer drivers run what is older
        ("11.8", "450.80.02", None, True),
        ("11.8", "450.36.06", None, False),
        ("13.0", "535.161.08", "13.0", True),  # a driver with a compatibility package knows better
        ("13.0", None, None, None),
        ("14.1", "580.65.06", None, None),  # newer than the table
        ("10.2", "580.65.06", None, None),
        ("", "580.65.06", "13.0", None),
    ],
)
def test_a_driver_runs_its_major_version_and_older_ones(
    cuda: str, driver: str | None, says: str | None, runs: bool | None
) -> None:
    assert c.driver_runs(cuda, driver, says) is runs


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("570.86.15", "12.8"),
        ("575.51.03", "12.9"),
        ("560.28.02", "12.5"),
        ("999.1", "13.2"),
        ("390.77", None),
        (None, None),
    ],
)
def test_a_driver_has_everything_of_the_releases_before_it(driver: str | None, cuda: str | None) -> None:
    assert c.newest_cuda(driver) == cuda


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_80",), "8.0", True),
        (("sm_80",), "8.9", True),  # a later minor version
        (("sm_86",), "8.0", False),  # an earlier one
        (("sm_80", "sm_86"), "9.0", False),
        (("compute_80",), "9.0", True),  # compiled when it is loaded
        (("compute_90",), "8.9", False),
        (("sm_90a",), "9.0", True),
        (("sm_90a",), "9.1", False),
        (("sm_100f",), "10.3", True),
        (("sm_100",), "12.0", False),
        (("compute_100a",), "12.0", False),
        (("sm_120",), "12.1", True),
        (("gfx90a:sramecc+:xnack-",), "gfx90a", True),
        (("gfx90a", "gfx1100"), "gfx942", False),
        ((), "9.0", None),
        (("sm_90",), None, None),
        (("something",), "9.0", None),
        (("sm_90",), "gfx942", None),
    ],
)
def test_kernels_run_on_what_they_were_compiled_for(
    architectures: tuple[str, ...], capability: str | None, runs: bool | None
) -> None:
    assert c.has_kernels(architectures, capability) is runs


@pytest.mark.parametrize(
    ("known", "wheel"),
    [
        ({}, ("2.14", "12.6")),
        ({"capability": "12.0"}, ("2.14", "13.0")),
        ({"capability": "12.0", "driver_cuda": "12.8"}, ("2.11", "12.8")),
        ({"capability": "7.0", "driver_cuda": "13.0"}, ("2.14", "12.6")),
        ({"capability": "7.0", "driver_cuda": "11.4"}, ("2.7", "11.8")),
        ({"capability": "3.5"}, None),
        ({"installed": "2.10.0+cpu", "capability": "9.0"}, ("2.10", "12.6")),
        ({"installed": "1.13.1+cpu", "capability": "9.0"}, ("2.14", "12.6")),
    ],
)
def test_a_wheel_is_found_for_device_and_driver(known: dict[str, str], wheel: tuple[str, str] | None) -> None:
    assert c.torch_wheel("x86_64", **known) == wheel


def test_arm_machines_have_wheels_of_their_own() -> None:
    assert c.torch_wheel("aarch64", capability="9.0") == ("2.14", "12.6")
    assert c.torch_wheel("aarch64", capability="8.6") == ("2.14", "12.6")  # runs what is for 8.0
    assert c.torch_wheel("aarch64", capability="7.5") is None
    assert c.torch_wheel("ppc64le", capability="9.0") is None


def test_no_wheel_has_kernels_that_its_cuda_cannot_compile() -> None:
    for releases in c.TORCH_WHEELS.values():
        for builds in releases.values():
            for cuda, architectures in builds.items():
                for name in architectures:
                    digits = name.partition("_")[2]
                    first, last = c.SUPPORTED_BY_CUDA[f"{digits[:-1]}.{digits[-1]}"]
                    assert c.parse(first) <= c.parse(cuda), (cuda, name)
                    assert last is None or c.parse(cuda)[0] <= last, (cuda, name)


def test_tables_agree_on_the_oldest_driver_of_a_major_version() -> None:
    for major, least in c.LEAST_DRIVER.items():
        first = c.DRIVER_OF_CUDA[f"{major}.0"]
        assert c.parse(least)[0] == c.parse(first)[0]


def test_the_command_names_release_and_index() -> None:
    assert c.install_torch("2.13", "12.6") == (
        "pip install --force-reinstall 'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126"
    )


@pytest.mark.parametrize(
    ("capability", "words"),
    [("9.0", "CUDA 11.8 or later"), ("7.0", "CUDA 11.0 to 12.x"), ("99.0", None), (None, None)],
)
def test_which_cuda_compiles_for_a_device(capability: str | None, words: str | None) -> None:
    assert c.fitting_cuda(capability) == words
