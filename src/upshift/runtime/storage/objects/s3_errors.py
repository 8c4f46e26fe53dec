"""What went wrong at a bucket, in words: what, where, why, and what to do."""

from __future__ import annotations

import contextlib
import email.utils
import socket
import ssl
import time
from collections.abc import Mapping
from xml.etree import ElementTree

import attrs

from upshift.errors import StoreUnavailable
from upshift.runtime.storage.objects.sigv4 import Credentials

_NEEDED = {
    "GET": "s3:GetObject and s3:ListBucket",
    "HEAD": "s3:GetObject and s3:ListBucket",
    "PUT": "s3:PutObject",
    "POST": "s3:PutObject and s3:DeleteObject",
    "DELETE": "s3:DeleteObject and s3:AbortMultipartUpload",
}
_RENEW = "Renew them; with SSO: aws sso login. Those of a pod or a machine are renewed by its platform."


@attrs.frozen(kw_only=True)
class Failure:
    """An answer that says no."""

    method: str
    status: int
    code: str  # S3's own name for it, or that of the status
    message: str
    credentials: Credentials  # who asked
    region: str | None  # where the bucket is
    retry_after: float = 0.0  # seconds that the server asks for
    skew: float | None = None  # seconds by which its clock is ahead of this machine's


def failure_of(
    method: str, status: int, headers: Mapping[str, str], content: bytes, credentials: Credentials
) -> Failure:
    """What a server says with an answer that was not expected."""
    found: dict[str, str] = {}
    with contextlib.suppress(ElementTree.ParseError):
        found = {e.tag.rpartition("}")[2]: e.text or "" for e in ElementTree.fromstring(content).iter()}
    by_status = {301: "PermanentRedirect", 403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}
    plain = "" if "Code" in found else " ".join(content[:300].decode(errors="replace").split())
    retry_after, skew = 0.0, None
    with contextlib.suppress(ValueError):
        retry_after = float(headers.get("retry-after", "0"))
    with contextlib.suppress(ValueError, TypeError):
        skew = email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp() - time.time()
    return Failure(
        method=method,
        status=status,
        code=found.get("Code") or by_status.get(status, f"HTTP {status}"),
        message=found.get("Message") or plain,
        credentials=credentials,
        region=headers.get("x-amz-bucket-region") or found.get("Region"),
        retry_after=max(0.0, retry_after),
        skew=skew,
    )


def in_words(failure: Failure, what: str, bucket: str, endpoint: str, *, tries: int) -> StoreUnavailable:
    """The error for a user."""
    code, who = failure.code, failure.credentials
    said = f"{endpoint} says {failure.code}{f': {failure.message}' if failure.message else ''}"
    asked_as = f"Asked with the access key {who.access_key}, from {who.source}."
    told = f"the object store failed at {what}"
    why, fix = said, "See what the object store's own log says."
    if code == "NoSuchBucket" or (failure.status == 404 and code == "HTTP 404"):
        told = f"there is no bucket {bucket!r} at {endpoint}"
        why = "It may be at another endpoint: AWS_ENDPOINT_URL_S3 names one that is not AWS."
        fix = f"Create it (aws s3 mb s3://{bucket}), or name another one."
    elif code in ("AccessDenied", "AllAccessDisabled", "AccountProblem"):
        told = f"access to {what} is denied"
        why = f"{said}\n{asked_as}"
        fix = f"Allow it {_NEEDED[failure.method]} on the bucket {bucket!r}, or use other credentials."
    elif code == "InvalidAccessKeyId":
        told = f"the object store does not know the access key {who.access_key}"
        why = f"{said}\nIt comes from {who.source}."
        fix = "Use the credentials of this object store; AWS_ENDPOINT_URL_S3 names one that is not AWS."
    elif code == "SignatureDoesNotMatch":
        told = f"the secret key does not belong to the access key {who.access_key}"
        why = f"{said}\nBoth come from {who.source}."
        fix = "Set both from the same place; look for a space or a line break at the end of the secret."
    elif code in ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"):
        told = "the AWS credentials have expired"
        why = f"{said}\nThey come from {who.source}."
        fix = _RENEW
    elif code == "RequestTimeTooSkewed":
        told = "this machine's clock differs from that of the object store"
        if failure.skew is not None:
            ahead = "ahead" if failure.skew > 0 else "behind"
            why = f"The object store's clock is {abs(failure.skew):,.0f} s {ahead}; it allows 15 minutes."
        fix = "Set the clock: timedatectl set-ntp true"
    elif failure.status in (301, 307) or code in (
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ):
        told = f"the bucket {bucket!r} is in another region{f', {failure.region}' if failure.region else ''}"
        fix = f"Set AWS_REGION={failure.region or '…'}."
    elif failure.status >= 500 or failure.status == 429:
        told = f"the object store is not available: {what}"
        why = f"{said} ({tries} tries)"
        fix = "Try again later; what was copied is not copied again."
    return StoreUnavailable(told, where=what, why=why, fix=fix)


def unreachable(what: str, endpoint: str, error: Exception, *, tries: int = 1) -> StoreUnavailable:
    """The error for a user where no whole answer came."""
    why = f"{endpoint}: {error or type(error).__name__}"
    fix = "See that the network works; AWS_ENDPOINT_URL_S3 and HTTPS_PROXY say which way is taken."
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{endpoint} is not trusted: {error.verify_message}"
        fix = "Set SSL_CERT_FILE to the certificates of who runs it, such as your company's proxy."
    elif isinstance(error, socket.gaierror):
        why = f"{endpoint}: no machine is known by that name"
        fix = "See that AWS_ENDPOINT_URL_S3 or AWS_REGION is right."
    elif isinstance(error, TimeoutError):
        why = f"{endpoint} does not answer"
    elif isinstance(error, ConnectionRefusedError):
        why = f"{endpoint}: nobody listens there"
    if tries > 1:
        why += f" ({tries} tries)"
    return StoreUnavailable(f"the object store cannot be reached: {what}", where=what, why=why, fix=fix)
