"""Objects in a bucket of Google Cloud Storage. Versions are generations.

Its XML API speaks S3's dialect, with a bearer token, ``x-goog-`` for ``x-amz-``, generations for ETags in
conditions, and checksums of its own: https://cloud.google.com/storage/docs/xml-api/overview

Pods and machines get credentials in the order in which Google's own tools look. What is only on somebody's
desk (keys of service accounts, gcloud's logins) is left to google-auth, where that is installed.
"""

from __future__ import annotations

import calendar
import http.client
import importlib
import json
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode
from xml.etree import ElementTree

import attrs

from upshift.errors import ConfigError, MissingExtra, StoreUnavailable
from upshift.runtime.storage.objects import Version
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.remote import PART, Md5, Sum, md5_of
from upshift.runtime.storage.objects.s3 import S3Objects
from upshift.runtime.storage.objects.transport import Answer, FailedRequest, Request, Transport, server_at
from upshift.runtime.storage.objects.wallet import NO_MACHINE, Issuer, Provider, Token, Wallet, ask

_GOOGLE = "https://storage.googleapis.com"
_GENERATION = "x-goog-generation"
_ONLY_IF = "x-goog-if-generation-match"
_MD5 = re.compile(r"md5=([A-Za-z0-9+/=]+)")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_MACHINE = "169.254.169.254"
"""Google's metadata server; on GKE that of the node, which knows the service account of the pod."""
_issuer = Issuer("Google Cloud")


def open_google(place: str) -> GoogleObjects:
    """The objects at ``BUCKET/PREFIX``."""
    name, _, prefix = place.partition("/")
    return GoogleObjects(GoogleBucket(name), prefix)


class GoogleBucket(Transport[Token]):
    """One bucket of Google Cloud Storage, as this process reaches it."""

    scheme = "gs"
    variable = "STORAGE_EMULATOR_HOST"

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet[Token] | None = None,
        connections: Connections | None = None,
        endpoint: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._emulator = os.environ.get(self.variable) or ""
        providers = (anonymous,) if self._emulator else None
        super().__init__(name, wallet=wallet or GoogleWallet(providers), connections=connections, sleep=sleep)
        address = endpoint or self._emulator or _GOOGLE
        address = address if "://" in address else f"http://{address}"
        self._server = server_at(address, self.variable, "http://127.0.0.1:4443")

    @property
    def environment(self) -> Mapping[str, str]:
        return {self.variable: self._emulator} if self._emulator else {}

    def _place(self, key: str) -> tuple[SplitResult, str]:
        return self._server, f"{self._server.path.rstrip('/')}/{self.name}{f'/{key}' if key else ''}"

    def _signed(
        self, request: Request, url: SplitResult, path: str, headers: dict[str, str], who: Token, now: float
    ) -> tuple[Sequence[tuple[str, str]], dict[str, str]]:
        named = {"authorization": f"Bearer {who.value}"} if who.value else {}
        return request.query, {**headers, "host": url.netloc, **named}

    def _explained(self, failure: FailedRequest, what: str, said: str) -> tuple[str, str, str] | None:
        source = failure.who.source
        if failure.code == "NoSuchBucket" or (failure.status == 404 and failure.code == "HTTP 404"):
            return (
                f"there is no bucket {self.name!r} at {self.endpoint}",
                said,
                f"Create it (gcloud storage buckets create gs://{self.name}), or name another one.",
            )
        if failure.status == 401:
            return (
                "Google Cloud does not accept the credentials",
                f"{said}\nThey come from {source}.",
                "Renew them: gcloud auth application-default login. Those of a pod or a machine are renewed "
                "by its platform.",
            )
        if failure.status == 403:
            return (
                f"access to {what} is denied",
                f"{said}\nAsked with {source}.",
                f"Grant it roles/storage.objectUser on the bucket {self.name!r}, or use other credentials.",
            )
        return None


