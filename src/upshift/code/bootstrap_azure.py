"""How the bootstrap reads an object of Azure Blob Storage; see :mod:`upshift.code.bootstrap`."""

import base64
import hmac
import json
import os
import sys
import time
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit

from upshift.code.bootstrap import ask, text_of

RESOURCE = "https://storage.azure.com"


def from_bucket(address: str) -> bytes:
    """https://learn.microsoft.com/en-us/rest/api/storageservices/get-blob"""
    given = os.environ
    account = given["AZURE_STORAGE_ACCOUNT"]
    at = given.get("AZURE_STORAGE_ENDPOINT") or f"https://{account}.blob.core.windows.net"
    url = f"{at.rstrip('/')}/{quote(address, safe='/-_.~')}"
    headers = {"x-ms-date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())}
    headers["x-ms-version"] = "2021-12-02"
    said = given.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
    key = dict(part.partition("=")[::2] for part in said).get("AccountKey") or given.get("AZURE_STORAGE_KEY")
    if key:
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        text = f"GET{chr(10) * 12}{lines}/{account}{urlsplit(url).path}"
        mark = hmac.digest(base64.b64decode(key), text.encode(), "sha256")
        headers["authorization"] = f"SharedKey {account}:{base64.b64encode(mark).decode()}"
    elif given.get("AZURE_STORAGE_SAS_TOKEN"):
        url += "?" + given["AZURE_STORAGE_SAS_TOKEN"].lstrip("?")
    else:
        headers["authorization"] = f"Bearer {token()}"
    return ask(url, headers)


def token() -> str:
    """As pods of AKS, services and machines get it: that of their identity."""
    given = os.environ
    client = {"client_id": given["AZURE_CLIENT_ID"]} if given.get("AZURE_CLIENT_ID") else {}
    if given.get("AZURE_FEDERATED_TOKEN_FILE") or given.get("AZURE_CLIENT_SECRET"):
        host = given.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com"
        form = {**client, "grant_type": "client_credentials", "scope": f"{RESOURCE}/.default"}
        if given.get("AZURE_FEDERATED_TOKEN_FILE"):
            form["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            form["client_assertion"] = text_of(given["AZURE_FEDERATED_TOKEN_FILE"])
        else:
            form["client_secret"] = given["AZURE_CLIENT_SECRET"]
        url = f"{host.rstrip('/')}/{given['AZURE_TENANT_ID']}/oauth2/v2.0/token"
        return known(ask(url, {}, "POST", body=urlencode(form).encode()))
    if given.get("IDENTITY_ENDPOINT"):
        query = urlencode({"api-version": "2019-08-01", "resource": RESOURCE, **client})
        headers = {"x-identity-header": given["IDENTITY_HEADER"]}
        return known(ask(f"{given['IDENTITY_ENDPOINT']}?{query}", headers, direct=True))
    base = given.get("AZURE_POD_IDENTITY_AUTHORITY_HOST") or "http://169.254.169.254"
    query = urlencode({"api-version": "2018-02-01", "resource": RESOURCE, **client})
    url = f"{base.rstrip('/')}/metadata/identity/oauth2/token?{query}"
    try:
        return known(ask(url, {"metadata": "true"}, direct=True, patience=5))
    except HTTPError as error:
        if error.code not in (400, 403, 404):
            raise
    except OSError:
        pass
    sys.exit("upshift: this node has no Azure credentials: give its pod or machine an identity")


def known(said: bytes) -> str:
    found: str = json.loads(said)["access_token"]
    return found
