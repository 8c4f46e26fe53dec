"""One registry and who we are to it: https or http, the login that it asks for, its tokens.

::

    GET /v2/ ──▶ 200                            no login needed, as far as is known
             ──▶ 401 Basic                      the login goes with every request
             ──▶ 401 Bearer realm=…, service=…  the login goes to the realm, which gives a token for a scope

https://distribution.github.io/distribution/spec/auth/token/, read in November 2026
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit

import attrs

from upshift.images.base import DOCKER_HUB
from upshift.images.registries.credentials import FoundLogin, RegistryCredentials
from upshift.images.registries.transport import (
    LOST,
    NOT_TLS,
    OTHER,
    REFUSED,
    TRIES,
    NoAnswer,
    Opened,
    RegistryAnswer,
    RegistryTransport,
    host_of,
    is_loopback,
    joined,
)

_PARAMETER = re.compile(r'([a-zA-Z_]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')

_HUB_HOST = "registry-1.docker.io"
_SHORTEST_LIFE = 60.0  # seconds of a token that does not say how long it lives
_USED_OF_LIFE = 0.8  # the rest is for clocks that differ, and for what is on its way
_TO_FETCH = "Bearer"
"""What proves who we are, where it is a token that is still to be fetched."""


@attrs.frozen
class Challenge:
    """How who we are is to be proved."""

    scheme: str  # `"basic"` or `"bearer"`
    # realm, service: where a token is fetched, and for whom
    realm: str = ""
    service: str = ""


def challenge_of(headers: Mapping[str, str]) -> Challenge | None:
    """What ``WWW-Authenticate`` asks for; a token where there is a choice."""
    line = headers.get("WWW-Authenticate", "")
    bearer = re.search(r"\bbearer\s+(.*)", line, re.IGNORECASE | re.DOTALL)
    if bearer:
        given = {
            name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain
            for name, quoted, plain in _PARAMETER.findall(bearer[1])
        }
        if given.get("realm"):
            return Challenge("bearer", given["realm"], given.get("service", ""))
    return Challenge("basic") if re.search(r"\bbasic\b", line, re.IGNORECASE) else None


_Said = TypeVar("_Said", RegistryAnswer, Opened)


class LoginNeeded(Exception):
    """The registry wants another login than the one that there is, or one at all."""

    def __init__(self, found: FoundLogin, detail: str = "", *, forbidden: bool = False) -> None:
        super().__init__(detail)
        self.found = found
        self.detail = detail
        self.forbidden = forbidden


@attrs.frozen
class Scope:
    """What is to be done to a repository."""

    repository: str
    actions: str = "pull"

    def __str__(self) -> str:
        return f"repository:{self.repository}:{self.actions}"


@attrs.frozen
class _Token:
    value: str = attrs.field(repr=False)
    until: float


class Session:
    """What is known of one registry while a program runs; threads may share it."""

    def __init__(
        self,
        registry: str,
        *,
        transport: RegistryTransport,
        credentials: RegistryCredentials,
        insecure: Collection[str],
    ) -> None:
        self.registry = registry
        self._host = _HUB_HOST if registry == DOCKER_HUB else registry
        self._transport = transport
        self._credentials = credentials
        self._insecure = insecure
        self._origin: str | None = None
        self._challenge: Challenge | None = None
        self._found: dict[str, FoundLogin] = {}
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._lock = threading.RLock()

    def answer(
        self,
        method: str,
        address: str,
        scopes: Iterable[Scope] = (),
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tries: int = TRIES,
        follow: bool = True,
    ) -> RegistryAnswer:
        """Ask, and read the answer to its end."""
        scopes = tuple(scopes)

        def send(url: str, sent: Mapping[str, str]) -> RegistryAnswer:
            return self._transport.answer(method, url, headers=sent, body=body, tries=tries, follow=follow)

        answer = self.said_to(send, address, scopes, headers)
        if self._is_own(answer.url):
            self.refuse_if_denied(answer.status, answer.body, scopes)
        return answer

    def open(
        self,
        method: str,
        address: str,
        scopes: Iterable[Scope] = (),
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Opened:
        """As :meth:`answer`, with a body that is still to be read."""
        scopes = tuple(scopes)

        def send(url: str, sent: Mapping[str, str]) -> Opened:
            return self._transport.open(method, url, headers=sent)

        opened = self.said_to(send, address, scopes, headers)
        if opened.status in (401, 403) and self._is_own(opened.url):
            body = b"".join(self._transport.read(opened, whole=True))
            self.refuse_if_denied(opened.status, body, scopes)
        return opened

    def said_to(
        self,
        send: Callable[[str, Mapping[str, str]], _Said],
        address: str,
        scopes: Iterable[Scope],
        headers: Mapping[str, str] | None = None,
    ) -> _Said:
        """What is said to a request; it is sent again where another proof than the one it had is at hand."""
        scopes = tuple(scopes)
        url, sent = self.prepared(address, scopes, headers)
        said = send(url, sent)
        if said.status != 401 or not self._is_own(said.url):
            return said
        if not self._renewed(said.headers, scopes, sent.get("Authorization")):
            return said
        if isinstance(said, Opened):
            said.response.drain_conn()
        return send(*self.prepared(address, scopes, headers))

    def prepared(
        self, address: str, scopes: Iterable[Scope], headers: Mapping[str, str] | None = None
    ) -> tuple[str, dict[str, str]]:
        """The whole address, and the headers with what proves who we are, if that is for the registry."""
        origin = self.settle()
        url = joined(origin, address)
        parts, own = urlsplit(url), urlsplit(origin)
        sent = dict(headers or {})
        if self._is_own(url):
            # A registry behind a proxy that ends TLS may give addresses with http.
            url = urlunsplit((own.scheme, *parts[1:]))
            proof = self._proof(tuple(scopes))
            if proof is not None:
                sent["Authorization"] = proof
        elif own.scheme == "https" and parts.scheme != "https":
            raise NoAnswer(f"{self._host} names an address without TLS", fix="Ask who runs the registry.")
        return url, sent

    def settle(self) -> str:
        """Find out, once, how the registry is spoken to: ``https://host``."""
        with self._lock:
            if self._origin is None:
                self._origin = self._settled()
            return self._origin

    def found(self, repository: str = "") -> FoundLogin:
        """The login for a repository, looked for once."""
        with self._lock:
            if repository not in self._found:
                self._found[repository] = self._credentials.find(self.registry, repository)
            return self._found[repository]

    def refuse_if_denied(self, status: int, body: bytes, scopes: Iterable[Scope]) -> None:
        """Raise :class:`LoginNeeded` for an answer that says so."""
        if status not in (401, 403):
            return
        # A realm that knew nothing of the login would have given no token.
        known = self._challenge is not None and self._challenge.scheme == "bearer"
        raise LoginNeeded(
            self.found(_repository(tuple(scopes))), said(body), forbidden=status == 403 or known
        )

    def _is_own(self, url: str) -> bool:
        """Whether an address is of the registry itself, and not of where it keeps its blobs."""
        return urlsplit(url).netloc.lower() == self._host.lower()

    def _settled(self) -> str:
        failed: list[NoAnswer] = []
        for scheme in self._schemes():
            origin = f"{scheme}://{self._host}"
            try:
                answer = self._transport.answer("GET", f"{origin}/v2/")
            except NoAnswer as error:
                failed.append(error)
                if error.kind in (NOT_TLS, REFUSED, LOST):
                    continue
                break
            if scheme == "http" and answer.status == 400 and b"HTTPS" in answer.body:
                continue  # as servers with TLS say, if they say anything
            if answer.status == 401:
                self._challenge = challenge_of(answer.headers)
            return origin
        # What says most of the two: a certificate, say, rather than that http leads nowhere.
        raise min(failed, key=lambda error: (error.kind == NOT_TLS, error.kind != OTHER))

    def _schemes(self) -> tuple[str, ...]:
        # On this machine nobody listens in between, and the first request has no login in it.
        if is_loopback(urlsplit(f"//{self._host}").hostname or ""):
            return ("http", "https")
        return ("https", "http") if self.registry in self._insecure else ("https",)

    def _renewed(self, headers: Mapping[str, str], scopes: tuple[Scope, ...], sent: str | None) -> bool:
        """After a 401 to what was sent with this proof: whether there is another, or one to be fetched.

        Another thread may have fetched it meanwhile.
        """
        with self._lock:
            self._challenge = challenge_of(headers) or self._challenge
            if self._at_hand(scopes) == sent:
                self._tokens.pop(_key(scopes), None)
            return self._at_hand(scopes) != sent

    def _proof(self, scopes: tuple[Scope, ...]) -> str | None:
        with self._lock:
            proof = self._at_hand(scopes)
            if proof == _TO_FETCH:
                token = self._tokens[_key(scopes)] = self._fetch(scopes)
                proof = f"Bearer {token.value}"
            return proof

    def _at_hand(self, scopes: tuple[Scope, ...]) -> str | None:
        """What proves who we are; None: nothing is asked for, or there is nothing."""
        if self._challenge is None:
            return None
        login = self.found(_repository(scopes)).login
        if login is not None and login.registry_token:
            return f"Bearer {login.registry_token}"
        if self._challenge.scheme == "basic":
            return _basic(login.username, login.password) if login and login.password else None
        token = self._tokens.get(_key(scopes))
        return _TO_FETCH if token is None or token.until < time.monotonic() else f"Bearer {token.value}"

    def _fetch(self, scopes: tuple[Scope, ...]) -> _Token:
        """A token from the realm, for the login if there is one, else as anybody gets it."""
        challenge = self._challenge
        assert challenge is not None
        realm = joined(self._origin or "", challenge.realm)
        if not self._may_send_to(realm):
            raise NoAnswer(
                f"{self._host} wants the login sent to {host_of(realm)} without TLS",
                fix="Ask who runs the registry.",
            )
        found = self.found(_repository(scopes))
        login = found.login
        asked = [("service", challenge.service)] if challenge.service else []
        started = time.monotonic()
        if login is not None and login.identity_token:
            form = [
                *asked,
                ("grant_type", "refresh_token"),
                ("client_id", "upshift"),
                ("refresh_token", login.identity_token),
            ]
            form += [("scope", " ".join(map(str, scopes)))] if scopes else []
            answer = self._transport.answer(
                "POST",
                realm,
                headers={"Content-Type": "application/x-www-form-urlencoded"},
                body=urlencode(form).encode(),
            )
        else:
            asked += [("scope", str(scope)) for scope in scopes]
            mark = "&" if urlsplit(realm).query else "?"
            proof = {"Authorization": _basic(login.username, login.password)} if login else {}
            url = f"{realm}{mark}{urlencode(asked)}" if asked else realm
            answer = self._transport.answer("GET", url, headers=proof)
        if answer.status in (400, 401, 403):
            raise LoginNeeded(found, said(answer.body), forbidden=answer.status == 403)
        try:
            table = json.loads(answer.body)
            value = table.get("token") or table["access_token"]
            if answer.status != 200 or not isinstance(value, str) or not value.isprintable():
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            why = f"{host_of(realm)}, which gives the tokens of {self._host}, answers {answer.status}"
            detail = said(answer.body)
            raise NoAnswer(why + (f" ({detail})" if detail else ""), fix="Try again later.") from None
        life = table.get("expires_in")
        life = life if isinstance(life, (int, float)) and life > 0 else _SHORTEST_LIFE
        return _Token(value, started + life * _USED_OF_LIFE)

    def _may_send_to(self, realm: str) -> bool:
        """Whether a login may go there: by https, or to where the registry's own may go without TLS."""
        parts, own = urlsplit(realm), urlsplit(self._origin or "")
        if parts.scheme == "https" or own.scheme == "https":
            return parts.scheme == "https"
        host = parts.hostname or ""
        return host == own.hostname or is_loopback(host) or parts.netloc.lower() in self._insecure


def said(body: bytes) -> str:
    """What a registry says of an error, in one short line: ``manifest unknown``; empty: nothing."""
    try:
        document = json.loads(body)
        errors = document.get("errors") or [document]
        first = errors[0]
        words = first.get("message") or first.get("code") or first.get("details") or first.get("error") or ""
    except (ValueError, AttributeError, IndexError, KeyError, TypeError, RecursionError):
        return ""
    line = " ".join(str(words).split())
    return "".join(character for character in line if character.isprintable())[:200]


def _key(scopes: tuple[Scope, ...]) -> tuple[str, ...]:
    return tuple(sorted(map(str, scopes)))


def _repository(scopes: tuple[Scope, ...]) -> str:
    return scopes[0].repository if scopes else ""


def _basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