class GoogleObjects(S3Objects):
    """Objects in a bucket of Google Cloud Storage."""

    writer = "x-goog-meta-upshift-writer"
    whole = {}
    escaping = ()

    def __init__(self, bucket: GoogleBucket, prefix: str = "", *, part: int = PART) -> None:
        super().__init__(bucket, prefix, part=part)
        self._checksums = False  # those of S3

    def delete(self, keys: Collection[str]) -> None:
        self._delete_each(keys)  # deleting many with one request is not in all places where Google runs

    def _key(self, text: str) -> str:
        return text

    def _listed_version(self, found: ElementTree.Element) -> Version:
        return Version(found.findtext("Generation", ""))

    def _put(self, key: str, views: Sequence[memoryview]) -> Request:
        headers = {"content-md5": b64encode(md5_of(views)).decode()}
        return Request(method="PUT", key=key, body=views, headers=headers)

    def _only_if(self, match: Version | None) -> Mapping[str, str]:
        return {_ONLY_IF: match or "0"}

    def _only(self, version: Version) -> Mapping[str, str]:
        return {_ONLY_IF: version}

    def _version(self, headers: Mapping[str, str]) -> Version:
        return Version(headers.get(_GENERATION, ""))

    def _sum(self, headers: Mapping[str, str]) -> Sum | None:
        """Of what came up in one piece: an object of parts has a CRC-32C only, which Python has not."""
        found = _MD5.search(headers.get("x-goog-hash", ""))
        return Md5(b64decode(found[1])) if found else None

    def _completed_version(self, answer: Answer) -> Version:
        return self._version(answer.headers)


# Credentials


class GoogleWallet(Wallet[Token]):
    """The Google Cloud credentials of this process."""

    cloud = "Google Cloud"
    early = 225.0  # as google-auth: a metadata server gives a new token not much earlier

    def __init__(self, providers: Sequence[Provider[Token]] | None = None) -> None:
        super().__init__(providers or (from_environment, from_file, from_machine))

    def _nothing(self) -> tuple[str, str]:
        file = _login()
        hint = f' {file} was not read: that needs google-auth (pip install "upshift[gcs]").' if file else ""
        return (
            f"Neither {_KEY_FILE}, nor a login of gcloud, nor the service account of a pod or a machine "
            f"gives any.{hint}",
            f"Set {_KEY_FILE} to a key file, run `gcloud auth application-default login`, or give this "
            "machine or pod a service account.",
        )


def anonymous() -> Token:
    """Nobody asks: emulators want no name."""
    return Token(value="", source="nobody")


def from_environment() -> Token | None:
    """``CLOUDSDK_AUTH_ACCESS_TOKEN``, which gcloud takes, too."""
    value = os.environ.get("CLOUDSDK_AUTH_ACCESS_TOKEN")
    return Token(value=value, source="CLOUDSDK_AUTH_ACCESS_TOKEN") if value else None


def from_file() -> Token | None:
    """A key file, a federated identity, or a login of gcloud."""
    named = os.environ.get(_KEY_FILE)
    path = Path(named) if named else _login()
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = found["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the Google Cloud credentials in {path} cannot be read",
            why=str(error) if isinstance(error, OSError) else "It is not such a file.",
            fix=f"Set {_KEY_FILE} to a file that Google Cloud gave you, or unset it.",
        ) from None
    if kind == "external_account" and "file" in found.get("credential_source", {}):
        return _federated(found, str(path))
    try:
        importlib.import_module("google.auth")
    except ImportError:
        if named:
            raise MissingExtra(
                f"the Google Cloud credentials in {path} ({kind}) are read with google-auth, "
                "which is not installed",
                fix='pip install "upshift[gcs]"',
            ) from None
        return None
    try:
        credentials = _by_google_auth(kind, found)
        credentials.refresh(_request)
    except Exception as error:  # of google-auth's many, each says in its words what to do
        raise StoreUnavailable(
            f"{path} gives no Google Cloud credentials",
            why=str(error),
            fix="If it is a login of gcloud: gcloud auth application-default login",
        ) from None
    expiry = credentials.expiry
    return Token(
        value=credentials.token,
        expires=None if expiry is None else float(calendar.timegm(expiry.timetuple())),
        source=str(path),
    )


