"""Releases of PyTorch and of the packages that are built for one of them: dated tables, nothing is asked.

A release that is newer than a table is not judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from upshift.runtime.accelerators.compatibility import parse

READ = "2026-11-21"
"""When the tables of this module were read."""


@attrs.frozen(kw_only=True)
class Built:
    """One release of a package that works with certain releases of PyTorch.

    Parameters
    ----------
    version
        Of the package.
    torch
        What it needs, as PEP 440 writes it: ``==2.1.0``.
    """

    version: str
    torch: str


TORCH: tuple[str, ...] = (
    *("2.15.0", "2.14.1", "2.14.0", "2.13.0", "2.12.1", "2.12.0", "2.11.0", "2.10.0", "2.9.1", "2.9.0"),
    *("2.8.0", "2.7.1", "2.7.0", "2.6.0", "2.5.1", "2.5.0", "2.4.1", "2.4.0", "2.3.1", "2.3.0"),
    *("2.2.2", "2.2.1", "2.2.0", "2.1.2", "2.1.1", "2.1.0", "2.0.1", "2.0.0", "1.13.1", "1.13.0"),
)
"""Releases of PyTorch on the Python Package Index, newest first.

Source: ``pip index versions torch``. Read on 2026-11-21.
"""


def _each(pairs: str) -> tuple[Built, ...]:
    return tuple(
        Built(version=version, torch=f"=={torch}")
        for version, torch in (pair.split("/") for pair in pairs.split())
    )


COMPANIONS: Mapping[str, tuple[Built, ...]] = {
    "torchvision": (
        Built(version="0.29.2", torch=">=2.14.0"),
        Built(version="0.29.1", torch=">=2.14.0"),
        *_each(
            "0.29.0/2.14.0 0.28.0/2.13.0 0.27.1/2.12.1 0.27.0/2.12.0 0.26.0/2.11.0 0.25.0/2.10.0 "
            "0.24.1/2.9.1 0.24.0/2.9.0 0.23.0/2.8.0 0.22.1/2.7.1 0.22.0/2.7.0 0.21.0/2.6.0 0.20.1/2.5.1 "
            "0.20.0/2.5.0 "
            "0.19.1/2.4.1 0.19.0/2.4.0 0.18.1/2.3.1 0.18.0/2.3.0 0.17.2/2.2.2 0.17.1/2.2.1 0.17.0/2.2.0 "
            "0.16.2/2.1.2 0.16.1/2.1.1 0.16.0/2.1.0 0.15.2/2.0.1 0.15.1/2.0.0 0.14.1/1.13.1 0.14.0/1.13.0 "
            "0.13.1/1.12.1 0.13.0/1.12.0"
        ),
    ),
    "torchaudio": (
        Built(version="2.11.0", torch=""),
        *_each(
            "2.10.0/2.10.0 2.9.1/2.9.1 2.9.0/2.9.0 2.8.0/2.8.0 2.7.1/2.7.1 2.7.0/2.7.0 2.6.0/2.6.0 "
            "2.5.1/2.5.1 2.5.0/2.5.0 2.4.1/2.4.1 2.4.0/2.4.0 2.3.1/2.3.1 2.3.0/2.3.0 2.2.2/2.2.2 "
            "2.2.1/2.2.1 2.2.0/2.2.0 "
            "2.1.2/2.1.2 2.1.1/2.1.1 2.1.0/2.1.0 2.0.2/2.0.1 2.0.1/2.0.0 0.13.1/1.13.1 0.13.0/1.13.0 "
            "0.12.1/1.12.1 0.12.0/1.12.0"
        ),
    ),
    "torchtext": (
        Built(version="0.18.0", torch=">=2.3.0"),
        *_each("0.17.0/2.2.0 0.16.0/2.1.0 0.15.1/2.0.0 0.14.0/1.13.0 0.13.0/1.12.0"),
    ),
    "xformers": (Built(version="0.0.35", torch=">=2.10"),),
    "bitsandbytes": (Built(version="0.50.2", torch="<3,>=2.4"),),
    "accelerate": (Built(version="1.15.0", torch=">=2.0.0"),),
    "peft": (Built(version="0.21.2", torch=">=1.13.0"),),
    "sentence-transformers": (Built(version="6.2.0", torch=">=2.2"),),
    "pytorch-lightning": (Built(version="2.6.6", torch=">=2.1.0"),),
    "lightning": (Built(version="2.6.6", torch="<4.0,>=2.1.0"),),
    "torchmetrics": (Built(version="1.9.0", torch=">=2.0.0"),),
    "timm": (Built(version="1.0.31", torch=""),),
    "ultralytics": (Built(version="8.4.190", torch=">=1.8.0"),),
}
"""What needs PyTorch: its releases, newest first, with what each needs; empty: any.

torchaudio 2.11 needs none in its metadata, though it was built for one. Of packages with one release here,
that is the newest; what older ones need was not read.

