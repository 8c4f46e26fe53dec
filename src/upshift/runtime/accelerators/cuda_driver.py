"""Asks the CUDA driver how many devices a process sees, and exits: a program that imports nothing of ours.

It starts the driver (``cuInit``) and makes no context, so that it takes no memory of a device. Whoever
has started the driver cannot fork any more, which is why this is not done in the process that wants to know.

Functions and numbers: NVIDIA, 'CUDA Driver API'.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def ask() -> dict[str, Any]:
    """The fields of :class:`upshift.runtime.accelerators.evidence.CudaDriver`."""
    said: dict[str, Any] = dict.fromkeys(("library", "code", "problem", "cuda", "capabilities"))
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        said["problem"] = str(error)
        return said
    said["library"] = _loaded()
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        said["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    said["code"] = code = cuda.cuInit(0)
    if code != 0:
        said["problem"] = _words(cuda, code)
        return said
    cuda.cuDeviceGetCount(ctypes.byref(number))
    said["capabilities"] = [_capability(cuda, index) for index in range(number.value)]
    return said


def _capability(cuda: Any, index: int) -> str:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return f"{major.value}.{minor.value}"


def _loaded() -> str:
    """The version in the name of the library's file: ``570.86.15``."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found = re.search(r"libcuda\.so\.([0-9]+\.[0-9.]+)", maps.read())
    return found[1] if found else "unknown"


def _words(cuda: Any, code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    cuda.cuGetErrorString(code, ctypes.byref(text))
    return ": ".join(part.value.decode() for part in (name, text) if part.value) or f"error {code}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask()) + "\n")
