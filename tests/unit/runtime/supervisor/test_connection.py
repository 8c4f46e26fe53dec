"""The connection between two nodes' supervisors."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from upshift.runtime.loop import Loop
from upshift.runtime.supervisor import node_connection as connections
from upshift.runtime.supervisor.node_connection import LOG, Connection, Frame, WireError, pack


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


class End:
    """One end, and what it was told."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        take: Callable[[Frame], None] | None = None,
        silence: float = 60.0,
    ) -> None:
        self.frames: list[Frame] = []
        self.lost: list[str] = []
        self.connection = Connection(
            loop, sock, take or self.frames.append, self.lost.append, silence=silence
        )

    @property
    def said(self) -> list[str]:
        return [frame.content()["say"] for frame in self.frames]


def turn_until(loop: Loop, done: Callable[[], bool]) -> None:
    while not done():
        loop.turn()


def test_what_is_said_arrives_in_order(ends) -> None:  # type: ignore[no-untyped-def]
    loop = Loop()
    near, far = (End(loop, end) for end in ends)
    near.connection.say("one", value=1)
    near.connection.send(pack(LOG, 3, b"text"))
    turn_until(loop, lambda: len(far.frames) == 2)
    assert far.frames[0].content() == {"say": "one", "value": 1}
    assert far.frames[1] == (LOG, 3, b"text")


def test_more_than_the_network_takes_at_once_is_kept_and_told(ends) -> None:  # type: ignore[no-untyped-def]
    loop = Loop()
    near = End(loop, ends[0])
    block = b"x" * 60_000
    count = 0
    while not near.connection.full:
        near.connection.send(pack(LOG, count % 7, block))
        count += 1
    drained: list[bool] = []
    near.connection.when_drained(lambda: drained.append(near.connection.full))
    far = End(loop, ends[1])
    turn_until(loop, lambda: len(far.frames) == count)
    assert drained == [False]
    assert [frame.rank for frame in far.frames] == [number % 7 for number in range(count)]


def test_an_end_that_closes_is_told_once_to_the_other_alone(ends) -> None:  # type: ignore[no-untyped-def]
    loop = Loop()
    near, far = (End(loop, end) for end in ends)
    near.connection.say("farewell")
    near.connection.close()
    turn_until(loop, lambda: bool(far.lost))
    assert far.said == ["farewell"]
    assert (near.lost, far.lost) == ([], ["it has closed the connection"])
    far.connection.say("too late")
    near.connection.close()


def test_what_was_said_before_the_end_arrives_though_there_was_no_room(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "PARTING", 600.0)  # a busy machine takes its time
    loop = Loop()
    near = End(loop, ends[0])
    while not near.connection.full:
        near.connection.send(pack(LOG, 1, b"x" * 60_000))
    near.connection.say("over")
    near.connection.close()
    assert not near.connection.alive and not near.connection.closed
    far = End(loop, ends[1])
    turn_until(loop, lambda: bool(far.lost))
    assert far.frames[-1].content()["say"] == "over"
    turn_until(loop, lambda: near.connection.closed)
    assert not near.lost


def test_what_was_said_last_arrives_though_the_other_end_speaks_meanwhile(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "PARTING", 600.0)  # a busy machine takes its time
    loop = Loop()
    near = End(loop, ends[0])
    far = End(loop, ends[1])
    far.connection.say("beat")  # unread when the other end closes
    select.select([ends[0]], [], [])
    while not near.connection.full:
        near.connection.send(pack(LOG, 1, b"x" * 60_000))
    near.connection.say("over")
    near.connection.close()
    far.connection.say("beat")
    turn_until(loop, lambda: bool(far.lost) and near.connection.closed)
    assert far.frames[-1].content()["say"] == "over" and not near.frames


def test_an_end_that_takes_nothing_is_not_waited_for_after_the_end(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "PARTING", 0.05)
    loop = Loop()
    near = End(loop, ends[0])
    while not near.connection.full:
        near.connection.send(pack(LOG, 1, b"x" * 60_000))
    near.connection.close()
    turn_until(loop, lambda: near.connection.closed)
    assert not near.lost


def test_an_end_that_was_busy_counts_what_has_come_meanwhile(ends) -> None:  # type: ignore[no-untyped-def]
    loop = Loop()
    near = End(loop, ends[0], silence=0.2)
    far = End(loop, ends[1], silence=60.0)

    def stall() -> None:
        """The loop does nothing for longer than the silence, while the other end goes on."""
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            select.select([], [], [], until - time.monotonic())
        far.connection.say("beat")

    loop.after(0.0, stall)
    turn_until(loop, lambda: bool(near.frames or near.lost))
    assert not near.lost and near.said == ["beat"]


def test_an_end_that_says_nothing_any_more_is_lost(ends) -> None:  # type: ignore[no-untyped-def]
    loop = Loop()
    near = End(loop, ends[0], silence=0.1)  # nobody turns the loop of the other one: its machine is gone
    turn_until(loop, lambda: bool(near.lost))
    assert near.lost[0].startswith("nothing has come from it for")


def test_an_end_whose_machine_answers_is_waited_for_longer_but_not_for_ever(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "HELD_UP", 1000)
    loop = Loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with theirs:  # whose supervisor does nothing: a file system holds it up
        near = End(loop, ours, silence=0.02)
        signs = bytearray()
        loop.watch(theirs.fileno(), lambda: signs.extend(theirs.recv(1 << 16)))
        turn_until(loop, lambda: bool(near.lost) or signs.count(b"beat") > 20)  # four are a silence
        assert not near.lost
        monkeypatch.setattr(connections, "HELD_UP", 1)
        turn_until(loop, lambda: bool(near.lost))
        assert near.lost[0].startswith("nothing has come from it for")
        loop.unwatch(theirs.fileno())


def test_two_ends_that_have_nothing_to_say_keep_each_other(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "BEAT", 0.01)
    loop = Loop()
    near, far = (End(loop, end) for end in ends)
    turn_until(loop, lambda: len(near.frames) > 5 and len(far.frames) > 5)
    assert set(near.said) == set(far.said) == {"beat"}
    assert not near.lost and not far.lost


@pytest.mark.parametrize("stream", [b"GET / HTTP/1.1\r\n", pack(LOG, 0, b"refused by whoever takes it")])
def test_nonsense_ends_the_connection(ends, stream: bytes) -> None:  # type: ignore[no-untyped-def]
    def refuse(frame: Frame) -> None:
        raise WireError("that is not what I expect")

    loop = Loop()
    near = End(loop, ends[0], refuse)
    ends[1].sendall(stream)
    turn_until(loop, lambda: bool(near.lost))
    assert not near.connection.alive and len(near.lost) == 1
