"""A fork server of an earlier engine answers, is dead, or is named: nobody waits for it for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from upshift.backends.local import backend
from upshift.errors import BackendError
from upshift.runtime import children, marks
from upshift.runtime.supervisor.server_files import ServerFiles

LISTENER = """
import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(8)
if sys.argv[2] == "dies":
    if os.fork():
        os._exit(0)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(upshift_home: Path) -> ServerFiles:
    place = ServerFiles("1-ab")
    place.folder.mkdir(parents=True)
    place.lock.touch()
    return place


@pytest.fixture
def server(place: ServerFiles, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens at the place, and either lives or leaves its socket to a child."""
    with (
        children.address(place.socket) as address,
        subprocess.Popen(
            [sys.executable, "-c", LISTENER, address, request.param],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server,
    ):
        assert server.stdin and server.stdout
        server.stdout.readline()
        yield server
        server.stdin.close()


def fill(link: backend.Link) -> None:
    """Talk to a server until there is no room any more."""
    while True:
        link.say("query", name="x" * 1000)


@pytest.mark.parametrize("server", ["lives"], indirect=True)
def test_a_server_that_does_not_answer_is_named(
    place: ServerFiles, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "ANSWER", 0.01)
    link = backend.find_server(place.name, lambda *_: None)
    assert link is not None
    server.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(BackendError, match=f"process {server.pid}, does not answer") as refused:
        fill(link)
    assert refused.value.why == "It is stopped."
    assert f"kill -CONT {server.pid}" in (refused.value.fix or "")
    link.close(wait=False)
    server.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("server", ["dies"], indirect=True)
def test_a_dead_server_whose_socket_somebody_keeps_is_dead(
    place: ServerFiles, server: subprocess.Popen[bytes]
) -> None:
    server.wait()
    assert backend.find_server(place.name, lambda *_: None) is None
    assert not place.lock.exists()


def test_what_has_the_mark_of_a_dead_server_is_ended(place: ServerFiles) -> None:
    reader, writer = os.pipe()
    mark = marks.make(place.name)
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    assert list(marks.marked(place.name)) == [child]
    assert backend.find_server(place.name, lambda *_: None) is None
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    for descriptor in (mark, reader, writer):
        os.close(descriptor)
    assert list(marks.marked(place.name)) == []


def test_what_is_private_is_closed_in_a_fork() -> None:
    ours, theirs = socket.socketpair()
    children.private(ours)
    child = os.fork()
    if child == 0:
        os._exit(0 if ours.fileno() < 0 <= theirs.fileno() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ours.fileno() >= 0
    ours.close()
    theirs.close()
