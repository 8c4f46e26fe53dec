"""Whether nodes reach each other, and by which network interface."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

from upshift.errors import BackendError

_SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
_NO_ROUTE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def connect(address: str, port: int, *, timeout: float, source: str, target: str) -> socket.socket:
    """A connection to another node."""
    try:
        return socket.create_connection((address, port), timeout)
    except OSError as error:
        raise unreachable(error, address, port, timeout=timeout, source=source, target=target) from None


def unreachable(
    error: OSError, address: str, port: int, *, timeout: float, source: str, target: str
) -> BackendError:
    """The error that says which node cannot reach which other one, and what that may come from."""
    why, fix = _cause(error, address, port, timeout)
    here = source_address(address)
    by = f" (from {here})" if here is not None else ""
    return BackendError(f"{source}{by} cannot reach {target} at {address}:{port}", why=why, fix=fix)


def _cause(error: OSError, address: str, port: int, timeout: float) -> tuple[str, str]:
    if isinstance(error, socket.gaierror):
        return (
            f"The name {address!r} is not known there ({error.strerror}).",
            "Give the main node's IP address, or a name that all nodes know.",
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            f"The machine answers, but nothing listens at port {port}, or a firewall refuses.",
            f"See whether {address} is the right machine, and that the port is open between the nodes.",
        )
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return (
            f"No answer within {timeout:g} s: a firewall drops what is sent, or the address leads elsewhere.",
            "Open the port in this direction (security group, network policy, firewall of the host).",
        )
    if error.errno in _NO_ROUTE:
        return (
            f"There is no way to that network ({error.strerror}).",
            "Give an address of the main node in a network that all nodes are in.",
        )
    return f"{error.strerror or error}.", "Look at the network between the nodes."


def is_own(address: str) -> bool:
    """Whether this machine has the address: what is to be reached at it can listen here."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial, contextlib.suppress(OSError):
                trial.bind(where)
                return True
    return False


def source_address(address: str) -> str | None:
    """The address that this machine has for who is at ``address``; None: no way leads there.

    Nothing is sent.
    """
    with contextlib.suppress(OSError):
        for family, _, _, _, where in socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as trial, contextlib.suppress(OSError):
                trial.connect(where)
                return str(trial.getsockname()[0])
    return None


def interface_towards(address: str) -> str | None:
    """The network interface by which this machine reaches ``address``; None: not known.

    An address of this machine itself is reached by loopback: then it is the interface that has it.
    """
    own = address if is_own(address) else source_address(address)
    if own is None:
        return None
    with contextlib.suppress(OSError):
        own = str(socket.getaddrinfo(own, None)[0][4][0])
    return _with_ipv6(own) if ":" in own else _with_ipv4(own)


def _with_ipv4(own: str) -> str | None:
    if own.startswith("127."):  # all of 127.0.0.0/8, of which the interface says one
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                request = struct.pack("256s", name.encode())
                found = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) == own:
                    return name
    return None


def _with_ipv6(own: str) -> str | None:
    wanted = socket.inet_pton(socket.AF_INET6, own.partition("%")[0]).hex()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            fields = line.split()  # address, index, length of the prefix, scope, flags, name
            if fields[0] == wanted:
                return fields[5]
    return None
