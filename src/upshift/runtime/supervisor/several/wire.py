"""What the supervisors of a task's nodes say to each other: frames on a stream, and who may say them.

A frame is a head of ten bytes and a payload: its length, its kind, the rank that it is about, the payload.
What processes print and tell goes as it is; the rest is an object of JSON, whose ``"say"`` names its subject.

Nobody is believed by the address that they come from. Both sides prove that they know the task's token, each
by a digest over what the other has drawn by lot (HMAC, RFC 2104), so that the token itself is never sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from upshift._version import __version__
from upshift.errors import UpshiftError

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
        with sense():
            found = json.loads(self.payload)
        if not isinstance(found, dict) or not isinstance(found.get("say"), str):
            raise WireError("a frame is no object that says something")
        return found


@contextlib.contextmanager
def sense() -> Iterator[None]:
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

    def __init__(
        self,
        largest: int = LARGEST,  # bytes of a payload, at most
    ) -> None:
        self.largest = largest
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


def lot() -> str:
    """Something that nobody can know before."""
    return secrets.token_hex(16)


def proof(token: str, drawn: str, *about: object) -> str:
    """What only who knows the token can say of what the other side has drawn, and of what it is about."""
    text = "\0".join(map(str, (drawn, *about)))
    return hmac.new(_bytes(token), _bytes(text), hashlib.sha256).hexdigest()


def proves(said: object, token: str, drawn: str, *about: object) -> bool:
    """Whether ``said`` is the :func:`proof` of this."""
    return isinstance(said, str) and hmac.compare_digest(_bytes(said), _bytes(proof(token, drawn, *about)))


def _bytes(text: str) -> bytes:
    """Of any text: JSON may have halves of characters that no encoding has."""
    return text.encode(errors="surrogatepass")
