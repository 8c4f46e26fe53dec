"""Who asks: kept, renewed before it ends, and got from the servers that clouds have for that."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

import attrs

from upshift.errors import StoreUnavailable
from upshift.runtime import children
from upshift.runtime.storage.objects.connections import Connections

_TRIES = 3
NO_MACHINE = 1.0
"""Seconds after which no metadata service is taken to be there: elsewhere its address may never answer."""


class Identity(Protocol):
    """Who asks, and until when that holds."""

    @property
    def expires(self) -> float | None:
        """Seconds since the epoch."""

    @property
    def source(self) -> str:
        """Where it comes from, for messages."""


@attrs.frozen(kw_only=True)
class Token:
    """A bearer token, as Google and Azure give them; empty: nobody asks by name."""

    value: str = attrs.field(repr=False)
    expires: float | None = None
    source: str = "the caller"


I = TypeVar("I", bound=Identity)  # noqa: E741
Provider = Callable[[], "I | None"]


class Wallet(ABC, Generic[I]):
    """The credentials of this process, renewed before they end.

    Attributes
    ----------
    early
        Seconds before their end at which they are renewed, so that none ends on its way.
    """

    cloud: ClassVar[str]
    early: ClassVar[float] = 300.0

    def __init__(self, providers: Sequence[Provider[I]]) -> None:
        self._providers = providers
        self._known: I | None = None
        self._lock = threading.Lock()
        children.private(self)

    def close(self) -> None:
        """In a fork: nobody here holds the lock."""
        self._lock = threading.Lock()

    def get(self) -> I:
        """Credentials that hold for some time.

        Raises
        ------
        StoreUnavailable
            There are none.
        """
        with self._lock:
            known = self._known
            if known is None or (known.expires is not None and known.expires - self.early < time.time()):
                known = self._known = self._found(known)
            return known

    def refused(self, who: Identity) -> None:
        """Forget what the server does not take any more."""
        with self._lock:
            if self._known is who:
                self._known = None

    def _found(self, known: I | None) -> I:
        try:
            for provider in self._providers:
                found = provider()
                if found is not None:
                    return found
        except StoreUnavailable:
            if known is None or known.expires is None or known.expires < time.time():
                raise
            return known  # it still holds: the next request asks again
        why, fix = self._nothing()
        raise StoreUnavailable(f"no {self.cloud} credentials were found", why=why, fix=fix)

    @abstractmethod
    def _nothing(self) -> tuple[str, str]:
        """Where it was looked for credentials, and what to do."""


class Issuer:
    """Gets credentials from a cloud's own servers; errors name the cloud."""

    def __init__(self, cloud: str) -> None:
        self._cloud = cloud

    def fetch(
        self,
        method: str,
        address: str,
        headers: dict[str, str],
        source: str,
        *,
        body: bytes = b"",
        direct: bool = True,
    ) -> bytes:
        """What a server that has to be there answers."""
        why = ""
        for number in range(_TRIES):
            if number:
                time.sleep(0.2 * 2**number)
            try:
                status, content = ask(method, address, headers, body, silence=10.0, direct=direct)
            except ssl.SSLCertVerificationError as error:
                why = str(error)
                break
            except (OSError, http.client.HTTPException) as error:
                why = str(error) or type(error).__name__
                continue
            if status == 200:
                return content
            why = f"HTTP {status}: {' '.join(content[:300].decode(errors='replace').split())}"
            if status < 500 and status != 429:
                break
        raise StoreUnavailable(
            f"{source} gives no {self._cloud} credentials",
            where=address,
            why=why,
            fix="See that the role exists, trusts this machine or pod, and that the address can be reached.",
        )

    def file(self, path: str) -> str:
        """A token that a platform keeps in a file, and renews there."""
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreUnavailable(
                f"the token for {self._cloud} credentials cannot be read",
                where=path,
                why=str(error),
                fix="See that the pod's or container's token is mounted there.",
            ) from None

    def nonsense(self, source: str, error: Exception) -> StoreUnavailable:
        """The error where an answer is not what the cloud documents."""
        return StoreUnavailable(
            f"{source} gives no {self._cloud} credentials",
            why=f"Its answer is not what {self._cloud} documents: {error!r}",
            fix="See that nothing else answers at that address, such as a proxy.",
        )


def ask(
    method: str, address: str, headers: dict[str, str], body: bytes, *, silence: float, direct: bool
) -> tuple[int, bytes]:
    """The status and the content of one answer."""
    url: SplitResult = urlsplit(address)
    target = url.path + (f"?{url.query}" if url.query else "")
    sent = {**headers, "content-length": str(len(body))} if body or method != "GET" else headers
    connections = Connections(silence=silence, connecting=silence, direct=direct)
    try:
        with connections.response(
            method, url, target or "/", sent, [memoryview(body)] if body else []
        ) as response:
            return response.status, response.read()
    finally:
        connections.close()
