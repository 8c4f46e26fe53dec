"""Files that settings name."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

from upshift.errors import SettingsError
from upshift.model.checks import small_text
from upshift.runtime.storage.memo import Memo, now, signature_of

_REMEMBERED = 1 << 20  # bytes; the digest of a smaller file is made as fast as it is looked up


def read_text(path: Path, where: str) -> str:
    """The content of a file that settings name. Raises SettingsError: it cannot be read as text."""
    try:
        return small_text(path)
    except ValueError as error:
        raise _unreadable(path, str(error), where) from None


def digest_of(path: Path, where: str | None = None) -> str:
    """The digest of a file, the same on every machine: ``sha256:…``. That of a large one is remembered.

    Raises SettingsError: it cannot be read.
    """
    try:
        return _digest_of(path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from None


def _unreadable(path: Path, reason: str, where: str | None) -> SettingsError:
    return SettingsError(
        f"{path} cannot be read: {reason}",
        where=where,
        fix="Correct its permissions, or the path, which starts from the project.",
    )


def _digest_of(path: Path) -> str:
    if not path.is_file():  # a device may have no end
        raise OSError(errno.EINVAL, "it is no file")
    if path.stat().st_size < _REMEMBERED:
        return _hashed(path)
    path = path.resolve()
    memo, since, seen = Memo("sha256", str(path)), now(), signature_of(str(path))
    known = memo.recall()
    if isinstance(known, str):
        return known
    digest = _hashed(path)
    memo.remember(digest, {str(path): seen}, since=since)
    return digest


def _hashed(path: Path) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return f"sha256:{hasher.hexdigest()}"
