"""Requests to a bucket or a container of any cloud: sent, asked again, mended, told in words.

::

    Request ── sign ── send ── answer ──┬─ accepted status: read it, whole        → the result
       ▲                                ├─ another region, credentials have ended,
       │                                │  a clock that differs: mend that
       └── wait, longer each time ──────┼─ 429, 5xx, cut, silent, stale connection
                                        └─ anything else: an error in words

What differs between clouds is in the methods at the end: where a key is, how a request is signed, what can
be mended, and what an error means.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import random
import re
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Generic, NoReturn, TypeVar
from urllib.parse import SplitResult, quote, urlsplit
from xml.etree import ElementTree

import attrs

from upshift.errors import ConfigError, StoreUnavailable
from upshift.runtime.storage.objects.connections import Connections, Stale
from upshift.runtime.storage.objects.wallet import Identity, Wallet

_TRIES = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 20.0
_CHANCE = random.SystemRandom()  # a step may have seeded the one of the module, and must not miss a number
_LONGEST_ASKED = 60.0
"""Seconds that a server may ask for with ``Retry-After``."""
_AGAIN = frozenset({408, 429, 500, 502, 503, 504, 509})
_AGAIN_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "BadDigest", "OperationAborted"})
_MOST_SAID = 64 << 10
"""Bytes of an error that are read."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_UNESCAPED = "-_.~"

T = TypeVar("T")
I = TypeVar("I", bound=Identity)  # noqa: E741


@attrs.define(kw_only=True)
class Request:
    """A request to a bucket."""

    method: str
    key: str = ""
    query: Sequence[tuple[str, str]] = ()
    headers: dict[str, str] = attrs.field(factory=dict)  # may change between tries
    body: Sequence[memoryview] = ()
    expected: Collection[int] = (200,)


