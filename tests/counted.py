"""What an object store is asked, counted on its side: for tests of how many requests something takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LOG = "UPSHIFT_TESTS_REQUESTS"
"""Environment variable of a server: the file into which it writes a line for each request."""
_KINDS = (
    ("claim", r"\.claim$"),
    ("result", r"\.result\.json$"),
    ("spec", r"\.spec\.json$"),
    ("list of an array", r"\.array$"),
    ("order", r"\.order\.\d+$"),
    ("stop", r"\.stop$"),
    ("bulletin", r"/live/.+/\d+$"),
    ("log", r"\.log$"),
    ("curve", r"\.(series|metrics|cards)$"),
    ("blob", r"(^|/)blobs/"),
    ("lease", r"(^|/)(leases|engines)/"),
    ("run", r"/runs/[^/]+/[^/]+$"),
)


class Counted:
    """An application of WSGI, and a line for each request of it: method, and path with query."""

    def __init__(self, application: Callable[..., Iterable[bytes]], log: str) -> None:
        self._application = application
        self._log = open(log, "a", buffering=1, encoding="utf-8")  # noqa: SIM115  # as long as the server

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "")
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        self._log.write(f"{environ['REQUEST_METHOD']} {path}\n")
        return self._application(environ, start)


class Requests:
    """Those of a bucket since this was made."""

    def __init__(self, log: Path, bucket: str) -> None:
        self._log = log
        self._bucket = bucket
        self._start = log.stat().st_size

    def lines(self) -> Sequence[str]:
        """Each as ``METHOD KEY``; of a list, ``LIST PREFIX``."""
        with open(self._log, encoding="utf-8") as file:
            file.seek(self._start)
            said = [line.rstrip("\n").partition(" ")[::2] for line in file]
        found = []
        for method, path in said:
            key, _, query = path.partition("?")
            if key.split("/")[1] != self._bucket:
                continue
            prefix = re.search(r"(?:^|&)prefix=([^&]*)", query)
            if "list-type" in query:
                found.append(f"LIST {unquote(prefix[1]) if prefix else ''}")
            else:
                found.append(f"{method} {unquote(key).removeprefix(f'/{self._bucket}/')}")
        return found

    def kinds(self) -> Counter[str]:
        """How many there are of each kind, such as ``PUT claim``."""
        return Counter(map(kind_of, self.lines()))


def kind_of(line: str) -> str:
    """What a request is for."""
    method, _, key = line.partition(" ")
    if method == "LIST":
        found = re.search(r"/(live|tasks|checkpoints)/", key)
        return f"LIST {found[1] if found else key.rpartition('/')[0]}"
    return f"{method} {next((name for name, form in _KINDS if re.search(form, f'/{key}')), key)}"
