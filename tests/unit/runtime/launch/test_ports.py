"""The port of rank 0: free, kept, and refused with the name of who has it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from upshift.errors import BackendError
from upshift.runtime.launch.network import keep, taker


@pytest.fixture
def busy() -> Iterator[int]:
    """A port at which somebody listens on one address only."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_kept_is_given_to_nobody_else() -> None:
    with keep(None) as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))


def test_ports_kept_at_once_differ() -> None:
    ports = [keep(None) for _ in range(200)]
    assert len({port.number for port in ports}) == 200
    for port in ports:
        port.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_who_shares_addresses_may_listen_at_a_port_that_is_kept(address: str) -> None:
    with keep(None) as port, socket.create_server((address, port.number)):
        socket.create_connection(("127.0.0.1", port.number), 10).close()


def test_a_store_of_pytorch_listens_at_a_port_that_is_kept() -> None:
    torch = pytest.importorskip("torch")
    with keep(None) as port:
        server = torch.distributed.TCPStore("127.0.0.1", port.number, is_master=True, wait_for_workers=False)
        port.close()
        server.set("key", "value")
        client = torch.distributed.TCPStore("127.0.0.1", port.number, is_master=False)
        assert client.get("key") == b"value"


def test_a_port_that_was_kept_is_free_at_once() -> None:
    with keep(None) as port:
        pass
    with keep(port.number) as again:
        assert again.number == port.number


def test_a_port_of_one_s_own_that_is_taken_is_refused_and_its_owner_named(busy: int) -> None:
    with pytest.raises(BackendError) as refused:
        keep(busy, argument="main_process_port")
    assert refused.value.what == f"main_process_port={busy} is taken"
    assert f"Process {os.getpid()} (" in str(refused.value.why)
    assert "leave out main_process_port" in str(refused.value.fix)


def test_what_listens_in_another_process_is_named_by_its_command() -> None:
    code = (
        "import socket\ns = socket.create_server(('::1', 0), family=socket.AF_INET6)\n"
        "print(s.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "the-other-service"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        found = taker(port)
        with pytest.raises(BackendError, match="taken"):
            keep(port)
        other.communicate("\n")
    assert str(found).startswith(f"Process {other.pid} (")
    assert "\n" not in str(found)


def test_two_steps_that_fix_one_port_do_not_both_have_it() -> None:
    with keep(None) as port, pytest.raises(BackendError) as refused:
        keep(port.number, argument="master_port")
    assert f"Another step of Upshift (process {os.getpid()} (" in str(refused.value.why)


def test_a_connection_that_was_just_closed_does_not_take_the_port() -> None:
    with keep(None) as port, socket.create_server(("127.0.0.1", port.number)) as server:
        client = socket.create_connection(("127.0.0.1", port.number), 10)
        accepted, _ = server.accept()
        accepted.close()  # this side is the first to close: TIME_WAIT is its own
        assert client.recv(1) == b""
        client.close()
    with keep(port.number) as again:
        assert again.number == port.number


def test_nobody_has_a_port_that_is_free() -> None:
    with keep(None) as port:
        pass
    assert taker(port.number) is None
