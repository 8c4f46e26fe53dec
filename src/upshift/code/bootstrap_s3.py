"""How the bootstrap reads an object of S3."""

import hashlib
import hmac
import json
import os
import re
import sys
import time
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit

from upshift.code.bootstrap import ask, text_of


def from_bucket(address: str) -> bytes:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    bucket, _, key = address.partition("/")
    at = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    try:
        return ask(*signed(bucket, key, at, region))
    except HTTPError as error:
        other = error.headers.get("x-amz-bucket-region")
        if at or other in (None, region):
            raise
        return ask(*signed(bucket, key, at, other))


def signed(bucket: str, key: str, at: "str | None", region: str) -> "tuple[str, dict[str, str]]":
    access, secret, token = credentials(region)
    virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true")
    if not at:
        at = f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
        virtual = "." not in bucket
    scheme, host, path = urlsplit(at.rstrip("/"))[:3]
    host, path = (f"{bucket}.{host}", f"{path}/{key}") if virtual else (host, f"{path}/{bucket}/{key}")
    path = quote(path, safe="/-_.~")
    empty = hashlib.sha256(b"").hexdigest()
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": moment}
    if token:
        headers["x-amz-security-token"] = token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"GET\n{path}\n\n{lines}\n{names}\n{empty}"
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    mark = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"):
        mark = hmac.digest(mark, part.encode(), "sha256")
    who = f"AWS4-HMAC-SHA256 Credential={access}/{scope},SignedHeaders={names},Signature={mark.hex()}"
    return f"{scheme}://{host}{path}", {**headers, "authorization": who}


def credentials(region: str) -> "tuple[str, str, str | None]":
    """As pods, jobs and machines get them: variables, a web identity, a container's role, a machine's."""
    given = os.environ
    if given.get("AWS_ACCESS_KEY_ID"):
        return given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"], given.get("AWS_SESSION_TOKEN")
    if given.get("AWS_WEB_IDENTITY_TOKEN_FILE") and given.get("AWS_ROLE_ARN"):
        query = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": given["AWS_ROLE_ARN"],
            "RoleSessionName": given.get("AWS_ROLE_SESSION_NAME") or f"upshift-{os.getpid()}",
            "WebIdentityToken": text_of(given["AWS_WEB_IDENTITY_TOKEN_FILE"]),
        }
        china = ".cn" if region.startswith("cn-") else ""
        sts = given.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com{china}"
        said = ask(f"{sts.rstrip('/')}/?{urlencode(query)}").decode()
        found = [
            re.search(f"<{name}>([^<]+)<", said)
            for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
        ]
        return tuple(one[1] if one else "" for one in found)  # type: ignore[return-value]
    relative = given.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    full = f"http://169.254.170.2{relative}" if relative else given.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if full:
        token, file = (
            given.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
            given.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        )
        token = text_of(file) if file else token
        said = ask(full, {"authorization": token} if token else {}, direct=True).decode()
    else:
        base = given.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        roles = f"{base.rstrip('/')}/latest/meta-data/iam/security-credentials/"
        ttl = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}
        try:
            session = ask(f"{base.rstrip('/')}/latest/api/token", ttl, method="PUT", direct=True, patience=2)
            mark = {"x-aws-ec2-metadata-token": session.decode()}
            role = ask(roles, mark, direct=True).decode().split()[0]
            said = ask(roles + role, mark, direct=True).decode()
        except (OSError, IndexError):
            sys.exit("upshift: this node has no AWS credentials: give its pod, job or machine a role")
    keys = json.loads(said)
    return keys["AccessKeyId"], keys["SecretAccessKey"], keys.get("Token")
