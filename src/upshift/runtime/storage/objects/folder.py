"""Objects in a folder: each a file, put in its place by a rename or a link."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.files import (
    available,
    copy,
    create,
    discard,
    link,
    move,
    replacing,
    temporary,
    write_all,
)
from upshift.runtime.storage.objects import Got, Meta, UnfinishedUpload, Version, checked

_TMP = "tmp"
_LOCK = f"{_TMP}/match.lock"


class FolderObjects:
    """Objects in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)
        self.environment: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"FolderObjects({self.address!r})"

    def get(self, key: str, *, offset: int = 0, size: int | None = None) -> Got | None:
        path = self._path(key)
        with (
            available("read", path),
            contextlib.suppress(FileNotFoundError, IsADirectoryError),
            open(path, "rb", buffering=0) as file,
        ):
            status = os.fstat(file.fileno())
            left = max(0, status.st_size - offset)
            view, at = memoryview(bytearray(left if size is None else min(left, size))), 0
            while at < len(view) and (number := os.preadv(file.fileno(), [view[at:]], offset + at)):
                at += number
            return Got(view[:at], _version(status))
        return None

    def put(
        self, key: str, data: Bytes, *, absent: bool = False, match: Version | None = None
    ) -> Version | None:
        path = self._path(key)
        with available("written", path), self._draft([data]) as (draft, version):
            if absent:
                if not link(draft, path, power=False):
                    return None
                discard(draft)  # the count of links is part of what changes a file
                return _version(os.stat(path))
            with self._alone() if match is not None else contextlib.nullcontext():
                if match is not None and not self._is(path, match):
                    return None
                move(draft, path, power=False)
            return version

    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        with available("read", self.address):
            yield from self._below("", prefix, after)

    def folders(self, prefix: str) -> Iterator[str]:
        folder, _, begin = prefix.rpartition("/")
        with available("read", self.address), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(f"{self.address}/{folder}") as entries:
                names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            hidden = set() if folder else {_TMP}
            found = [n for n in names if n.startswith(begin) and n not in hidden]
            yield from (name.removeprefix(begin) for name in sorted(found, key=os.fsencode))

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            path = self._path(key)
            with available("written", path), contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                with contextlib.suppress(OSError):  # others have put something there
                    while (path := os.path.dirname(path)) != self.address:
                        os.rmdir(path)

    def now(self) -> float:
        with available("written", self.address), self._draft([]) as (draft, _):
            return os.stat(draft).st_mtime

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        return iter(())  # what a writer that was killed has left is a draft

    def upload(self, key: str, buffers: Sequence[Bytes]) -> Version:
        path = self._path(key)
        with available("written", path), self._draft(buffers) as (draft, version):
            move(draft, path, power=False)
            return version

    def download(self, key: str, path: Path) -> Version | None:
        source = self._path(key)
        with available("read", source):
            try:
                descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                with replacing(path) as draft, open(draft, "xb", buffering=0) as file:
                    copy(descriptor, file.fileno())
                return _version(os.fstat(descriptor))
            finally:
                os.close(descriptor)

    def _path(self, key: str) -> str:
        return f"{self.address}/{checked(key)}"

    def _is(self, path: str, version: Version) -> bool:
        try:
            return _version(os.stat(path)) == version
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _draft(self, buffers: Sequence[Bytes]) -> Iterator[tuple[str, Version]]:
        name = temporary(f"{self.address}/{_TMP}")
        descriptor = create(name)
        try:
            for buffer in buffers:
                write_all(descriptor, memoryview(buffer).cast("B"))
            yield name, _version(os.fstat(descriptor))
        finally:
            os.close(descriptor)
            discard(name)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process compares and replaces in between; who writes without a match asks nobody."""
        descriptor = os.open(f"{self.address}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _below(self, folder: str, prefix: str, after: str) -> Iterator[Meta]:
        try:
            with os.scandir(f"{self.address}/{folder}") as entries:
                found = [(f"{folder}{e.name}{'/' * e.is_dir(follow_symlinks=False)}", e) for e in entries]
        except (FileNotFoundError, NotADirectoryError):
            return
        for key, entry in sorted(found, key=lambda pair: os.fsencode(pair[0])):
            if key == f"{_TMP}/":
                continue
            if key.endswith("/"):
                ends_before = os.fsencode(key) < os.fsencode(after) and not after.startswith(key)
                if (key.startswith(prefix) or prefix.startswith(key)) and not ends_before:
                    yield from self._below(key, prefix, after)
            elif key.startswith(prefix) and os.fsencode(key) > os.fsencode(after):
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
                        yield Meta(key, status.st_size, _version(status), changed)


def _version(status: os.stat_result) -> Version:
    return Version(f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}")
