"""Which driver runs which CUDA, which CUDA has which architectures, and which wheels have what: dated tables.

Each table names where it was read, and when. A version that is newer than a table is not judged by it:
the functions then answer None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

Version = tuple[int, ...]

LEAST_DRIVER: Mapping[int, str] = {11: "450.80.02", 12: "525", 13: "580"}
"""Of Linux, for any CUDA of a major version.

An application that was built with any release of a major version runs on every driver from here on,
also where the driver is older than the release ('minor version compatibility', from CUDA 11 on), and on
all newer drivers. What it cannot do on an older driver is compile PTX at run time.

Source: NVIDIA, 'CUDA Compatibility', Minor Version Compatibility, table 1, and 'CUDA Toolkit 13.2 Release
Notes', table 2 with its note on 11.x. Read on 2026-11-21.
"""

DRIVER_OF_CUDA: Mapping[str, str] = {
    "13.2": "595.45.04",
    "13.1": "590.44.01",
    "13.0": "580.65.06",
    "12.9": "575.51.03",
    "12.8": "570.26",
    "12.6": "560.28.03",
    "12.5": "555.42.02",
    "12.4": "550.54.14",
    "12.3": "545.23.06",
    "12.2": "535.54.03",
    "12.1": "530.30.02",
    "12.0": "525.60.13",
    "11.8": "520.61.05",
    "11.7": "515.43.04",
    "11.6": "510.39.01",
    "11.5": "495.29.05",
    "11.4": "470.42.01",
    "11.3": "465.19.01",
    "11.2": "460.27.03",
    "11.1": "455.23",
    "11.0": "450.51.05",
}
"""The driver that came with each CUDA release, of Linux: from it on, a driver has everything of that release.

Source: NVIDIA, 'CUDA Toolkit 13.2 Release Notes', table 3. Read on 2026-11-21.
"""

SUPPORTED_BY_CUDA: Mapping[str, tuple[str, int | None]] = {
    "3.5": ("11.0", 11),
    "3.7": ("11.0", 11),
    "5.0": ("11.0", 12),
    "5.2": ("11.0", 12),
    "5.3": ("11.0", 12),
    "6.0": ("11.0", 12),
    "6.1": ("11.0", 12),
    "6.2": ("11.0", 12),
    "7.0": ("11.0", 12),
    "7.2": ("11.0", 12),
    "7.5": ("11.0", None),
    "8.0": ("11.0", None),
    "8.6": ("11.1", None),
    "8.7": ("11.4", None),
    "8.9": ("11.8", None),
    "9.0": ("11.8", None),
    "10.0": ("12.8", None),
    "10.3": ("12.9", None),
    "11.0": ("13.0", None),
    "12.0": ("12.8", None),
    "12.1": ("12.9", None),
}
"""By compute capability: the first CUDA, from 11 on, that compiles for it, and the last major version.

Sources: CMake, ``Modules/Internal/CMakeCUDAArchitecturesAll.cmake``, for 11.0 to 12.9; NVIDIA, 'CUDA Toolkit
13.2 Release Notes', 'Deprecated Architectures' (Maxwell, Pascal and Volta are gone since 13.0), and 'cuRANDDx
Release Notes' 0.2.1 (Thor is 11.0 since CUDA 13.0). Read on 2026-11-21.
"""

_LEGACY = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
_MODERN = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
_WITH_PTX = (*_MODERN, "compute_120")
_WITH_VOLTA = ("sm_70", *_MODERN)
_ARM = ("sm_80", "sm_90")
_ARM_BLACKWELL = (*_ARM, "sm_100", "sm_110", "sm_120", "compute_120")

TORCH_WHEELS: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = {
    "x86_64": {
        "2.14": {"12.6": _LEGACY, "13.0": _WITH_PTX, "13.2": _WITH_PTX},
        "2.13": {"12.6": _LEGACY, "13.0": _WITH_PTX, "13.2": _WITH_PTX},
        "2.12": {"12.6": _LEGACY, "13.0": _WITH_PTX, "13.2": _WITH_PTX},
        "2.11": {"12.6": _LEGACY, "12.8": _MODERN, "13.0": _WITH_PTX},
        "2.10": {"12.6": _LEGACY, "12.8": _WITH_VOLTA, "13.0": _WITH_PTX},
        "2.9": {"12.6": _LEGACY, "12.8": _WITH_VOLTA, "13.0": _WITH_PTX},
        "2.7": {"11.8": ("sm_37", *_LEGACY), "12.6": _LEGACY, "12.8": _WITH_PTX},
    },
    "aarch64": {
        "2.14": {"12.6": _ARM, "13.0": _ARM_BLACKWELL, "13.2": _ARM_BLACKWELL},
        "2.13": {"12.6": _ARM, "13.0": _ARM_BLACKWELL, "13.2": _ARM_BLACKWELL},
        "2.12": {"12.6": _ARM, "13.0": _ARM_BLACKWELL, "13.2": _ARM_BLACKWELL},
        "2.11": {"12.6": _ARM, "12.8": (*_ARM, "sm_100", "sm_120"), "13.0": _ARM_BLACKWELL},
    },
}
"""By machine, release of PyTorch and CUDA of its wheel: what it has kernels for. Newest first.

