"""Google Cloud Storage's XML API in front of moto's S3: what differs between the two dialects, as documented.

The emulators that can be installed speak Google's other interface, or know no conditional writes. Who says
that this is Google's dialect is obstore's client for it (test_other_clients.py).
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.etree import ElementTree

TOKEN = "ya29.tests"
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=AKIATESTS/20260101/us-east-1/s3/aws4_request,SignedHeaders=,Signature=0"
)
_ONLY_IF = "HTTP_X_GOOG_IF_GENERATION_MATCH"

Start = Callable[..., Any]


class Google:
    """A WSGI application."""

    def __init__(self, s3: Callable[[dict[str, Any], Start], Iterable[bytes]]) -> None:
        self._s3 = s3
        self._generations: dict[str, tuple[int, str]] = {}  # and the ETag that it is of
        self._last = 1_700_000_000_000_000
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterator[bytes]:
        token = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer").strip()
        if token not in ("", TOKEN):
            return self._refuse(start, "401 Unauthorized", "AuthenticationRequired")
        if any(name.startswith("HTTP_X_AMZ_") for name in environ):
            return self._refuse(start, "400 Bad Request", "ExcessHeaderValues")
        environ["HTTP_AUTHORIZATION"] = _SIGNED
        for name in [name for name in environ if name.startswith("HTTP_X_GOOG_META_")]:
            environ[name.replace("GOOG", "AMZ")] = environ.pop(name)
        path, _, query = environ["RAW_URI"].partition("?")  # which may be escaped more than it has to be
        environ["RAW_URI"] = quote(unquote(path), safe="/-_.~") + (f"?{query}" if query else "")
        environ["REQUEST_URI"] = environ["RAW_URI"]
        environ["wsgi.input"] = io.BytesIO(
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        )
        with self._lock:
            return self._answer(environ, start)

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterator[bytes]:
        path, method = unquote(environ["RAW_URI"].partition("?")[0]), environ["REQUEST_METHOD"]
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        wanted = environ.pop(_ONLY_IF, None)
        there = self._generation(path, environ)
        if wanted is not None and int(wanted) != there:
            if there == 0 and method == "GET":
                return self._refuse(start, "404 Not Found", "NoSuchKey")
            return self._refuse(start, "412 Precondition Failed", "PreconditionFailed")
        said: list[Any] = []
        body = b"".join(self._s3(environ, lambda status, headers, *_: said.append((status, headers))))
        status, headers = said[-1]
        if (method == "PUT" and not query) or (method == "POST" and "uploadId" in query):
            self._generations.pop(path, None)
        found = {name.lower(): value for name, value in headers if not name.lower().startswith("x-amz-")}
        for name, value in headers:
            if name.lower().startswith("x-amz-meta-"):
                found[name.lower().replace("amz", "goog")] = value
        every = list(found.items())
        if status.startswith("2") and path.count("/") > 1 and method != "DELETE":
            every.append(("x-goog-generation", str(self._generation(path, environ))))
            if re.fullmatch('"[0-9a-f]{32}"', found.get("etag", "")):
                md5 = bytes.fromhex(found["etag"].strip('"'))
                every += [("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-hash", f"md5={_base64(md5)}")]
        if "list-type" in query and status.startswith("2"):
            body = self._listed(path, body, environ)
            every = [(name, value) for name, value in every if name != "content-length"]
            every.append(("content-length", str(len(body))))
        start(status, every)
        return iter([body])

    def _generation(self, path: str, environ: dict[str, Any]) -> int:
        """That of an object; 0: there is none."""
        if path.strip("/").count("/") < 1:
            return 0
        unconditional = {n: v for n, v in environ.items() if not n.startswith(("HTTP_IF", "HTTP_RANGE"))}
        plain, nothing = environ["RAW_URI"].partition("?")[0], io.BytesIO()
        asked = {**unconditional, "REQUEST_METHOD": "HEAD", "RAW_URI": plain, "REQUEST_URI": plain}
        asked |= {"QUERY_STRING": "", "CONTENT_LENGTH": "0", "wsgi.input": nothing}
        said: list[Any] = []
        list(self._s3(asked, lambda status, headers, *_: said.append((status, dict(headers)))))
        status, headers = said[-1]
        if not status.startswith("200"):
            self._generations.pop(path, None)
            return 0
        return self._known(path, {name.lower(): value for name, value in headers.items()}["etag"])

    def _known(self, path: str, etag: str) -> int:
        if path not in self._generations or self._generations[path][1] != etag:
            self._last += 1
            self._generations[path] = (self._last, etag)
        return self._generations[path][0]

    def _listed(self, path: str, body: bytes, environ: dict[str, Any]) -> bytes:
        root = ElementTree.fromstring(body)
        space = root.tag.partition("}")[0] + "}"
        for found in root.iter(f"{space}Contents"):
            key, etag = found.findtext(f"{space}Key", ""), found.findtext(f"{space}ETag", "")
            generation = ElementTree.SubElement(found, f"{space}Generation")
            generation.text = str(self._known(f"{path.rstrip('/')}/{key}", etag))
        return ElementTree.tostring(root)

    def _refuse(self, start: Start, status: str, code: str) -> Iterator[bytes]:
        body = f"<Error><Code>{code}</Code><Message>{status}</Message></Error>".encode()
        start(status, [("content-type", "application/xml"), ("content-length", str(len(body)))])
        return iter([body])


def _base64(content: bytes) -> str:
    from base64 import b64encode

    return b64encode(content).decode()
