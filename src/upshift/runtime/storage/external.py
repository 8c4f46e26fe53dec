"""Data that is named and never copied: :class:`External`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs

from upshift.errors import UsageError, user_location
from upshift.model.checks import local_path, shown, unfit
from upshift.runtime.storage.digest import digest_of


def _uri(value: str | os.PathLike[str]) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    problem: str | None = "names nothing"
    if isinstance(text, str) and text.strip():
        local = "://" not in text or text.startswith("file://")
        try:
            problem = unfit(text)
            if problem is None:
                return os.path.abspath(local_path(text)) if local else text
        except ValueError as error:
            problem = str(error)
    raise UsageError(
        f"External({shown(value)}) {problem}",
        where=user_location(),
        fix='Give a path or a URL, such as External("/shared/data") or External("s3://bucket/data").',
    )


def _version(value: object) -> str | None:
    text = shown(value) if isinstance(value, int) else value
    if text is not None and (not isinstance(text, str) or unfit(text)):
        raise UsageError(
            f"External(version={shown(value)}) is invalid",
            where=user_location(),
            fix='Give one line of text, such as version="2026-05".',
        )
    return text


@attrs.frozen
class External:
    """Data that a step reads where it lies. Only its name and its key are saved.

    The key decides whether a step that uses it has to run again. It is ``version``, if given; else
    the sizes and modification times of a file or folder, or the etag of an object.

    Parameters
    ----------
    uri
        A path, or a URL such as ``s3://bucket/data``. A path is made absolute.
    version
        What changes when the data changes.

    Raises
    ------
    UsageError
        ``uri`` names nothing, or ``version`` is no string.
    """

    uri: str = attrs.field(converter=_uri)
    version: str | None = attrs.field(default=None, converter=_version)

    @property
    def path(self) -> Path:
        """The path of local data.

        Raises
        ------
        UsageError
            The data is not on a file system.
        """
        if "://" in self.uri:
            raise UsageError(
                f"{self.uri} has no path here",
                where=user_location(),
                fix="Open .uri with the library of that storage, or give a path on a shared file system.",
            )
        return Path(self.uri)

    def key(self) -> str:
        """What changes when the data changes.

        Raises
        ------
        UsageError
            The data is not there, or nothing is known about it and no version is given.
        """
        if self.version is not None:
            return f"version:{self.version}"
        return _remote_key(self.uri) if "://" in self.uri else _local_key(self.uri)


def _local_key(path: str) -> str:
    try:
        status = os.stat(path)
        if not os.path.isdir(path):
            return f"file:{status.st_size}:{status.st_mtime_ns}"
        listing = "\n".join(_listing(path))
    except OSError as error:
        raise UsageError(
            f"External data cannot be read: {path}",
            why=os.strerror(error.errno or 0),
            fix="Correct the path, or see that it is mounted on this machine.",
        ) from None
    return "folder:" + digest_of(os.fsencode(listing))


def _listing(folder: str) -> Iterator[str]:
    pending = [folder]
    while pending:
        current = pending.pop()
        for entry in sorted(os.scandir(current), key=lambda entry: entry.name):
            name = os.path.relpath(entry.path, folder)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
                yield f"{name!r}/"
            else:
                status = entry.stat(follow_symlinks=False)
                if entry.is_symlink():
                    status = _behind(entry) or status
                yield f"{name!r} {status.st_size} {status.st_mtime_ns}"


def _behind(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except FileNotFoundError:  # a link to nothing is as good a name as any
        return None


def _remote_key(uri: str) -> str:
    advice = 'Give External(…, version="…"), and change it when the data changes.'
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UsageError(
            f"it cannot be known when {uri} changes",
            why="Asking that storage needs fsspec, which is not installed.",
            fix=advice,
        ) from None
    try:
        info = fsspec.filesystem(uri.partition("://")[0]).info(uri)
    except Exception as error:  # each storage has its own errors
        raise UsageError(
            f"External data cannot be reached: {uri}", why=f"{type(error).__name__}: {error}", fix=advice
        ) from None
    for field in ("ETag", "etag", "md5Hash", "content_md5", "generation"):
        if info.get(field):
            return f"{field.lower()}:{info[field]}"
    raise UsageError(f"it cannot be known when {uri} changes", why="It has no etag.", fix=advice)
