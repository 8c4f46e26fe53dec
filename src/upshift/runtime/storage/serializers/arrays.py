"""NumPy arrays in the ``.npy`` format, PyTorch tensors and state dicts in safetensors; mapped when read.

The safetensors format (github.com/huggingface/safetensors, README "Format") is written and read here
directly: the length of a header, the header in JSON, the tensors' memory. So nothing is copied, a
tensor that is read is mapped copy-on-write, and any safetensors reader can open the blob. What it would lose
is in torch's own format. Tensors inside of other values, as those of a module, are in a pickle, and their
memory beside it.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import json
import math
import operator
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.serializers.protocol import Serializer, is_plain
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:  # a pickle of anything else imports this module, and not NumPy
    import numpy as np

_MAGIC = b"\x93NUMPY"
_ALIGNMENT = 64
_KINDS = frozenset("biufcSUmMV")
_SCALAR_KINDS = frozenset("biufcmM")
_SCALAR = b"scalar\n"


class ArraySerializer(Serializer):
    """Exactly ``numpy.ndarray``, and ``numpy.memmap``, which comes back as an array.

    Arrays of Python objects, and subclasses such as masked arrays, are left to pickle. The order of
    the axes in memory is kept; an array that is not contiguous comes back in C order.
    """

    name = "numpy"

    def accepts(self, value: object) -> bool:
        import numpy as np

        return type(value) in (np.ndarray, np.memmap) and describe(value.dtype) is not None  # type: ignore[attr-defined]

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        import numpy as np

        assert isinstance(value, np.ndarray)
        return dump_array(value)

    def load(self, content: memoryview, store: Store) -> object:
        return load_array(content)


class ScalarSerializer(Serializer):
    """NumPy's own numbers, dates and durations: ``numpy.float32(1)``."""

    name = "numpy-scalar"

    def accepts(self, value: object) -> bool:
        import numpy as np

        return (
            isinstance(value, np.generic)
            and value.dtype.type is type(value)
            and (value.dtype.kind in _SCALAR_KINDS and describe(value.dtype) is not None)
        )

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        import numpy as np

        return (_SCALAR, *dump_array(np.asarray(value)))

    def load(self, content: memoryview, store: Store) -> object:
        return load_array(content[len(_SCALAR) :])[()]


def describe(dtype: np.dtype[Any]) -> Any:
    """What the header of ``.npy`` says about a type, or None where that would lose something."""
    import numpy as np

    if dtype.kind not in _KINDS or dtype.hasobject or dtype.metadata:
        return None
    try:
        form = np.lib.format.dtype_to_descr(dtype)
        again = np.lib.format.descr_to_dtype(form)
    except (ValueError, TypeError):
        return None
    same = again == dtype and again.isalignedstruct == dtype.isalignedstruct
    return form if same and again.type is dtype.type else None


def dump_array(array: np.ndarray[Any, Any]) -> list[Bytes]:
    """Header and memory of an array."""
    import numpy as np

    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    header = _header(describe(array.dtype), array.shape, fortran)
    if array.nbytes == 0:
        return [header]
    data = array.T if fortran else np.ascontiguousarray(array)
    return [header, data.reshape(-1).view(np.ndarray).view(np.uint8).data]


def load_array(content: memoryview) -> np.ndarray[Any, Any]:
    """An array over the content's own memory."""
    import numpy as np

    start, form, shape, fortran = _parse(content)
    dtype = np.lib.format.descr_to_dtype(form)
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(content) != wanted:
        raise ValueError(f"an array of {wanted} bytes has {len(content)}")
    array: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, buffer=content, offset=start, order="F" if fortran else "C"
    )
    return array


