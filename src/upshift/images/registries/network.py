"""How a host is reached, by the usual variables: proxies, and whose certificates are trusted. And when nobody
answers, or the answer ends before its end: why, in words (:class:`NoAnswer`).
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from upshift.model.configuration import load_configuration

CERTIFICATES = ("/etc/docker/certs.d", "/etc/containers/certs.d")
"""Where Docker and Podman look for the certificates of one registry, in a folder HOST:PORT."""

_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


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


def certificates_of(registry: str) -> list[Path]:
    """The folders with certificates for one registry alone."""
    return [folder for root in CERTIFICATES if (folder := Path(root, registry)).is_dir()]


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


SLOW, REFUSED, NOT_TLS, LOST, OTHER = "slow", "refused", "not tls", "lost", "other"
"""Kinds of it: nothing was said for long; no connection was taken; one was taken without TLS, or was lost."""

# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH: openssl/x509_vfy.h
_OF_ANOTHER = (62, 64)
_CHECK_NETWORK = "Check the name of the registry and that it runs; the network, and HTTPS_PROXY and NO_PROXY."


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
    """Nothing was said for so long."""
    return NoAnswer(f"{host_of(url)} has not answered within {seconds:g} s", kind=SLOW)


def trickles(url: str, rate: int) -> NoAnswer:
    """So little comes that it would take for ever."""
    return NoAnswer(f"{host_of(url)} sends less than {rate:,} bytes a second", kind=SLOW)


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