def from_machine() -> Token | None:
    """The service account of a pod on GKE (workload identity), or of a machine."""
    if os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    host = os.environ.get("GCE_METADATA_HOST") or _MACHINE
    address = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    flavor, source = {"metadata-flavor": "Google"}, "the machine's or pod's service account"
    try:
        status, content = ask("GET", address, flavor, b"", silence=NO_MACHINE, direct=True)
    except (OSError, http.client.HTTPException):
        return None  # this is no machine of Google
    if status == 404:
        return None  # it has no service account
    if status != 200:
        content = _issuer.fetch("GET", address, flavor, source)
    return _token(content, source)


def _federated(found: Mapping[str, Any], path: str) -> Token:
    """A token of another platform, in a file, for one of Google: workload identity federation."""
    source = f"the federated identity in {path}"
    try:
        said, audience, url = found["credential_source"], found["audience"], found["token_url"]
        given, kind = said["file"], found["subject_token_type"]
        field = said.get("format", {}).get("subject_token_field_name")
        impersonated = found.get("service_account_impersonation_url")
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} lacks {error}", fix="Make it again: gcloud iam workload-identity-pools"
        ) from None
    subject = _issuer.file(given)
    if field:
        try:
            subject = json.loads(subject)[field]
        except (ValueError, KeyError, TypeError) as error:
            raise _issuer.nonsense(source, error) from None
    body = urlencode(
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "audience": audience,
            "scope": _SCOPE,
            "subject_token": subject,
            "subject_token_type": kind,
        }
    ).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    token = _token(_issuer.fetch("POST", url, form, source, body=body, direct=False), source)
    if not impersonated:
        return token
    body = json.dumps({"scope": [_SCOPE], "lifetime": "3600s"}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {token.value}"}
    content = _issuer.fetch("POST", impersonated, headers, source, body=body, direct=False)
    try:
        answer = json.loads(content)
        expires = calendar.timegm(time.strptime(answer["expireTime"][:19], "%Y-%m-%dT%H:%M:%S"))
        return Token(value=answer["accessToken"], expires=float(expires), source=source)
    except (ValueError, KeyError, TypeError) as error:
        raise _issuer.nonsense(source, error) from None


def _token(content: bytes, source: str) -> Token:
    try:
        found = json.loads(content)
        return Token(
            value=found["access_token"], expires=time.time() + float(found["expires_in"]), source=source
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _issuer.nonsense(source, error) from None


def _by_google_auth(kind: str, found: Mapping[str, Any]) -> Any:
    if kind == "service_account":
        module: Any = importlib.import_module("google.oauth2.service_account")
        return module.Credentials.from_service_account_info(found, scopes=[_SCOPE])
    if kind == "authorized_user":
        module = importlib.import_module("google.oauth2.credentials")
        return module.Credentials.from_authorized_user_info(found, scopes=[_SCOPE])
    module = importlib.import_module("google.auth")  # which looks for the same file
    return module.default(scopes=[_SCOPE], request=_request)[0]


def _login() -> Path | None:
    """Where gcloud keeps a login for programs, if there is one."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    try:
        path = Path(folder).expanduser() / "application_default_credentials.json"
        return path if path.is_file() else None
    except (RuntimeError, OSError):  # nobody's home is known
        return None


@attrs.frozen
class _Response:
    status: int
    data: bytes
    headers: Mapping[str, str] = attrs.field(factory=dict)


def _request(
    url: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    **_: Any,
) -> _Response:
    """How google-auth asks: by the connections that everything here uses."""
    content = body.encode() if isinstance(body, str) else body or b""
    return _Response(*ask(method, url, dict(headers or {}), content, silence=timeout or 60.0, direct=False))