def _header(form: Any, shape: tuple[int, ...], fortran: bool) -> bytes:
    # NEP 1 and numpy.lib.format: version 3 is UTF-8 with a length of four bytes, 1 is Latin-1 with two.
    text = f"{{'descr': {form!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}"
    if text.isascii() and len(text) < 60_000:
        version, width, encoded = b"\x01\x00", 2, text.encode("ascii")
    else:
        version, width, encoded = b"\x03\x00", 4, text.encode("utf-8")
    before = len(_MAGIC) + 2 + width
    padding = -(before + len(encoded) + 1) % _ALIGNMENT
    encoded += b" " * padding + b"\n"
    return _MAGIC + version + len(encoded).to_bytes(width, "little") + encoded


def _parse(content: memoryview) -> tuple[int, Any, tuple[int, ...], bool]:
    if content[:6] != _MAGIC:
        raise ValueError("not an array: the content does not begin as a .npy file does")
    width = 2 if content[6] == 1 else 4
    start = 8 + width
    length = int.from_bytes(content[8:start], "little")
    fields = ast.literal_eval(str(content[start : start + length], "utf-8"))
    return start + length, fields["descr"], fields["shape"], fields["fortran_order"]


_TENSOR = "tensor"
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}


class SafetensorsSerializer(Serializer):
    """A ``torch.Tensor``, or a ``dict`` or ``OrderedDict`` of strings to tensors.

    Tensors that are one and the same stay so (tied weights). Tensors come back on the CPU, in C order.
    """

    name = "safetensors"

    def accepts(self, value: object) -> bool:
        return _tensors(value) is not None

    def dump(self, value: object, store: Store) -> Sequence[Bytes] | None:
        tensors = _tensors(value)
        assert tensors is not None
        if not all(map(_fits, tensors.values())) or _overlap(tensors.values()):
            return None
        notes: dict[str, Any] = {"form": _form(value), "names": list(tensors)}
        extra = getattr(value, "_metadata", None)
        if extra is not None:
            notes["versions"] = {key: dict(entry) for key, entry in extra.items()}
            if not is_plain(notes["versions"]):
                return None
        return _write(tensors, notes)

    def load(self, content: memoryview, store: Store) -> object:
        tensors, notes = _read(content)
        if notes["form"] == _TENSOR:
            return tensors[_TENSOR]
        named = ((name, tensors[name]) for name in notes["names"])
        if notes["form"] == "dict":
            return dict(named)
        state = OrderedDict(named)
        if "versions" in notes:  # what Module.load_state_dict goes by
            state._metadata = OrderedDict(notes["versions"])  # type: ignore[attr-defined]
        return state


class TorchSerializer(Serializer):
    """The same values where their memory overlaps, or is sparse, quantized or otherwise special."""

    name = "torch"

    def accepts(self, value: object) -> bool:
        return _tensors(value) is not None

    def dump(self, value: object, store: Store) -> Sequence[Bytes] | None:
        import torch

        buffer = io.BytesIO()
        torch.save(value, buffer)
        content = buffer.getbuffer()
        try:
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception:  # what cannot be read without unpickling classes is left to pickle
            return None
        return (content,)

    def load(self, content: memoryview, store: Store) -> object:
        import torch

        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _tensors(value: object) -> Mapping[str, Any] | None:
    """The tensors of a value, by name; None if it holds anything else."""
    import torch

    if type(value) is torch.Tensor:
        return {_TENSOR: value}
    if type(value) in (dict, OrderedDict):
        assert isinstance(value, dict)
        if value and all(type(k) is str and type(t) is torch.Tensor for k, t in value.items()):
            return value
    return None


def _form(value: object) -> str:
    return type(value).__name__ if isinstance(value, dict) else _TENSOR


def _fits(tensor: Any) -> bool:
    import torch

    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and not any(getattr(tensor, "names", ()))
        and str(tensor.dtype).removeprefix("torch.") in _DTYPES.values()
        and vars(tensor) == {}
    )