Sources: ``Requires-Dist`` of the wheels on the Python Package Index; releases between those: the
``torch_compatibility.json`` of replicate/cog and pytorch/pytorch's wiki page 'PyTorch Versions'. Read on
2026-11-21.
"""

PULLS: Mapping[str, tuple[str, ...]] = {
    "peft": ("accelerate",),
    "pytorch-lightning": ("torchmetrics",),
    "lightning": ("torchmetrics", "pytorch-lightning"),
    "sentence-transformers": (),
    "timm": ("torchvision",),
    "trl": ("accelerate",),
    "ultralytics": ("torchvision",),
    "transformers[torch]": ("accelerate",),
    "transformers[accelerate]": ("accelerate",),
    "transformers[deepspeed]": ("accelerate",),
    "diffusers[torch]": ("accelerate",),
    "diffusers[training]": ("accelerate",),
    "sentence-transformers[train]": ("accelerate",),
}
"""Which of these a package brings along, by its name, or its name with an extra.

Source: ``Requires-Dist`` of the newest wheels on the Python Package Index. Read on 2026-11-21.
"""

PYTHONS: Mapping[str, tuple[str, str]] = {
    "2.14": ("3.10", "3.14"),
    "2.13": ("3.10", "3.14"),
    "2.12": ("3.10", "3.14"),
    "2.11": ("3.10", "3.14"),
    "2.10": ("3.10", "3.14"),
    "2.9": ("3.10", "3.14"),
    "2.8": ("3.9", "3.13"),
    "2.7": ("3.9", "3.13"),
    "2.6": ("3.9", "3.13"),
    "2.5": ("3.9", "3.13"),
    "2.4": ("3.8", "3.12"),
    "2.3": ("3.8", "3.12"),
    "2.2": ("3.8", "3.12"),
    "2.1": ("3.8", "3.11"),
    "2.0": ("3.8", "3.11"),
    "1.13": ("3.7", "3.10"),
    "1.12": ("3.7", "3.10"),
}
"""The first and the last Python that a release of PyTorch has wheels for, experimental ones included.

Of 2.13 and 2.14 experimental wheels for 3.15 are said to come; they are not counted on.

Source: pytorch/pytorch ``RELEASE.md``, 'Release Compatibility Matrix', as it was for 2.14. Read on
2026-11-21.
"""

CUDA_ON_PYPI: Mapping[str, str] = {
    "2.15": "13",
    "2.14": "13",
    "2.13": "13.0",
    "2.12": "13.0",
    "2.11": "13.0",
    "2.10": "12.8",
    "2.7": "12.6",
    "2.6": "12.4",
    "2.0": "11.7",
}
"""The CUDA of the wheel for x86-64 on the Python Package Index, which an installer takes without an index.

Of the two newest only the major version is certain: 13.2 was proposed. A release that is missing is one
that no source was read for.

Sources: pytorch/pytorch issues 147383 (2.7), 178665 (2.12) and 190355 (2.13, 2.14), pull request 177975
(2.10, 2.11); an installed 2.6.0 with nvidia-cuda-runtime-cu12 12.4.127; replicate/cog
``torch_compatibility.json`` (2.0). Read on 2026-11-21.
"""


def minor(version: str) -> str:
    """``2.1`` of ``2.1.0+cu121``."""
    return ".".join(map(str, parse(version)[:2]))


def cuda_of(version: str) -> str | None:
    """The CUDA in a local version: ``12.1`` of ``2.1.0+cu121``; empty for ``+cpu`` and ``+rocm…``.

    None: the version does not say it.
    """
    _, plus, local = version.partition("+")
    if not plus:
        return None
    if local.startswith("cu") and local[2:].isdigit() and len(local) > 3:
        return f"{local[2:-1]}.{local[-1]}"
    return "" if local == "cpu" or local.startswith(("rocm", "xpu")) else None


def rocm_of(version: str) -> str | None:
    """The ROCm in a local version: ``6.4`` of ``2.9.0+rocm6.4``; None: it does not say one."""
    _, _, local = version.partition("+")
    return local[4:] if local.startswith("rocm") and local[4:5].isdigit() else None


def admits(specifier: str, version: str) -> bool:
    """Whether a version is among those that a specifier allows; local parts count as PEP 440 says.

    Raises
    ------
    packaging.specifiers.InvalidSpecifier
        The specifier is none.
    """
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def fitting(package: str, torch: str, specifier: str = "") -> Built | None:
    """The newest release of a package that works with a release of PyTorch; None: none is known."""
    public = torch.partition("+")[0]
    for built in COMPANIONS.get(package, ()):
        if admits(specifier, built.version) and admits(built.torch, public):
            return built
    return None


def newest(package: str, specifier: str = "") -> Built | None:
    """The newest release of a package that a specifier allows; None: none is known."""
    return next((b for b in COMPANIONS.get(package, ()) if admits(specifier, b.version)), None)


def newest_torch(specifiers: Iterable[str]) -> str | None:
    """The newest PyTorch that all of these allow; None: none is known."""
    wanted = tuple(specifiers)
    return next((version for version in TORCH if all(admits(s, version) for s in wanted)), None)
