"""AWS credentials as pods, containers and machines get them, and the requests that are signed with them.

They are looked for in the order in which AWS's own tools look. What is only on somebody's desk (profiles,
SSO) is left to botocore, where that is installed. Requests are signed with Signature Version 4, as S3 wants:
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import hashlib
import hmac
import http.client
import importlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import attrs

from upshift.errors import ConfigError, MissingExtra, StoreUnavailable
from upshift.runtime.storage.objects.transport import escaped_path, escaped_query
from upshift.runtime.storage.objects.wallet import NO_MACHINE, Issuer, Provider, Wallet, ask

_ALGORITHM = "AWS4-HMAC-SHA256"


@attrs.frozen(kw_only=True)
class Credentials:
    """Who asks, and until when that holds."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    expires: float | None = None  # seconds since the epoch
    source: str = "the caller"  # where they came from, for messages


def signed(
    method: str,
    host: str,
    # path, query: not escaped
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    *,
    payload: str,  # SHA-256 of the body as hexadecimal digits, or ``UNSIGNED-PAYLOAD``
    credentials: Credentials,
    region: str,
    now: float,  # seconds since the epoch, by the server's clock
) -> dict[str, str]:
    """The headers of a request with those that sign it."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    every = {**headers, "host": host, "x-amz-content-sha256": payload, "x-amz-date": moment}
    if credentials.token is not None:
        every["x-amz-security-token"] = credentials.token
    by_name = {name.lower(): " ".join(value.split()) for name, value in every.items()}
    names = ";".join(sorted(by_name))
    lines = "".join(f"{name}:{by_name[name]}\n" for name in sorted(by_name))
    request = "\n".join((method, escaped_path(path), escaped_query(query), lines, names, payload))
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode(), "sha256").hex()
    every["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope},"
        f"SignedHeaders={names},Signature={signature}"
    )
    return every


# -- where credentials come from ------------------------------------------------------------------

_MACHINE = "http://169.254.169.254"
_CONTAINER = "http://169.254.170.2"
_ALLOWED = ("localhost", "127.0.0.1", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23")
"""Where a token may be sent without TLS: ECS, EKS and this machine, as AWS's own tools have it."""
_issuer = Issuer("AWS")


class AwsWallet(Wallet[Credentials]):
    """The AWS credentials of this process."""

    cloud = "AWS"

    def __init__(self, region: str, providers: Sequence[Provider[Credentials]] | None = None) -> None:
        super().__init__(
            providers
            or (
                from_environment,
                functools.partial(from_web_identity, region),
                from_profile,
                from_container,
                from_machine,
            )
        )

    def _nothing(self) -> tuple[str, str]:
        return (
            "Neither AWS_ACCESS_KEY_ID, nor a web identity, a profile, a container's or a machine's role "
            f"gives any.{_hint()}",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, or give this machine "
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
    token = _issuer.file(file)
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
    content = _issuer.fetch("POST", f"{server.rstrip('/')}/", kind, source, body=body, direct=False)
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
        raise _issuer.nonsense(source, error) from None


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
    token = _issuer.file(file) if file else os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    source = "the container's role"
    return _of_json(_issuer.fetch("GET", address, {"authorization": token} if token else {}, source), source)


def from_machine() -> Credentials | None:
    """The role of an EC2 machine, by its metadata service, version 2."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _MACHINE).rstrip("/")
    ttl = {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
    source = "the machine's role"
    try:
        token = ask("PUT", f"{base}/latest/api/token", ttl, b"", silence=NO_MACHINE, direct=True)
    except (OSError, http.client.HTTPException):
        return None  # this is no machine of AWS
    if token[0] != 200:
        return None
    headers = {"x-aws-ec2-metadata-token": token[1].decode()}
    roles = f"{base}/latest/meta-data/iam/security-credentials/"
    status, name = ask("GET", roles, headers, b"", silence=5.0, direct=True)
    if status != 200 or not name.strip():
        return None  # it has no role
    return _of_json(
        _issuer.fetch("GET", roles + name.decode().strip().splitlines()[0], headers, source), source
    )


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
        raise _issuer.nonsense(source, error) from None


def _moment(text: str) -> float:
    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


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
