"""Starts a worker where there is nothing but Python: ``python -c TEXT-OF-THIS-FILE RUNTIME SPEC [ELEMENT]``

Or an engine: ``… PACKAGE… -m MODULE ARGUMENT…``. RUNTIME, PACKAGE and SPEC are in a store: a folder, or a
bucket. A package, a zip that is named by its digest, is fetched once for all workers of a node, compared and
unpacked; the first one is started, and does the rest. UPSHIFT_NODE_HOME is the node's folder for that, and
may name variables: $TMPDIR/upshift. Needs the standard library only, and only ever reads. How a bucket is
asked comes before this text: bootstrap_s3.py, _google.py or _azure.py.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(f"upshift: steps need Python 3.10, and {sys.executable} is {sys.version.split()[0]}")

import contextlib
import fcntl
import hashlib
import io
import os
import ssl
import tempfile
import time
import zipfile
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

TRIES = 6
AGAIN = (408, 429, 500, 502, 503, 504)


def main(*words: str) -> None:
    home = os.path.expandvars(os.environ.get("UPSHIFT_NODE_HOME", "")) or own_folder()
    end = words.index("-m") if "-m" in words else 1
    first, *more = [unpacked(home, package) for package in words[:end]]
    os.environ["UPSHIFT_HOME"] = home
    if more:
        os.environ["PYTHONPATH"] = ":".join(filter(None, (*more, os.environ.get("PYTHONPATH"))))
    start = words[end:] if "-m" in words else ("--scheduled", *words[1:])
    os.execv(sys.executable, [sys.executable, first, *start])


def unpacked(home: str, package: str) -> str:
    digest = "".join(package.split("/")[-2:])
    folder = os.path.join(home, "code", digest)
    if os.path.isdir(folder) and os.listdir(folder):
        return folder
    needed()
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        with contextlib.suppress(OSError):  # without locks several workers of a node may fetch it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(folder) or not os.listdir(folder):
            content = fetch(package)
            if hashlib.sha256(content).hexdigest() != digest:
                sys.exit(f"upshift: {package} is damaged: its content has another digest")
            unpack(content, folder)
    return folder


def needed() -> None:
    """Import what only a download needs: in the program, imports are here, which take most of its time."""


def own_folder() -> str:
    path = f"/tmp/upshift-{os.getuid()}"
    os.makedirs(path, 0o700, exist_ok=True)
    if os.path.islink(path) or os.stat(path).st_uid != os.getuid():
        sys.exit(f"upshift: {path} is somebody else's; set UPSHIFT_NODE_HOME to a folder of this node")
    return path


def unpack(content: bytes, folder: str) -> None:
    draft = tempfile.mkdtemp(prefix=".", dir=os.path.dirname(folder))
    os.chmod(draft, 0o755)
    zipfile.ZipFile(io.BytesIO(content)).extractall(draft)
    try:
        os.rename(draft, folder)
    except OSError:  # another worker of this node was faster
        if not os.listdir(folder):
            raise


def fetch(address: str) -> bytes:
    _, remote, rest = address.partition("://")
    why = ""
    for number in range(TRIES):
        time.sleep(0.3 * 2**number if number else 0)
        try:
            if remote:
                return from_bucket(rest)  # type: ignore[no-any-return,name-defined]  # noqa: F821
            with open(address, "rb") as file:
                return file.read()
        except HTTPError as error:
            said = error.read(500).decode("utf-8", "replace")
            why = f"HTTP {error.code} of {urlsplit(error.url).netloc}: {said}"
            if error.code not in AGAIN:
                break
        except (OSError, HTTPException) as error:
            why = str(error)
    sys.exit(f"upshift: cannot read {address}: {why}")


def ask(
    url: str,
    headers: "dict[str, str] | None" = None,
    method: str = "GET",
    direct: bool = False,
    patience: float = 60,
    body: "bytes | None" = None,
) -> bytes:
    trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    opener = build_opener(HTTPSHandler(context=trusted), *([ProxyHandler({})] if direct else []))
    with opener.open(Request(url, body, headers or {}, method=method), timeout=patience) as answer:
        content: bytes = answer.read()
        return content


def text_of(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


if __name__ == "__main__":
    main(*map(os.path.expandvars, sys.argv[1:]))
