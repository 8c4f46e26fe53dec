"""Asking NVML: what it says, if it says anything that makes sense."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pynvml

MOST_MEMORY = 1 << 46
"""Bytes. A device that says more is not believed."""

_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 is not there. On a host: install the driver. In a container: start it with "
        "its GPUs (docker run --gpus all), so that the driver's libraries come with them."
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the driver is installed but not loaded. Run `modprobe nvidia`, and look at `dmesg` if that fails."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver's library and its kernel module have different versions: it was updated while it "
        "was loaded. Reboot the machine, or load the module again."
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "this user may not use the driver. Look at the permissions of /dev/nvidia*, often those of a "
        "group such as `video`."
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "a GPU has fallen off the bus. Look at `dmesg` for Xid 79, and reboot.",
    pynvml.NVML_ERROR_UNKNOWN: (
        "the driver refuses without a reason. In a container this is often a cgroup whose device rules "
        "were taken back: start the container again."
    ),
}
GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def text(ask: Callable[..., Any], *arguments: Any) -> str | None:
    """What the function says, if that is text."""
    try:
        return str(ask(*arguments)).strip() or None
    except (pynvml.NVMLError, ValueError):  # it says nothing, or no text
        return None


def number(ask: Callable[..., Any], *arguments: Any, most: int) -> int | None:
    """What the function says, if that is a number up to ``most``."""
    with contextlib.suppress(pynvml.NVMLError):
        value = int(ask(*arguments))
        if 0 <= value <= most:
            return value
    return None


def identifier(handle: Any) -> str:
    """The UUID of a device."""
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    if not uuid.startswith(("GPU-", "MIG-")) or "," in uuid:
        raise ValueError(f"UUID {uuid!r}")
    return uuid


def memory(handle: Any) -> Any:
    """Total and used memory of a device, without what the driver keeps, where it tells that apart."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def reason(error: pynvml.NVMLError) -> str:
    """What an error means, and what to do about it, for people."""
    words = f"NVML: {str(error).rstrip('.')}"
    return f"{words}: {_REMEDIES[error.value]}" if error.value in _REMEDIES else words
