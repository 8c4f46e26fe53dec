"""Waiting for files to change: Linux' inotify, by way of the C library. See inotify(7)."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path

_CLOEXEC = os.O_CLOEXEC
_NONBLOCK = os.O_NONBLOCK
_MODIFY = 0x2
_MOVED_TO = 0x80
_CREATE = 0x100
_EVENT = struct.Struct("iIII")


class Watch:
    """Watches folders. Files on a network file system that another machine writes raise no events."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.inotify_init1(_CLOEXEC | _NONBLOCK), "inotify")
        self._folders: dict[int, Path] = {}

    def add(self, folder: Path) -> None:
        """Watch what is created, moved or written in a folder, not below it.

        Raises
        ------
        OSError
            The folder is not there, or too many are watched already.
        """
        number = self._libc.inotify_add_watch(
            self._descriptor, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE
        )
        self._folders[self._checked(number, str(folder))] = folder

    def wait(self, seconds: float) -> set[Path]:
        """What has changed since the last call; waits for the first change, at most so many seconds."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return set()
        return set(self._events(os.read(self._descriptor, 1 << 20)))

    def close(self) -> None:
        """Watch nothing more."""
        os.close(self._descriptor)

    def _events(self, data: bytes) -> Iterator[Path]:
        position = 0
        while position < len(data):
            number, _mask, _cookie, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            folder = self._folders.get(number)
            if (
                folder is not None
            ):  # else the queue ran over: whoever waits looks at everything from time to time
                yield folder / os.fsdecode(name)

    @staticmethod
    def _checked(result: int, name: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), name)
        return result