@attrs.frozen(kw_only=True)
class Answer:
    """The answer of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    doubtful: bool = False  # an earlier try may have done it: its answer was lost

    def xml(self) -> ElementTree.Element:
        """The body, with plain names."""
        return _plain(self.body)


@attrs.frozen(kw_only=True)
class FailedRequest:
    """An answer that says no."""

    method: str
    status: int
    code: str  # the cloud's own name for it, or that of the status
    message: str
    who: Identity  # who asked
    region: str | None = None  # where the bucket is
    retry_after: float = 0.0  # seconds that the server asks for
    skew: float | None = None  # seconds by which its clock is ahead of this machine's

    @property
    def said(self) -> str:
        """Its words, for a message."""
        return f"{self.code}{f': {self.message}' if self.message else ''}"


class Cut(Exception):
    """An answer that has begun, and did not come to its end as announced."""


Consume = Callable[[http.client.HTTPResponse, Answer], T]


class Transport(ABC, Generic[I]):
    """One bucket or container, as this process reaches it.

    Attributes
    ----------
    scheme
        What addresses of this cloud begin with.
    variable
        Which environment variable names a server that is not the cloud's own.
    """

    scheme: ClassVar[str]
    variable: ClassVar[str]
    noun: ClassVar[str] = "bucket"
    codes: ClassVar[Mapping[int, str]] = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}
    """What a status means where there is no other word."""

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet[I],
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a {self.noun}",
                fix=f"Give a store as {self.scheme}://{self.noun.upper()}/PREFIX.",
            )
        self.name = name
        self._wallet = wallet
        self._connections = connections or Connections()
        self._sleep = sleep
        self._skew = 0.0

    @property
    def endpoint(self) -> str:
        """The server, as messages name it."""
        url, _ = self._place("")
        return f"{url.scheme}://{url.netloc}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables by which another machine finds it."""
        return {}

    def ask(self, request: Request) -> Answer:
        """The answer, with its whole body."""
        return self.consume(request, _whole)

    def consume(self, request: Request, consume: Consume[T]) -> T:
        """What ``consume`` makes of an answer of an expected status; it may be called for several tries.

        Raises
        ------
        StoreUnavailable
            There is no such answer; the message says why and what to do.
        """
        mended: set[str] = set()
        doubtful, tries = False, 0
        while True:
            try:
                result = self._try(request, consume, doubtful=doubtful)
            except Stale:
                doubtful = True
                continue  # each of those that were kept may be stale; then a new one is opened
            except (OSError, http.client.HTTPException, Cut) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise self._unreachable(request, error) from None
                doubtful, tries = True, tries + 1
                if tries >= _TRIES:
                    raise self._unreachable(request, error, tries=tries) from None
                self._sleep(_wait(tries))
                continue
            if not isinstance(result, FailedRequest):
                return result
            if (how := self._mend(result, mended)) is not None:
                mended.add(how)
                continue
            tries += 1
            if (result.status in _AGAIN or result.code in _AGAIN_CODES) and tries < _TRIES:
                doubtful = doubtful or result.status >= 500
                self._sleep(max(_wait(tries), min(result.retry_after, _LONGEST_ASKED)))
                continue
            raise self._in_words(result, request, tries=tries)

    def refuse(self, answer: Answer, request: Request) -> NoReturn:
        """Raise what an answer says that was expected, and is no good after all."""
        failure = self._failure(request, answer.status, answer.headers, answer.body, self._wallet.get())
        raise self._in_words(failure, request, tries=1)

    def _try(self, request: Request, consume: Consume[T], *, doubtful: bool) -> T | FailedRequest:
        who = self._wallet.get()
        url, path = self._place(request.key)
        headers = {**request.headers}
        if request.body or request.method in ("PUT", "POST"):
            headers["content-length"] = str(sum(view.nbytes for view in request.body))
        query, headers = self._signed(request, url, path, headers, who, time.time() + self._skew)
        target = escaped_path(path) + (f"?{escaped_query(query)}" if query else "")
        with self._connections.response(request.method, url, target, headers, request.body) as response:
            found: dict[str, str] = {}
            for name, value in response.getheaders():  # Google sends a checksum of each kind
                name = name.lower()
                found[name] = f"{found[name]},{value}" if name in found else value
            answer = Answer(status=response.status, headers=found, doubtful=doubtful)
            if response.status in request.expected:
                return consume(response, answer)
            content = b"" if request.method == "HEAD" else response.read(_MOST_SAID)
            return self._failure(request, answer.status, answer.headers, content, who)

    def _failure(
        self, request: Request, status: int, headers: Mapping[str, str], content: bytes, who: Identity
    ) -> FailedRequest:
        """What a server says with an answer that was not expected."""
        found: dict[str, str] = {}
        with contextlib.suppress(ElementTree.ParseError):
            found = {element.tag: element.text or "" for element in _plain(content).iter()}
        code = found.get("Code") or headers.get("x-ms-error-code")
        plain = "" if "Code" in found else " ".join(content[:300].decode(errors="replace").split())
        details = found.get("Details") or found.get("AuthenticationErrorDetail")  # Google's, Azure's
        message = " ".join(filter(None, (found.get("Message") or plain, details)))
        retry_after, skew = 0.0, None
        with contextlib.suppress(ValueError):
            retry_after = float(headers.get("retry-after", "0"))
        with contextlib.suppress(ValueError, TypeError):
            skew = email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp() - time.time()
        return FailedRequest(
            method=request.method,
            status=status,
            code=code or self.codes.get(status, f"HTTP {status}"),
            message=message,
            who=who,
            region=headers.get("x-amz-bucket-region") or found.get("Region"),
            retry_after=max(0.0, retry_after),
            skew=skew,
        )

    def _what(self, request: Request) -> str:
        return f"{self.scheme}://{self.name}/{request.key}"

    def _in_words(self, failure: FailedRequest, request: Request, *, tries: int) -> StoreUnavailable:
        """The error for a user."""
        what, said = self._what(request), f"{self.endpoint} says {failure.said}"
        told, why, fix = (
            f"the object store failed at {what}",
            said,
            "See the object store's own log.",
        )
        if (explained := self._explained(failure, what, said)) is not None:
            told, why, fix = explained
        elif failure.status >= 500 or failure.status == 429:
            told = f"the object store is not available: {what}"
            why = f"{said} ({tries} tries)"
            fix = "Try again later; what was copied is not copied again."
        return StoreUnavailable(told, where=what, why=why, fix=fix)

    def _unreachable(self, request: Request, error: Exception, *, tries: int = 1) -> StoreUnavailable:
        """The error for a user where no whole answer came."""
        what, endpoint = self._what(request), self.endpoint
        why = f"{endpoint}: {error or type(error).__name__}"
        fix = f"Check the network; {self.variable} and HTTPS_PROXY set the route."
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"{endpoint} is not trusted: {error.verify_message}"
            fix = "Set SSL_CERT_FILE to the certificates of who runs it, such as your company's proxy."
        elif isinstance(error, socket.gaierror):
            why = f"{endpoint}: no machine is known by that name"
            fix = f"See that {self.variable} is right."
        elif isinstance(error, TimeoutError):
            why = f"{endpoint} does not answer"
        elif isinstance(error, ConnectionRefusedError):
            why = f"{endpoint}: nobody listens there"
        if tries > 1:
            why += f" ({tries} tries)"
        return StoreUnavailable(f"the object store cannot be reached: {what}", where=what, why=why, fix=fix)

    # What each cloud has of its own

    @abstractmethod
    def _place(self, key: str) -> tuple[SplitResult, str]:
        """The server, and the path there, not escaped."""

    @abstractmethod
    def _signed(
        self, request: Request, url: SplitResult, path: str, headers: dict[str, str], who: I, now: float
    ) -> tuple[Sequence[tuple[str, str]], dict[str, str]]:
        """Query and headers of a request with what says who asks; ``now`` is by the server's clock."""

    def _mend(self, failure: FailedRequest, mended: Collection[str]) -> str | None:
        """Do what makes another try worth it, once each; None: nothing does."""
        if failure.status == 401 and "credentials" not in mended:
            self._wallet.refused(failure.who)
            return "credentials"
        return None

    @abstractmethod
    def _explained(self, failure: FailedRequest, what: str, said: str) -> tuple[str, str, str] | None:
        """What happened, why, and what to do, where this cloud's word for it is known."""


