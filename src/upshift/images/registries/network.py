"""How a host is reached, by the usual variables: proxies, and whose certificates are trusted."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

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
    """Whether a registry may be spoken to without TLS: it is on this machine, or the configuration names it.

    Raises ConfigError: the configuration is invalid.
    """
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
    """The authorities of the system (``SSL_CERT_FILE``, ``SSL_CERT_DIR``) and of the other usual variables.

    Raises OSError: a file that is named cannot be read; ``filename`` says which.
    """
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
