"""``upshift.S3``: objects of buckets in a step, by the names of Metaflow's client."""

from __future__ import annotations

import email.utils
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from upshift.authoring.flow.s3_objects import (
    METADATA,
    S3GetObject,
    S3Object,
    S3PutObject,
    content_of,
    content_of_file,
    headers_of,
    range_of,
    to_put,
)
from upshift.authoring.flow.spec import FlowSpec
from upshift.errors import ConfigError, NotFound, StoreError, UpshiftError, UsageError, user_location
from upshift.model.checks import shown
from upshift.model.configuration import load_configuration
from upshift.runtime.step.context import CurrentTask, current
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.objects import side_by_side
from upshift.runtime.storage.objects.remote import AT_ONCE
from upshift.runtime.storage.objects.s3 import Bucket, S3Objects

_SCHEME = "s3://"

T = TypeVar("T")
R = TypeVar("R")


class S3:
    """Read and write objects in buckets of S3, or of services with its interface, several at once.

    ::

        with S3(s3root="s3://bucket/digits") as s3:
            s3.put("scores.json", json.dumps(scores))
            print(s3.get("scores.json").text)

    What is read is in files below a temporary folder, which goes with ``close()``, or at the end of ``with``.
    Credentials and region are found as AWS's own tools find them; ``AWS_ENDPOINT_URL_S3`` names a service
    that is not AWS. Methods that take several keys read, write or ask for several at once.

    Parameters
    ----------
    tmproot
        Where the temporary folder is made; default: where this machine has such folders.
    bucket, prefix
        With ``run``: these in place of what is configured.
    run
        Keys are below FLOW/RUN: ``self`` in a step of a flow, :data:`upshift.current` in any step, or a
        :class:`Run`. The bucket is that of ``s3root`` in the configuration, or of the store.
    s3root
        Keys are below this address: ``"s3://BUCKET/PREFIX"``. Without it and ``run``, keys are addresses.
    encryption
        By the server, of what is written: ``"AES256"``, ``"aws:kms"``.

    Raises
    ------
    ConfigError
        With ``run``: no bucket is configured.
    UsageError
        An option or a key makes no sense.
    NotFound
        There is no such object, or no such file to write.
    StoreUnavailable
        The bucket cannot be reached, or may not be used.
    """

    def __init__(
        self,
        tmproot: str | None = None,
        bucket: str | None = None,
        prefix: str | None = None,
        run: Any = None,
        s3root: str | None = None,
        encryption: str | None = None,
        **others: Any,
    ) -> None:
        if others:
            raise UsageError(
                f"S3 has no option {next(iter(others))!r}",
                where=user_location(),
                why="Credentials, region and endpoint are found as AWS's own tools find them.",
                fix="Set AWS_PROFILE, AWS_REGION or AWS_ENDPOINT_URL_S3 in the step's environment.",
            )
        if run is not None:
            s3root = _root_of(run, bucket, prefix)
        elif s3root is not None and not s3root.startswith(_SCHEME):
            raise UsageError(
                f"s3root={shown(s3root)} is not an address of S3",
                where=user_location(),
                fix='Write S3(s3root="s3://BUCKET/PREFIX").',
            )
        self._root = None if s3root is None else s3root.rstrip("/")
        self._encryption = encryption
        self._tmproot = tmproot
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._numbers = itertools.count()
        self._buckets: dict[str, S3Objects] = {}

    def __enter__(self) -> S3:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files of what was read."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # Read

    def get(
        self, key: str | S3GetObject | None = None, return_missing: bool = False, return_info: bool = True
    ) -> S3Object:
        """Read an object, or a part of it.

        Parameters
        ----------
        key
            What follows the client's root, or an address; None: the object at the root itself.
        return_missing
            Return an object whose ``exists`` is false, where there is none.
        return_info
            Have ``content_type`` and ``metadata``, too.
        """
        (found,) = self.get_many([key], return_missing, return_info)
        return found

    def get_many(
        self,
        keys: Iterable[str | S3GetObject | None],
        return_missing: bool = False,
        return_info: bool = True,
    ) -> list[S3Object]:
        """Read several objects; see :meth:`get`."""
        asked = [(self._url(key), key) for key in keys]
        self._files()

        def read(one: tuple[str, Any]) -> S3Object:
            url, key = one
            path = self._files() / str(next(self._numbers))
            headers = self._read(url, key, path)
            if headers is None:
                return self._missing(url, return_missing)
            return self._object(url, headers if return_info else {}, path)

        return _each(read, asked)

    def get_recursive(self, keys: Iterable[str | None], return_info: bool = False) -> list[S3Object]:
        """Read all objects below some prefixes.

        As with Metaflow, an object's ``key`` is what follows its prefix; with ``return_info``, what follows
        the client's root.
        """
        listed = self.list_recursive(keys)
        self._files()

        def read(one: S3Object) -> S3Object | None:
            path = self._files() / str(next(self._numbers))
            headers = self._read(one.url, one.key, path)
            if headers is None:  # removed since it was listed
                return None
            if return_info:
                return self._object(one.url, headers, path)
            return attrs.evolve(one, path=str(path), size=path.stat().st_size)

        return [found for found in _each(read, listed) if found is not None]

    def get_all(self, return_info: bool = False) -> list[S3Object]:
        """Read all objects below the client's root; it needs ``s3root`` or ``run``."""
        if self._root is None:
            raise UsageError(
                "get_all reads everything below a root, and this S3 has no root",
                where=user_location(),
                fix='Write S3(s3root="s3://BUCKET/PREFIX"), or S3(run=self).',
            )
        return self.get_recursive([None], return_info)

    # Look

    def list_paths(self, keys: Iterable[str | None] | None = None) -> list[S3Object]:
        """List the level below some prefixes: objects, and further prefixes, whose ``exists`` is false."""

        def level(url: str) -> list[S3Object]:
            objects, prefix = self._place(f"{url}/")
            found = list(objects.list_level(prefix))
            further = [one for one in found if isinstance(one, str)]
            here = [one for one in found if not isinstance(one, str)]
            return [
                *(_below(f"{url}/", f"{objects.address}/{one.key}", one.size) for one in here),
                *(_below(f"{url}/", f"{objects.address}/{one}", None) for one in further),
            ]

        return self._listed(keys, level)

    def list_recursive(self, keys: Iterable[str | None] | None = None) -> list[S3Object]:
        """List all objects below some prefixes; the ``key`` of each is what follows its prefix."""

        def below(url: str) -> list[S3Object]:
            objects, prefix = self._place(f"{url}/")
            return [_below(url, f"{objects.address}/{one.key}", one.size) for one in objects.list(prefix)]

        return self._listed(keys, below)

    def info(self, key: str | None = None, return_missing: bool = False) -> S3Object:
        """Tell what is known of an object, without reading it; see :meth:`get`."""
        (found,) = self.info_many([key], return_missing)
        return found

    def info_many(self, keys: Iterable[str | None], return_missing: bool = False) -> list[S3Object]:
        """Tell what is known of several objects."""

        def ask(url: str) -> S3Object:
            objects, name = self._place(url)
            headers = objects.info(name)
            return self._missing(url, return_missing) if headers is None else self._object(url, headers)

        return _each(ask, [self._url(key) for key in keys])

    # Write

    def put(
        self,
        key: str | S3PutObject,
        obj: Any,
        overwrite: bool = True,
        content_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Write an object.

        Parameters
        ----------
        key
            What follows the client's root, or an address.
        obj
            A text, bytes, or a binary file that is open.
        overwrite
            False: an object that is there already stays as it is.
        content_type, metadata
            What is said of it: a MIME type, and anything that can be JSON.

        Returns
        -------
        str
            Its address.
        """
        name = key.key if isinstance(key, S3PutObject) else key
        one = S3PutObject(name, obj, None, content_type, self._encryption, metadata)
        self._put([one], overwrite, content_of)
        return self._url(name)

    def put_many(
        self, key_objs: Iterable[tuple[str, Any] | S3PutObject], overwrite: bool = True
    ) -> list[tuple[str, str]]:
        """Write several objects, each ``(key, value)`` or an :class:`S3PutObject`.

        Returns
        -------
        list
            Key and address of each one that was written.
        """
        return self._put(map(to_put, key_objs), overwrite, content_of)

    def put_files(
        self, key_paths: Iterable[tuple[str, str] | S3PutObject], overwrite: bool = True
    ) -> list[tuple[str, str]]:
        """Write several files, each ``(key, path)`` or an :class:`S3PutObject`; see :meth:`put_many`."""
        files = (
            one if isinstance(one, S3PutObject) else S3PutObject(one[0], path=one[1]) for one in key_paths
        )
        return self._put(files, overwrite, content_of_file)

    # Inside

    def _files(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="upshift.s3.", dir=self._tmproot)
        return Path(self._folder.name)

    def _url(self, asked: Any) -> str:
        key = getattr(asked, "key", asked)
        if not isinstance(key, str) and (key is not None or self._root is None):
            raise UsageError(
                f"{shown(key)} is not a key", where=user_location(), fix='Give a text, such as "scores.json".'
            )
        absolute = key is not None and key.startswith(_SCHEME)
        if self._root is None:
            if key is None or not absolute or "/" not in key.removeprefix(_SCHEME):
                raise UsageError(
                    f"{shown(key)} is not an address of S3, and this S3 has no root",
                    where=user_location(),
                    fix='Write "s3://BUCKET/KEY", or S3(run=self), or S3(s3root="s3://BUCKET/PREFIX").',
                )
            return key
        if absolute:
            raise UsageError(
                f"{shown(key)} is an address, and this S3 has the root {self._root}",
                where=user_location(),
                fix="Give what follows the root, or use S3() for addresses.",
            )
        return f"{self._root}/{key.lstrip('/')}" if key else self._root

    def _place(self, url: str) -> tuple[S3Objects, str]:
        bucket, _, key = url.removeprefix(_SCHEME).partition("/")
        if bucket not in self._buckets:
            self._buckets[bucket] = S3Objects(Bucket(bucket))
        return self._buckets[bucket], key

    def _read(self, url: str, asked: Any, path: Path) -> Mapping[str, str] | None:
        objects, key = self._place(url)
        if not isinstance(asked, S3GetObject):
            return objects.fetch(key, path)
        offset, length = asked.offset or 0, asked.length
        if length is not None and length < 0:
            part = f"bytes={length}"
        else:
            part = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        answer = objects.read(key, part)
        if answer is None:
            return None
        if answer.status != 206:
            raise StoreError(
                f"{url} has no bytes {part.removeprefix('bytes=')}",
                fix="See how long it is: S3.info(key).size.",
            )
        path.write_bytes(answer.body)
        return answer.headers

    def _missing(self, url: str, wanted: bool) -> S3Object:
        if not wanted:
            raise NotFound(
                f"there is no object {url}",
                fix="With return_missing=True you get one whose exists is false.",
            )
        return S3Object(url=url, key=_key(url, self._root), prefix=self._root)

    def _object(self, url: str, headers: Mapping[str, str], path: Path | None = None) -> S3Object:
        size = int(headers.get("content-length", "0")) if path is None else path.stat().st_size
        modified = headers.get("last-modified")
        said = headers.get(f"x-amz-meta-{METADATA}")
        return S3Object(
            url=url,
            key=_key(url, self._root),
            prefix=self._root,
            path=None if path is None else str(path),
            size=size,
            content_type=headers.get("content-type"),
            metadata=None if said is None else json.loads(said),
            range_info=range_of(headers, size) if headers and path is not None else None,
            last_modified=email.utils.parsedate_to_datetime(modified).timestamp() if modified else None,
            encryption=headers.get("x-amz-server-side-encryption"),
        )

    def _listed(
        self, keys: Iterable[str | None] | None, find: Callable[[str], list[S3Object]]
    ) -> list[S3Object]:
        urls = [self._url(key).rstrip("/") for key in ([None] if keys is None else keys)]
        return [one for found in _each(find, urls) for one in found]

    def _put(
        self,
        several: Iterable[S3PutObject],
        overwrite: bool,
        content: Callable[[S3PutObject], Bytes],
    ) -> list[tuple[str, str]]:
        def write(one: S3PutObject) -> tuple[str, str] | None:
            url = self._url(one.key)
            objects, key = self._place(url)
            if not overwrite and objects.info(key) is not None:
                return None
            objects.upload(key, [content(one)], headers_of(one, self._encryption))
            return one.key, url

        return [put for put in _each(write, list(several)) if put is not None]


def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What the work makes of each item, in threads, where no line is the user's."""
    try:
        return side_by_side(work, items, AT_ONCE)
    except UpshiftError as error:
        error.where = error.where or user_location()
        raise


def _below(prefix: str, url: str, size: int | None) -> S3Object:
    return S3Object(url=url, key=_key(url, prefix), prefix=prefix, size=size)


def _key(url: str, prefix: str | None) -> str:
    return url if prefix in (None, url) else url[len(str(prefix).rstrip("/")) + 1 :].rstrip("/")


def _root_of(run: Any, bucket: str | None, prefix: str | None) -> str:
    """The address that keys of a run are below."""
    if isinstance(run, (FlowSpec, CurrentTask)):
        if not current:
            raise UsageError(
                "S3(run=…) needs a running step, and no step is running here",
                where=user_location(),
                fix='Give a run: S3(run=Flow("Training").latest_run).',
            )
        flow, name = str(current.pipeline), str(current.run)
    else:
        flow, name = run.path_components
    if bucket is None or prefix is None:
        known, _, path = _configured_root().removeprefix(_SCHEME).partition("/")
        bucket, prefix = bucket or known, path if prefix is None else prefix
    return _SCHEME + "/".join(filter(None, (bucket, prefix.strip("/"), flow, name)))


def _configured_root() -> str:
    configuration = load_configuration()
    if configuration.s3root is not None:
        return configuration.s3root
    store = configuration.store_address(
        configuration.target()
    )  # that of a step may be a folder that follows it
    if store.startswith(_SCHEME):
        return f"{store.rstrip('/')}/data"
    raise ConfigError(
        "S3(run=…) has no bucket",
        where=user_location(),
        why="Neither s3root nor a store in a bucket is configured.",
        fix='Write s3root = "s3://BUCKET/PREFIX" in upshift.toml, set UPSHIFT_S3ROOT, or name it here: '
        'S3(s3root="s3://BUCKET/PREFIX").',
    )
