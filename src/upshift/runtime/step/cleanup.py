"""``upshift.cleanup_memory()``: give back what nobody uses, on the host and on devices."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from typing import Any

from upshift.runtime import proc

_ROUNDS = 20
"""Collections at most. A finalizer that makes new garbage each time would keep them going for ever."""


def cleanup_memory() -> int:
    """Collect garbage until none is found, and empty the caches of PyTorch's devices.

    What is referred to, tensors among it, stays; and so does what the step's own variables hold. PyTorch is
    not imported, and no device is initialized for this.

    Returns
    -------
    int
        Bytes that were given back: to the operating system, and to the devices. 0 if that was nothing.
    """
    host, devices = proc.own_memory().resident, _reserved()
    for _ in range(_ROUNDS):
        if gc.collect() == 0:
            break
    for device in _devices():
        with contextlib.suppress(Exception):  # one that is lost: whoever uses it next is told
            device.empty_cache()
    _trim()
    return max(0, host - proc.own_memory().resident) + max(0, devices - _reserved())


def _devices() -> list[Any]:
    """The parts of PyTorch that hold memory of devices: CUDA (and ROCm), XPU, MPS."""
    torch: Any = sys.modules.get("torch")
    found = []
    for name in ("cuda", "xpu"):
        part = getattr(torch, name, None)
        with contextlib.suppress(Exception):  # half imported
            if part is not None and part.is_initialized():
                found.append(part)
    with contextlib.suppress(Exception):
        if torch is not None and torch.backends.mps.is_available():
            found.append(torch.mps)
    return found


def _reserved() -> int:
    """Bytes that PyTorch holds of all devices together."""
    total = 0
    for part in _devices():
        with contextlib.suppress(Exception):
            if hasattr(part, "memory_reserved"):
                total += sum(part.memory_reserved(number) for number in range(part.device_count()))
            else:
                total += part.driver_allocated_memory()
    return total


def _trim() -> None:
    """Let the C library give back what it keeps for the next allocation (``malloc_trim(3)``, glibc only)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
