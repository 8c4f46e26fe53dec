"""HTTP to image registries, one request at a time: proxies, certificates, redirects, second tries.

What a registry answers is handed back, whatever it is. No answer, or half of one, is :class:`NoAnswer`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from upshift._version import __version__
from upshift.errors import MissingExtra
from upshift.images.registries.network import (
    LOST,
    NoAnswer,
    certificates_of,
    explained,
    host_of,
    joined,
    proxy_for,
    slow,
    trickles,
    trusted,
    without_login,
)

if TYPE_CHECKING:
    import urllib3

TIMEOUT = 15.0
"""Seconds that a registry may be silent."""

TRIES = 3
"""How often something is asked at most."""

_PAUSES = (0.2, 1.0, 3.0)  # seconds before the second, third and later tries
_LONGEST_PAUSE = 10.0  # what a registry may ask for by Retry-After
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
LARGEST = 16 << 20
"""Bytes of an answer that is kept in memory: a manifest has at most 4 MiB, a configuration little more."""
_BLOCK = 1 << 20
_SLOWEST = 1000
"""Bytes a second at which an answer still counts as one."""


@attrs.frozen(kw_only=True)
class Answer:
    """What a registry said, read to its end."""

    status: int  # of HTTP
    headers: Mapping[str, str]  # their case does not count
    body: bytes = attrs.field(repr=False)  # all of it
    url: str  # where it came from, after redirects
    tries: int = 1  # how often it was asked


@attrs.frozen(kw_only=True)
class Opened:
    """An answer whose body is still to be read."""

    url: str  # where it comes from, after redirects
    response: urllib3.BaseHTTPResponse  # the library's

    @property
    def status(self) -> int:
        """Of HTTP."""
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Their case does not count."""
        return self.response.headers


