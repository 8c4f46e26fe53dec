"""Objects in a container of Azure Blob Storage. Versions are ETags.

The REST API: https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-rest-api
"""

from __future__ import annotations

import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from urllib.parse import SplitResult, unquote
from xml.etree import ElementTree

from upshift.errors import ConfigError, StoreError
from upshift.runtime.storage.objects import Meta, Version, side_by_side
from upshift.runtime.storage.objects.azure_credentials import (
    AzureWallet,
    Sas,
    SharedKey,
    configured,
    shared_key,
)
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.remote import AT_ONCE, Md5, RemoteObjects, Sum, md5_of
from upshift.runtime.storage.objects.transport import (
    Answer,
    FailedRequest,
    Request,
    Transport,
    clock_differs,
    server_at,
)
from upshift.runtime.storage.objects.wallet import Token, Wallet

_REST = "2021-12-02"
"""The version of the interface."""
_MOST_LISTED = 5000
_TRIES = 3
_SKEWED = 600.0
"""Seconds by which a clock has to differ to be what is wrong; Azure allows 15 minutes."""
_SAID = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")


def open_azure(place: str) -> AzureObjects:
    """The objects at ``CONTAINER/PREFIX``."""
    name, _, prefix = place.partition("/")
    return AzureObjects(AzureContainer(name), prefix)


class AzureContainer(Transport["SharedKey | Sas | Token"]):
    """One container, as this process reaches it."""

    scheme = "az"
    variable = "AZURE_STORAGE_ENDPOINT"
    noun = "container"
    codes = {403: "AuthorizationFailure", 404: "BlobNotFound", 503: "ServerBusy"}

    def __init__(
        self,
        name: str,
        *,
        wallet: Wallet[SharedKey | Sas | Token] | None = None,
        connections: Connections | None = None,
        endpoint: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not _CONTAINER.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a container",
                why="It has 3 to 63 lowercase letters, digits and single hyphens.",
                fix="Give a store as az://CONTAINER/PREFIX.",
            )
        self.account = configured(f"az://{name}")
        super().__init__(
            name, wallet=wallet or AzureWallet(self.account), connections=connections, sleep=sleep
        )
        self._server = server_at(
            endpoint or self.account.endpoint, self.variable, "https://ACCOUNT.blob.core.windows.net"
        )

    @property
    def endpoint(self) -> str:
        return self._server.geturl().rstrip("/")

    @property
    def environment(self) -> Mapping[str, str]:
        said = {name: os.environ[name] for name in _SAID if os.environ.get(name)}
        return {"AZURE_STORAGE_ACCOUNT": self.account.name, self.variable: self.endpoint, **said}

    def _place(self, key: str) -> tuple[SplitResult, str]:
        return self._server, f"{self._server.path.rstrip('/')}/{self.name}{f'/{key}' if key else ''}"

    def _signed(
        self,
        request: Request,
        url: SplitResult,
        path: str,
        headers: dict[str, str],
        who: SharedKey | Sas | Token,
        now: float,
    ) -> tuple[Sequence[tuple[str, str]], dict[str, str]]:
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
        every = {**headers, "host": url.netloc, "x-ms-version": _REST, "x-ms-date": date}
        if isinstance(who, Sas):
            return [*request.query, *who.query], every
        if isinstance(who, Token):
            every["authorization"] = f"Bearer {who.value}"
        else:
            every["authorization"] = shared_key(request.method, path, request.query, every, who)
        return request.query, every

    def _mend(self, failure: FailedRequest, mended: Collection[str]) -> str | None:
        if self._is_late(failure) and failure.skew is not None and "clock" not in mended:
            self._skew = failure.skew
            return "clock"
        return super()._mend(failure, mended)

    def _is_late(self, failure: FailedRequest) -> bool:
        far = abs(failure.skew or 0.0) > _SKEWED
        return far and _is_unknown(failure) and isinstance(failure.who, SharedKey)

    def _explained(self, failure: FailedRequest, what: str, said: str) -> tuple[str, str, str] | None:
        code, source = failure.code, failure.who.source
        if code == "ContainerNotFound":
            return (
                f"there is no container {self.name!r} at {self.endpoint}",
                said,
                f"Create it (az storage container create --name {self.name} --account-name "
                f"{self.account.name}), or name another one.",
            )
        if self._is_late(failure):
            return clock_differs(failure.skew, said)
        if _is_unknown(failure):
            fix = "Renew them: az login. Those of a pod or a machine are renewed by its platform."
            if isinstance(failure.who, SharedKey):
                fix = f"Set the key of the account {self.account.name}; look for a space at its end."
            elif isinstance(failure.who, Sas):
                fix = "Make another SAS token, that has not expired, for this container."
            return "Azure does not accept the credentials", f"{said}\nThey come from {source}.", fix
        if failure.status == 403:
            return (
                f"access to {what} is denied",
                f"{said}\nAsked with {source}.",
                f"Grant it the role Storage Blob Data Contributor on the container {self.name!r}, "
                "or use other credentials.",
            )
        return None