A release or build that is missing is one that no source was read for. An installed wheel is asked itself.

Sources: pytorch/pytorch ``RELEASE.md``, 'PyTorch CUDA Support Matrix', as it was for 2.12 to 2.14, in pull
request 175253 for 2.11, in 164471 and 175253 for 2.9 and 2.10; ``CUDA_UPGRADE_GUIDE.MD`` as it was for
2.7. Read on 2026-11-21.
"""

JAX_CUDA: Mapping[int, str] = {12: "5.2", 13: "7.5"}
"""By major version of CUDA that JAX is installed for: the least compute capability.

Source: docs.jax.dev, 'Installation', 'NVIDIA GPU'. Read on 2026-11-21.
"""


def parse(version: str | None) -> Version:
    """``(12, 6)`` of ``"12.6"``; empty where there is none. What follows the numbers does not count."""
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def capability_name(text: str) -> str:
    """``compute capability 9.0``; ``gfx942`` says itself what it is."""
    return f"compute capability {text}" if parse(text) else text


def newest_cuda(driver: str | None) -> str | None:
    """The newest CUDA release that a driver of NVIDIA has everything of; None: not known."""
    version = parse(driver)
    for cuda, least in DRIVER_OF_CUDA.items():
        if version >= parse(least):
            return cuda
    return None


def least_driver(cuda: str) -> str | None:
    """The oldest driver that runs what was built with a CUDA release; None: not known."""
    version = parse(cuda)
    return LEAST_DRIVER.get(version[0]) if version else None


def driver_runs(cuda: str, driver: str | None, driver_cuda: str | None) -> bool | None:
    """Whether a driver runs what was built with a CUDA release; None: not known."""
    wanted, says = parse(cuda), parse(driver_cuda)
    if not wanted:
        return None
    if says:
        return wanted[0] <= says[0]
    least = LEAST_DRIVER.get(wanted[0])
    return parse(driver) >= parse(least) if driver and least else None


def has_kernels(architectures: Iterable[str], capability: str | None) -> bool | None:
    """Whether one of these architectures runs on a device; None: not known.

    ``sm_80`` runs on 8.0, 8.6 and 8.9, not on 9.0; ``sm_90a`` on 9.0 alone; ``sm_100f`` on 10.0 and 10.3;
    ``compute_80``, which is compiled when it is loaded, on everything from 8.0 on; ``gfx90a`` on itself.

    Source: NVIDIA, 'CUDA C++ Programming Guide', 'Application Compatibility', 'Feature Set Compiler
    Targets'. Read on 2026-11-21.
    """
    architectures = list(architectures)
    if not architectures or not capability:
        return None
    if not parse(capability):
        names = {name.partition(":")[0] for name in architectures}
        return capability.partition(":")[0] in names if any(n.startswith("gfx") for n in names) else None
    device = parse(capability)
    known = [match for match in map(_ARCHITECTURE.fullmatch, architectures) if match]
    return any(_runs(match, device) for match in known) if known else None


_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def _runs(architecture: re.Match[str], device: Version) -> bool:
    kind, major, minor, special = architecture.groups()
    built = (int(major), int(minor))
    if special == "a":
        return built == device[:2]
    if kind == "compute" and not special:
        return built <= device[:2]
    return built[0] == device[0] and built <= device[:2]


def fitting_cuda(capability: str | None) -> str | None:
    """``"CUDA 11.8 or later"``: which CUDA releases compile for a device; None: not known."""
    found = SUPPORTED_BY_CUDA.get(capability or "")
    if found is None:
        return None
    first, last = found
    return f"CUDA {first} or later" if last is None else f"CUDA {first} to {last}.x"


def torch_wheel(
    machine: str,
    *,
    capability: str | None = None,
    driver: str | None = None,
    driver_cuda: str | None = None,
    installed: str | None = None,
) -> tuple[str, str] | None:
    """A PyTorch with a wheel for a device and a driver, and the CUDA of that wheel; None: not known.

    The release that is installed if it has one, else the newest that has. Of several wheels of one
    release the one with the oldest CUDA, which runs on the most drivers.
    """
    releases = TORCH_WHEELS.get(machine, {})
    own = ".".join(map(str, parse(installed)[:2]))
    for release in sorted(releases, key=lambda release: release != own):  # stable: newest first
        for cuda, architectures in sorted(releases[release].items(), key=lambda item: parse(item[0])):
            fits = has_kernels(architectures, capability) is not False
            if fits and driver_runs(cuda, driver, driver_cuda) is not False:
                return release, cuda
    return None


def install_torch(release: str, cuda: str) -> str:
    """The command that installs a wheel of PyTorch.

    Source: pytorch.org, 'Start Locally'. Read on 2026-11-21.
    """
    tag = "cu" + cuda.replace(".", "")
    return f"pip install --force-reinstall 'torch=={release}.*' --index-url https://download.pytorch.org/whl/{tag}"
