"""Frames between nodes, and who may send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.runtime.supervisor.node_connection import (
    LOG,
    SAYS,
    Frame,
    Frames,
    WireError,
    draw_lot,
    pack,
    proof_of,
    proves,
    say,
)


@given(
    st.lists(st.tuples(st.sampled_from([LOG, SAYS]), st.integers(0, 65535), st.binary(max_size=300))),
    st.integers(1, 50),
)
def test_frames_arrive_as_they_were_sent_however_the_stream_is_cut(
    sent: list[tuple[int, int, bytes]], size: int
) -> None:
    stream = b"".join(pack(*frame) for frame in sent)
    frames = Frames()
    got = [f for at in range(0, len(stream), size) for f in frames.take(stream[at : at + size])]
    assert got == [Frame(*frame) for frame in sent]


def test_what_is_said_is_understood() -> None:
    (frame,) = Frames().take(say("hello", node=1))
    assert frame.content() == {"say": "hello", "node": 1}


@pytest.mark.parametrize("stream", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03"])
def test_somebody_else_who_connects_is_found_out(stream: bytes) -> None:
    with pytest.raises(WireError):
        list(Frames().take(stream))


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"a": 1}', b'{"say": 1}', b"[" * 100_000])
def test_what_is_no_object_that_says_something_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        Frame(SAYS, 0, payload).content()


def test_who_knows_the_token_can_prove_it_once_and_for_one_node_alone() -> None:
    drawn = draw_lot()
    said = proof_of("token", drawn, "node", 1)
    assert proves(said, "token", drawn, "node", 1)
    assert not proves(said, "token", draw_lot(), "node", 1)
    assert not proves(said, "token", drawn, "node", 2)
    assert not proves(proof_of("guess", drawn, "node", 1), "token", drawn, "node", 1)
    assert not any(proves(nonsense, "token", drawn) for nonsense in (None, 1, "", "ä", "\ud800"))
    assert proves(proof_of("token", "\ud800", "node"), "token", "\ud800", "node")
    assert "token" not in said
