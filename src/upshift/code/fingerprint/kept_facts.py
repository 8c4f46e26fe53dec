"""Facts about files, kept between processes: one file a project in ``UPSHIFT_HOME/fingerprints``.

Facts are found by the content of the source file, never by its time stamps: an edit within the
resolution of a clock, or a file restored with an old date, is never mistaken. The file is replaced
atomically, so that several processes can read and write it at once; whoever writes last wins, and
the loser's files are read again some day. A damaged file is one that is not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from pathlib import Path

from upshift.code.fingerprint.facts import VERSION, Facts
from upshift.model.home import home, make_folder
from upshift.runtime.storage.digest import Bytes, algorithm, digest_of
from upshift.runtime.storage.files import replacing

_CHECKSUM = 64


class KeptFacts:
    """The facts about the files of one project."""

    def __init__(self, project: Path) -> None:
        # Facts hold digests, and marshal and the grammar are those of this version of Python.
        name = f"{project.absolute()}\0{algorithm()}\0{sys.implementation.cache_tag}\0{VERSION}"
        self._file = kept(f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.facts")
        self._packed: dict[str, tuple[str, Bytes]] | None = None
        self._changed = False

    def get(self, path: str, digest: str) -> Facts | None:
        """The facts about a file, if its content had this digest when they were put."""
        packed = self._facts().get(path)
        return None if packed is None or packed[0] != digest else Facts(packed[1])

    def put(self, path: str, digest: str, facts: Facts) -> None:
        """Remember the facts about a file, to be written by :meth:`save`."""
        self._facts()[path] = (digest, facts.packed)
        self._changed = True

    def _facts(self) -> dict[str, tuple[str, Bytes]]:
        if self._packed is None:
            self._packed = _read(self._file)
        return self._packed

    def save(self) -> None:
        """Write what is new."""
        if not self._changed or self._packed is None:
            return
        self._changed = False
        newest = {**_read(self._file), **self._packed}
        kept = {path: facts for path, facts in newest.items() if os.path.exists(path)}
        index = {path: (digest, len(packed)) for path, (digest, packed) in kept.items()}
        body = b"".join([marshal.dumps(index), *(packed for _, packed in kept.values())])
        keep(self._file, _checksum(body) + body)


def _read(file: Path) -> dict[str, tuple[str, Bytes]]:
    try:
        content = file.read_bytes()
    except OSError:
        return {}
    body = memoryview(content)[_CHECKSUM:]
    if not body or content[:_CHECKSUM] != _checksum(body):
        return {}
    index: dict[str, tuple[str, int]] = marshal.loads(body)  # ignores what comes after it
    end = len(body) - sum(size for _, size in index.values())
    packed: dict[str, tuple[str, Bytes]] = {}
    for path, (digest, size) in index.items():
        start, end = end, end + size
        packed[path] = (digest, body[start:end])
    return packed


def _checksum(body: Bytes) -> bytes:
    return digest_of(body).rpartition(":")[2].encode()


# small files that only save time


def kept(name: str) -> Path:
    """Where the file of this name is, in ``UPSHIFT_HOME/fingerprints``."""
    return home() / "fingerprints" / name


def keep(file: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. A folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
        make_folder(file.parent)
        with replacing(file) as draft:
            draft.write_bytes(content)
