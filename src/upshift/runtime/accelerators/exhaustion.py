"""What ran out of memory, by the words of the framework that says so: a device, or the host.

Texts as of PyTorch 1.13 to 2.13 (``c10/cuda/CUDACachingAllocator.cpp``, ``c10/core/alloc_cpu.cpp``), of
TensorFlow 2.18 and XLA (``bfc_allocator.cc``), CuPy 13 (``cupy/cuda/memory.pyx``) and the CUDA runtime.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import attrs

from upshift.model.settings.sizes import format_size, parse_size
from upshift.model.spec import Device

_SIZE = r"([\d.,]+ ?(?:[KMGT]i?B|bytes|B)\b)"
_ALLOCATION = re.compile(
    rf"(?:tried to allocate|allocating|trying to allocate|allocate) {_SIZE}", re.IGNORECASE
)
_DEVICE = re.compile(r"\b(?:GPU:?|device=?:?) ?(\d+)", re.IGNORECASE)
_TOTAL = re.compile(rf"total capac?ity of {_SIZE}|; {_SIZE} total capac?ity|max allowed: {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_OWN = re.compile(
    rf"this process has {_SIZE} memory in use|allocated so far: {_SIZE}|{_SIZE} reserved in total"
)
_OTHERS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")
_IDLE = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_SHAPE = re.compile(r"tensor with shape\s*\[([\d,]*)\] and type (\w+)")
_SETTING = re.compile(r"PYTORCH_\w*ALLOC_CONF=expandable_segments:True")

_OF_DEVICE = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|CUDA error: out of memory|HIP error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED"
)
_EVEN_OF_ONE = "No executable batch size found, reached zero."
"""``find_executable_batch_size`` of Accelerate 0.34 to 1.15, which drops the errors of single tries."""
_OF_HOST = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory")
_TYPE_BYTES = {
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
_MUCH = 0.1
"""Part of a device: if other processes have that much of it, they are part of the cause."""


@attrs.frozen(kw_only=True)
class Exhaustion:
    """Memory that ran out. Sizes are bytes, None where nobody said."""

    host: bool = False  # whether it is the host's; else a device's
    device: int | None = None  # its number, as the step's process counts
    model: str | None = None  # of the device
    asked: int | None = None  # size of the allocation that failed
    size: int | None = None  # of the device: all of it, and what was in use
    used: int | None = None
    others: int = 0  # what other processes had of it
    idle: int = 0  # what the framework had of it and did not use
    setting: str | None = None  # what PyTorch advises against fragments
    even_of_one: bool = False  # whether smaller and smaller batches were tried, down to one of a single item

    @property
    def sentence(self) -> str:
        """What happened."""
        number = "the GPU" if self.device is None else f"GPU {self.device}"
        what = "host memory ran out" if self.host else f"{number} is out of memory"
        if self.model and not self.host:
            what += f" ({self.model})"
        facts = []
        if self.even_of_one:
            facts.append("find_executable_batch_size found no batch that is small enough")
        if self.asked is not None:
            facts.append(f"{format_size(self.asked)} could not be allocated")
        if self.size is not None and self.used is not None:
            facts.append(f"{format_size(self.used)} of its {format_size(self.size)} were in use")
        elif self.size is not None:
            facts.append(f"it has {format_size(self.size)}")
        if self.others:
            facts.append(f"{format_size(self.others)} of that by other processes")
        return f"{what}: {', '.join(facts)}" if facts else what

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.even_of_one:
            larger = "memory" if self.host else "a GPU with more memory (gpu_memory=…)"
            return f"Ask for {larger}, or let the model need less."
        if self.host:
            return "Let the step need less at once, or ask for more (memory=…)."
        needed = (self.used or self.size or 0) - self.others + (self.asked or 0)
        larger = f'gpu_memory=">={math.ceil(needed / 1e9)}GB"' if needed else "gpu_memory=…"
        if self.size and needed <= self.size:  # this GPU would do, if it were the step's alone
            ways = ["Use a smaller batch, or accumulate gradients."]
        else:
            ways = [
                f"Use a smaller batch, accumulate gradients, or ask for a GPU with more memory: {larger}."
            ]
        if self.idle >= max(self.asked or 0, 1) and self.asked:
            setting = f": set {self.setting}" if self.setting else ""
            ways.insert(0, f"PyTorch holds {format_size(self.idle)} in pieces that are too small{setting}.")
        if self.size and self.others > _MUCH * self.size:
            ways.insert(0, "Other processes are on this GPU: end them, or let the step have it alone.")
        return " ".join(ways)


def exhaustion(error: BaseException, granted: Sequence[Device] = ()) -> Exhaustion | None:
    """What ran out of memory, if that is why an exception was raised; None: it is not."""
    for cause in _causes(error):
        try:
            text = str(cause)
        except Exception:  # a class of the user's
            continue
        where = _where(cause, text, bool(granted))
        if where is not None:
            return _parsed(text, granted, host=where == "host")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def _where(error: BaseException, text: str, devices: bool) -> str | None:
    """``"device"`` or ``"host"``, where an exception says that memory ran out there."""
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if names & {"torch.OutOfMemoryError", "cupy.OutOfMemoryError"} or _OF_DEVICE.search(text):
        return "device"
    if _OF_HOST.search(text):
        return "host"
    if text == _EVEN_OF_ONE:
        return "device" if devices else "host"
    if "tensorflow.ResourceExhaustedError" in names:
        return "device" if re.search(r"device:GPU:|GPU_\d+_bfc", text) else "host"
    if "RESOURCE_EXHAUSTED" in text and {n.partition(".")[2] for n in names} & {
        "XlaRuntimeError",
        "JaxRuntimeError",
    }:
        return "device" if devices else "host"  # the text is the same on both
    return None


def _parsed(text: str, granted: Sequence[Device], *, host: bool) -> Exhaustion:
    asked = _size(_ALLOCATION, text) or _tensor(text)
    if host:
        return Exhaustion(host=True, asked=asked, even_of_one=text == _EVEN_OF_ONE)
    named = _DEVICE.search(text)
    device = int(named[1]) if named else 0 if len(granted) == 1 else None
    known = granted[device] if device is not None and device < len(granted) else None
    size = _size(_TOTAL, text) or (known.memory if known else None)
    free = _size(_FREE, text)
    others = sum(_bytes(found) for found in _OTHERS.findall(text))
    own = _size(_OWN, text)
    used = size - free if size is not None and free is not None else None if own is None else own + others
    return Exhaustion(
        device=device,
        model=known.model if known else None,
        asked=asked,
        size=size,
        used=used,
        others=others,
        idle=_size(_IDLE, text) or 0,
        setting=found[0] if (found := _SETTING.search(text)) else None,
        even_of_one=text == _EVEN_OF_ONE,
    )


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return _bytes(next(filter(None, found.groups()))) if found else None


def _bytes(text: str) -> int:
    return parse_size(text.replace(",", "").replace("bytes", "B"))


def _tensor(text: str) -> int | None:
    """Bytes of the tensor that TensorFlow names by its shape."""
    found = _SHAPE.search(text)
    if found is None or found[2] not in _TYPE_BYTES:
        return None
    return math.prod(int(n) for n in found[1].split(",") if n) * _TYPE_BYTES[found[2]]
