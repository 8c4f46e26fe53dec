"""How a worker starts where there is nothing but Python: its runtime comes from the store."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from calendar import timegm
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import strptime
from urllib.parse import urlsplit

import pytest

from buckets import KEY, Answers, BucketHere
from upshift.code import bootstrap_azure, bootstrap_google
from upshift.code import bootstrap_s3 as program
from upshift.code.runtime_package import bootstrap
from upshift.model.checks import BUCKETS
from upshift.runtime.storage.objects import open_objects
from upshift.runtime.storage.objects.aws_credentials import Credentials, signed

TELLS = b"""
import os, sys
print([os.path.basename(sys.argv[0]), *sys.argv[1:]], os.environ["UPSHIFT_HOME"])
"""


def made_up() -> tuple[bytes, str]:
    """A runtime that tells how it was started, and the end of its address."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("__main__.py", TELLS)
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    return content.getvalue(), f"blobs/sha256/{digest[:2]}/{digest[2:]}"


def started(*arguments: str, before: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """What comes of the program under a Python with nothing installed."""
    command = [sys.executable, "-ISc", before + bootstrap(arguments[0]), *arguments]
    return subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, timeout=60)


def test_it_fits_where_commands_are_limited() -> None:
    """Overrides of jobs of AWS Batch have 8,192 bytes: its API reference, SubmitJob."""
    for scheme in BUCKETS:
        assert len(bootstrap(f"{scheme}://").encode()) < 8_000


def test_a_worker_starts_from_a_bucket_and_the_next_one_from_the_node(place: str, tmp_path: Path) -> None:
    content, key = made_up()
    objects = open_objects(f"{place}/team a")
    objects.put(key, content)
    node = str(tmp_path / "node")
    spec = f"{objects.address}/runs/r/tasks/s/0.1.spec.json"
    told = f"{[''.join(key.split('/')[-2:]), '--scheduled', spec, '7']} {node}\n"
    more = {}
    if place.startswith("az://"):
        more = {"AZURE_STORAGE_KEY": "", "AZURE_STORAGE_CONNECTION_STRING": f"AccountKey={KEY};"}
    first = started(f"{objects.address}/{key}", spec, "7", UPSHIFT_NODE_HOME=node, **more)
    assert (first.stdout, first.stderr) == (told, "")
    second = started(
        f"{objects.address}/{key}",
        spec,
        "7",
        before="import sys\nsys.modules['ssl'] = None\n",  # nor does it import what a download needs
        UPSHIFT_NODE_HOME=node,
        **{objects.bucket.variable: "http://127.0.0.1:1"},  # type: ignore[attr-defined]
    )
    assert second.stdout == told
    assert len(list((tmp_path / "node" / "code").glob("*/__main__.py"))) == 1


def test_a_worker_starts_from_a_mounted_folder(tmp_path: Path) -> None:
    content, key = made_up()
    path = tmp_path / "store" / key
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    done = started(str(path), "/store/spec.json", UPSHIFT_NODE_HOME=str(tmp_path / "node"))
    assert "'--scheduled', '/store/spec.json'" in done.stdout
    path.write_bytes(content + b"more")
    done = started(str(path), "/store/spec.json", UPSHIFT_NODE_HOME=str(tmp_path / "other"))
    assert done.stderr == f"upshift: {path} is damaged: its content has another digest\n"
    assert done.returncode == 1


def test_what_is_missing_is_said(bucket: BucketHere, tmp_path: Path) -> None:
    node = {"UPSHIFT_NODE_HOME": str(tmp_path)}
    said = started(f"{bucket.address}/blobs/sha256/ab/cd", "spec", **node).stderr
    assert said.startswith(
        f"upshift: cannot read {bucket.address}/blobs/sha256/ab/cd: HTTP 404 of 127.0.0.1:"
    )
    assert "NoSuchKey" in said
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}
    said = started(f"{bucket.address}/blobs/sha256/ab/cd", "spec", **nobody, **node).stderr
    assert said == "upshift: this node has no AWS credentials: give its pod, job or machine a role\n"
    old = "import sys\nsys.version_info, sys.version = (3, 9, 1), '3.9.1 (main)'\n"
    said = started("runtime", "spec", before=old, **node).stderr
    assert said == f"upshift: steps need Python 3.10, and {sys.executable} is 3.9.1\n"


