"""Connections of HTTP that are kept for the next request, and never shared with a forked process."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import importlib
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from upshift.errors import ConfigError
from upshift.runtime import children

_CONNECTING = 10.0
_SILENCE = 60.0
"""Seconds without a byte, after which a connection counts as broken."""
_IDLE = 16
"""Connections that are kept for each server."""
_PORTS = {"http": 80, "https": 443}


class Stale(ConnectionError):
    """A connection that was kept was closed at the other end."""


class Connections:
    """The connections of this process."""

    def __init__(
        self,
        *,
        silence: float = _SILENCE,
        connecting: float = _CONNECTING,
        direct: bool = False,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._silence = silence
        self._connecting = connecting
        self._context = context  # who is trusted, and as whom it asks; None: as the system has it
        self._direct = direct  # no proxy, whatever the environment says
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._open: dict[http.client.HTTPConnection, socket.socket | None] = {}
        weakref.finalize(self, _close, self._open, self._idle)
        self._in_fork = children.private(_Inherited(weakref.ref(self)))

    def close(self) -> None:
        """Close all of them; the next request opens another one."""
        with self._lock:
            opened, idle = dict(self._open), dict(self._idle)
            self._open.clear()
            self._idle.clear()
        _close(opened, idle)

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors, and touch nothing else of the parent's.

        A thread that does not exist here may have been reading, and holds the lock of what it read from for
        ever: neither that nor what refers to it may be closed, at the end of the process either.
        """
        for connection, connected in self._open.items():
            inherited = connection.sock if connected is None else connected
            if inherited is not None:
                with contextlib.suppress(OSError):  # it was being closed
                    os.close(inherited.detach())
        _of_parent.append(dict(self._open))
        self._open.clear()
        self._idle.clear()
        self._lock = threading.Lock()  # somebody who does not exist here may hold the other one

    def interrupt(self) -> None:
        """End what other threads wait for: they hear that the connection is gone."""
        for connection in list(self._open):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def response(
        self,
        method: str,
        url: SplitResult,
        target: str,
        headers: Mapping[str, str],
        body: Sequence[memoryview] = (),
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask a server; the connection is kept if the answer was read to its end.

        Raises
        ------
        OSError, http.client.HTTPException
            There is no answer.
        """
        key = (url.scheme, url.netloc)
        with self._lock:
            kept = self._idle.get(key)
            connection = kept.pop() if kept else None
        reused = connection is not None
        proxy = None if self._direct else _proxy(url)
        if connection is None:
            connection = self._connect(url, proxy)
        answer = None
        try:
            if proxy is not None and url.scheme == "http":
                target = f"http://{url.netloc}{target}"
            answer = _ask(connection, method, target, headers, body, reused=reused)
            yield answer
        finally:
            if answer is not None and answer.isclosed() and not answer.will_close:
                with self._lock:
                    idle = self._idle.setdefault(key, [])
                    if connection in self._open and len(idle) < _IDLE:  # else it was shut down meanwhile
                        idle.append(connection)
                        connection = None
            if connection is not None:
                if answer is not None:
                    answer.close()
                connection.close()
                self._open.pop(connection, None)

    def _connect(self, url: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
        at = url if proxy is None else proxy
        host, port = at.hostname or "", at.port or _PORTS[at.scheme]
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, port, timeout=self._connecting, context=self._context or _tls()
            )
            if proxy is not None:
                connection.set_tunnel(url.hostname or "", url.port or 443, _login(proxy))
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._connecting)
        self._open[connection] = None
        try:
            connection.connect()
        except BaseException:
            connection.close()
            self._open.pop(connection, None)
            raise
        self._open[connection] = connection.sock
        connection.sock.settimeout(self._silence)
        return connection


_of_parent: list[object] = []
"""What a fork has inherited, which is never freed."""


class _Inherited:
    """Connections, as they are in a forked child."""

    def __init__(self, connections: weakref.ref[Connections]) -> None:
        self._connections = connections

    def close(self) -> None:
        """Abandon them."""
        connections = self._connections()
        if connections is not None:
            connections.abandon()


def _close(
    opened: dict[http.client.HTTPConnection, socket.socket | None],
    idle: Mapping[tuple[str, str], Sequence[http.client.HTTPConnection]],
) -> None:
    """Close those that nobody uses. Who reads from another one hears that it is gone, and closes it."""
    unused = {connection for kept in list(idle.values()) for connection in kept}
    while opened:
        connection, connected = opened.popitem()
        if connection in unused:
            connection.close()
        elif connected is not None:  # closing it here would wait for the end of that read
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: Sequence[memoryview],
    *,
    reused: bool,
) -> http.client.HTTPResponse:
    broken: OSError | None = None
    try:
        connection.request(method, target, body=body or None, headers=dict(headers))
    except TimeoutError:
        raise
    except (BrokenPipeError, ConnectionResetError) as error:
        # A server that refuses a body may answer and close before it has read all of it.
        broken = error
        connection._HTTPConnection__state = http.client._CS_REQ_SENT  # type: ignore[attr-defined]
    try:
        return connection.getresponse()
    except (http.client.BadStatusLine, ConnectionError) as error:
        if reused:
            raise Stale(str(error)) from None
        raise broken or error from None


def _proxy(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a server: ``HTTPS_PROXY``, ``NO_PROXY`` and so on."""
    named = getproxies_environment().get(url.scheme)
    if not named or proxy_bypass(url.hostname or ""):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ConfigError(
            f"the proxy {proxy.scheme}://{proxy.hostname or ''} cannot be used",
            why="Object stores are reached through proxies that speak HTTP.",
            fix=f"Set {url.scheme.upper()}_PROXY to http://HOST:PORT, or add the server to NO_PROXY.",
        )
    return proxy


def _login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


@functools.cache
def _tls() -> ssl.SSLContext:
    named = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    try:
        context = ssl.create_default_context(cafile=named or None)
    except OSError as error:
        raise ConfigError(
            f"the file with certificates cannot be used: {named}",
            why=str(error),
            fix="Set SSL_CERT_FILE to a file with certificates in PEM, or unset it.",
        ) from None
    if context.cert_store_stats()["x509_ca"] or _folder_of_certificates():
        return context
    try:
        context.load_verify_locations(importlib.import_module("certifi").where())
    except ImportError:
        raise ConfigError(
            "no server can be trusted: this system has no certificates",
            why="Python's ssl module finds neither a file nor a folder with them.",
            fix="Install them (apt-get install ca-certificates; pip install certifi), or set SSL_CERT_FILE.",
        ) from None
    return context


def _folder_of_certificates() -> bool:
    """Whether there is a folder that OpenSSL looks certificates up in as it needs them."""
    folder = ssl.get_default_verify_paths().capath
    try:
        return folder is not None and bool(os.listdir(folder))
    except OSError:
        return False
