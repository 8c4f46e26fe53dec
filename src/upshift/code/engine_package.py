"""The engine: what does a run, as one blob for any Python from 3.10 on with nothing installed.

::

    __main__.py       python BLOB -m MODULE ARGUMENT…  is  python -m MODULE ARGUMENT… with what is in here
    upshift/          all of it
    _vendor/          what an engine imports, with metadata and licenses; boto3 only where it is asked for

It is made and kept like the runtime (:mod:`upshift.code.runtime_package`), but compressed, and is one, too:
without ``-m`` it takes the runtime's arguments, and packages of the image come before those in ``_vendor``.
An engine has its own first. Where there is nothing but Python, the bootstrap fetches and starts it::

    from upshift.code.engine_package import engine_package
    from upshift.code.runtime_package import bootstrap
    from upshift.runtime.storage.replica import blob_key

    address = f"{store.name}/{blob_key(engine_package(store))}"
    command = ["python3", "-Sc", bootstrap(store.name), address, "-m", "upshift.cli.detached", *arguments]

Before ``-m`` there may be more addresses: further zips, which the module can import from. Its name is
``__main__``, and it finds ``UPSHIFT_HOME`` set to the folder of the node.

Everything in it is pure Python. What is compiled stays at home: blake3, without which new digests are
SHA-256; psutil, uv and zstandard, which build images; psycopg, since such an engine has a catalog of its own.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Iterator
from importlib import metadata, util
from typing import TYPE_CHECKING

from upshift.code.runtime_package import VENDORED, Watched, module_files, packed, upshift_files
from upshift.errors import MissingExtra
from upshift.runtime.storage.files import signature_of

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store

NEEDED = {**VENDORED, "click": ("click",)}
"""The modules of each distribution that an engine imports."""
_IF_INSTALLED = {"packaging": ("packaging",), "urllib3": ("urllib3",)}
"""The same for optional packages, which ask registries for the images of steps."""
EXTRAS = {
    "aws": {
        **{name: (name,) for name in ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "six")},
        "python-dateutil": ("dateutil",),
    }
}
"""The same for extras of Upshift."""
_SERVICES = ("batch", "iam", "logs", "sts")
"""The AWS services whose data is packed; that of all services is twenty times as large."""
_MAIN = b"""\
import os
import runpy
import sys

_VENDOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_vendor")

if __name__ == "__main__":
    if sys.argv[1:2] == ["-m"]:
        sys.path.insert(1, _VENDOR)
        module = sys.argv[2]
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.append(_VENDOR)
        from upshift.runtime.__main__ import main

        sys.exit(main())
"""


def engine_package(store: Store, *, extras: Collection[str] = ()) -> str:
    """Put the engine into the store, unless it is there.

    Parameters
    ----------
    store
        Where it goes.
    extras
        Extras of Upshift that the engine needs: ``"aws"``.

    Returns
    -------
    str
        Its digest, by SHA-256. The same files give the same one, by the same version of zlib.

    Raises
    ------
    MissingExtra
        One is not installed here.
    StoreError
        Upshift, or a package that it needs, is not installed as plain files.
    StoreUnavailable
        The store cannot be written.
    """

    def sources(watched: Watched) -> Iterator[tuple[str, str]]:
        yield from upshift_files(watched)
        for distribution, modules in _distributions(extras).items():
            for name, path in module_files(modules, watched):
                if _is_wanted(name):
                    yield name, path
            yield from _metadata(distribution, watched)

    question = ("engine", *sorted(extras))
    return packed(store, question, _MAIN, sources, compression=zipfile.ZIP_DEFLATED)


def _distributions(extras: Collection[str]) -> dict[str, tuple[str, ...]]:
    found = dict(NEEDED)
    for name, modules in _IF_INSTALLED.items():
        if all(map(util.find_spec, modules)):
            found[name] = modules
    for extra in extras:
        for name, modules in EXTRAS[extra].items():
            if not all(map(util.find_spec, modules)):
                raise MissingExtra(
                    f"an engine elsewhere needs {name}, which is not installed",
                    fix=f'pip install "upshift[{extra}]"',
                )
            found[name] = modules
    return found


def _is_wanted(name: str) -> bool:
    """Whether a file is of one of these services, or of none."""
    package, _, rest = name.removeprefix("_vendor/").partition("/data/")
    if package not in ("boto3", "botocore") or "/" not in rest:
        return True
    return rest.partition("/")[0] in _SERVICES


def _metadata(distribution: str, watched: Watched) -> Iterator[tuple[str, str]]:
    """Its metadata with version and licenses, so that ``importlib.metadata`` finds it."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:  # a system package without metadata
        return
    for file in files:
        folder, _, rest = file.as_posix().partition("/")
        if folder.endswith(".dist-info") and rest not in ("INSTALLER", "REQUESTED", "direct_url.json"):
            path = os.fspath(file.locate())
            watched[path] = signature_of(path)
            yield f"_vendor/{folder}/{rest}", path
