"""An object store on loopback: ``moto_server``, which boto3 and Upshift both talk to as to S3."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
_SERVER = """
import logging
import moto.s3.models
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.disable(logging.ERROR)
moto.s3.models.S3_UPLOAD_PART_MIN_SIZE = 1 << 20
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
"""As ``moto_server`` does it, without a line for each request, and with parts of 1 MiB, where S3 wants 5."""
_AWS = ("AWS_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


@attrs.frozen
class BucketHere:
    """An empty bucket, and boto3's own client for it."""

    name: str
    endpoint: str
    boto3: Any

    @property
    def address(self) -> str:
        return f"s3://{self.name}"


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of a running object store."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        assert port, "moto_server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nothing of the machine's own AWS settings."""
    for name in list(os.environ):
        if name.startswith(_AWS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


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


Answers = dict[tuple[str, str], Callable[[BaseHTTPRequestHandler], tuple[int, str]]]


@pytest.fixture
def platform(no_aws: None) -> Iterator[tuple[str, Answers]]:
    """What answers at the addresses of a cloud: its address, and what it says by method and path."""
    answers: Answers = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

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
