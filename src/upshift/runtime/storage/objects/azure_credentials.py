"""Azure credentials as pods and machines get them, and as Azure's own tools are told them.

What is only on somebody's desk (``az login``) is left to azure-identity, where that is installed.
"""

from __future__ import annotations

import functools
import hmac
import http.client
import importlib
import json
import logging
import os
import time
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import attrs

from upshift.errors import ConfigError, StoreUnavailable
from upshift.runtime.storage.objects.transport import escaped_path
from upshift.runtime.storage.objects.wallet import NO_MACHINE, Issuer, Provider, Token, Wallet, ask

_RESOURCE = "https://storage.azure.com"
_MACHINE = "http://169.254.169.254/metadata/identity/oauth2/token"
_STRING = "AZURE_STORAGE_CONNECTION_STRING"
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}
"""Those of every emulator, as Azure documents them for ``UseDevelopmentStorage=true``."""
_issuer = Issuer("Azure")


@attrs.frozen(kw_only=True)
class SharedKey:
    """The key of a storage account."""

    account: str
    key: bytes = attrs.field(repr=False)
    source: str
    expires: float | None = None


@attrs.frozen(kw_only=True)
class Sas:
    """A shared access signature: a query that says what may be done, and until when."""

    query: Sequence[tuple[str, str]] = attrs.field(repr=False)
    source: str
    expires: float | None = None


@attrs.frozen(kw_only=True)
class Account:
    """A storage account, and what is known of how to use it."""

    name: str
    endpoint: str
    key: str | None = attrs.field(default=None, repr=False)
    sas: str | None = attrs.field(default=None, repr=False)
    source: str = "the caller"


class AzureWallet(Wallet["SharedKey | Sas | Token"]):
    """The Azure credentials of this process."""

    cloud = "Azure"

    def __init__(
        self, account: Account, providers: Sequence[Provider[SharedKey | Sas | Token]] | None = None
    ) -> None:
        super().__init__(
            providers
            or (
                functools.partial(from_account, account),
                from_workload,
                from_secret,
                from_service,
                from_machine,
                from_login,
            )
        )

    def _nothing(self) -> tuple[str, str]:
        why = (
            "Neither AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or a connection string, nor a workload "
            "identity, a service principal or a managed identity gives any."
        )
        if not _has_identity():
            why += (
                ' A login of az was not looked for: that needs azure-identity (pip install "upshift[azure]").'
            )
        return why, "Set one of them, run `az login`, or give this machine or pod an identity."