@pytest.mark.parametrize("token", [None, "token"])
@pytest.mark.parametrize("at", [None, "https://minio.example.com:9000/s3/"])
@pytest.mark.parametrize("bucket", ["team", "team.example"])
def test_it_asks_as_the_client_asks(
    no_aws: None, monkeypatch: pytest.MonkeyPatch, at: str | None, bucket: str, token: str | None
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    url, headers = program.signed(bucket, "a b/ä+c", at, "eu-west-1")
    virtual = at is None and "." not in bucket
    host = {None: "s3.eu-west-1.amazonaws.com"}.get(at, "minio.example.com:9000")
    path = f"/{'' if at is None else 's3/'}{'' if virtual else f'{bucket}/'}a b/ä+c"
    where = f"{bucket}.{host}" if virtual else host
    assert urlsplit(url)[1:3] == (where, path.replace(" ", "%20").replace("ä", "%C3%A4").replace("+", "%2B"))
    expected = signed(
        "GET", where, path, [], {}, payload=hashlib.sha256(b"").hexdigest(), region="eu-west-1",
        now=timegm(strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ")),
        credentials=Credentials(access_key="AKIA", secret_key="secret", token=token),
    )  # fmt: skip
    assert headers["authorization"] == expected["authorization"]


def test_pods_jobs_and_machines_have_credentials(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, answers = platform
    role = json.dumps({"AccessKeyId": "ASIA", "SecretAccessKey": "s", "Token": "t"})
    known = ("ASIA", "s", "t")

    answers["PUT", "/latest/api/token"] = lambda r: (200, "session")
    roles = "/latest/meta-data/iam/security-credentials/"
    answers["GET", roles] = lambda r: (200, "worker\n")
    answers["GET", f"{roles}worker"] = lambda r: (
        (200, role) if r.headers["x-aws-ec2-metadata-token"] == "session" else (401, "")
    )
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
    assert program.credentials("us-east-1") == known

    answers["GET", "/pod"] = lambda r: (200, role) if r.headers["authorization"] == "mine" else (401, "")
    (tmp_path / "token").write_text("mine\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/pod")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    assert program.credentials("us-east-1") == known

    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/pod")
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "pod")
    asked = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fpod"
    answers["GET", f"/?{asked}&RoleSessionName=pod&WebIdentityToken=mine"] = lambda r: (
        200,
        "<Credentials><AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        "<SessionToken>t</SessionToken></Credentials>",
    )
    assert program.credentials("us-east-1") == known


def test_pods_and_machines_of_other_clouds_have_credentials(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, answers = platform
    said = json.dumps({"access_token": "theirs", "expires_in": 3600})
    metadata = "/computeMetadata/v1/instance/service-accounts/default/token"
    answers["GET", metadata] = lambda r: (
        (200, said) if r.headers["metadata-flavor"] == "Google" else (403, "")
    )
    monkeypatch.setenv("GCE_METADATA_HOST", address.partition("://")[2])
    assert bootstrap_google.token() == "theirs"

    resource = "resource=https%3A%2F%2Fstorage.azure.com"
    machine = f"/metadata/identity/oauth2/token?api-version=2018-02-01&{resource}"
    answers["GET", machine] = lambda r: (200, said) if r.headers["metadata"] == "true" else (403, "")
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", address)
    assert bootstrap_azure.token() == "theirs"
    del answers["GET", machine]
    with pytest.raises(SystemExit, match="this node has no Azure credentials"):
        bootstrap_azure.token()

    (tmp_path / "token").write_text("of the pod\n")

    def exchange(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        asked = request.rfile.read(int(request.headers["content-length"])).decode()
        known = "client_assertion=of+the+pod" in asked or "client_secret=secret" in asked
        return (200, said) if known else (401, "")

    answers["POST", "/tenant/oauth2/v2.0/token"] = exchange
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", address)
    assert bootstrap_azure.token() == "theirs"
    monkeypatch.delenv("AZURE_FEDERATED_TOKEN_FILE")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "secret")
    assert bootstrap_azure.token() == "theirs"
