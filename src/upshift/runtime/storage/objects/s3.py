"""Objects in a bucket of S3, or of what imitates it. Versions are ETags."""

from __future__ import annotations

import configparser
import contextlib
import functools
import hashlib
import http.client
import os
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import SplitResult, unquote_plus, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import attrs

from upshift.errors import StoreError
from upshift.runtime.storage.objects import Meta, UnfinishedUpload, Version, checked, seconds, side_by_side
from upshift.runtime.storage.objects.aws_credentials import AwsWallet, Credentials, signed
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.remote import AT_ONCE, PART, Crc, RemoteObjects, Sum, md5_of
from upshift.runtime.storage.objects.transport import (
    Answer,
    Cut,
    FailedRequest,
    Request,
    Transport,
    clock_differs,
    server_at,
)
from upshift.runtime.storage.objects.wallet import Wallet

_MOST_LISTED = 1000
_ENDED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"})
_ELSEWHERE = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_SAID = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_REQUEST_CHECKSUM_CALCULATION")
_EMPTY = hashlib.sha256(b"").hexdigest()
_NEEDED = {
    "GET": "s3:GetObject and s3:ListBucket",
    "HEAD": "s3:GetObject and s3:ListBucket",
    "PUT": "s3:PutObject",
    "POST": "s3:PutObject and s3:DeleteObject",
    "DELETE": "s3:DeleteObject and s3:AbortMultipartUpload",
}
_RENEW = "Renew them; with SSO: aws sso login. Those of a pod or a machine are renewed by its platform."


def open_bucket(place: str) -> S3Objects:
    """The objects at ``BUCKET/PREFIX``."""
    name, _, prefix = place.partition("/")
    return S3Objects(Bucket(name), prefix)


class Bucket(Transport[Credentials]):
    """One bucket of S3, as this process reaches it."""

    scheme = "s3"
    variable = "AWS_ENDPOINT_URL_S3"
    codes = {**Transport.codes, 301: "PermanentRedirect"}

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet[Credentials] | None = None,
        connections: Connections | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        configured = _configured()
        self.region = (
            region
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or configured.get("region")
            or "us-east-1"
        )
        super().__init__(name, wallet=wallet or AwsWallet(self.region), connections=connections, sleep=sleep)
        address = (
            endpoint
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or configured.get("endpoint_url")
        )
        example = "https://minio.example.com:9000"
        self._endpoint = server_at(address, self.variable, example) if address else None

    @property
    def environment(self) -> Mapping[str, str]:
        said = {"AWS_REGION": self.region} | {
            name: os.environ[name] for name in _SAID if os.environ.get(name)
        }
        return said if self._endpoint is None else said | {self.variable: self._endpoint.geturl()}

    def _place(self, key: str) -> tuple[SplitResult, str]:
        given = self._endpoint
        virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true")
        if given is None:
            china = ".cn" if self.region.startswith("cn-") else ""
            given = urlsplit(f"https://s3.{self.region}.amazonaws.com{china}")
            virtual = "." not in self.name  # a certificate is for one level of names
        if virtual:
            return given._replace(netloc=f"{self.name}.{given.netloc}"), f"{given.path.rstrip('/')}/{key}"
        return given, f"{given.path.rstrip('/')}/{self.name}{f'/{key}' if key else ''}"

    def _signed(
        self,
        request: Request,
        url: SplitResult,
        path: str,
        headers: dict[str, str],
        who: Credentials,
        now: float,
    ) -> tuple[Sequence[tuple[str, str]], dict[str, str]]:
        encrypted = url.scheme == "https"  # nobody on the way can change a body
        return request.query, signed(
            request.method, url.netloc, path, request.query, headers,
            payload=_payload(request.body, encrypted), credentials=who, region=self.region, now=now,
        )  # fmt: skip

    def _mend(self, failure: FailedRequest, mended: Collection[str]) -> str | None:
        if (
            failure.region
            and failure.region != self.region
            and self._endpoint is None
            and failure.status in (301, 307, 400, 403)
            and "region" not in mended
        ):
            self.region = failure.region
            return "region"
        if failure.code in _ENDED and "credentials" not in mended:
            self._wallet.refused(failure.who)
            return "credentials"
        if failure.code == "RequestTimeTooSkewed" and failure.skew is not None and "clock" not in mended:
            self._skew = failure.skew
            return "clock"
        return None

    def _explained(self, failure: FailedRequest, what: str, said: str) -> tuple[str, str, str] | None:
        code, who, region = failure.code, failure.who, failure.region
        assert isinstance(who, Credentials)
        if code == "NoSuchBucket" or (failure.status == 404 and code == "HTTP 404"):
            return (
                f"there is no bucket {self.name!r} at {self.endpoint}",
                f"It may be at another endpoint: {self.variable} names one that is not AWS.",
                f"Create it (aws s3 mb s3://{self.name}), or name another one.",
            )
        if code in ("AccessDenied", "AllAccessDisabled", "AccountProblem"):
            return (
                f"access to {what} is denied",
                f"{said}\nAsked with the access key {who.access_key}, from {who.source}.",
                f"Allow it {_NEEDED[failure.method]} on the bucket {self.name!r}, or use other credentials.",
            )
        if code == "InvalidAccessKeyId":
            return (
                f"the object store does not know the access key {who.access_key}",
                f"{said}\nIt comes from {who.source}.",
                f"Use the credentials of this object store; {self.variable} names one that is not AWS.",
            )
        if code == "SignatureDoesNotMatch":
            return (
                f"the secret key does not belong to the access key {who.access_key}",
                f"{said}\nBoth come from {who.source}.",
                "Set both from the same place; look for a space or a line break at the end of the secret.",
            )
        if code in _ENDED:
            return "the AWS credentials have expired", f"{said}\nThey come from {who.source}.", _RENEW
        if code == "RequestTimeTooSkewed":
            return clock_differs(failure.skew, said)
        if failure.status in (301, 307) or code in _ELSEWHERE:
            return (
                f"the bucket {self.name!r} is in another region{f', {region}' if region else ''}",
                said,
                f"Set AWS_REGION={region or '…'}.",
            )
        return None


