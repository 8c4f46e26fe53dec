"""The connection between two nodes' supervisors: frames on a stream, and who may say them.

A frame is a head of ten bytes and a payload: its length, its kind, the rank that it is about, the payload.
What processes print and tell goes as it is; the rest is an object of JSON, whose ``"say"`` names its subject.

Nobody is believed by the address that they come from. Both sides prove that they know the task's token, each
by a digest over what the other has drawn by lot (HMAC, RFC 2104), so that the token itself is never sent.

Each end says something every few seconds. So an end from which nothing comes is gone, though nobody closed
the connection: its machine lost power, or the network between the two is cut. Where the machine acknowledges
what is sent there, a file system may hold up the supervisor: it is waited for longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from upshift._version import __version__
from upshift.errors import UpshiftError
from upshift.runtime import children
from upshift.runtime.loop import Loop

SAYS, LOG, SIGHT, MESSAGES = range(4)
"""Kinds of frames: an object, what a process prints, what it finds, what it tells its supervisor."""
LARGEST = 1 << 24
"""Bytes of a payload, at most."""
FORM = __version__
"""Version of all this; nodes of a task must agree on it."""
_HEAD = struct.Struct("!IHI")


_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a message raises that is none."""


class WireError(UpshiftError):
    """What came is no frame: somebody else has connected, or the two versions do not fit."""


class Frame(NamedTuple):
    """One thing that came."""

    kind: int  # one of SAYS, LOG, SIGHT, MESSAGES
    rank: int  # which process it is about; 0 where it is about none
    payload: bytes

    def content(self) -> dict[str, Any]:
        """The object that it is."""
        with reading():
            found = json.loads(self.payload)
        if not isinstance(found, dict) or not isinstance(found.get("say"), str):
            raise WireError("a frame is no object that says something")
        return found


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Around what reads a message."""
    try:
        yield
    except _NONSENSE as error:
        raise WireError(f"it speaks nonsense: {type(error).__name__}: {error}") from None


def pack(kind: int, rank: int, payload: bytes) -> bytes:
    """A frame as it is sent."""
    return _HEAD.pack(len(payload), kind, rank) + payload


def say(what: str, **content: Any) -> bytes:
    """A frame that says something."""
    return pack(SAYS, 0, json.dumps({"say": what, **content}).encode())


class Frames:
    """Takes a stream apart."""

    def __init__(self) -> None:
        self.largest = LARGEST  # bytes of a payload, at most
        self._rest = bytearray()

    def take(self, data: bytes) -> Iterator[Frame]:
        """The frames that end in this."""
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            length, kind, rank = _HEAD.unpack_from(self._rest)
            if kind > MESSAGES or length > self.largest:
                raise WireError("what came is no frame")
            end = _HEAD.size + length
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            yield Frame(kind, rank, payload)


def draw_lot() -> str:
    """Something that nobody can know before."""
    return secrets.token_hex(16)


def proof_of(token: str, drawn: str, *about: object) -> str:
    """What only who knows the token can say of what the other side has drawn, and of what it is about."""
    text = "\0".join(map(str, (drawn, *about)))
    return hmac.new(_bytes(token), _bytes(text), hashlib.sha256).hexdigest()


def proves(said: object, token: str, drawn: str, *about: object) -> bool:
    """Whether ``said`` is the :func:`proof_of` of this."""
    return isinstance(said, str) and hmac.compare_digest(_bytes(said), _bytes(proof_of(token, drawn, *about)))


def _bytes(text: str) -> bytes:
    """Of any text: JSON may have halves of characters that no encoding has."""
    return text.encode(errors="surrogatepass")


BEAT = 2.0
"""Seconds between two signs of life, at most."""
HELD_UP = 4
"""How many times the silence a supervisor is waited for whose machine acknowledges what is sent to it."""
PARTING = 5.0
"""Seconds that what was said before the end is given to arrive."""
MUCH = 64 << 20
"""Bytes that wait to be sent at which no more should be given: as many as a node 0 that is held up keeps."""
CHUNK = 1 << 17


def pause(silence: float) -> float:
    """Seconds between two signs of life, where the other end takes so much silence for an end."""
    return min(BEAT, silence / 4)


def acknowledges(connection: socket.socket, within: float) -> bool:
    """Whether the other system has acknowledged all that was sent, or something ``within`` seconds."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except OSError:  # it is no connection of TCP's
        return False
    # tcpi_unacked and, in milliseconds, tcpi_last_ack_recv of struct tcp_info in linux/tcp.h
    unacknowledged, last = (int.from_bytes(told[at : at + 4], sys.byteorder) for at in (24, 56))
    return unacknowledged == 0 or last < 1000 * within


