"""What ended the call of a step, as the failure that its user reads.

What ran out of memory, a device or the host, is told by the words of the framework that says so: texts as of
PyTorch 1.13 to 2.13 (``c10/cuda/CUDACachingAllocator.cpp``, ``c10/core/alloc_cpu.cpp``), of TensorFlow 2.18
and XLA (``bfc_allocator.cc``), CuPy 13 (``cupy/cuda/memory.pyx``) and the CUDA runtime.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from upshift.errors import StoreUnavailable, UpshiftError
from upshift.model.settings.secrets import is_secret_file
from upshift.model.settings.sizes import format_size, parse_size
from upshift.model.spec import Code, Device, Failure, TaskSpec
from upshift.runtime import proc, shadowing
from upshift.runtime.step.context import current
from upshift.runtime.step.stopping import stopping
from upshift.runtime.tracebacks import user_line, user_text


class Halted(BaseException):
    """The step must not go on. No ``except Exception`` catches it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Shortage(UpshiftError):
    """The process sees less than was granted."""


class LostInputs(UpshiftError):
    """Inputs that the store does not have any more, or not intact."""

    def __init__(self, digests: tuple[str, ...], why: str) -> None:
        super().__init__(f"{len(digests)} of the task's inputs cannot be read", why=why)
        self.digests = digests


MOST_OF_MESSAGE = 4_000
MOST_OF_TRACEBACK = 100_000
"""Characters that are kept of what an exception says; the middle of more is left out."""


def explain(error: BaseException, spec: TaskSpec, project: Callable[[], Path]) -> Failure:
    """The failure that an exception means, with the user's own frames, fit to be recorded and shown."""
    try:
        failure = _explained(error, spec, project)
    except BaseException:  # the step has left its process without files, descriptors or memory to look closer
        failure = Failure(reason="user-error", message=_text_of(error), where=spec.location)
    return attrs.evolve(
        failure,
        message=_recordable(failure.message, MOST_OF_MESSAGE),
        traceback=failure.traceback and _recordable(failure.traceback, MOST_OF_TRACEBACK),
    )


def _recordable(text: str, most: int) -> str:
    """A text of the user's in UTF-8, without its middle where it is long."""
    left_out = len(text) - most
    if left_out > 0:
        half = most // 2
        text = f"{text[:half]} [… {left_out:,} characters …] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _explained(error: BaseException, spec: TaskSpec, project: Callable[[], Path]) -> Failure:
    if isinstance(error, LostInputs):
        return Failure(reason="infrastructure", message=str(error), lost=error.digests)
    if isinstance(error, StoreUnavailable):
        return Failure(reason="infrastructure", message=error.in_short, where=error.where, fix=error.fix)
    if isinstance(error, Shortage):
        return Failure(reason="hardware", message=error.what, fix=error.fix)
    if isinstance(error, Halted):
        return error.failure
    if isinstance(error, SystemExit) and (told := stopping.verdict()) is not None:
        return told
    folder = spec.code.project
    if spec.code.package is not None:
        with contextlib.suppress(UpshiftError):  # that may be what is to be explained
            folder = str(project())
    where = user_line(error, folder, relative_to=spec.cwd if spec.code.package is None else folder)
    if isinstance(error, UpshiftError) and where is None:
        return Failure(reason="user-error", message=error.in_short, where=error.where, fix=error.fix)
    ours = _apart(error, where) if isinstance(error, UpshiftError) else None
    text = _text_of(error, ours)
    if isinstance(error, SystemExit):
        text = f"the step called sys.exit({error.code!r})"
    failure = _ran_out_of_memory(error, text, spec) or Failure(
        reason="user-error",
        message=text.rstrip(": "),
        fix=(error.fix if isinstance(error, UpshiftError) else None)
        or _without_terminal(error, spec)
        or _file_left_behind(error, spec.code, folder)
        or missing_variable(error, spec.code)
        or shadowing.advice(error, folder)
        or _not_installed(error),
    )
    # Where a package is unpacked is of no use to its user, who may be on another machine.
    shown = user_text(error, folder)
    if ours is not None:
        shown = shown.replace(str(error), ours)
    shown = shown.replace(f'File "{folder}{os.sep}', f'File "{spec.code.project}{os.sep}')
    return attrs.evolve(failure, where=where, traceback=shown)


def _not_installed(error: BaseException) -> str | None:
    """Where to install a package that the step imports and its environment lacks."""
    package = ((isinstance(error, ModuleNotFoundError) and error.name) or "").partition(".")[0]
    if not package or package in sys.modules:
        return None
    return (
        f"Install {package!r} in the environment of the step: this one, or with "
        f"DockerSettings(requirements=[…]) in its image."
    )


def _text_of(error: BaseException, ours: str | None = None) -> str:
    kind = type(error).__qualname__
    try:
        return f"{kind}: {error if ours is None else ours}".rstrip(": ")
    except BaseException:  # the user's __str__ raises, or exits
        return f"{kind} (its text cannot be shown)"


def _apart(error: UpshiftError, where: str | None) -> str:
    """An error of ours without its remedy, and its place if that is ``where``: these have their fields."""
    return error.in_short if error.where in (None, where) else f"{error.in_short} ({error.where})"


def _ran_out_of_memory(error: BaseException, text: str, spec: TaskSpec) -> Failure | None:
    """The failure, if memory ran out: the host's, or that of a device."""
    shortage = exhaustion(error, (spec.granted.gpus if spec.granted else None) or ())
    if shortage is not None and not shortage.host:
        return Failure(reason="out-of-memory", message=shortage.sentence, fix=shortage.remedy)
    if shortage is None and not isinstance(error, MemoryError):
        return None
    reached = proc.own_memory().high
    return Failure(
        reason="out-of-memory",
        message=text.rstrip(": ") if shortage is None else shortage.sentence,
        memory=reached,
        fix=_more_memory(reached, spec),
    )