class Transport:
    """Connections to registries, kept open between requests; threads may share one."""

    def __init__(
        self,
        *,
        timeout: float = TIMEOUT,
        environ: Mapping[str, str] = os.environ,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        try:
            import urllib3
        except ImportError:
            raise MissingExtra(
                "image registries are read with urllib3, which is not installed",
                fix="pip install 'upshift[images]'",
            ) from None
        self._urllib3 = urllib3
        self._silence = timeout
        self._connecting = min(timeout, 10.0)
        self._environ = environ
        self._wait = wait or threading.Event().wait
        self._pools: dict[tuple[str, str | None], urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.clear()

    def answer(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tries: int = TRIES,
        follow: bool = True,
    ) -> Answer:
        """Ask, and read the answer to its end; again where the registry is in trouble for a moment."""
        tried = 0
        while True:
            tried += 1
            last = tried >= tries
            try:
                opened = self.open(method, url, headers=headers, body=body, follow=follow)
                content = b"".join(self.read(opened, whole=True))
            except NoAnswer as error:
                # Who is not there, or says nothing for long, will not be there in a second.
                if last or error.kind != LOST:
                    if tried > 1:
                        error.why += f" ({tried} times)"
                    raise
                self.pause(tried)
                continue
            if opened.status not in _TRANSIENT or last or not self.pause(tried, opened.headers):
                return Answer(
                    status=opened.status, headers=opened.headers, body=content, url=opened.url, tries=tried
                )

    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        follow: bool = True,
        slack: float = 0.0,
    ) -> Opened:
        """Ask once, and hand the answer back before its body is read."""
        sent = {"User-Agent": f"upshift/{__version__}", **(headers or {})}
        for _ in range(_MOST_REDIRECTS):
            response = self._send(method, url, sent, body, slack)
            to = response.headers.get("Location")
            follows = follow and method in ("GET", "HEAD") and response.status in _REDIRECTS
            if not follows or not to:
                return Opened(url=url, response=response)
            response.drain_conn()
            url = self._redirected(url, to, sent)
        raise NoAnswer(f"{host_of(url)} redirects without an end", fix="Ask who runs the registry.")

    def read(self, opened: Opened, *, whole: bool = False) -> Iterator[bytes]:
        """The body, in blocks, as it arrives."""
        response, url = opened.response, opened.url
        got, started = 0, time.monotonic()
        counted, since = 0, started
        try:
            while True:
                block = response.read1(_BLOCK, decode_content=whole)  # as soon as there is any
                if not block:
                    return
                got += len(block)
                now = time.monotonic()
                if now - since > self._silence:
                    if got - counted < _SLOWEST * self._silence:
                        raise trickles(url, _SLOWEST)
                    counted, since = got, now
                if whole and got > LARGEST:
                    raise NoAnswer(
                        f"{host_of(url)} answers with more than {LARGEST >> 20} MiB",
                        fix="Ask who runs the registry.",
                    )
                if whole and now - started > 2 * self._silence:
                    raise slow(url, 2 * self._silence)
                yield block
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise explained(error, url, self._silence, got) from None
        finally:
            response.close() if response.length_remaining else response.release_conn()

    def pause(self, tried: int, headers: Mapping[str, str] | None = None) -> bool:
        """Wait before the next try; False: the registry asks for more patience than there is."""
        asked = (headers or {}).get("Retry-After", "")
        seconds = float(asked) if asked.isdecimal() else _PAUSES[min(tried, len(_PAUSES)) - 1]
        if seconds > _LONGEST_PAUSE:
            return False
        self._wait(seconds)
        return True

    def _redirected(self, url: str, to: str, headers: dict[str, str]) -> str:
        """Where to ask next. A login goes to the registry alone, and nothing goes from https to http."""
        target = joined(url, to)
        before, after = urlsplit(url), urlsplit(target)
        if before.scheme == "https" and after.scheme != "https":
            raise NoAnswer(
                f"{host_of(url)} redirects from https to {after.scheme or 'nowhere'}://{host_of(target)}",
                fix="Ask who runs the registry.",
            )
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            headers.pop("Authorization", None)
        return target

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, slack: float
    ) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        proxy = proxy_for(parts.scheme, parts.hostname or "", self._environ)
        try:
            return self._pool(parts.scheme, parts.netloc, proxy).request(
                method,
                url,
                headers=dict(headers),
                body=body,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=self._urllib3.Timeout(connect=self._connecting, read=self._silence + slack),
            )
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            connecting = isinstance(error, self._urllib3.exceptions.ConnectTimeoutError)
            silence = self._connecting if connecting else self._silence + slack
            raise explained(error, url, silence) from None

    def _pool(self, scheme: str, netloc: str, proxy: str | None) -> urllib3.PoolManager:
        folders = certificates_of(netloc) if scheme == "https" else []
        key = (
            f"{scheme} {netloc if folders else ''}",
            proxy,
        )  # certificates of one registry are for that alone
        with self._lock:
            if key not in self._pools:
                options: dict[str, Any] = {"maxsize": 8, "blocksize": _BLOCK}
                if scheme == "https":
                    options["ssl_context"] = self._trusted(folders)
                if proxy is None:
                    self._pools[key] = self._urllib3.PoolManager(**options)
                else:
                    self._pools[key] = self._through(proxy, options)
                self._pools[key].pool_classes_by_scheme = _impatient_pools()
            return self._pools[key]

    def _through(self, proxy: str, options: dict[str, Any]) -> urllib3.ProxyManager:
        try:
            address, login = without_login(proxy)
            headers = self._urllib3.make_headers(proxy_basic_auth=login) if login else None
            return self._urllib3.ProxyManager(address, proxy_headers=headers, **options)
        except ValueError:
            raise NoAnswer(
                "the address of its proxy is invalid",
                fix="Check HTTPS_PROXY and HTTP_PROXY: http://HOST:PORT",
            ) from None

    def _trusted(self, folders: list[Path]) -> ssl.SSLContext:
        try:
            return trusted(self._environ, folders)
        except OSError as error:  # which an SSLError is
            raise NoAnswer(
                f"the certificates in {error.filename} cannot be read ({error.strerror})",
                fix="Name a file or folder with certificates (PEM).",
            ) from None


@functools.cache
def _impatient_pools() -> dict[str, Any]:
    """Pools whose connections also give up a head of an answer that comes byte by byte.

    The library's limit is for each piece that arrives, so that a byte now and then would keep it waiting.
    """
    from urllib3 import connection, connectionpool

    class Impatient:
        def getresponse(self) -> Any:
            own: Any = self
            late = threading.Event()

            def give_up() -> None:
                late.set()
                with contextlib.suppress(OSError, AttributeError):
                    own.sock.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(2 * own.timeout, give_up)
            timer.daemon = True
            timer.start()
            try:
                return super().getresponse()  # type: ignore[misc]
            finally:
                timer.cancel()
                if late.is_set():  # half a head may pass for one
                    raise TimeoutError from None

    pools = {}
    for scheme, pool, plain in (
        ("http", connectionpool.HTTPConnectionPool, connection.HTTPConnection),
        ("https", connectionpool.HTTPSConnectionPool, connection.HTTPSConnection),
    ):
        own = type("Connection", (Impatient, plain), {})
        pools[scheme] = type("Pool", (pool,), {"ConnectionCls": own})
    return pools