class Connection:
    """Sends frames, and takes those that come. It never waits."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        take: Callable[[Frame], None],
        lost: Callable[[str], None],
        *,
        silence: float,  # seconds without a sign of life after which the other end is gone
    ) -> None:
        self.alive = True
        self.frames = Frames()
        self._loop = loop
        self._socket = children.private(connection)
        self._take = take
        self._lost = lost
        self._backlog = bytearray()
        self._room: int | None = None
        self._heard = time.monotonic()
        self._silence = silence
        self._every = pause(silence)
        self._drained: Callable[[], None] | None = None
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(connection.fileno(), self._read)
        self._timer = loop.after(self._every, self._tick)

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, and what was said before that has left."""
        return self._socket.fileno() < 0

    @property
    def own_address(self) -> str:
        """The address of this end, as the other one reaches it."""
        address: str = self._socket.getsockname()[0]
        return address.removeprefix("::ffff:")  # IPv4 on a socket for both

    @property
    def full(self) -> bool:
        """Whether much waits to be sent already."""
        return len(self._backlog) >= MUCH

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call once when it is not :attr:`full` any more."""
        self._drained = call

    def say(self, what: str, **content: Any) -> None:
        """Send a message by its subject and content."""
        self.send(say(what, **content))

    def send(self, frame: bytes) -> None:
        """Send a frame, now or when there is room."""
        if self.alive:
            self._backlog += frame
            if self._room is None:
                self._write()

    def close(self) -> None:
        """End the connection, when what was said has been sent: at once, or when there is room for it."""
        if not self.alive:
            return
        self.alive = False
        self._timer.cancel()
        if self._room is None:
            self._leave()
        else:
            self._timer = self._loop.after(PARTING, self._leave)

    # -- on the loop ------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._silent >= self._silence:
            self._read()  # this end may have been busy: what has come meanwhile counts
            if not self.alive:
                return
        silent = self._silent
        if silent >= self._silence and (
            silent >= HELD_UP * self._silence or not acknowledges(self._socket, self._silence)
        ):
            self._end(f"nothing has come from it for {silent:.0f} s")
            return
        rest = self._silence - silent
        self._timer = self._loop.after(min(self._every, rest) if rest > 0 else self._every, self._tick)
        if not self._backlog:  # what waits is a sign of life as well
            self.say("beat")

    @property
    def _silent(self) -> float:
        return time.monotonic() - self._heard

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it has ended, and left something unread
            data = b""
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if data and not self.alive:  # nobody hears it any more
            return
        if not data:
            self._end("it has closed the connection")
            return
        self._heard = time.monotonic()
        try:
            for frame in self.frames.take(data):
                self._take(frame)
                if not self.alive:
                    return
        except WireError as error:
            self._end(error.what)

    def _write(self) -> None:
        try:
            while self._backlog:
                del self._backlog[: self._socket.send(self._backlog)]
        except BlockingIOError:
            if self._room is None:  # one descriptor is watched for one thing only
                self._room = os.dup(self._socket.fileno())
                self._loop.watch_writable(self._room, self._write)
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not self._backlog and self._room is not None:
            self._loop.forget(self._room)
            self._room = None
        if not self.alive:
            if not self._backlog:  # the other end takes the rest, and closes its side
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            return
        if self._drained is not None and not self.full:
            drained, self._drained = self._drained, None
            drained()

    def _end(self, why: str) -> None:
        told = self.alive
        self.close()
        self._leave()  # nobody is there to whom more could be sent
        if told:
            self._lost(why)

    def _leave(self) -> None:
        self._timer.cancel()
        if self._room is not None:
            self._loop.forget(self._room)
            self._room = None
        if self.closed:
            return
        self._loop.unwatch(self._socket.fileno())
        # Closed with something unread, a socket is reset, and the other end loses what has not arrived yet.
        with contextlib.suppress(OSError):
            for _ in range(MUCH // CHUNK):
                if not self._socket.recv(CHUNK):
                    break
        self._socket.close()