def _identity(tensor: Any) -> tuple[Any, ...]:
    place = (str(tensor.device), tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    own = () if tensor.numel() else (id(tensor),)  # empty tensors all begin at nothing
    return (*place, tuple(tensor.shape), tensor.stride(), str(tensor.dtype), *own)


def _overlap(tensors: Any) -> bool:
    """Whether two tensors share memory without being the same."""
    spans: dict[tuple[str, int], dict[tuple[Any, ...], tuple[int, int]]] = {}
    for tensor in tensors:
        if tensor.numel():
            reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.storage_offset() * tensor.element_size()
            end = start + (reach + 1) * tensor.element_size()
            storage = (str(tensor.device), tensor.untyped_storage().data_ptr())
            spans.setdefault(storage, {})[_identity(tensor)] = (start, end)
    for found in spans.values():
        ordered = sorted(found.values())
        if any(after[0] < before[1] for before, after in itertools.pairwise(ordered)):
            return True
    return False


def _write(tensors: Mapping[str, Any], notes: dict[str, Any]) -> list[Bytes]:
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for name, tensor in tensors.items():
        owner = first.setdefault(_identity(tensor), name)
        if owner != name:
            same[name] = owner
    # The widest elements first, so that each tensor begins at a multiple of its element's size.
    names = sorted(first.values(), key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    buffers: list[Bytes] = []
    at = 0
    codes = {name: code for code, name in _DTYPES.items()}
    for name in names:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        code = codes[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
        if size:
            buffers.append(_memory(tensor))
    notes |= {"same": same, "grad": [name for name in tensors if tensors[name].requires_grad]}
    header["__metadata__"] = {"format": "pt", "upshift": json.dumps(notes, separators=(",", ":"))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *buffers]


def _memory(tensor: Any) -> memoryview:
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy())


def _read(content: memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:start]))
    notes = json.loads(header.pop("__metadata__")["upshift"])
    tensors: dict[str, Any] = {}
    for name, entry in header.items():
        dtype = getattr(torch, _DTYPES[entry["dtype"]])
        count = math.prod(entry["shape"])
        if count:
            offset = start + entry["data_offsets"][0]
            flat = torch.frombuffer(content, dtype=dtype, count=count, offset=offset)
            tensors[name] = flat.reshape(entry["shape"])
        else:
            tensors[name] = torch.empty(entry["shape"], dtype=dtype)
    for name in notes["grad"]:
        if name not in notes["same"]:
            tensors[name].requires_grad_()
    for name, owner in notes["same"].items():
        tensors[name] = tensors[owner]
    return tensors, notes


# -- in pickles -----------------------------------------------------------------------------------

STORAGES = ("torch.storage", __name__)
"""Modules of the classes for which :class:`Storages` are asked."""


class _Bytes:
    """The memory of a storage, which comes back as a tensor of bytes over the memory that it is read to."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory


class Storages:
    """The storages of the tensors in one pickle: each is a buffer beside it, which is mapped when it is read.

    PyTorch by itself writes them into the pickle, that of each tensor anew though some share one. What is
    written here names nothing but functions of PyTorch (2.0 or later), so that it is read without Upshift.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], Any] = {}

    def apart(self, value: Any) -> tuple[Any, ...] | None:
        """How to make a storage again, as ``__reduce__`` says it; None: that is left to PyTorch."""
        import torch

        kind = type(value)
        if kind is _Bytes:
            return functools.partial(torch.frombuffer, dtype=torch.uint8), (PickleBuffer(value.memory),)
        if kind is torch.storage.UntypedStorage and _is_plain(value):
            content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(value)
            return operator.methodcaller("untyped_storage"), (_Bytes(content.numpy().data),)
        if kind is torch.storage.TypedStorage and _is_plain(value._untyped_storage):
            untyped = value._untyped_storage
            first = self._first.setdefault((untyped.data_ptr(), untyped.nbytes()), untyped)
            typed = functools.partial(kind, wrap_storage=first, dtype=value.dtype, _internal=True)
            return typed, ()
        return None


def _is_plain(storage: Any) -> bool:
    import torch

    has_own = hasattr(torch.Tensor, "untyped_storage")
    return has_own and storage.device.type == "cpu" and storage.nbytes() > 0
