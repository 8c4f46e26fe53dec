"""Requests to a bucket: where it is, who asks, and what is asked again.

::

    Request ── sign ── send ── answer ──┬─ accepted status: read it, whole        → the result
       ▲                                ├─ 301, 400 with another region: go there
       │                                ├─ credentials have ended, clock differs: mend that
       └── wait, longer each time ──────┼─ 429, 5xx, cut, silent, stale connection
                                        └─ anything else: an error in words
"""

from __future__ import annotations

import configparser
import hashlib
import http.client
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import SplitResult, urlsplit
from xml.etree import ElementTree

import attrs

from upshift.errors import ConfigError
from upshift.runtime.storage.objects.connections import Connections, Stale
from upshift.runtime.storage.objects.credentials import Wallet
from upshift.runtime.storage.objects.s3_errors import Failure, failure_of, in_words, unreachable
from upshift.runtime.storage.objects.sigv4 import escaped_path, escaped_query, signed

_TRIES = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 20.0
_LONGEST_ASKED = 60.0
"""Seconds that a server may ask for with ``Retry-After``."""
_AGAIN = frozenset({408, 429, 500, 502, 503, 504, 509})
_AGAIN_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "BadDigest", "OperationAborted"})
_ENDED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"})
_MOST_SAID = 64 << 10
"""Bytes of an error that are read."""
_SAID = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_REQUEST_CHECKSUM_CALCULATION")
_EMPTY = hashlib.sha256(b"").hexdigest()
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

T = TypeVar("T")


@attrs.define(kw_only=True)
class Request:
    """What is asked of a bucket."""

    method: str
    key: str = ""
    query: Sequence[tuple[str, str]] = ()
    headers: dict[str, str] = attrs.field(factory=dict)  # may change between tries
    body: Sequence[memoryview] = ()
    expected: Collection[int] = (200,)


@attrs.frozen(kw_only=True)
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    doubtful: bool = False  # an earlier try may have done it: its answer was lost

    def xml(self) -> ElementTree.Element:
        """The body, with plain names."""
        root = ElementTree.fromstring(self.body)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root


class Cut(Exception):
    """An answer that has begun, and did not come to its end as announced."""


Consume = Callable[[http.client.HTTPResponse, Answer], T]


