"""When nobody answers, or the answer ends before its end: why, in words."""

from __future__ import annotations

import ssl
from urllib.parse import urljoin, urlsplit

from upshift.images.registries.network import CERTIFICATES

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
    """A whole address, out of what a registry gives as one. Raises NoAnswer: it is none."""
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
