"""What has no format of its own: files and folders by content, else cloudpickle, and both in one.

Of a file or folder the content is a manifest: the name, and for each entry its blob and its permissions. A
value that is read is a copy under that name, so that nothing done to it touches the store: private to the
process, or shared by those of one task on a node.

In a pickle large buffers are beside it, so that they are mapped when read::

    magic · number of parts · length of each part · pickle · buffer · buffer …

All numbers are 64-bit little-endian; each part begins at a multiple of 64 bytes.

Containers with files in them: each file is saved by content, the rest is pickled around it::

    mark · length of the list · list, in JSON · padding · pickle

The list holds the files, and data that is only named, as their own serializers write them; in the pickle a
number stands for each.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from upshift.errors import NotSerializable
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.external import (
    External,
    code_names,
    holds_parts,
    is_saved_apart,
    is_users,
    parts_of,
)
from upshift.runtime.storage.files import copy
from upshift.runtime.storage.serializers.arrays import STORAGES, Storages
from upshift.runtime.storage.serializers.protocol import Buffers, Serializer
from upshift.runtime.storage.store import Store

_MAGIC = b"UPICKLE1"
_ALIGNMENT = 64
_BY_NAME = (FunctionType, ModuleType, functools._lru_cache_wrapper)


class PickleSerializer(Serializer):
    """Any value that cloudpickle takes, but for containers of files, for which pickle is half of it.

    Classes of modules that can be imported go by reference.
    """

    name = "pickle"

    def accepts(self, value: object) -> bool:
        return True

    def dump(self, value: object, store: Store) -> Sequence[Bytes] | None:
        content, reached = pickled(value)
        return None if any(map(is_saved_apart, reached)) and holds_parts(value) else content

    def load(self, content: memoryview, store: Store) -> object:
        return _unpickled(content)


def pickled(
    value: object,  # anything that cloudpickle takes
    # for parts of it, by ``id``, the number that is written in their place
    numbers: Mapping[int, int] | None = None,
) -> tuple[Buffers, set[Any]]:
    """A value, with the code that it names; and the classes and functions that were come across."""
    main = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = picklers()[numbers is not None](main, 5, buffers.append)
    pickler.numbers = numbers
    pickler.dump(value)
    parts = [main.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    content = Buffers([_padded(_MAGIC + struct.pack(f"<{len(sizes) + 1}Q", len(sizes), *sizes))])
    for part in parts:
        content += [part, bytes(-part.nbytes % _ALIGNMENT)]
    content.code = tuple(sorted({*code_names(pickler.reached), *pickler.named}))
    return content, pickler.reached


def _unpickled(content: memoryview, parts: Sequence[object] = ()) -> object:
    """The value; ``parts`` are what the numbers in it stand for."""
    if content[:8] != _MAGIC:
        raise pickle.UnpicklingError("the content does not begin as expected")
    (count,) = struct.unpack_from("<Q", content, 8)
    sizes = struct.unpack_from(f"<{count}Q", content, 16)
    at = 16 + 8 * count
    buffers = []
    for size in sizes:
        at += -at % _ALIGNMENT
        buffers.append(content[at : at + size])
        at += size
    if not parts:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    unpickler = _Unpickler(io.BytesIO(buffers[0]), buffers=buffers[1:])
    unpickler.parts = parts
    return unpickler.load()


def _padded(content: bytes) -> bytes:
    """With zeros up to where the next part begins."""
    return content + bytes(-len(content) % _ALIGNMENT)


class _Unpickler(pickle.Unpickler):
    parts: Sequence[object]

    def persistent_load(self, pid: Any) -> object:
        return self.parts[pid]


@functools.cache
def picklers() -> tuple[Any, Any]:
    """cloudpickle's pickler, which also notes the classes and functions that it comes across.

    The second one writes numbers for some parts; it asks for each, and takes longer.
    """
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.reached: set[Any] = set()
            self.storages = Storages()
            self.named: set[str] = set()

        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if kind is CodeType:
                return _with_its_file(self.dispatch_table[CodeType](obj), obj)
            if kind.__module__ in STORAGES and (apart := self.storages.apart(obj)) is not None:
                return apart
            self.reached.add(obj if kind in _BY_NAME or isinstance(obj, type) else kind)
            if kind is functools._lru_cache_wrapper and not _is_importable(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if is_users(kind) and kind not in self.dispatch_table and not isinstance(obj, type):
                for method, given in (("__reduce_ex__", (5,)), ("__reduce__", ())):
                    if type(getattr(kind, method)) is FunctionType:
                        reduced = getattr(obj, method)(*given)
                        if isinstance(reduced, str):  # a name in its module, whatever that stands for later
                            self.named.add(f"{getattr(obj, '__module__', None)}:{reduced}")
                        return reduced
            return super().reducer_override(obj)

    class NumberingPickler(Pickler):
        def persistent_id(self, obj: Any) -> int | None:
            number: int | None = self.numbers.get(id(obj))
            return number

    return Pickler, NumberingPickler


def _with_its_file(reduced: tuple[Any, tuple[Any, ...]], code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """Code as cloudpickle takes it apart, which from 3.1.3 on leaves out the name of its file.

    Tracebacks show the user's own lines by it, also those of a notebook's cells.
    """
    make, parts = reduced
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def _is_importable(function: Any) -> bool:
    """Whether another process finds a function where it says that it is; not so of a notebook's."""
    found: Any = None if function.__module__ == "__main__" else sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _cached(function: Any, parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


_MARK = b"path\n"
_EXTERNAL = b"external\n"
_FILES = b"files\n"
_LENGTH = struct.Struct("<Q")
_PERMISSIONS = 0o777


class PathSerializer(Serializer):
    """:class:`pathlib.Path` of a file or a folder.

    A link inside a folder stays one if it leads to something in the folder; what other links lead to
    is saved in their place. Times and owners are not kept.
    """

    name = "path"
    names_blobs = True

    def accepts(self, value: object) -> bool:
        return isinstance(value, Path)

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        assert isinstance(value, Path)
        top = os.path.abspath(value)
        entries = dict(_Scan(store, top).entries())
        data = {"name": os.path.basename(top) or "root", "entries": entries}
        text = json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return (_MARK, text.encode("utf-8", "surrogatepass"))

    def load(self, content: memoryview, store: Store) -> object:
        data = _parse(content)
        with home_folders.written():
            folder = home_folders.filled(
                lambda folder: _materialize(data["entries"], os.path.join(folder, data["name"]), store)
            )
        return Path(folder, data["name"])

    def references(self, content: memoryview) -> Iterator[tuple[str, int]]:
        for entry in _parse(content)["entries"].values():
            if "digest" in entry:
                yield entry["digest"], entry["bytes"]


class _Scan:
    """Stores what is at a path, and describes it: relative path to entry, folders before their content."""

    def __init__(self, store: Store, top: str) -> None:
        self._store = store
        self._top = top
        self._real = os.path.realpath(top)

    def entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._entry("", self._top, ())

    def _entry(
        self, relative: str, path: str, above: tuple[str, ...]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        link = self._link(relative, path)
        if link is not None:
            yield relative, {"link": link}
            return
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            raise _unfit(path, os.strerror(error.errno or 0)) from None
        permissions = stat.S_IMODE(mode) & _PERMISSIONS
        if stat.S_ISREG(mode):
            try:
                digest, size = self._store.put_file(Path(path))
            except OSError as error:
                raise _unfit(path, os.strerror(error.errno or 0)) from None
            yield relative, {"digest": digest, "bytes": size, "mode": permissions}
        elif stat.S_ISDIR(mode):
            real = os.path.realpath(path)
            if real in above:
                raise _unfit(path, "a link leads back to a folder that it is in")
            yield relative, {"mode": permissions}
            for name in sorted(self._names(path)):
                inner = f"{relative}/{name}" if relative else name
                yield from self._entry(inner, os.path.join(path, name), (*above, real))
        else:
            raise _unfit(path, "it is neither a file nor a folder")

    def _link(self, relative: str, path: str) -> str | None:
        """Where a link leads, if it is inside the folder and shall stay one."""
        if not relative or not os.path.islink(path):
            return None
        target = os.path.realpath(path)
        inside = target.startswith(self._real + os.sep)
        own = os.path.realpath(os.path.dirname(path))
        if not inside or not (own + os.sep).startswith(self._real + os.sep):
            return None
        return os.path.relpath(target, own)

    def _names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError as error:
            raise _unfit(path, os.strerror(error.errno or 0)) from None


def _materialize(entries: dict[str, Any], top: str, store: Store) -> None:
    folders = []
    for relative, entry in sorted(entries.items()):
        path = os.path.join(top, relative) if relative else top
        if "link" in entry:
            os.symlink(entry["link"], path)
        elif "digest" in entry:
            store.check(entry["digest"], entry["bytes"])
            _copy_blob(os.fspath(store.blob_path(entry["digest"])), path, entry["mode"])
        else:
            os.mkdir(path)
            folders.append((path, entry["mode"]))
    for path, mode in reversed(folders):  # once they are filled: they may be read-only
        os.chmod(path, mode)


def _copy_blob(blob: str, path: str, mode: int) -> None:
    source = os.open(blob, os.O_RDONLY | os.O_CLOEXEC)
    try:
        destination = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            copy(source, destination)
            os.fchmod(destination, mode)
        finally:
            os.close(destination)
    finally:
        os.close(source)


def _parse(content: memoryview) -> Any:
    if content[: len(_MARK)] != _MARK:
        raise ValueError("not a file or folder")
    return json.loads(bytes(content[len(_MARK) :]).decode("utf-8", "surrogatepass"))


def _unfit(path: str, why: str) -> NotSerializable:
    return NotSerializable(
        f"the path {path} cannot be saved",
        why=why,
        fix="Return the path of a file or folder that is there when the step ends.",
    )


class ExternalSerializer(Serializer):
    """Exactly :class:`~upshift.runtime.storage.external.External`."""

    name = "external"

    def accepts(self, value: object) -> bool:
        return type(value) is External

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        assert isinstance(value, External)
        fields = {"uri": value.uri, "key": value.key(), "version": value.version}
        return (_EXTERNAL, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())

    def load(self, content: memoryview, store: Store) -> object:
        fields = json.loads(bytes(content[len(_EXTERNAL) :]))
        return External(fields["uri"], fields["version"])


_INSIDE: tuple[Serializer, ...] = (PathSerializer(), ExternalSerializer())
_PARTS = {serializer.name: serializer for serializer in _INSIDE}


class ContainerSerializer(Serializer):
    """Whatever :func:`~upshift.runtime.storage.external.parts_of` finds something in."""

    name = "container"
    names_blobs = True

    def accepts(self, value: object) -> bool:
        return True

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        saved: list[tuple[str, str]] = []
        parts = list(parts_of(value))  # while they are in it, nothing else has their id
        for where, part in parts:
            serializer = next(serializer for serializer in _INSIDE if serializer.accepts(part))
            try:
                buffers = serializer.dump(part, store)
            except NotSerializable as error:
                error.what = f"{where}: {error.what}"
                raise
            assert buffers is not None
            saved.append((serializer.name, b"".join(buffers).decode("utf-8", "surrogatepass")))
        text = json.dumps(saved, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        content, _ = pickled(value, {id(part): number for number, (_, part) in enumerate(parts)})
        content.insert(0, _padded(_FILES + _LENGTH.pack(len(text)) + text))
        return content

    def load(self, content: memoryview, store: Store) -> object:
        saved, rest = _opened(content)
        return _unpickled(rest, [_PARTS[name].load(part, store) for name, part in saved])

    def references(self, content: memoryview) -> Iterator[tuple[str, int]]:
        for name, part in _opened(content)[0]:
            yield from _PARTS[name].references(part)


def _opened(content: memoryview) -> tuple[list[tuple[str, memoryview]], memoryview]:
    start = len(_FILES) + _LENGTH.size
    if content[: len(_FILES)] != _FILES:
        raise ValueError("not a container of files")
    (length,) = _LENGTH.unpack_from(content, len(_FILES))
    saved = json.loads(bytes(content[start : start + length]).decode("utf-8", "surrogatepass"))
    parts = [(name, memoryview(text.encode("utf-8", "surrogatepass"))) for name, text in saved]
    end = start + length
    return parts, content[end + -end % _ALIGNMENT :]