def escaped_path(path: str) -> str:
    """The path of a request, as it is sent and signed."""
    return quote(path, safe=f"/{_UNESCAPED}")


def escaped_query(query: Sequence[tuple[str, str]]) -> str:
    """The query of a request, as it is sent and signed."""
    pairs = sorted((quote(name, safe=_UNESCAPED), quote(value, safe=_UNESCAPED)) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def server_at(address: str, variable: str, example: str) -> SplitResult:
    """The server at an address that a variable gives.

    Raises
    ------
    ConfigError
        It is none.
    """
    url = urlsplit(address)
    try:
        known = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:  # a port that is no number
        known = False
    if not known or url.query or url.fragment:
        raise ConfigError(
            f"the address of the object store is invalid: {address}",
            fix=f"Set {variable} to an address such as {example}.",
        )
    return url


def clock_differs(skew: float | None, said: str) -> tuple[str, str, str]:
    """What is told where a server refuses this machine's time."""
    why = said
    if skew is not None:
        ahead = "ahead" if skew > 0 else "behind"
        why = f"The object store's clock is {abs(skew):,.0f} s {ahead}; it allows 15 minutes."
    told = "this machine's clock differs from that of the object store"
    return told, why, "Set the clock: timedatectl set-ntp true"


def _plain(content: bytes) -> ElementTree.Element:
    root = ElementTree.fromstring(content)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _whole(response: http.client.HTTPResponse, answer: Answer) -> Answer:
    try:
        return attrs.evolve(answer, body=response.read())
    except http.client.IncompleteRead as error:
        raise Cut(f"{len(error.partial):,} bytes came of what was announced") from None


def _wait(tries: int) -> float:
    """Seconds to wait after so many tries: any time up to one that doubles, so that not all come at once."""
    return _CHANCE.uniform(0.5, 1.0) * min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (tries - 1))
