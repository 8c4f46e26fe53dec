"""Files and folders, by content; data that is only named, by its name and key; containers of either.

Of a file or folder the content is a manifest: the name, and for each entry its blob and its permissions. A
value that is read is a copy under that name, so that nothing done to it touches the store: private to the
process, or shared by those of one task on a node.

Containers with files in them: each file is saved by content, the rest is pickled around it::

    mark · length of the list · list, in JSON · padding · pickle

The list holds the files and what is only named as their own serializers write them; in the pickle a number
stands for each.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from upshift.errors import NotSerializable
from upshift.runtime.storage import scratch
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.external import External, parts_of
from upshift.runtime.storage.files import copy
from upshift.runtime.storage.serializers.pickled import ALIGNMENT, padded, pickled, unpickled
from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.store import Store

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
        with scratch.written():
            folder = scratch.filled(
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
        if not inside or not (own + os.sep).startswith(self._real + os.sep) or not os.path.exists(target):
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
_BY_NAME = {serializer.name: serializer for serializer in _INSIDE}


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
        content.insert(0, padded(_FILES + _LENGTH.pack(len(text)) + text))
        return content

    def load(self, content: memoryview, store: Store) -> object:
        saved, rest = _opened(content)
        return unpickled(rest, [_BY_NAME[name].load(part, store) for name, part in saved])

    def references(self, content: memoryview) -> Iterator[tuple[str, int]]:
        for name, part in _opened(content)[0]:
            yield from _BY_NAME[name].references(part)


def _opened(content: memoryview) -> tuple[list[tuple[str, memoryview]], memoryview]:
    start = len(_FILES) + _LENGTH.size
    if content[: len(_FILES)] != _FILES:
        raise ValueError("not a container of files")
    (length,) = _LENGTH.unpack_from(content, len(_FILES))
    saved = json.loads(bytes(content[start : start + length]).decode("utf-8", "surrogatepass"))
    parts = [(name, memoryview(text.encode("utf-8", "surrogatepass"))) for name, text in saved]
    end = start + length
    return parts, content[end + -end % ALIGNMENT :]
