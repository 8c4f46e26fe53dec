"""Frameworks and a CUDA driver for tests: packages that say what real ones do, and a ``libcuda.so.1``.

The packages are as small as can be: what :mod:`upshift.runtime.accelerators.frameworks` reads, and no more.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

SOURCE = Path(__file__).with_name("cuda.c")
HOPPER = ("sm_80", "sm_90")


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the driver's library, compiled."""
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE], check=True
    )
    return library


def cuda_driver(
    library: Path, *devices: str, version: str = "13.0", init: int = 0, hang: bool = False
) -> dict[str, str]:
    """What a process has to be started with, to find a driver that shows devices of these capabilities."""
    major, minor = version.split(".")
    found = {
        "LD_LIBRARY_PATH": str(library.parent),
        "CUDA_STANDIN_DEVICES": ",".join(devices),
        "CUDA_STANDIN_VERSION": str(int(major) * 1000 + int(minor) * 10),
        "CUDA_STANDIN_INIT": str(init),
    }
    return found | ({"CUDA_STANDIN_HANG": "1"} if hang else {})


def fake_torch(
    folder: Path,
    *,
    version: str = "2.13.0+cu130",
    cuda: str | None = "13.0",
    hip: str | None = None,
    architectures: Sequence[str] = HOPPER,
    devices: int = 0,
    more: str = "",
) -> Path:
    """A package ``torch`` in ``folder``; asked itself, it sees so many devices. Gives the folder."""
    return _package(
        folder,
        "torch",
        f"""
        import types
        __version__ = {version!r}
        version = types.SimpleNamespace(cuda={cuda!r}, hip={hip!r}, xpu=None)
        _C = types.SimpleNamespace(_cuda_getArchFlags=lambda: {" ".join(architectures)!r})
        cuda = types.SimpleNamespace(
            is_initialized=lambda: False, is_available=lambda: {devices} > 0, device_count=lambda: {devices}
        )
        def set_num_threads(number): pass
        """,
        more,
    )


def fake_tensorflow(
    folder: Path, *, cuda: str | None = "12.5", devices: int = 0, stderr: str = "", more: str = ""
) -> Path:
    """A package ``tensorflow``, likewise; asked for devices it writes ``stderr``."""
    build = {"is_cuda_build": cuda is not None, "cuda_version": cuda, "cuda_compute_capabilities": ["sm_90"]}
    return _package(
        folder,
        "tensorflow",
        f"""
        import sys, types
        __version__ = "2.18.0"
        sysconfig = types.SimpleNamespace(get_build_info=lambda: {build!r})
        def _list(kind):
            sys.stderr.write({stderr!r})
            return ["GPU"] * {devices}
        config = types.SimpleNamespace(list_physical_devices=_list)
        """,
        more,
    )


def fake_jax(folder: Path, *, plugin: str | None = "xla_cuda13", devices: int = 0) -> Path:
    """Packages ``jax`` and ``jaxlib``, likewise, and a plugin for devices."""
    _distribution(folder, "jaxlib", "0.8.1")
    if plugin is not None:
        _distribution(folder, "jax-plugin", "0.8.1", f"[jax_plugins]\n{plugin} = jax_plugins.{plugin}\n")
    return _package(
        folder,
        "jax",
        f"""
        import types
        __version__ = "0.8.1"
        def local_devices(): return [types.SimpleNamespace(platform="gpu")] * {devices}
        devices = local_devices
        """,
        "",
    )


def _package(folder: Path, name: str, code: str, more: str) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(dedent(code) + dedent(more), encoding="utf-8")
    # Bytecode counts as current if time (in seconds) and size of its source are the same.
    shutil.rmtree(folder / name / "__pycache__", ignore_errors=True)
    return folder


def _distribution(folder: Path, name: str, version: str, entry_points: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