class Bucket:
    """One bucket, as this process reaches it."""

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet | None = None,
        connections: Connections | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not _BUCKET.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a bucket", fix="Give a store as s3://BUCKET/PREFIX."
            )
        self.name = name
        configured = _configured()
        self.region = (
            region
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or configured.get("region")
            or "us-east-1"
        )
        self._endpoint = _endpoint(
            endpoint
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or configured.get("endpoint_url")
        )
        self._wallet = wallet or Wallet(self.region)
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
        said = {"AWS_REGION": self.region} | {
            name: os.environ[name] for name in _SAID if os.environ.get(name)
        }
        return said if self._endpoint is None else said | {"AWS_ENDPOINT_URL_S3": self._endpoint.geturl()}

    @property
    def encrypted(self) -> bool:
        """Whether nobody on the way can change a body."""
        return self._endpoint is None or self._endpoint.scheme == "https"

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
                    raise unreachable(self._what(request), self.endpoint, error) from None
                doubtful, tries = True, tries + 1
                if tries >= _TRIES:
                    raise unreachable(self._what(request), self.endpoint, error, tries=tries) from None
                self._sleep(_wait(tries))
                continue
            if not isinstance(result, Failure):
                return result
            if (how := self._mend(result, mended)) is not None:
                mended.add(how)
                continue
            tries += 1
            if (result.status in _AGAIN or result.code in _AGAIN_CODES) and tries < _TRIES:
                doubtful = doubtful or result.status >= 500
                self._sleep(max(_wait(tries), min(result.retry_after, _LONGEST_ASKED)))
                continue
            raise in_words(result, self._what(request), self.name, self.endpoint, tries=tries)

    def refuse(self, answer: Answer, request: Request) -> NoReturn:
        """Raise what an answer says that was expected, and is no good after all."""
        failure = failure_of(request.method, answer.status, answer.headers, answer.body, self._wallet.get())
        raise in_words(failure, self._what(request), self.name, self.endpoint, tries=1)

    def _try(self, request: Request, consume: Consume[T], *, doubtful: bool) -> T | Failure:
        credentials = self._wallet.get()
        url, path = self._place(request.key)
        headers = {**request.headers}
        if request.body or request.method in ("PUT", "POST"):
            headers["content-length"] = str(sum(view.nbytes for view in request.body))
        now = time.time() + self._skew
        headers = signed(
            request.method, url.netloc, path, request.query, headers,
            payload=self._payload(request.body), credentials=credentials, region=self.region, now=now,
        )  # fmt: skip
        target = escaped_path(path) + (f"?{escaped_query(request.query)}" if request.query else "")
        with self._connections.response(request.method, url, target, headers, request.body) as response:
            answer = Answer(
                status=response.status,
                headers={name.lower(): value for name, value in response.getheaders()},
                doubtful=doubtful,
            )
            if response.status in request.expected:
                return consume(response, answer)
            content = b"" if request.method == "HEAD" else response.read(_MOST_SAID)
            return failure_of(request.method, answer.status, answer.headers, content, credentials)

    def _place(self, key: str) -> tuple[SplitResult, str]:
        """The server, and the path there, not escaped."""
        given = self._endpoint
        virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true")
        if given is None:
            china = ".cn" if self.region.startswith("cn-") else ""
            given = urlsplit(f"https://s3.{self.region}.amazonaws.com{china}")
            virtual = "." not in self.name  # a certificate is for one level of names
        if virtual:
            return given._replace(netloc=f"{self.name}.{given.netloc}"), f"{given.path.rstrip('/')}/{key}"
        return given, f"{given.path.rstrip('/')}/{self.name}{f'/{key}' if key else ''}"

    def _payload(self, body: Sequence[memoryview]) -> str:
        if not body:
            return _EMPTY
        if self.encrypted:
            return "UNSIGNED-PAYLOAD"
        hasher = hashlib.sha256()
        for view in body:
            hasher.update(view)
        return hasher.hexdigest()

    def _mend(self, failure: Failure, mended: Collection[str]) -> str | None:
        """Do what makes another try worth it, once each; None: nothing does."""
        if (
            failure.region
            and failure.region != self.region
            and self._endpoint is None
            and failure.status in (301, 307, 400, 403)
            and "region" not in mended
        ):
            self.region = failure.region
            return "region"
        if failure.code in _ENDED and "credentials" not in mended:
            self._wallet.refused(failure.credentials)
            return "credentials"
        if failure.code == "RequestTimeTooSkewed" and failure.skew is not None and "clock" not in mended:
            self._skew = failure.skew
            return "clock"
        return None

    def _what(self, request: Request) -> str:
        return f"s3://{self.name}/{request.key}"


def _whole(response: http.client.HTTPResponse, answer: Answer) -> Answer:
    try:
        return attrs.evolve(answer, body=response.read())
    except http.client.IncompleteRead as error:
        raise Cut(f"{len(error.partial):,} bytes came of what was announced") from None


def _wait(tries: int) -> float:
    """Seconds to wait after so many tries: any time up to one that doubles, so that not all come at once."""
    return random.uniform(0.5, 1.0) * min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (tries - 1))


def _endpoint(address: str | None) -> SplitResult | None:
    """Where S3 is, if that is not AWS."""
    if not address:
        return None
    url = urlsplit(address)
    try:
        known = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:  # a port that is no number
        known = False
    if not known or url.query or url.fragment:
        raise ConfigError(
            f"the address of the object store is invalid: {address}",
            fix="Set AWS_ENDPOINT_URL_S3 to an address such as https://minio.example.com:9000.",
        )
    return url


def _configured() -> Mapping[str, str]:
    """What ``~/.aws/config`` says of the profile in use; its credentials are not read here."""
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    parser = configparser.RawConfigParser()
    try:
        parser.read(Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser(), "utf-8")
    except (configparser.Error, RuntimeError, OSError, UnicodeDecodeError):
        return {}  # whoever reads credentials from it says what is wrong
    section = named if named == "default" else f"profile {named}"
    return dict(parser[section]) if parser.has_section(section) else {}
