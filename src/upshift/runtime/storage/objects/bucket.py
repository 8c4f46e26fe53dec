"""A bucket of S3, or of what imitates it: where it is, who asks, and what its errors mean."""

from __future__ import annotations

import configparser
import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from upshift.runtime.storage.objects.aws_credentials import AwsWallet, Credentials, signed
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.transport import (
    FailedRequest,
    Request,
    Transport,
    clock_differs,
    server_at,
)
from upshift.runtime.storage.objects.wallet import Wallet

_ENDED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"})
_ELSEWHERE = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_SAID = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_REQUEST_CHECKSUM_CALCULATION")
_EMPTY = hashlib.sha256(b"").hexdigest()
_NEEDED = {
    "GET": "s3:GetObject and s3:ListBucket",
    "HEAD": "s3:GetObject and s3:ListBucket",
    "PUT": "s3:PutObject",
    "POST": "s3:PutObject and s3:DeleteObject",
    "DELETE": "s3:DeleteObject and s3:AbortMultipartUpload",
}
_RENEW = "Renew them; with SSO: aws sso login. Those of a pod or a machine are renewed by its platform."


class Bucket(Transport[Credentials]):
    """One bucket of S3, as this process reaches it."""

    scheme = "s3"
    variable = "AWS_ENDPOINT_URL_S3"
    codes = {**Transport.codes, 301: "PermanentRedirect"}

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet[Credentials] | None = None,
        connections: Connections | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        configured = _configured()
        self.region = (
            region
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or configured.get("region")
            or "us-east-1"
        )
        super().__init__(name, wallet=wallet or AwsWallet(self.region), connections=connections, sleep=sleep)
        address = (
            endpoint
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or configured.get("endpoint_url")
        )
        example = "https://minio.example.com:9000"
        self._endpoint = server_at(address, self.variable, example) if address else None

    @property
    def environment(self) -> Mapping[str, str]:
        said = {"AWS_REGION": self.region} | {
            name: os.environ[name] for name in _SAID if os.environ.get(name)
        }
        return said if self._endpoint is None else said | {self.variable: self._endpoint.geturl()}

    def _place(self, key: str) -> tuple[SplitResult, str]:
        given = self._endpoint
        virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true")
        if given is None:
            china = ".cn" if self.region.startswith("cn-") else ""
            given = urlsplit(f"https://s3.{self.region}.amazonaws.com{china}")
            virtual = "." not in self.name  # a certificate is for one level of names
        if virtual:
            return given._replace(netloc=f"{self.name}.{given.netloc}"), f"{given.path.rstrip('/')}/{key}"
        return given, f"{given.path.rstrip('/')}/{self.name}{f'/{key}' if key else ''}"

    def _signed(
        self,
        request: Request,
        url: SplitResult,
        path: str,
        headers: dict[str, str],
        who: Credentials,
        now: float,
    ) -> tuple[Sequence[tuple[str, str]], dict[str, str]]:
        encrypted = url.scheme == "https"  # nobody on the way can change a body
        return request.query, signed(
            request.method, url.netloc, path, request.query, headers,
            payload=_payload(request.body, encrypted), credentials=who, region=self.region, now=now,
        )  # fmt: skip

    def _mend(self, failure: FailedRequest, mended: Collection[str]) -> str | None:
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
            self._wallet.refused(failure.who)
            return "credentials"
        if failure.code == "RequestTimeTooSkewed" and failure.skew is not None and "clock" not in mended:
            self._skew = failure.skew
            return "clock"
        return None

    def _explained(self, failure: FailedRequest, what: str, said: str) -> tuple[str, str, str] | None:
        code, who, region = failure.code, failure.who, failure.region
        assert isinstance(who, Credentials)
        if code == "NoSuchBucket" or (failure.status == 404 and code == "HTTP 404"):
            return (
                f"there is no bucket {self.name!r} at {self.endpoint}",
                f"It may be at another endpoint: {self.variable} names one that is not AWS.",
                f"Create it (aws s3 mb s3://{self.name}), or name another one.",
            )
        if code in ("AccessDenied", "AllAccessDisabled", "AccountProblem"):
            return (
                f"access to {what} is denied",
                f"{said}\nAsked with the access key {who.access_key}, from {who.source}.",
                f"Allow it {_NEEDED[failure.method]} on the bucket {self.name!r}, or use other credentials.",
            )
        if code == "InvalidAccessKeyId":
            return (
                f"the object store does not know the access key {who.access_key}",
                f"{said}\nIt comes from {who.source}.",
                f"Use the credentials of this object store; {self.variable} names one that is not AWS.",
            )
        if code == "SignatureDoesNotMatch":
            return (
                f"the secret key does not belong to the access key {who.access_key}",
                f"{said}\nBoth come from {who.source}.",
                "Set both from the same place; look for a space or a line break at the end of the secret.",
            )
        if code in _ENDED:
            return "the AWS credentials have expired", f"{said}\nThey come from {who.source}.", _RENEW
        if code == "RequestTimeTooSkewed":
            return clock_differs(failure.skew, said)
        if failure.status in (301, 307) or code in _ELSEWHERE:
            return (
                f"the bucket {self.name!r} is in another region{f', {region}' if region else ''}",
                said,
                f"Set AWS_REGION={region or '…'}.",
            )
        return None


def _payload(body: Sequence[memoryview], encrypted: bool) -> str:
    if not body:
        return _EMPTY
    if encrypted:
        return "UNSIGNED-PAYLOAD"
    hasher = hashlib.sha256()
    for view in body:
        hasher.update(view)
    return hasher.hexdigest()


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