def _more_memory(reached: int, spec: TaskSpec) -> str:
    """What to do where host memory ran out."""
    limit = spec.granted.memory if spec.granted is not None else None
    of = f" of the {format_size(limit)} that it was granted" if limit is not None else ""
    return (
        f"Its process had {format_size(reached)}{of}. Let it need less at once, or ask for more (memory=…)."
    )


def _without_terminal(error: BaseException, spec: TaskSpec) -> str | None:
    """What to do instead of ``breakpoint()`` and ``input()``, if the step ended because of one."""
    asked = isinstance(error, EOFError) and error.args == ("EOF when reading a line",)
    if not asked and type(error).__name__ != "BdbQuit":
        return None
    command = f"upshift run FILE --debug {shlex.quote(str(spec.task.step))}"
    if current.rank:
        return f"A step has no terminal. {command} gives it yours, but as one process, which is rank 0."
    return f"A step has no terminal. To run it in yours, with breakpoint() and input(): {command}"


def _file_left_behind(error: BaseException, code: Code, folder: str) -> str | None:
    """Which file the package lacks, if a step failed because of that; None: it did not."""
    for file in _absent(error, code, folder):
        if os.path.exists(os.path.join(code.project, file)) and not os.path.exists(
            os.path.join(folder, file)
        ):
            if is_secret_file(file):
                why, also = "its name looks like a secret", "rename it"
            else:
                why, also = ".gitignore or .upshiftignore names it", f"put !{file} into .upshiftignore"
            return (
                f"{file} is in the project, but not in its code package: {why}. Use the project as it is now "
                f"(replay with --current-code, resume without --same-code); for later runs, {also}."
            )
    return None


def missing_variable(error: BaseException, code: Code) -> str | None:
    """What to do about a variable that a step misses because it did not travel; None: it misses none."""
    trace, last = error.__traceback__, None
    while trace is not None:
        trace, last = trace.tb_next, trace
    if code.package is None or last is None or not isinstance(error, KeyError):
        return None
    name = error.args[0] if error.args else None
    if not isinstance(name, str) or last.tb_frame.f_code is not type(os.environ).__getitem__.__code__:
        return None
    return (
        f"Variables of the machine where the run was started are not sent along. Set "
        f'DockerSettings(runtime_environment={{"{name}": "…"}}), or for a secret '
        f'@step(secrets={{"{name}": "env:{name}"}}).'
    )


def _absent(error: BaseException, code: Code, folder: str) -> Iterator[str]:
    """What an exception says is not there, as paths relative to the project."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.replace(".", os.sep)
        for path in code.paths or ("",):
            for form in (f"{name}.py", os.path.join(name, "__init__.py"), name):
                yield os.path.normpath(os.path.join(path, form))
    elif isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        file = os.path.relpath(error.filename, folder)
        if not file.startswith(os.pardir):
            yield file


# -- memory that ran out -------------------------------------------------------------------------

# Patterns are texts: nothing but a failure needs them compiled.
_SIZE = r"([\d.,]+ ?(?:[KMGT]i?B|bytes|B)\b)"
_ALLOCATION = rf"(?i)(?:tried to allocate|allocating|trying to allocate|allocate) {_SIZE}"
_DEVICE = r"(?i)\b(?:GPU:?|device=?:?) ?(\d+)"
_TOTAL = rf"total capac?ity of {_SIZE}|; {_SIZE} total capac?ity|max allowed: {_SIZE}"
_FREE = rf"of which {_SIZE} is free|{_SIZE} free"
_OWN = rf"this process has {_SIZE} memory in use|allocated so far: {_SIZE}|{_SIZE} reserved in total"
_OTHERS = rf"\bProcess \d+ has {_SIZE} memory in use"
_IDLE = rf"{_SIZE} is reserved by PyTorch but unallocated"
_SHAPE = r"tensor with shape\s*\[([\d,]*)\] and type (\w+)"
_SETTING = r"PYTORCH_\w*ALLOC_CONF=expandable_segments:True"

_OF_DEVICE = (
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|CUDA error: out of memory|HIP error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED"
)
_EVEN_OF_ONE = "No executable batch size found, reached zero."
"""``find_executable_batch_size`` of Accelerate 0.34 to 1.15, which drops the errors of single tries."""
_OF_HOST = r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
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
    if names & {"torch.OutOfMemoryError", "cupy.OutOfMemoryError"} or re.search(_OF_DEVICE, text):
        return "device"
    if re.search(_OF_HOST, text):
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
    named = re.search(_DEVICE, text)
    device = int(named[1]) if named else 0 if len(granted) == 1 else None
    known = granted[device] if device is not None and device < len(granted) else None
    size = _size(_TOTAL, text) or (known.memory if known else None)
    free = _size(_FREE, text)
    others = sum(_bytes(found) for found in re.findall(_OTHERS, text))
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
        setting=found[0] if (found := re.search(_SETTING, text)) else None,
        even_of_one=text == _EVEN_OF_ONE,
    )


def _size(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return _bytes(next(filter(None, found.groups()))) if found else None


def _bytes(text: str) -> int:
    return parse_size(text.replace(",", "").replace("bytes", "B"))


def _tensor(text: str) -> int | None:
    """Bytes of the tensor that TensorFlow names by its shape."""
    found = re.search(_SHAPE, text)
    if found is None or found[2] not in _TYPE_BYTES:
        return None
    return math.prod(int(n) for n in found[1].split(",") if n) * _TYPE_BYTES[found[2]]
