"""The network between the processes of a step: the port of rank 0, and whether nodes reach each other.

The port is chosen, checked, and kept until rank 0 listens there. PyTorch's TCPStore listens with
``SO_REUSEADDR``. So it may have a port to which somebody is bound who set that as well and does not listen,
and nobody else is given that port meanwhile, be it by ``bind(0)`` or for a connection. Two that keep the same
port in this way would not notice each other: so each has a name beside it, an abstract socket (Linux), which
belongs to the network namespace as ports do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from upshift.errors import BackendError
from upshift.model.spec import Launch
from upshift.runtime import children

_LISTENS: Final = "0A"
"""The state of a socket that listens, as proc(5) shows it: ``TCP_LISTEN`` of ``tcp_states.h``."""
_TRIES: Final = 20
_LONGEST: Final = 60
"""Characters of a command line that are shown."""


class Port:
    """A port that nobody else is given while this lives, but for a listener that shares addresses."""

    def __init__(self, number: int, *held: socket.socket) -> None:
        self.number = number
        self.held = held

    def answer(self) -> socket.socket:
        """Answer who connects there, until what is returned is closed: rank 0 does not listen yet."""
        trial = socket.socket(self.held[0].family)
        try:
            if trial.family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("", self.number))
            trial.listen()
        except OSError:
            trial.close()
            raise
        return trial

    def close(self) -> None:
        """Let go of it. Who listens there by now goes on to do so."""
        for one in self.held:
            one.close()

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def keep(wanted: int | None, *, argument: str = "port") -> Port:
    """Keep a port for rank 0."""
    if wanted is None:
        return _any()
    try:
        return _kept(wanted)
    except PermissionError:
        raise BackendError(
            f"{argument}={wanted} may not be used by this user",
            why="Ports below 1024 are for the system (ip(7), ip_unprivileged_port_start).",
            fix=f"Name a higher one, or leave out {argument}: then one that is free is chosen.",
        ) from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise BackendError(f"{argument}={wanted} cannot be used", why=error.strerror) from None
        raise BackendError(
            f"{argument}={wanted} is taken",
            why=f"{taker(wanted) or 'Somebody'} has it.",
            fix=f"Stop that, or leave out {argument}: then one that is free is chosen.",
        ) from None


def keep_port(launch: Launch) -> Port:
    """Keep the port of a launch; no child of this process does."""
    from upshift.runtime.launch.launchers import launcher  # no other step needs its tables

    port = keep(launch.port, argument=launcher(launch.launcher).port)
    for one in port.held:
        children.private(one)
    return port


def wait_until_free(port: int, seconds: float) -> None:
    """Wait until nobody keeps this port any more, but no longer than so many seconds."""
    with socket.socket(socket.AF_UNIX) as waiting, contextlib.suppress(OSError):
        waiting.settimeout(seconds)
        waiting.connect(_mark(port))
        waiting.recv(1)  # it ends with the keeper, who says nothing


def taker(port: int) -> str | None:
    """Who has a port of this machine, in words; None: nobody, or the kernel does not tell."""
    if sys.platform != "linux":
        return None
    other = _keeper(port)
    if other is not None:
        return f"Another step of Upshift ({other})"
    found = sorted(_sockets(port), key=lambda one: one.state != _LISTENS)
    if not found:
        return None
    by_inode = {one.inode for one in found}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if by_inode & set(_inodes(pid)):
            return _described(int(pid)).capitalize()
    return f"A process of user {_user(found[0].uid)!r} that cannot be looked into"


# -- keeping --------------------------------------------------------------------------------------


def _any() -> Port:
    for _ in range(_TRIES):
        try:
            return _kept(0)
        except OSError as error:
            problem = error
    raise BackendError("no port is free for the processes of the step to meet at", why=problem.strerror)


def _kept(number: int) -> Port:
    """A port, 0 for any."""
    held = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    mark = socket.socket(socket.AF_UNIX)
    try:
        if held.family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", number))
        number = held.getsockname()[1]
        if sys.platform == "linux":
            mark.bind(_mark(number))
            mark.listen()  # so that who asks is told by whom (SO_PEERCRED)
    except OSError:
        held.close()
        mark.close()
        raise
    return Port(number, held, mark)


def _mark(number: int) -> str:
    return f"\0upshift/port/{number}"


# -- asking who has it ----------------------------------------------------------------------------


def _keeper(port: int) -> str | None:
    """The process of ours that keeps this port."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_mark(port))
        except BlockingIOError:  # many ask at once
            return "its process is not known"
        except OSError:
            return None
        pid, uid = children.peer(asking)
    return f"{_described(pid)}, of user {_user(uid)!r}" if pid else f"of user {_user(uid)!r}"


class _Socket(NamedTuple):
    state: str
    uid: int
    inode: str


def _sockets(port: int) -> Iterator[_Socket]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()  # sl, local address, remote address, state, …, uid, timeout, inode
                if int(fields[1].rpartition(":")[2], 16) == port:
                    yield _Socket(fields[3], int(fields[7]), fields[9])


def _inodes(pid: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def _described(pid: int) -> str:
    command = ""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        command = " ".join(words.split())  # one line, whatever the arguments hold
    if len(command) > _LONGEST:
        command = command[: _LONGEST - 1] + "…"
    return f"process {pid}" + (f" ({command})" if command else "")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# -- whether nodes reach each other, and by which interface ---------------------------------------

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