def _payload(body: Sequence[memoryview], encrypted: bool) -> str:
    if not body:
        return _EMPTY
    if encrypted:
        return "UNSIGNED-PAYLOAD"
    hasher = hashlib.sha256()
    for view in body:
        hasher.update(view)
    return hasher.hexdigest()


def _configured() -> Mapping[str, str]:
    """What ``~/.aws/config`` says of the profile in use; its credentials are not read here."""
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    parser = configparser.RawConfigParser()
    try:
        parser.read(Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser(), "utf-8")
    except (configparser.Error, RuntimeError, OSError, UnicodeDecodeError):
        return {}  # whoever reads credentials from it says what is wrong
    section = named if named == "default" else f"profile {named}"
    return dict(parser[section]) if parser.has_section(section) else {}


class S3Objects(RemoteObjects):
    """Objects in a bucket of S3."""

    writer = "x-amz-meta-upshift-writer"
    whole: ClassVar[Mapping[str, str]] = {"x-amz-checksum-mode": "ENABLED"}
    most_parts = 10_000
    escaping: ClassVar[Sequence[tuple[str, str]]] = [("encoding-type", "url")]

    def __init__(self, bucket: Transport[Any], prefix: str = "", *, part: int = PART) -> None:
        super().__init__(bucket, prefix, part=part)
        # Services that only imitate S3 may not know checksums; the variable is that of AWS's own tools.
        self._checksums = os.environ.get("AWS_REQUEST_CHECKSUM_CALCULATION", "").lower() != "when_required"

    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        begin = [("start-after", self.prefix + after)] if after else []
        for page in self._pages([("prefix", self.prefix + prefix), *begin]):
            yield from self._listed(page)

    def list_level(self, prefix: str) -> Iterator[Meta | str]:
        for page in self._pages([("prefix", self.prefix + prefix), ("delimiter", "/")]):
            yield from self._listed(page)
            for found in page.iter("CommonPrefixes"):
                yield self._key(found.findtext("Prefix", ""))[len(self.prefix) :]

    def delete(self, keys: Collection[str]) -> None:
        every = [checked(key, self.prefix) for key in keys]
        for at in range(0, len(every), _MOST_LISTED):
            named = "".join(
                f"<Object><Key>{escape(key)}</Key></Object>" for key in every[at : at + _MOST_LISTED]
            )
            body = memoryview(f"<Delete><Quiet>true</Quiet>{named}</Delete>".encode())
            headers = {"content-md5": b64encode(md5_of([body])).decode(), "content-type": "application/xml"}
            request = Request(method="POST", query=[("delete", "")], body=[body], headers=headers)
            for error in self.bucket.ask(request).xml().iter("Error"):
                if error.findtext("Code") == "NoSuchKey":
                    continue
                raise StoreError(
                    f"the object {error.findtext('Key')} cannot be removed",
                    where=self.address,
                    why=f"{error.findtext('Code')}: {error.findtext('Message')}",
                    fix="Allow s3:DeleteObject on the bucket in its policy.",
                )

    # Requests

    def _pages(self, which: Sequence[tuple[str, str]]) -> Iterator[ElementTree.Element]:
        query = [("list-type", "2"), ("max-keys", str(_MOST_LISTED)), *self.escaping, *which]
        following: str | None = ""
        while following is not None:
            token = [("continuation-token", following)] if following else []
            page = self.bucket.ask(Request(method="GET", query=[*query, *token])).xml()
            yield page
            cut = page.findtext("IsTruncated") == "true"
            following = page.findtext("NextContinuationToken") if cut else None

    def _listed(self, page: ElementTree.Element) -> Iterator[Meta]:
        for found in page.iter("Contents"):
            key = self._key(found.findtext("Key", ""))
            if not key.endswith("/"):  # what a browser of buckets puts there for an empty folder
                size = int(found.findtext("Size", "0"))
                changed = found.findtext("LastModified", "")
                yield Meta(key[len(self.prefix) :], size, self._listed_version(found), changed)

    def _key(self, text: str) -> str:
        return unquote_plus(text)

    def _listed_version(self, found: ElementTree.Element) -> Version:
        return Version(found.findtext("ETag", ""))

    def _put(self, key: str, views: Sequence[memoryview]) -> Request:
        request = Request(method="PUT", key=key, body=views)
        if self._checksums:
            request.headers["x-amz-sdk-checksum-algorithm"] = "CRC32"
            request.headers["x-amz-checksum-crc32"] = _text_of(Crc().of(views))
        return request

    def _only_if(self, match: Version | None) -> Mapping[str, str]:
        return {"if-none-match": "*"} if match is None else {"if-match": match}

    def _only(self, version: Version) -> Mapping[str, str]:
        return {"if-match": version}

    def _version(self, headers: Mapping[str, str]) -> Version:
        return Version(headers.get("etag", ""))

    def _sum(self, headers: Mapping[str, str]) -> Sum | None:
        """Not one that is made of the checksums of parts."""
        text = headers.get("x-amz-checksum-crc32", "")
        if not text or "-" in text or headers.get("x-amz-checksum-type") == "COMPOSITE":
            return None
        return Crc(int.from_bytes(b64decode(text), "big"))

    def _is_absent(self, answer: Answer) -> bool:
        return b"NoSuchBucket" not in answer.body

    # Parts

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        query = [("uploads", ""), ("prefix", self.prefix), *self.escaping]
        following: Sequence[tuple[str, str]] | None = ()
        while following is not None:
            page = self.bucket.ask(Request(method="GET", query=[*query, *following])).xml()
            for found in page.iter("Upload"):
                key, token = self._key(found.findtext("Key", "")), found.findtext("UploadId", "")
                begun = seconds(found.findtext("Initiated", ""))
                size, drop = self._size_so_far(key, token), functools.partial(self._abort, key, token)
                yield UnfinishedUpload(key[len(self.prefix) :], begun, size, drop)
            following = None
            if page.findtext("IsTruncated") == "true":
                following = [
                    ("key-marker", self._key(page.findtext("NextKeyMarker", ""))),
                    ("upload-id-marker", page.findtext("NextUploadIdMarker", "")),
                ]

    def _size_so_far(self, key: str, token: str) -> int:
        size, following = 0, "0"
        while following:
            query = [("uploadId", token), ("part-number-marker", following)]
            answer = self.bucket.ask(Request(method="GET", key=key, query=query, expected=(200, 404)))
            if answer.status == 404:  # it has just been completed, or dropped
                return 0
            page = answer.xml()
            size += sum(int(part.findtext("Size", "0")) for part in page.iter("Part"))
            cut = page.findtext("IsTruncated") == "true"
            following = page.findtext("NextPartNumberMarker", "") if cut else ""
        return size

    def _abort(self, key: str, token: str) -> None:
        query = [("uploadId", token)]
        self.bucket.ask(Request(method="DELETE", key=key, query=query, expected=(200, 204, 404)))

    def _in_parts(
        self, key: str, parts: Sequence[Sequence[memoryview]], headers: Mapping[str, str]
    ) -> Version:
        writer = uuid.uuid4().hex
        begin = Request(
            method="POST", key=key, query=[("uploads", "")], headers={**headers, self.writer: writer}
        )
        if self._checksums:
            begin.headers |= {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT"}
        upload = self.bucket.ask(begin).xml().findtext("UploadId", "")

        def send(numbered: tuple[int, Sequence[memoryview]]) -> tuple[str, Mapping[str, str]]:
            number, views = numbered
            request = self._put(key, views)
            request.query = [("partNumber", str(number)), ("uploadId", upload)]
            return self.bucket.ask(request).headers.get("etag", ""), request.headers

        try:
            sent = side_by_side(send, list(enumerate(parts, start=1)), AT_ONCE)
            return self._complete(key, upload, parts, sent, writer)
        except BaseException:
            with contextlib.suppress(StoreError):  # what is wrong is told already
                self._abort(key, upload)
            raise

    def _complete(
        self,
        key: str,
        upload: str,
        parts: Sequence[Sequence[memoryview]],
        sent: Sequence[tuple[str, Mapping[str, str]]],
        writer: str,
    ) -> Version:
        listed, whole = "", Crc()
        for number, ((tag, headers), views) in enumerate(zip(sent, parts, strict=True), start=1):
            crc = headers.get("x-amz-checksum-crc32")
            checksum = f"<ChecksumCRC32>{crc}</ChecksumCRC32>" if crc else ""
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag>{checksum}</Part>"
            if crc:
                value = int.from_bytes(b64decode(crc), "big")
                whole = whole.then(Crc(value, sum(view.nbytes for view in views)))
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        request = Request(
            method="POST", key=key, query=[("uploadId", upload)], body=[memoryview(body)],
            headers={"content-type": "application/xml"}, expected=(200, 404),
        )  # fmt: skip
        if self._checksums:
            request.headers["x-amz-checksum-crc32"] = _text_of(whole)
            request.headers["x-amz-checksum-type"] = "FULL_OBJECT"
        answer = self.bucket.consume(request, _completed)
        if answer.status == 200 and (version := self._completed_version(answer)):
            return version
        # An earlier try may have completed it, or its answer does not say which version it is.
        there = self._head(key) if answer.doubtful or answer.status == 200 else None
        if there is not None and (there.headers.get(self.writer) == writer or answer.status == 200):
            return self._version(there.headers)
        self.bucket.refuse(answer, request)

    def _completed_version(self, answer: Answer) -> Version:
        return Version(answer.xml().findtext("ETag", ""))


def _completed(response: http.client.HTTPResponse, answer: Answer) -> Answer:
    read = attrs.evolve(answer, body=response.read())
    if answer.status == 200:  # said before the work was done, which may fail still
        try:
            root = read.xml()
        except ElementTree.ParseError:
            raise Cut("its answer is not valid XML") from None
        if root.tag == "Error":
            raise Cut(f"{root.findtext('Code')}: {root.findtext('Message')}")
    return read


def _text_of(crc: Crc) -> str:
    return b64encode(crc.value.to_bytes(4, "big")).decode()
