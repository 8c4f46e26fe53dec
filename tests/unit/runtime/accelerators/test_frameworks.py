"""What frameworks were built for, read from their packages; and what they see, asked in another process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frameworks import fake_jax, fake_tensorflow, fake_torch
from upshift.model.spec import Framework
from upshift.runtime.accelerators import frameworks


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages, before all others, here and in new processes."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def distribution(folder: Path, name: str, version: str, entry_points: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def found(name: str) -> Framework:
    return next(framework for framework in frameworks.installed() if framework.name == name)


@pytest.mark.parametrize(
    ("text", "built_for"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "cuda 12.8"),
        ("cuda = None\nhip = '7.2.53210-abc'\n", "rocm 7.2"),
        ("cuda: Optional[str] = None\nxpu: Optional[str] = '20250201'\n", "xpu 20250201"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", None),
    ],
)
def test_pytorch_says_in_its_package_what_it_is_built_for(
    packages: Path, text: str, built_for: str | None
) -> None:
    distribution(packages, "torch", "2.99.0")  # a wheel from PyPI has no tag in its version
    (packages / "torch").mkdir()
    (packages / "torch/version.py").write_text(f"from typing import Optional\n{text}")
    torch = found("torch")
    assert (torch.version, torch.built_for) == ("2.99.0", built_for)
    assert torch.devices == (0 if built_for is None else None)
    assert "torch" not in sys.modules or sys.modules["torch"].__version__ != "2.99.0"


def test_a_package_without_its_files_does_not_tell(packages: Path) -> None:
    distribution(packages, "torch", "2.99.0")
    assert found("torch").problem == "its package does not say what it is built for"


def test_jax_is_built_for_what_plugs_in(packages: Path) -> None:
    distribution(packages, "jax", "0.8.1")
    distribution(packages, "jaxlib", "0.8.1")
    assert found("jax").built_for is None
    distribution(
        packages, "jax-cuda12-plugin", "0.8.1", "[jax_plugins]\nxla_cuda12 = jax_plugins.xla_cuda12\n"
    )
    assert found("jax").built_for == "cuda 12"


def test_an_old_jax_says_it_in_the_version_of_its_library(packages: Path) -> None:
    distribution(packages, "jax", "0.4.20")
    distribution(packages, "jaxlib", "0.4.20+cuda12.cudnn89")
    assert found("jax").built_for == "cuda 12"


@pytest.mark.parametrize(
    ("name", "built_for", "problem"),
    [
        ("tensorflow", None, "it says what it is built for when imported"),
        ("tensorflow-cpu", None, None),
        ("tensorflow-rocm", "rocm", None),
    ],
)
def test_tensorflow_has_packages_by_platform(
    packages: Path, name: str, built_for: str | None, problem: str | None
) -> None:
    distribution(packages, name, "2.18.0")
    tensorflow = found("tensorflow")
    assert (tensorflow.built_for, tensorflow.problem) == (built_for, problem)


def test_asked_in_another_process_each_counts_its_devices(packages: Path) -> None:
    fake_torch(packages, devices=2)
    fake_tensorflow(packages, devices=1)
    fake_jax(packages, devices=3)
    assert frameworks.ask("torch").devices == 2
    assert frameworks.ask("tensorflow").devices == 1
    assert frameworks.ask("jax") == Framework(name="jax", version="0.8.1", built_for="cuda 13", devices=3)


def test_the_words_of_a_framework_that_sees_nothing_are_kept(packages: Path) -> None:
    fake_torch(packages, more="""
        import warnings
        def _no():
            warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old (found 11040).")
            return False
        cuda.is_available = _no
        """)  # fmt: skip
    torch = frameworks.ask("torch")
    assert torch.devices == 0
    assert torch.problem is not None and "driver on your system is too old" in torch.problem
    fake_tensorflow(packages, stderr="W0000 00:00 gpu_device.cc:2344] Cannot dlopen some GPU libraries.\n")
    assert "Cannot dlopen" in str(frameworks.ask("tensorflow").problem)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("raise ImportError('libtorch.so: no')", "import torch: ImportError: libtorch.so: no"),
        ("import os; os._exit(3)", "it ended the process that asked it (3)"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "it ended the process that asked it (-11)",
        ),
        ("import threading; threading.Event().wait()", "it did not count its devices within 2 s"),
        ("print('upshift-framework: nonsense')", None),
    ],
)  # fmt: skip
def test_a_framework_that_fails_is_unknown(packages: Path, more: str, problem: str | None) -> None:
    fake_torch(packages, devices=1, more=more)
    torch = frameworks.ask("torch", deadline=2 if "threading" in more else 60)
    if problem is None:  # it printed something of its own first
        assert torch.devices == 1
    else:
        assert (torch.devices, torch.problem) == (None, problem)


def test_an_answer_is_kept_only_if_it_is_good(packages: Path) -> None:
    build = Framework(name="torch", version="2.13.0+rocm7.2", built_for="rocm 7.2")
    for devices, kept in ((0, False), (2, True), (0, True)):
        fake_torch(packages, cuda=None, hip="7.2", devices=devices)
        answer = frameworks.ask_once("torch", build, least=1, variables={"HIP_VISIBLE_DEVICES": "0"})
        assert answer.devices == (2 if kept else 0)
    other = frameworks.ask_once("torch", build, least=1, variables={"HIP_VISIBLE_DEVICES": "1"})
    assert other.devices == 0
