"""Objects in a bucket of Google Cloud Storage. Versions are generations.

Its XML API speaks S3's dialect, with a bearer token, ``x-goog-`` for ``x-amz-``, generations for ETags in
conditions, and checksums of its own: https://cloud.google.com/storage/docs/xml-api/overview
"""

from __future__ import annotations

import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import SplitResult
from xml.etree import ElementTree

from upshift.runtime.storage.objects.base import Version
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.google_credentials import GoogleWallet, anonymous
from upshift.runtime.storage.objects.remote import PART
from upshift.runtime.storage.objects.s3 import S3Objects
from upshift.runtime.storage.objects.sums import Md5, Sum
from upshift.runtime.storage.objects.transport import (
    Answer,
    FailedRequest,
    Request,
    Transport,
    md5_of,
    server_at,
)
from upshift.runtime.storage.objects.wallet import Token, Wallet

_GOOGLE = "https://storage.googleapis.com"
_GENERATION = "x-goog-generation"
_ONLY_IF = "x-goog-if-generation-match"
_MD5 = re.compile(r"md5=([A-Za-z0-9+/=]+)")


def open_google(place: str) -> GoogleObjects:
    """The objects at ``BUCKET/PREFIX``."""
    name, _, prefix = place.partition("/")
    return GoogleObjects(GoogleBucket(name), prefix)


class GoogleBucket(Transport[Token]):
    """One bucket of Google Cloud Storage, as this process reaches it."""

    scheme = "gs"
    variable = "STORAGE_EMULATOR_HOST"

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet[Token] | None = None,
        connections: Connections | None = None,
        endpoint: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._emulator = os.environ.get(self.variable) or ""
        providers = (anonymous,) if self._emulator else None
        super().__init__(name, wallet=wallet or GoogleWallet(providers), connections=connections, sleep=sleep)
        address = endpoint or self._emulator or _GOOGLE
        address = address if "://" in address else f"http://{address}"
        self._server = server_at(address, self.variable, "http://127.0.0.1:4443")

    @property
    def environment(self) -> Mapping[str, str]:
        return {self.variable: self._emulator} if self._emulator else {}

    def _place(self, key: str) -> tuple[SplitResult, str]:
        return self._server, f"{self._server.path.rstrip('/')}/{self.name}{f'/{key}' if key else ''}"

    def _signed(
        self, request: Request, url: SplitResult, path: str, headers: dict[str, str], who: Token, now: float
    ) -> tuple[Sequence[tuple[str, str]], dict[str, str]]:
        named = {"authorization": f"Bearer {who.value}"} if who.value else {}
        return request.query, {**headers, "host": url.netloc, **named}

    def _explained(self, failure: FailedRequest, what: str, said: str) -> tuple[str, str, str] | None:
        source = failure.who.source
        if failure.code == "NoSuchBucket" or (failure.status == 404 and failure.code == "HTTP 404"):
            return (
                f"there is no bucket {self.name!r} at {self.endpoint}",
                said,
                f"Create it (gcloud storage buckets create gs://{self.name}), or name another one.",
            )
        if failure.status == 401:
            return (
                "Google Cloud does not accept the credentials",
                f"{said}\nThey come from {source}.",
                "Renew them: gcloud auth application-default login. Those of a pod or a machine are renewed "
                "by its platform.",
            )
        if failure.status == 403:
            return (
                f"access to {what} is denied",
                f"{said}\nAsked with {source}.",
                f"Grant it roles/storage.objectUser on the bucket {self.name!r}, or use other credentials.",
            )
        return None


class GoogleObjects(S3Objects):
    """Objects in a bucket of Google Cloud Storage."""

    writer = "x-goog-meta-upshift-writer"
    whole = {}
    escaping = ()

    def __init__(self, bucket: GoogleBucket, prefix: str = "", *, part: int = PART) -> None:
        super().__init__(bucket, prefix, part=part)
        self._checksums = False  # those of S3

    def delete(self, keys: Collection[str]) -> None:
        self._delete_each(keys)  # deleting many with one request is not in all places where Google runs

    def _key(self, text: str) -> str:
        return text

    def _listed_version(self, found: ElementTree.Element) -> Version:
        return Version(found.findtext("Generation", ""))

    def _put(self, key: str, views: Sequence[memoryview]) -> Request:
        headers = {"content-md5": b64encode(md5_of(views)).decode()}
        return Request(method="PUT", key=key, body=views, headers=headers)

    def _only_if(self, match: Version | None) -> Mapping[str, str]:
        return {_ONLY_IF: match or "0"}

    def _only(self, version: Version) -> Mapping[str, str]:
        return {_ONLY_IF: version}

    def _version(self, headers: Mapping[str, str]) -> Version:
        return Version(headers.get(_GENERATION, ""))

    def _sum(self, headers: Mapping[str, str]) -> Sum | None:
        """Of what came up in one piece: an object of parts has a CRC-32C only, which Python has not."""
        found = _MD5.search(headers.get("x-goog-hash", ""))
        return Md5(b64decode(found[1])) if found else None

    def _completed_version(self, answer: Answer) -> Version:
        return self._version(answer.headers)