def _is_unknown(failure: FailedRequest) -> bool:
    """Whether it is not known who asks; else it is known what they may do."""
    words = "failed to authenticate" in failure.message
    return failure.status == 401 or failure.code == "AuthenticationFailed" or words


class AzureObjects(RemoteObjects):
    """Objects in a container: block blobs."""

    writer = "x-ms-meta-upshift_writer"
    most_parts = 50_000

    def list(self, prefix: str, *, after: str = "") -> Iterator[Meta]:
        # Where an account has folders, a listing goes folder by folder, which is another order.
        found = [meta for page in self._pages(prefix) for meta in self._listed(page)]
        for meta in sorted(found, key=lambda meta: meta.key.encode()):
            if meta.key.encode() > after.encode():
                yield meta

    def list_level(self, prefix: str) -> Iterator[Meta | str]:
        folders = []
        for page in self._pages(prefix, delimiter="/"):
            yield from self._listed(page)
            folders += [_name(found)[len(self.prefix) :] for found in page.iter("BlobPrefix")]
        yield from sorted(folders, key=str.encode)

    # Requests

    def _pages(self, prefix: str, delimiter: str = "") -> Iterator[ElementTree.Element]:
        query = [("restype", "container"), ("comp", "list"), ("maxresults", str(_MOST_LISTED))]
        query += [("prefix", self.prefix + prefix)] * bool(self.prefix + prefix)
        query += [("delimiter", delimiter)] * bool(delimiter)
        following: str | None = ""
        while following is not None:
            marker = [("marker", following)] if following else []
            page = self.bucket.ask(Request(method="GET", query=[*query, *marker])).xml()
            yield page
            following = page.findtext("NextMarker") or None

    def _listed(self, page: ElementTree.Element) -> Iterator[Meta]:
        for found in page.iter("Blob"):
            said = {element.tag: element.text or "" for element in found.iter()}
            key = _name(found)
            if said.get("ResourceType") != "directory" and not key.endswith("/"):
                version = Version(said.get("Etag", "").strip('"'))
                size, changed = int(said.get("Content-Length", "0")), said.get("Last-Modified", "")
                yield Meta(key[len(self.prefix) :], size, version, changed)

    def _put(self, key: str, views: Sequence[memoryview]) -> Request:
        headers = {"x-ms-blob-type": "BlockBlob", "content-md5": b64encode(md5_of(views)).decode()}
        return Request(method="PUT", key=key, body=views, headers=headers, expected=(201,))

    def _only_if(self, match: Version | None) -> Mapping[str, str]:
        return {"if-none-match": "*"} if match is None else {"if-match": f'"{match}"'}

    def _only(self, version: Version) -> Mapping[str, str]:
        return {"if-match": f'"{version}"'}

    def _version(self, headers: Mapping[str, str]) -> Version:
        return Version(headers.get("etag", "").strip('"'))

    def _sum(self, headers: Mapping[str, str]) -> Sum | None:
        """Of what came up in one piece: an object of blocks has none."""
        text = headers.get("content-md5")
        return Md5(b64decode(text)) if text else None

    def _is_absent(self, answer: Answer) -> bool:
        return answer.headers.get("x-ms-error-code") != "ContainerNotFound"

    def _in_parts(
        self, key: str, parts: Sequence[Sequence[memoryview]], headers: Mapping[str, str]
    ) -> Version:
        """Blocks are named by their content: two that put the same up at once do not disturb each other."""

        def send(numbered: tuple[int, Sequence[memoryview]]) -> str:
            number, views = numbered
            md5 = md5_of(views)
            block = b64encode(f"{number:05}-{md5.hex()}".encode()).decode()
            request = Request(
                method="PUT", key=key, body=views, expected=(201,),
                query=[("comp", "block"), ("blockid", block)],
                headers={"content-md5": b64encode(md5).decode()},
            )  # fmt: skip
            self.bucket.ask(request)
            return block

        for _ in range(_TRIES):
            blocks = side_by_side(send, list(enumerate(parts)), AT_ONCE)
            listed = "".join(f"<Latest>{block}</Latest>" for block in blocks)
            body = memoryview(f"<BlockList>{listed}</BlockList>".encode())
            request = Request(
                method="PUT", key=key, body=[body], query=[("comp", "blocklist")],
                headers={**headers, "content-type": "application/xml"}, expected=(201, 400),
            )  # fmt: skip
            answer = self.bucket.ask(request)
            if answer.status == 201:
                return self._version(answer.headers)
            if answer.headers.get("x-ms-error-code") != "InvalidBlockList":
                self.bucket.refuse(answer, request)
        raise StoreError(
            f"others write to {self.address}/{key[len(self.prefix) :]} all the time",
            why="Azure drops the blocks of an object when somebody else completes it.",
            fix="Try again.",
        )


def _name(found: ElementTree.Element) -> str:
    name = found.find("Name")
    assert name is not None
    return unquote(name.text or "") if name.get("Encoded") == "true" else name.text or ""
