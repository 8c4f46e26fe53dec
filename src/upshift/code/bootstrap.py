"""Starts a worker where there is nothing but Python: ``python -c TEXT-OF-THIS-FILE RUNTIME SPEC [ELEMENT]``

RUNTIME and SPEC are in a store: a folder, or a bucket (s3://BUCKET/KEY). The runtime, a zip that is named by
its digest, is fetched once for all workers of a node, compared, unpacked and started; it does the rest.
UPSHIFT_NODE_HOME is the node's folder for that, and may name variables: $TMPDIR/upshift. Needs the standard
library only, and only ever reads.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(f"upshift: steps need Python 3.10, and {sys.executable} is {sys.version.split()[0]}")

import hashlib
import hmac
import io
import json
import os
import re
import ssl
import tempfile
import time
import zipfile
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

TRIES = 6
AGAIN = (408, 429, 500, 502, 503, 504)


def main(runtime: str, spec: str, *element: str) -> None:
    home = os.path.expandvars(os.environ.get("UPSHIFT_NODE_HOME", "")) or own_folder()
    digest = "".join(runtime.split("/")[-2:])
    folder = os.path.join(home, "code", digest)
    if not os.path.exists(os.path.join(folder, "__main__.py")):
        content = fetch(runtime)
        if hashlib.sha256(content).hexdigest() != digest:
            sys.exit(f"upshift: {runtime} is damaged: its content has another digest")
        unpack(content, folder)
    os.environ["UPSHIFT_HOME"] = home
    os.execv(sys.executable, [sys.executable, folder, "--scheduled", spec, *element])


def own_folder() -> str:
    path = f"/tmp/upshift-{os.getuid()}"
    os.makedirs(path, 0o700, exist_ok=True)
    if os.path.islink(path) or os.stat(path).st_uid != os.getuid():
        sys.exit(f"upshift: {path} is somebody else's; set UPSHIFT_NODE_HOME to a folder of this node")
    return path


def unpack(content: bytes, folder: str) -> None:
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    draft = tempfile.mkdtemp(prefix=".", dir=parent)
    os.chmod(draft, 0o755)
    zipfile.ZipFile(io.BytesIO(content)).extractall(draft)
    try:
        os.rename(draft, folder)
    except OSError:  # another worker of this node was faster
        if not os.path.exists(os.path.join(folder, "__main__.py")):
            raise


def fetch(address: str) -> bytes:
    _, remote, rest = address.partition("://")
    why = ""
    for number in range(TRIES):
        time.sleep(0.3 * 2**number if number else 0)
        try:
            if remote:
                return from_s3(rest)
            with open(address, "rb") as file:
                return file.read()
        except HTTPError as error:
            said = error.read(500).decode("utf-8", "replace")
            why = f"HTTP {error.code} of {urlsplit(error.url).netloc}: {said}"
            if error.code not in AGAIN:
                break
        except (OSError, HTTPException) as error:
            why = str(error)
    sys.exit(f"upshift: cannot read {address}: {why}")


def from_s3(address: str) -> bytes:
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


def ask(
    url: str,
    headers: "dict[str, str] | None" = None,
    method: str = "GET",
    direct: bool = False,
    patience: float = 60,
) -> bytes:
    trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    opener = build_opener(HTTPSHandler(context=trusted), *([ProxyHandler({})] if direct else []))
    with opener.open(Request(url, None, headers or {}, method=method), timeout=patience) as answer:
        content: bytes = answer.read()
        return content


def text_of(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
