"""AWS credentials as pods, containers and machines get them, in the order in which AWS's own tools look.

What is only on somebody's desk (profiles, SSO) is left to botocore, where that is installed.
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import http.client
import importlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit
from xml.etree import ElementTree

from upshift.errors import ConfigError, MissingExtra, StoreUnavailable
from upshift.runtime import forks
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.sigv4 import Credentials

_EARLY = 300.0
"""Seconds before their end at which credentials are renewed, so that none ends on its way."""
_MACHINE = "http://169.254.169.254"
_CONTAINER = "http://169.254.170.2"
_ALLOWED = ("localhost", "127.0.0.1", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23")
"""Where a token may be sent without TLS: ECS, EKS and this machine, as AWS's own tools have it."""
_TRIES = 3
_NO_MACHINE = 1.0
"""Seconds after which no metadata service is taken to be there: elsewhere its address may never answer."""

Provider = Callable[[], "Credentials | None"]


class Wallet:
    """The credentials of this process, renewed before they end."""

    def __init__(self, region: str, providers: tuple[Provider, ...] | None = None) -> None:
        self._providers = providers or (
            from_environment,
            functools.partial(from_web_identity, region),
            from_profile,
            from_container,
            from_machine,
        )
        self._credentials: Credentials | None = None
        self._lock = threading.Lock()
        forks.private(self)

    def close(self) -> None:
        """In a fork: nobody here holds the lock."""
        self._lock = threading.Lock()

    def get(self) -> Credentials:
        """Credentials that hold for some time.

        Raises
        ------
        StoreUnavailable
            There are none.
        """
        with self._lock:
            known = self._credentials
            if known is None or (known.expires is not None and known.expires - _EARLY < time.time()):
                self._credentials = self._found(known)
            assert self._credentials is not None
            return self._credentials

    def refused(self, credentials: Credentials) -> None:
        """Forget what the server does not take any more."""
        with self._lock:
            if self._credentials is credentials:
                self._credentials = None

    def _found(self, known: Credentials | None) -> Credentials:
        try:
            for provider in self._providers:
                found = provider()
                if found is not None:
                    return found
        except StoreUnavailable:
            if known is None or known.expires is None or known.expires < time.time():
                raise
            return known  # it still holds: the next request asks again
        raise StoreUnavailable(
            "no AWS credentials were found",
            why="Neither AWS_ACCESS_KEY_ID, nor a web identity, a profile, a container's or a machine's role "
            f"gives any.{_hint()}",
            fix="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, or give this machine "
            "or pod a role.",
        )


def from_environment() -> Credentials | None:
    """``AWS_ACCESS_KEY_ID`` and its secret."""
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key and not secret:
        return None
    if not key or not secret:
        lacking = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise ConfigError(
            f"{lacking} is not set, and the other half of the AWS credentials is", fix="Set both."
        )
    return Credentials(
        access_key=key,
        secret_key=secret,
        token=os.environ.get("AWS_SESSION_TOKEN") or None,
        source="AWS_ACCESS_KEY_ID",
    )


def from_web_identity(region: str) -> Credentials | None:
    """The role of a pod: EKS's IRSA, and whoever else gives a token in a file, which rotates."""
    file, role = os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"), os.environ.get("AWS_ROLE_ARN")
    if not file or not role:
        return None
    token = _file(file)
    china = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    server = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{china}"
    asked = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME") or f"upshift-{os.getpid()}",
        "WebIdentityToken": token,
    }
    source = f"the web identity of {role}"
    body = urlencode(asked).encode()
    kind = {"content-type": "application/x-www-form-urlencoded"}
    content = _fetch("POST", f"{server.rstrip('/')}/", kind, source, body=body, direct=False)
    try:
        found = {e.tag.rpartition("}")[2]: e.text or "" for e in ElementTree.fromstring(content).iter()}
        return Credentials(
            access_key=found["AccessKeyId"],
            secret_key=found["SecretAccessKey"],
            token=found["SessionToken"],
            expires=_moment(found["Expiration"]),
            source=source,
        )
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise _nonsense(source, error) from None


def from_profile() -> Credentials | None:
    """Profiles, SSO, roles and programs of ``~/.aws``, by way of botocore."""
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if not named and not _profiles():
        return None
    try:
        session = importlib.import_module("botocore.session").Session()
    except ImportError:
        if named:
            raise MissingExtra(
                f"the AWS profile {named!r} is read with botocore, which is not installed",
                fix='pip install "upshift[s3]"',
            ) from None
        return None
    try:
        resolver: Any = session.get_component("credential_provider")
        for other in ("env", "assume-role-with-web-identity", "container-role", "iam-role"):
            with contextlib.suppress(Exception):  # one that this version does not have
                resolver.remove(other)
        found = resolver.load_credentials()
        if found is None:
            return None
        frozen = found.get_frozen_credentials()
    except Exception as error:  # of botocore's many, each says in its words what to do
        raise StoreUnavailable(
            f"the AWS profile {named or 'default'!r} gives no credentials",
            why=str(error),
            fix=f"If it uses SSO: aws sso login{f' --profile {named}' if named else ''}",
        ) from None
    expires = getattr(found, "_expiry_time", None)
    return Credentials(
        access_key=frozen.access_key,
        secret_key=frozen.secret_key,
        token=frozen.token,
        expires=None if expires is None else expires.timestamp(),
        source=f"the profile {named or 'default'!r}",
    )


