"""Which node reaches which other one, and by what."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from upshift.errors import BackendError
from upshift.runtime.launch.network import connect, interface_towards, is_own, source_address, unreachable


def test_nodes_that_reach_each_other_are_connected() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        with connect("127.0.0.2", port, timeout=10, source="node 1", target="the main node") as found:
            assert found.getpeername() == ("127.0.0.2", port)


def test_a_node_that_cannot_be_reached_is_named_with_the_direction() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        port = bound.getsockname()[1]
        with pytest.raises(BackendError) as refused:
            connect("127.0.0.1", port, timeout=10, source="Node 1", target="the main node")
    assert refused.value.what == f"Node 1 (from 127.0.0.1) cannot reach the main node at 127.0.0.1:{port}"
    assert "nothing listens" in str(refused.value.why)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError("timed out"), "No answer within 5 s"),
        (OSError(errno.ETIMEDOUT, "Connection timed out"), "No answer within 5 s"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no way to that network"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "nothing listens at port 29500"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "'127.0.0.1' is not known"),
        (OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), "Connection reset by peer."),
    ],
)
def test_each_cause_has_its_own_words(error: OSError, why: str) -> None:
    found = unreachable(error, "127.0.0.1", 29500, timeout=5, source="The main node", target="node 1")
    assert why in str(found.why)
    assert found.fix
    assert found.what == "The main node (from 127.0.0.1) cannot reach node 1 at 127.0.0.1:29500"


def test_a_name_that_nobody_knows_is_said() -> None:
    with pytest.raises(BackendError, match="Node 1 cannot reach the main node at no-such") as refused:
        connect("no-such-host.invalid", 29500, timeout=10, source="Node 1", target="the main node")
    assert "is not known there" in str(refused.value.why)


def test_loopback_is_reached_by_loopback() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("127.0.0.3") == "lo"
    assert source_address("127.0.0.3") == "127.0.0.1"


def test_every_interface_is_found_by_its_own_address() -> None:
    import fcntl
    import struct

    found = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name.encode()))
            except OSError:
                continue
            assert interface_towards(socket.inet_ntoa(answer[20:24])) == name
            found += 1
    assert found


def test_an_address_of_another_machine_is_not_own() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")  # for documentation only, RFC 5737
    assert not is_own("no-such-host.invalid")
