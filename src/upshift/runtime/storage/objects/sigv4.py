"""AWS Signature Version 4, as S3 wants it: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence

import attrs

from upshift.runtime.storage.objects.transport import escaped_path, escaped_query

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
