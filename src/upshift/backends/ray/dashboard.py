"""The dashboard of a Ray cluster: HTTP, as ``ray job submit`` speaks it."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError, ConfigError
from upshift.runtime.storage.objects.connections import Connections, Stale

DEFAULT = "http://127.0.0.1:8265"
SILENCE = 30.0
"""Seconds after which an answer is not waited for any more."""
_BUSY = frozenset({408, 429, 502, 503, 504})


class Unknown(Exception):
    """The dashboard has nothing of that name."""


class Dashboard:
    """What answers at an address. Threads may share it."""

    def __init__(self, address: str, environ: Mapping[str, str] = os.environ) -> None:
        self.address = address
        self._url = urlsplit(address)
        self._connections = Connections(silence=SILENCE)
        token = token_of(environ)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """What it answers.

        Raises
        ------
        Unknown
            It has nothing there.
        BackendError
            It refuses.
        NotNow
            It does not answer.
        """
        body = [] if content is None else [memoryview(json.dumps(content).encode())]
        headers = {**self._headers, **({"Content-Type": "application/json"} if body else {})}
        try:
            status, answer = self._answer(method, path, headers, body)
        except (ssl.SSLCertVerificationError, ConfigError) as error:
            raise BackendError(f"{self.address} cannot be trusted: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NotNow(f"Ray does not answer at {self.address}: {why}") from None
        if status == 404:
            raise Unknown(path)
        if status in (401, 403):
            raise BackendError(
                f"Ray at {self.address} wants to know who asks, or refuses to answer: HTTP {status}",
                fix="Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as for ray job submit.",
            )
        if status in _BUSY or (status == 500 and _REFUSAL not in answer and "already exists" not in answer):
            raise NotNow(f"Ray does not answer at {self.address}: HTTP {status}, {_last(answer)}")
        if status >= 300:
            raise BackendError(f"Ray refuses it: {_last(answer)}")
        try:
            return json.loads(answer)
        except ValueError:
            raise BackendError(
                f"{self.address} is no dashboard of Ray's",
                why=f"It answers {path} with something else.",
                fix="Name the address of the dashboard, port 8265 unless told otherwise.",
            ) from None

    def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: list[memoryview]
    ) -> tuple[int, str]:
        length = {"Content-Length": str(sum(map(len, body)))} if method != "GET" else {}
        while True:
            try:
                with self._connections.response(
                    method, self._url, f"{self._url.path.rstrip('/')}{path}", {**headers, **length}, body
                ) as response:
                    return response.status, response.read().decode(errors="replace")
            except Stale:  # it closed a connection that had been kept: nothing was asked
                continue

    def close(self) -> None:
        """Close its connections."""
        self._connections.close()


_REFUSAL = "status code 400"
"""What the dashboard says, with status 500, where its agent has answered that the request is invalid."""


def address_of(said: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The address of the dashboard: as it was said, or as ``ray job submit`` finds it.

    Raises
    ------
    ConfigError
        It is another one of Ray's addresses, or none.
    """
    named = said or environ.get("RAY_API_SERVER_ADDRESS")
    if named is None:
        other = environ.get("RAY_ADDRESS", "")
        named = other if other.startswith(("http://", "https://")) else DEFAULT
    address = named if "://" in named else f"http://{named}"
    try:
        url: SplitResult | None = urlsplit(address)
        known = url is not None and url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError(
            f"{named!r} is no address of a dashboard of Ray's",
            why="Jobs are submitted by HTTP, not through the port of Ray's client or of its store.",
            fix='Write address = "http://HEAD:8265".',
        )
    return address.rstrip("/")


def token_of(environ: Mapping[str, str]) -> str | None:
    """The token of a cluster with authentication, from where Ray's own commands have it."""
    if environ.get("RAY_AUTH_MODE") == "disabled":
        return None
    if environ.get("RAY_AUTH_TOKEN"):
        return environ["RAY_AUTH_TOKEN"].strip()
    path = environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    try:
        return Path(path).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _last(text: str) -> str:
    """The last line of an answer: of a trace, what was wrong."""
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    return lines[-1][:500] if lines else "nothing more is said"
