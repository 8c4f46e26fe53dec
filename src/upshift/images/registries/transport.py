"""HTTP to image registries, one request at a time: proxies, certificates, redirects, second tries.

What a registry answers is handed back, whatever it is. No answer, or half of one, is :class:`NoAnswer`, which
says why in words.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import attrs

from upshift._version import __version__
from upshift.errors import MissingExtra
from upshift.model.configuration import load_configuration

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

CERTIFICATES = ("/etc/docker/certs.d", "/etc/containers/certs.d")
"""Where Docker and Podman look for the certificates of one registry, in a folder HOST:PORT."""

_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")

SLOW, REFUSED, NOT_TLS, LOST, OTHER = "slow", "refused", "not tls", "lost", "other"
"""Kinds of it: nothing was said for long; no connection was taken; one was taken without TLS, or was lost."""

# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH: openssl/x509_vfy.h
_OF_ANOTHER = (62, 64)
_CHECK_NETWORK = "Check the name of the registry and that it runs; the network, and HTTPS_PROXY and NO_PROXY."


@attrs.frozen(kw_only=True)
class RegistryAnswer:
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
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.response.headers


class RegistryTransport:
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
    ) -> RegistryAnswer:
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
                return RegistryAnswer(
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
                        raise NoAnswer(
                            f"{host_of(url)} sends less than {_SLOWEST:,} bytes a second", kind=SLOW
                        )
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
        roots = CERTIFICATES if scheme == "https" else ()
        folders = [folder for root in roots if (folder := Path(root, netloc)).is_dir()]
        key = f"{scheme} {netloc if folders else ''}", proxy  # a registry's certificates are for it alone
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


# -- how a host is reached ------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, by its name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def may_lack_tls(registry: str) -> bool:
    """Whether a registry may be spoken to without TLS: it is here, or the configuration names it."""
    host = urlsplit(f"//{registry}").hostname or ""
    return is_loopback(host) or registry in load_configuration().insecure_registries


def proxy_for(scheme: str, host: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that a host is reached by (``HTTPS_PROXY``, ``HTTP_PROXY``, ``NO_PROXY``); None: directly."""
    name = f"{scheme}_proxy"
    proxy = environ.get(name) or environ.get(name.upper())
    if not proxy or is_loopback(host):
        return None
    without = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if any(_covers(part.strip().lower(), host.lower()) for part in without.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def without_login(proxy: str) -> tuple[str, str | None]:
    """The address of a proxy, and the login that it was written with (``user:password``)."""
    parts = urlsplit(proxy)
    address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
    if parts.username is None:
        return address, None
    return address, f"{unquote(parts.username)}:{unquote(parts.password or '')}"


def trusted(environ: Mapping[str, str], folders: list[Path]) -> ssl.SSLContext:
    """The authorities of the system (``SSL_CERT_FILE``, ``SSL_CERT_DIR``) and the other usual variables."""
    context = ssl.create_default_context()
    files = [environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")]
    defaults = ssl.get_default_verify_paths()
    if not (os.path.isfile(defaults.cafile or "") or os.path.isdir(defaults.capath or "")):
        # Where a Python that was built elsewhere finds no authorities, those of this system are looked for.
        files.append(next(filter(os.path.isfile, _BUNDLES), None))
    files += [str(file) for folder in folders for file in sorted(folder.glob("*.crt"))]
    for file in filter(None, files):
        folder = os.path.isdir(file)
        try:
            context.load_verify_locations(None if folder else file, file if folder else None)
        except OSError as error:
            error.filename, error.strerror = file, error.strerror or "no certificates in it"
            raise
    return context


def _covers(part: str, host: str) -> bool:
    """Whether an entry of NO_PROXY means a host: a name and what is below it, an address, a network, all."""
    if part == "*":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")) in ipaddress.ip_network(part.strip("[]"), strict=False)
    except ValueError:
        name = part.removeprefix("*").removeprefix(".").partition(":")[0]
        return bool(name) and (host == name or host.endswith(f".{name}"))


# -- when nobody answers --------------------------------------------------------------------------


class NoAnswer(Exception):
    """Nobody answered, or the answer ended before its end."""

    def __init__(self, why: str, *, fix: str = _CHECK_NETWORK, kind: str = OTHER) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix
        self.kind = kind


def explained(error: Exception, url: str, silence: float, got: int = 0) -> NoAnswer:
    """What an error of the library for HTTP, or of the system, means."""
    from urllib3 import exceptions

    host = host_of(url)
    cause = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    if isinstance(error, exceptions.ProxyError):
        return NoAnswer(
            f"{host} cannot be reached: its proxy gives no connection ({_reason(error.original_error)})",
            fix="Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
        )
    if isinstance(error, exceptions.NameResolutionError):
        return NoAnswer(f"{host} cannot be reached: its name is not known on this network", kind=REFUSED)
    if isinstance(error, exceptions.NewConnectionError):
        return NoAnswer(f"{host} cannot be reached: {_reason(error)}", kind=REFUSED)
    if isinstance(error, exceptions.ConnectTimeoutError):
        return NoAnswer(f"{host} cannot be reached: no connection within {silence:g} s", kind=SLOW)
    if isinstance(error, (exceptions.ReadTimeoutError, TimeoutError)):
        return slow(url, silence)
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = f"the certificate of {host} is not trusted here: {cause.verify_message}"
        if cause.verify_code in _OF_ANOTHER:
            return NoAnswer(why, fix="Check the name of the registry; the certificate is another host's.")
        return NoAnswer(
            why,
            fix="Name the file of its authority in SSL_CERT_FILE, "
            f"or put it into {CERTIFICATES[0]}/{urlsplit(url).netloc}/ca.crt.",
        )
    if isinstance(cause, ssl.SSLError) and not got:
        return NoAnswer(
            f"{host} does not speak https ({cause.reason or cause})",
            fix="If it is a registry without TLS, name it in insecure_registries of upshift.toml.",
            kind=NOT_TLS,
        )
    broken = error.args[1] if len(error.args) > 1 else None
    if isinstance(broken, TimeoutError):  # what was sent, nobody took
        return slow(url, silence)
    if isinstance(broken, exceptions.IncompleteRead) and isinstance(broken.partial, int):
        got = broken.partial
    after = f" after {got:,} bytes" if got else ""
    return NoAnswer(f"the connection to {host} was lost{after}", kind=LOST)


def slow(url: str, seconds: float) -> NoAnswer:
    """The error for a server that has been silent for so long."""
    return NoAnswer(f"{host_of(url)} has not answered within {seconds:g} s", kind=SLOW)


def joined(base: str, to: str) -> str:
    """A whole address, out of what a registry gives as one."""
    try:
        url = urljoin(base, to)
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise NoAnswer(
            f"{host_of(base)} gives {printable(to)!r} as an address", fix="Ask who runs the registry."
        )
    return url


def host_of(url: str) -> str:
    """Host and port, without a login that may be in the address."""
    return printable(urlsplit(url).netloc.rpartition("@")[2]) or "the registry"


def printable(text: str) -> str:
    """What can be shown of what somebody else wrote."""
    return "".join(character if character.isprintable() else "?" for character in text)[:200]


def _reason(error: BaseException) -> str:
    """The system's words in an error that another library has wrapped."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror.lower()
        seen = seen.__cause__ or seen.__context__
    return str(error).rpartition(": ")[2].lower() or "no connection"