def from_container() -> Credentials | None:
    """The role of a task of ECS or Batch, or of a pod with EKS's pod identity."""
    relative = os.environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    full = os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not relative and not full:
        return None
    address = f"{_CONTAINER}{relative}" if relative else full or ""
    url = urlsplit(address)
    if url.scheme != "https" and url.hostname not in _ALLOWED:
        raise ConfigError(
            f"AWS_CONTAINER_CREDENTIALS_FULL_URI names {url.hostname}, which is not a container's endpoint",
            fix="It has to be https://, or an address of this machine.",
        )
    file = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = _file(file) if file else os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    source = "the container's role"
    return _of_json(_fetch("GET", address, {"authorization": token} if token else {}, source), source)


def from_machine() -> Credentials | None:
    """The role of an EC2 machine, by its metadata service, version 2."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _MACHINE).rstrip("/")
    ttl = {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
    source = "the machine's role"
    try:
        token = _ask("PUT", f"{base}/latest/api/token", ttl, b"", silence=_NO_MACHINE, direct=True)
    except (OSError, http.client.HTTPException):
        return None  # this is no machine of AWS
    if token[0] != 200:
        return None
    headers = {"x-aws-ec2-metadata-token": token[1].decode()}
    roles = f"{base}/latest/meta-data/iam/security-credentials/"
    status, name = _ask("GET", roles, headers, b"", silence=5.0, direct=True)
    if status != 200 or not name.strip():
        return None  # it has no role
    return _of_json(_fetch("GET", roles + name.decode().strip().splitlines()[0], headers, source), source)


def _of_json(content: bytes, source: str) -> Credentials:
    try:
        found = json.loads(content)
        return Credentials(
            access_key=found["AccessKeyId"],
            secret_key=found["SecretAccessKey"],
            token=found.get("Token"),
            expires=_moment(found["Expiration"]) if found.get("Expiration") else None,
            source=source,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _nonsense(source, error) from None


def _fetch(
    method: str, address: str, headers: dict[str, str], source: str, *, body: bytes = b"", direct: bool = True
) -> bytes:
    why = ""
    for number in range(_TRIES):
        if number:
            time.sleep(0.2 * 2**number)
        try:
            status, content = _ask(method, address, headers, body, silence=10.0, direct=direct)
        except ssl.SSLCertVerificationError as error:
            why = str(error)
            break
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            continue
        if status == 200:
            return content
        why = f"HTTP {status}: {' '.join(content[:300].decode(errors='replace').split())}"
        if status < 500 and status != 429:
            break
    raise StoreUnavailable(
        f"{source} gives no AWS credentials",
        where=address,
        why=why,
        fix="See that the role exists and trusts this machine or pod, and that the address can be reached.",
    )


def _ask(
    method: str, address: str, headers: dict[str, str], body: bytes, *, silence: float, direct: bool
) -> tuple[int, bytes]:
    url: SplitResult = urlsplit(address)
    target = url.path + (f"?{url.query}" if url.query else "")
    sent = {**headers, "content-length": str(len(body))} if body or method != "GET" else headers
    connections = Connections(silence=silence, connecting=silence, direct=direct)
    try:
        with connections.response(
            method, url, target or "/", sent, [memoryview(body)] if body else []
        ) as response:
            return response.status, response.read()
    finally:
        connections.close()


def _file(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnavailable(
            "the token for AWS credentials cannot be read",
            where=path,
            why=str(error),
            fix="See that the pod's or container's token is mounted there.",
        ) from None


def _moment(text: str) -> float:
    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


def _nonsense(source: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"{source} gives no AWS credentials",
        why=f"Its answer is not what AWS documents: {error!r}",
        fix="See that nothing else answers at that address, such as a proxy.",
    )


def _profiles() -> list[Path]:
    named = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
    paths = [Path(os.environ.get(name) or usual) for name, usual in named.items()]
    with contextlib.suppress(RuntimeError):  # nobody's home is known
        return [path for path in (path.expanduser() for path in paths) if path.is_file()]
    return []


def _hint() -> str:
    try:
        importlib.import_module("botocore")
    except ImportError:
        if found := _profiles():
            return f' {found[0]} was not read: that needs botocore (pip install "upshift[s3]").'
    return ""