def configured(address: str) -> Account:
    """The storage account that the environment names.

    Raises
    ------
    ConfigError
        It names none.
    """
    said, source = os.environ.get(_STRING), _STRING
    given = dict(part.partition("=")[::2] for part in (said or "").strip().strip(";").split(";") if part)
    if given.get("UseDevelopmentStorage", "").lower() == "true":
        given = _EMULATOR
    name = given.get("AccountName") or _first("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
    suffix = given.get("EndpointSuffix") or "core.windows.net"
    protocol = given.get("DefaultEndpointsProtocol") or "https"
    endpoint = given.get("BlobEndpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT")
    if not name and not endpoint:
        raise ConfigError(
            f"the storage account of {address} is not known",
            why=f"AZURE_STORAGE_ACCOUNT is not set, and {_STRING} names none.",
            fix="Set AZURE_STORAGE_ACCOUNT to the name of the account.",
        )
    name = name or (endpoint or "").partition("://")[2].partition(".")[0]
    key, sas = given.get("AccountKey"), given.get("SharedAccessSignature")
    if not key and not sas:
        key, source = _first("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"), "AZURE_STORAGE_KEY"
        if not key:
            sas, source = os.environ.get("AZURE_STORAGE_SAS_TOKEN"), "AZURE_STORAGE_SAS_TOKEN"
    return Account(
        name=name,
        endpoint=endpoint or f"{protocol}://{name}.blob.{suffix}",
        key=key or None,
        sas=sas or None,
        source=source,
    )


def shared_key(
    method: str, path: str, query: Sequence[tuple[str, str]], headers: Mapping[str, str], who: SharedKey
) -> str:
    """The header that signs a request with the key of an account.

    https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key
    """
    length = headers.get("content-length", "")
    lines = [
        method,
        *(headers.get(name, "") for name in ("content-encoding", "content-language")),
        "" if length == "0" else length,
        *(headers.get(name, "") for name in ("content-md5", "content-type")),
        "",  # the date is in x-ms-date
        *(headers.get(name, "") for name in ("if-modified-since", "if-match", "if-none-match")),
        *(headers.get(name, "") for name in ("if-unmodified-since", "range")),
        *(f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-ms-")),
        f"/{who.account}{escaped_path(path)}",
        *(f"{name}:{value}" for name, value in sorted(query)),
    ]
    signature = hmac.digest(who.key, "\n".join(lines).encode(), "sha256")
    return f"SharedKey {who.account}:{b64encode(signature).decode()}"


def from_account(account: Account) -> SharedKey | Sas | None:
    """A key or a shared access signature."""
    if account.key:
        try:
            key = b64decode(account.key, validate=True)
        except NotBase64:
            raise ConfigError(
                f"the key in {account.source} cannot be one of a storage account",
                why="It is not Base64.",
                fix="Copy it whole: az storage account keys list --account-name " + account.name,
            ) from None
        return SharedKey(account=account.name, key=key, source=account.source)
    if account.sas:
        query = parse_qsl(account.sas.lstrip("?"), keep_blank_values=True)
        return Sas(query=query, source=account.source)
    return None


def from_workload() -> Token | None:
    """The identity of a pod: Microsoft Entra Workload ID on AKS, and other platforms that it trusts."""
    file = os.environ.get("AZURE_FEDERATED_TOKEN_FILE")
    if not file or not (client := os.environ.get("AZURE_CLIENT_ID")):
        return None
    asked = {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": _issuer.file(file),
    }
    return _of_entra(client, asked, f"the workload identity {client}")


def from_secret() -> Token | None:
    """A service principal with a secret."""
    client, secret = os.environ.get("AZURE_CLIENT_ID"), os.environ.get("AZURE_CLIENT_SECRET")
    if not client or not secret:
        return None
    return _of_entra(client, {"client_secret": secret}, f"the service principal {client}")


def from_service() -> Token | None:
    """The managed identity of a container app, a function or an app service."""
    address, secret = os.environ.get("IDENTITY_ENDPOINT"), os.environ.get("IDENTITY_HEADER")
    if not address or not secret:
        return None
    query = {"api-version": "2019-08-01", "resource": _RESOURCE, **_client()}
    source = "the managed identity of this service"
    headers = {"x-identity-header": secret}
    return _token(_issuer.fetch("GET", f"{address}?{urlencode(query)}", headers, source), source)


def from_machine() -> Token | None:
    """The managed identity of a machine."""
    base = os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST")
    address = f"{base.rstrip('/')}/metadata/identity/oauth2/token" if base else _MACHINE
    query = urlencode({"api-version": "2018-02-01", "resource": _RESOURCE, **_client()})
    source, headers = "the machine's managed identity", {"metadata": "true"}
    address = f"{address}?{query}"
    try:
        status, content = ask("GET", address, headers, b"", silence=NO_MACHINE, direct=True)
    except (OSError, http.client.HTTPException):
        return None  # this is no machine of Azure
    if status in (400, 403, 404):
        return None  # it has no identity, or another cloud answers there
    if status != 200:
        content = _issuer.fetch("GET", address, headers, source)
    return _token(content, source)


def from_login() -> Token | None:
    """A login of ``az``, ``azd`` or Azure PowerShell, by way of azure-identity."""
    try:
        identity: Any = importlib.import_module("azure.identity")
    except ImportError:
        return None
    logging.getLogger("azure.identity").addHandler(logging.NullHandler())  # what it says is told below
    names = ("AzureCliCredential", "AzureDeveloperCliCredential", "AzurePowerShellCredential")
    try:
        found = identity.ChainedTokenCredential(*(getattr(identity, name)() for name in names))
        token = found.get_token(f"{_RESOURCE}/.default")
    except Exception as error:  # of its many, each says in its words what to do
        raise StoreUnavailable(
            "no Azure credentials were found",
            why=f"Neither the environment, nor an identity of this machine, nor a login gives any:\n{error}",
            fix="az login",
        ) from None
    return Token(value=token.token, expires=float(token.expires_on), source="the login of az")


def _of_entra(client: str, asked: Mapping[str, str], source: str) -> Token:
    tenant = os.environ.get("AZURE_TENANT_ID")
    if not tenant:
        raise ConfigError(
            "AZURE_TENANT_ID is not set, and AZURE_CLIENT_ID is",
            fix="Set it to the tenant of that identity.",
        )
    host = (os.environ.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com").rstrip("/")
    host = host if "://" in host else f"https://{host}"
    body = {
        "grant_type": "client_credentials",
        "client_id": client,
        "scope": f"{_RESOURCE}/.default",
        **asked,
    }
    address = f"{host}/{quote(tenant)}/oauth2/v2.0/token"
    form = {"content-type": "application/x-www-form-urlencoded"}
    content = _issuer.fetch("POST", address, form, source, body=urlencode(body).encode(), direct=False)
    return _token(content, source)


def _token(content: bytes, source: str) -> Token:
    try:
        found = json.loads(content)
        expires = found.get("expires_on") or time.time() + float(found["expires_in"])
        return Token(value=found["access_token"], expires=float(expires), source=source)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _issuer.nonsense(source, error) from None


def _client() -> dict[str, str]:
    client = os.environ.get("AZURE_CLIENT_ID")
    return {"client_id": client} if client else {}


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _has_identity() -> bool:
    try:
        importlib.import_module("azure.identity")
    except ImportError:
        return False
    return True
