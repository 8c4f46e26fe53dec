"""PyTorch, TensorFlow and JAX: what they were built for, and what they see.

In the process of a step they are only read, never asked for devices: whoever asks initializes the
driver, and JAX takes most of the memory of each device at once. A process of its own asks them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import attrs

from upshift.model.configuration import home, make_folder
from upshift.model.spec import Framework, decode, encode
from upshift.runtime.children import command

DEADLINE = 120.0
"""Seconds that a framework is given to be imported and to count its devices."""

_ANSWER = "upshift-framework: "
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def described(name: str, module: ModuleType) -> Framework:
    """What an imported framework says of its build, without touching a device.

    ``devices`` is 0 where it is built for none, else None. ``problem`` is set where the module is not
    what its name says.
    """
    version = str(getattr(module, "__version__", "of unknown version"))
    try:
        built_for, architectures = _BUILDS[name](module)
    except Exception as error:  # a module of the user's with this name, or one that is half imported
        return Framework(name=name, version=version, problem=f"it does not tell: {error!r}")
    return Framework(
        name=name,
        version=version,
        built_for=built_for,
        devices=0 if built_for is None else None,
        architectures=tuple(architectures),
    )


def _torch(torch: Any) -> tuple[str | None, Sequence[str]]:
    version = torch.version
    if version.cuda is not None:
        return f"cuda {version.cuda}", _architectures(torch)
    if version.hip is not None:
        return "rocm " + ".".join(version.hip.split(".")[:2]), _architectures(torch)
    if getattr(version, "xpu", None) is not None:
        return f"xpu {version.xpu}", ()
    return None, ()


def _architectures(torch: Any) -> Sequence[str]:
    # torch.cuda.get_arch_list() of older versions starts the driver first.
    return (torch._C._cuda_getArchFlags() or "").split()


def _tensorflow(tensorflow: Any) -> tuple[str | None, Sequence[str]]:
    build = tensorflow.sysconfig.get_build_info()
    if build.get("is_cuda_build"):
        return f"cuda {build['cuda_version']}", build.get("cuda_compute_capabilities", ())
    if build.get("is_rocm_build"):
        return f"rocm {build.get('rocm_version', '')}".strip(), ()
    return None, ()


def _jax(jax: Any) -> tuple[str | None, Sequence[str]]:
    assert callable(jax.devices)
    return _jax_plugin(), ()


def _jax_plugin() -> str | None:
    """What JAX is built for: it has no device code of its own, packages plug in.

    Before 0.4.26 it was in the version of jaxlib.
    """
    found = [_PLUGIN.search(point.name) for point in metadata.entry_points(group="jax_plugins")]
    with contextlib.suppress(metadata.PackageNotFoundError):
        found.append(_PLUGIN.search(metadata.version("jaxlib").partition("+")[2]))
    for plugin in found:
        if plugin is not None:
            return f"{plugin[1]} {plugin[2]}"
    with contextlib.suppress(metadata.PackageNotFoundError):
        return f"tpu {metadata.version('libtpu')}"
    return None


_PLUGIN = re.compile(r"(cuda|rocm)(\d+)")
_BUILDS: Mapping[str, Callable[[Any], tuple[str | None, Sequence[str]]]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "jax": _jax,
}
NAMES = tuple(_BUILDS)
"""The modules of the frameworks that are known."""


# -- installed, and not imported ------------------------------------------------------------------

_DISTRIBUTIONS: Mapping[str, Sequence[str]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm"),
    "jax": ("jax",),
}
_TORCH_VALUE = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *'([\d.]+)", re.MULTILINE)


def installed() -> list[Framework]:
    """The frameworks of this environment, from what their packages say. Nothing is imported.

    ``devices`` is 0 where a framework is built for none. ``problem`` is set where the packages do not tell
    what it is built for.
    """
    found = []
    for name, distributions in _DISTRIBUTIONS.items():
        for called in distributions:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found.append(_packaged(name, metadata.distribution(called)))
                break
    return found


def _packaged(name: str, distribution: metadata.Distribution) -> Framework:
    version = distribution.version
    built_for: str | None = None
    if name == "torch":
        try:
            # The version of a wheel from PyPI has no tag, and its package says all the same.
            text = Path(str(distribution.locate_file("torch/version.py"))).read_text(encoding="utf-8")
        except OSError:
            return Framework(
                name=name, version=version, problem="its package does not say what it is built for"
            )
        value = _TORCH_VALUE.search(text)
        if value is not None:
            platform = {"hip": "rocm"}.get(value[1], value[1])
            built_for = f"{platform} {'.'.join(value[2].split('.')[:2])}"
    elif name == "tensorflow":
        if "rocm" in distribution.metadata["Name"]:
            built_for = "rocm"
        elif "cpu" not in distribution.metadata["Name"]:
            return Framework(name=name, version=version, problem="it says what it is built for when imported")
    else:
        built_for = _jax_plugin()
    return Framework(
        name=name, version=version, built_for=built_for, devices=0 if built_for is None else None
    )


# -- asked in a process of its own ----------------------------------------------------------------


def ask(name: str, *, deadline: float = DEADLINE) -> Framework:
    """Import a framework in a process of its own, and let it count its devices.

    It sees what a process with this environment sees. Its memory counts as this process's for a cgroup,
    and what it takes of a device is given back with its end.
    """
    try:
        done = subprocess.run(
            command("--framework", name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline,
            check=False,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "0"},
        )
    except subprocess.TimeoutExpired:
        return _silent(name, f"it did not count its devices within {deadline:g} s")
    except OSError as error:
        return _silent(name, f"no process could be started: {error.strerror}")
    errors = done.stderr.decode(errors="replace").splitlines()
    printed = done.stdout.decode(errors="replace").splitlines()  # the answer last, after what others print
    if printed and printed[-1].startswith(_ANSWER):
        answer = decode(Framework, json.loads(printed[-1].removeprefix(_ANSWER)))
        says = next((line for line in errors if "annot dlopen" in line), None)
        return attrs.evolve(answer, problem=says) if says and not answer.problem else answer
    return _silent(name, errors[-1] if errors else f"it ended the process that asked it ({done.returncode})")


def ask_once(name: str, framework: Framework, *, least: int, variables: Mapping[str, str]) -> Framework:
    """Like :func:`ask`; an answer of ``least`` devices or more is kept until this machine starts anew."""
    known = _kept_at(framework, variables)
    with contextlib.suppress(OSError, ValueError, TypeError):
        return decode(Framework, json.loads(known.read_bytes()))
    answer = ask(name)
    if (answer.devices or 0) >= least:
        with contextlib.suppress(OSError):
            make_folder(known.parent)
            half = known.with_suffix(f".{os.getpid()}")
            half.write_text(json.dumps(encode(answer)), encoding="utf-8")
            half.replace(known)
    return answer


def _kept_at(framework: Framework, variables: Mapping[str, str]) -> Path:
    boot = _BOOT.read_text() if _BOOT.exists() else ""
    question = json.dumps([encode(framework), dict(variables), sys.executable, os.uname().nodename, boot])
    return home() / "frameworks" / f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.json"


def _silent(name: str, problem: str) -> Framework:
    return Framework(name=name, version="of unknown version", problem=problem)


def main(name: str) -> NoReturn:
    """Be the process that asks a framework; the answer goes to standard output, in a line."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        framework = _asked(name)
    words = [str(warning.message).strip() for warning in said if "CUDA" in str(warning.message)]
    if words and framework.problem is None and not framework.devices:
        framework = attrs.evolve(framework, problem=words[-1])
    sys.stdout.write(f"\n{_ANSWER}{json.dumps(encode(framework))}\n")
    sys.stdout.flush()
    os._exit(0)  # what the framework has started is not waited for


def _asked(name: str) -> Framework:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return _silent(name, f"import {name}: {type(error).__name__}: {error}")
    framework = described(name, module)
    if framework.built_for is None or framework.built_for.startswith("tpu"):  # a TPU is for one process only
        return framework
    try:
        return attrs.evolve(framework, devices=_COUNTS[name](module))
    except Exception as error:
        return attrs.evolve(framework, devices=0, problem=f"{type(error).__name__}: {error}")


def _count_torch(torch: Any) -> int:
    if torch.version.cuda is None and torch.version.hip is None:
        return int(torch.xpu.device_count())
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0  # which asks the driver itself


def _count_tensorflow(tensorflow: Any) -> int:
    return len(tensorflow.config.list_physical_devices("GPU"))


def _count_jax(jax: Any) -> int:
    return sum(device.platform in ("gpu", "cuda", "rocm") for device in jax.local_devices())


_COUNTS: Mapping[str, Callable[[Any], int]] = {
    "torch": _count_torch,
    "tensorflow": _count_tensorflow,
    "jax": _count_jax,
}
