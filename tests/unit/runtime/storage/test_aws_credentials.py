"""Who asks, and how that is signed: as AWS documents it, and as botocore does it."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from buckets import Answers
from upshift.errors import ConfigError, MissingExtra, StoreUnavailable
from upshift.runtime.storage.objects import aws_credentials as providers
from upshift.runtime.storage.objects.aws_credentials import AwsWallet, Credentials, signed
from upshift.runtime.storage.objects.transport import escaped_path, escaped_query

EXAMPLE = Credentials(
    access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)
NOTHING = hashlib.sha256(b"").hexdigest()
WELCOME = hashlib.sha256(b"Welcome to Amazon S3.").hexdigest()


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "payload", "signature"),
    [
        ("GET", "/test.txt", [], {"Range": "bytes=0-9"}, NOTHING,
         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("PUT", "/test$file.text", [],
         {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}, WELCOME,
         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
        ("GET", "/", [("lifecycle", "")], {}, NOTHING,
         "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("GET", "/", [("prefix", "J"), ("max-keys", "2")], {}, NOTHING,
         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)  # fmt: skip
def test_requests_are_signed_as_in_the_examples_of_aws(
    method: str,
    path: str,
    query: list[tuple[str, str]],
    headers: dict[str, str],
    payload: str,
    signature: str,
) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    now = calendar.timegm((2013, 5, 24, 0, 0, 0))
    result = signed(
        method, "examplebucket.s3.amazonaws.com", path, query, headers,
        payload=payload, credentials=EXAMPLE, region="us-east-1", now=now,
    )  # fmt: skip
    assert result["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize("path", ["/a b/c+d", "/ä/日本", "/a=b&c?d#e", "/%41~'()*!", "/a//b/./c"])
def test_requests_are_signed_as_botocore_does_it(path: str) -> None:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as Theirs

    query = [("prefix", path), ("marker", ""), ("a b", "c+d/e")]
    host = "bucket.s3.eu-west-1.amazonaws.com"
    request = AWSRequest("PUT", f"https://{host}{escaped_path(path)}?{escaped_query(query)}", data=b"body")
    request.headers["x-amz-meta-note"] = "two  spaces"
    auth = S3SigV4Auth(Theirs("AKIA", "secret", "token"), "s3", "eu-west-1")
    auth.add_auth(request)
    now = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    body = hashlib.sha256(b"body").hexdigest()
    ours = signed(
        "PUT", host, path, query, {"x-amz-meta-note": "two  spaces"}, payload=body,
        credentials=Credentials(access_key="AKIA", secret_key="secret", token="token"),
        region="eu-west-1", now=now.timestamp(),
    )  # fmt: skip
    assert ours["authorization"].split("=")[-1] == request.headers["Authorization"].split("=")[-1]


def _role(number: int = 1, lasts: int = 3600) -> str:
    expires = datetime.fromtimestamp(time.time() + lasts, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = {"AccessKeyId": f"ASIA{number}", "SecretAccessKey": "s", "Token": "t", "Expiration": expires}
    return json.dumps(found)


def test_the_environment_gives_credentials(no_aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY is not set"):
        AwsWallet("us-east-1").get()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    found = AwsWallet("us-east-1").get()
    assert (found.access_key, found.secret_key, found.token) == ("AKIA", "secret", "token")
    assert "secret" not in repr(found) and "token=" not in repr(found)


def test_a_pod_gets_the_role_of_its_web_identity(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, answers = platform
    asked: list[str] = []

    def assume(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        asked.append(request.rfile.read(int(request.headers["content-length"])).decode())
        return 200, (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Credentials>'
            "<AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
            "<Expiration>2050-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResponse>"
        )

    answers["POST", "/"] = assume
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/pod")
    wallet = AwsWallet("us-east-1")
    assert wallet.get().expires == calendar.timegm((2050, 1, 1, 0, 0, 0))
    token.write_text("second")  # it rotates
    wallet.refused(wallet.get())
    wallet.get()
    assert ["WebIdentityToken=first" in asked[0], "WebIdentityToken=second" in asked[1]] == [True, True]
    token.unlink()
    with pytest.raises(
        StoreUnavailable, match=rf"token for AWS credentials cannot be read\n  where: {token}"
    ):
        AwsWallet("us-east-1").get()


def test_a_container_gets_its_role(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, answers = platform
    answers["GET", "/v1"] = lambda r: (200, _role()) if r.headers["authorization"] == "pod" else (401, "who?")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/v1")
    with pytest.raises(
        StoreUnavailable, match=r"container's role gives no AWS credentials[\s\S]*HTTP 401: who\?"
    ):
        AwsWallet("us-east-1").get()
    (tmp_path / "token").write_text("pod")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    assert AwsWallet("us-east-1").get().access_key == "ASIA1"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/v1")
    with pytest.raises(ConfigError, match=r"names example\.com, which is not a container's endpoint"):
        AwsWallet("us-east-1").get()


def test_a_machine_gets_its_role(platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch) -> None:
    address, answers = platform
    roles = "/latest/meta-data/iam/security-credentials/"

    def known(said: str) -> Callable[[BaseHTTPRequestHandler], tuple[int, str]]:
        return lambda r: (200, said) if r.headers["x-aws-ec2-metadata-token"] == "session" else (401, "")

    answers["PUT", "/latest/api/token"] = lambda r: (200, "session")
    answers["GET", roles] = known("worker\n")
    answers["GET", f"{roles}worker"] = known(_role())
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{address}/")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setattr(providers, "NO_MACHINE", 60.0)  # however busy this one is
    assert AwsWallet("us-east-1").get().access_key == "ASIA1"
    answers["GET", f"{roles}worker"] = known("<html>")
    with pytest.raises(StoreUnavailable, match="Its answer is not what AWS documents"):
        AwsWallet("us-east-1").get()


def test_a_profile_is_read_with_botocore(
    no_aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "no-aws-credentials"
    file.write_text(
        "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = s\n"
        "[team]\naws_access_key_id = AKIATEAM\naws_secret_access_key = s\n"
    )
    assert AwsWallet("us-east-1").get().access_key == "AKIADEFAULT"
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert AwsWallet("us-east-1").get().source == "the profile 'team'"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreUnavailable, match=r"profile 'nobody' gives no credentials[\s\S]*aws sso login"):
        AwsWallet("us-east-1").get()


def test_without_botocore_a_profile_says_what_to_install(
    no_aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    file = tmp_path / "no-aws-credentials"
    file.write_text("[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = s\n")
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(StoreUnavailable, match=r'no AWS credentials were found[\s\S]*"upshift\[s3\]"'):
        AwsWallet("us-east-1").get()
    monkeypatch.setenv("AWS_PROFILE", "team")
    with pytest.raises(MissingExtra, match=r"'team'[\s\S]*upshift\[s3\]"):
        AwsWallet("us-east-1").get()


def test_credentials_are_renewed_before_they_end(no_aws: None) -> None:
    given = iter(range(10))
    lasts = iter([60, 3600])

    def provide() -> Credentials:
        return Credentials(access_key=str(next(given)), secret_key="s", expires=time.time() + next(lasts))

    wallet = AwsWallet("us-east-1", (provide,))
    assert [wallet.get().access_key for _ in range(3)] == ["0", "1", "1"]


def test_credentials_that_still_hold_are_used_where_no_others_come(no_aws: None) -> None:
    given = [Credentials(access_key="AKIA", secret_key="s", expires=time.time() + 60)]

    def provide() -> Credentials:
        with contextlib.suppress(IndexError):
            return given.pop()
        raise StoreUnavailable("the role gives none")

    wallet = AwsWallet("us-east-1", (provide,))
    assert wallet.get() is wallet.get()


def test_where_nobody_gives_any_it_says_where_it_looked(no_aws: None) -> None:
    assert providers.from_machine() is None
    with pytest.raises(StoreUnavailable, match=r"no AWS credentials were found[\s\S]*aws configure"):
        AwsWallet("us-east-1").get()
