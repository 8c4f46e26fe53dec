"""Who comes to node 0 before a task starts, be that a node of it or anybody else."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from upshift.model.spec import Failure, Launch
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor import rendezvous
from upshift.runtime.supervisor.node_connection import FORM, MESSAGES, SAYS, Frames, pack, proof_of, say
from upshift.runtime.supervisor.nodes import Nodes
from upshift.runtime.supervisor.rendezvous import Rendezvous, attempt_name

TOKEN = "sesame"


class Main:
    """Node 0 of two, in this process."""

    def __init__(self, bench: Any, wait: float = 60.0) -> None:
        launch = Launch(launcher="torchrun", processes=2, per_node=1)
        self.spec = bench.spec("train", launch=launch)
        self.loop = Loop()
        self.nodes: list[Nodes] = []
        self.refused: list[Failure] = []
        self.callers: list[Caller] = []
        self.gathering = Rendezvous(
            self.loop,
            self.spec,
            bench.store,
            Seat(node=0, nodes=2, token=TOKEN, port=0, address="127.0.0.1", wait=wait),
            complete=self.nodes.append,
            refuse=self.refused.append,
        )

    def close(self) -> None:
        for caller in self.callers:
            caller.socket.close()
        self.gathering.cancel()
        for nodes in self.nodes:
            nodes.close()


class Caller:
    """Somebody who has connected."""

    def __init__(self, main: Main) -> None:
        main.callers.append(self)
        self.main = main
        self.frames = Frames()
        self.said: list[dict[str, Any]] = []
        self.socket = socket.create_connection(("127.0.0.1", main.gathering.port))
        self.socket.setblocking(False)
        self.drawn = self.hear()["lot"]

    def hear(self) -> dict[str, Any]:
        """What is said next; that the connection is closed where it says "closed"."""
        while not self.said:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                self.main.loop.turn()
                continue
            except ConnectionResetError:
                data = b""
            contents = [frame.content() for frame in self.frames.take(data)]
            self.said += [content for content in contents if content["say"] != "beat"]
            if not data:
                self.said.append({"say": "closed"})
        return self.said.pop(0)

    def come(self) -> None:
        """Say, as a node of this attempt, who this is."""
        proved = proof_of(TOKEN, self.drawn, "node", 1, attempt_name(self.main.spec))
        self.socket.sendall(say("here", form=FORM, node=1, name="other", proof=proved, lot="any", facts={}))
        assert self.hear()["say"] == "welcome"


@pytest.fixture
def main(project: Callable[[str], Any]) -> Iterator[Callable[..., Main]]:
    made: list[Main] = []

    def make(**options: Any) -> Main:
        made.append(Main(project("def train():\n    pass\n"), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        say("here", form=FORM, proof="\ud800"),
        say("here", form=FORM, node="\ud800", proof=""),
        say("here", form=FORM, node=[1], proof="0" * 64, facts=[]),
        say("here", form={"a": 1}),
        pack(SAYS, 0, b"\xff"),
        pack(SAYS, 0, b'{"say": ' + b"[" * 100_000),
        pack(MESSAGES, 9, b"{}"),
        pack(SAYS, 0, b" " * 70_000)[:20],
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=range(9),
)
def test_who_proves_nothing_is_sent_away_and_does_no_harm(main, nonsense: bytes) -> None:  # type: ignore[no-untyped-def]
    here = main()
    stranger = Caller(here)
    stranger.socket.sendall(nonsense)
    assert stranger.hear()["say"] in ("refused", "closed")
    Caller(here).come()
    assert not here.refused


def test_strangers_take_no_more_than_their_place(main, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(rendezvous, "STRANGERS", 1)
    here = main()
    strangers = [Caller(here) for _ in range(3)]
    with socket.create_connection(("127.0.0.1", here.gathering.port)) as more:
        while not select.select([more], [], [], 0)[0]:
            here.loop.turn()
        assert more.recv(1) == b""
    strangers[0].socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert strangers[0].hear()["say"] == "closed"
    Caller(here).come()


@pytest.mark.parametrize("devices", [7, [7], {"a": 1}])
def test_a_node_that_speaks_nonsense_is_gone_and_ends_nothing_else(main, devices: object) -> None:  # type: ignore[no-untyped-def]
    here = main()
    node = Caller(here)
    node.come()
    node.socket.sendall(say("ready", devices=devices))
    assert node.hear()["say"] == "closed"
    assert [failure.reason for failure in here.refused] == ["infrastructure"]
    assert (
        "node 1 (other) is gone before the step could start: it speaks nonsense: " in here.refused[0].message
    )


def test_who_is_ready_in_time_may_reach_rank_0_after_that(main) -> None:  # type: ignore[no-untyped-def]
    here = main(wait=0.2)
    node = Caller(here)
    node.come()
    node.socket.sendall(say("ready", devices=None))
    assert node.hear()["say"] == "try"
    late: list[bool] = []
    here.loop.after(0.3, lambda: late.append(True))
    while not late:
        here.loop.turn()
    assert not here.refused
    node.socket.sendall(say("reached", problem=None))
    while not here.nodes:
        here.loop.turn()
    assert here.nodes[0].count == 2 and not here.refused
