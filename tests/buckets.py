"""Object stores on loopback: ``moto_server`` as S3, and in Google's dialect; ``azurite`` as Azure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

from counted import LOG, Requests
from upshift.runtime.storage.objects.azure import AzureContainer
from upshift.runtime.storage.objects.transport import Request

KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
_SERVER = """
import logging
import os
import threading
import moto.s3.models
from counted import LOG, Counted
from google_dialect import Google
from moto.s3.responses import S3Response
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.disable(logging.ERROR)
moto.s3.models.S3_UPLOAD_PART_MIN_SIZE = 1 << 20
put, one_at_a_time = S3Response.put_object, threading.Lock()

def put_object(self):
    with one_at_a_time:
        return put(self)

S3Response.put_object = put_object
s3 = Counted(DomainDispatcherApplication(create_backend_app), os.environ[LOG])
server = make_server("127.0.0.1", 0, s3, threaded=True)
google = make_server("127.0.0.1", 0, Google(s3), threaded=True)
threading.Thread(target=google.serve_forever, daemon=True).start()
print(server.port, google.port, flush=True)
server.serve_forever()
"""
"""As ``moto_server`` does it, without a line for each request, and with parts of 1 MiB, where S3 wants 5.

A conditional write is one step in S3; moto looks first and writes then, and another thread may come between.
"""
AZURITE = Path(__file__).parents[1] / ".engines/azurite-3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every emulator, as Azure documents it."""
_CLOUDS = (
    *("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "GCE_", "NO_GCE_CHECK", "AZURE_", "IDENTITY_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
)


@attrs.frozen
class BucketHere:
    """An empty bucket, and boto3's own client for it."""

    name: str
    endpoint: str
    boto3: Any
    scheme: str = "s3"

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.name}"


@pytest.fixture(scope="session")
def requests_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the object store keeps a line for each request."""
    log = tmp_path_factory.mktemp("object-store") / "requests"
    log.touch()
    return log


@pytest.fixture(scope="session")
def object_stores(requests_of_all: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a running object store: as S3, and as Google Cloud Storage."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), LOG: str(requests_of_all)},
    )
    assert server.stdout is not None
    try:
        ports = server.stdout.readline().split()
        assert len(ports) == 2, "moto_server did not start"
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.fixture(scope="session")
def object_store(object_stores: tuple[str, str]) -> str:
    """The address of a running object store."""
    return object_stores[0]


@pytest.fixture(scope="session")
def azure_store() -> Iterator[str]:
    """The address of a running ``azurite``, in memory; the test is skipped where it is not installed."""
    program = AZURITE / "node_modules/azurite/dist/src/blob/main.js"
    if not program.exists() or not shutil.which("node"):
        pytest.skip("azurite is not installed: make engines")
    folder = tempfile.mkdtemp(prefix="azurite-")
    server = subprocess.Popen(
        ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence",
         "--disableTelemetry", "--silent"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if "successfully listens on" in line:
                yield f"{line.split()[-1]}/{ACCOUNT}"
                break
        else:
            pytest.fail("azurite did not start")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        shutil.rmtree(folder)


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nothing of the machine's own settings for clouds."""
    for name in list(os.environ):
        if name.startswith(_CLOUDS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud-config"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def bucket(object_store: str, no_aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketHere]:
    """An empty bucket, which this process reaches by its environment."""
    import boto3

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", object_store)
    client = boto3.client("s3")
    name = f"tests-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    yield BucketHere(name, object_store, client)
    client.close()


@pytest.fixture
def requests(bucket: BucketHere, requests_of_all: Path) -> Requests:
    """What this bucket is asked from now on."""
    return Requests(requests_of_all, bucket.name)


@pytest.fixture
def google_bucket(
    bucket: BucketHere, object_stores: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> BucketHere:
    """The same bucket, as one of Google Cloud Storage."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", object_stores[1])
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    return attrs.evolve(bucket, endpoint=object_stores[1], scheme="gs")


@pytest.fixture
def container(azure_store: str, no_aws: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty container, which this process reaches by its environment."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure_store)
    name = f"tests-{uuid.uuid4().hex[:12]}"
    there = AzureContainer(name)
    there.ask(Request(method="PUT", query=[("restype", "container")], expected=(201,)))
    there._connections.close()
    return name


@pytest.fixture(params=["s3", "gs", "az"])
def place(request: pytest.FixtureRequest) -> str:
    """The address of an empty place in each cloud, which this process reaches by its environment."""
    if request.param == "az":
        return f"az://{request.getfixturevalue('container')}"
    here = request.getfixturevalue({"s3": "bucket", "gs": "google_bucket"}[request.param])
    return str(here.address)


Answers = dict[tuple[str, str], Callable[[BaseHTTPRequestHandler], tuple[int, str]]]


@pytest.fixture
def platform(no_aws: None) -> Iterator[tuple[str, Answers]]:
    """What answers at the addresses of a cloud: its address, and what it says by method and path."""
    answers: Answers = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is more than one packet

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            said = answers.get((self.command, self.path))
            status, text = (404, "nothing") if said is None else said(self)
            content = text.encode()
            self.send_response_only(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()
