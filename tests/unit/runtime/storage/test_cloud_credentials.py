"""Who asks Google Cloud and Azure: as their documentation has it, against what answers at their addresses."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from buckets import Answers
from upshift.errors import ConfigError, MissingExtra, StoreUnavailable
from upshift.runtime.storage.objects import azure_credentials, google, open_objects
from upshift.runtime.storage.objects.azure import AzureContainer
from upshift.runtime.storage.objects.azure_credentials import AzureWallet, Sas, SharedKey, configured
from upshift.runtime.storage.objects.google import GoogleWallet
from upshift.runtime.storage.objects.wallet import Token

METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
IDENTITY = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com"


@pytest.fixture(autouse=True)
def however_busy_this_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (google, azure_credentials):
        monkeypatch.setattr(module, "NO_MACHINE", 60.0)


@pytest.fixture
def azure(no_aws: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "team")
    return monkeypatch


def form(request: BaseHTTPRequestHandler) -> dict[str, str]:
    content = request.rfile.read(int(request.headers["content-length"])).decode()
    return {name: values[0] for name, values in parse_qs(content).items()}


def wallet() -> AzureWallet:
    return AzureWallet(configured("az://data"))


# Google


def test_a_pod_of_gke_or_a_machine_has_a_service_account(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, answers = platform
    given = iter(["first", "second", "third"])

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        assert request.headers["metadata-flavor"] == "Google"
        return 200, json.dumps({"access_token": next(given), "expires_in": 200, "token_type": "Bearer"})

    answers["GET", METADATA] = answer
    monkeypatch.delenv("NO_GCE_CHECK")
    monkeypatch.setenv("GCE_METADATA_HOST", address.partition("://")[2])
    there = GoogleWallet()
    assert there.get().value == "first" and "first" not in repr(there.get())
    assert there.get().value == "third"  # it ends soon, so that each time there is another one
    answers["GET", METADATA] = lambda _: (404, "no service account")
    with pytest.raises(StoreUnavailable, match="no Google Cloud credentials were found"):
        GoogleWallet().get()


def test_a_federated_identity_is_exchanged(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, answers = platform
    (tmp_path / "token").write_text(json.dumps({"jwt": "of the pod"}))
    found = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{address}/v1/token",
        "credential_source": {
            "file": str(tmp_path / "token"),
            "format": {"type": "json", "subject_token_field_name": "jwt"},
        },
        "service_account_impersonation_url": f"{address}/impersonate",
    }
    (tmp_path / "account.json").write_text(json.dumps(found))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))

    def exchange(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        asked = form(request)
        assert (asked["subject_token"], asked["audience"]) == ("of the pod", found["audience"])
        return 200, json.dumps({"access_token": "federated", "expires_in": 3600})

    def impersonate(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        assert request.headers["authorization"] == "Bearer federated"
        return 200, json.dumps({"accessToken": "of the account", "expireTime": "2050-01-01T00:00:00Z"})

    answers["POST", "/v1/token"], answers["POST", "/impersonate"] = exchange, impersonate
    assert GoogleWallet().get().value == "of the account"


def test_key_files_are_read_by_google_auth(
    platform: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("google.auth")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    address, answers = platform
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "client_email": "worker@team.iam.gserviceaccount.com",
        "private_key": key.decode(),
        "private_key_id": "1",
        "token_uri": f"{address}/token",
    }
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    seen: list[dict[str, str]] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        seen.append(form(request))
        return 200, json.dumps({"access_token": f"token {len(seen)}", "expires_in": 3600})

    answers["POST", "/token"] = answer
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    (tmp_path / "key.json").write_text(json.dumps(account))
    found = GoogleWallet().get()
    assert found.value == "token 1" and seen[0]["assertion"].count(".") == 2
    assert found.expires is not None and 3000 < found.expires - time.time() < 3700
    # A login of gcloud, where it keeps one.
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(login))
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{address}/token")
    assert GoogleWallet().get().value == "token 2" and seen[1]["refresh_token"] == "r"


def test_a_key_file_that_cannot_be_used_is_named(
    no_aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    with pytest.raises(ConfigError, match=r"key.json cannot be read[\s\S]*No such file"):
        GoogleWallet().get()
    key.write_text("[]")
    with pytest.raises(ConfigError, match=r"key.json cannot be read[\s\S]*not such a file"):
        GoogleWallet().get()
    key.write_text('{"type": "service_account"}')
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(MissingExtra, match=r"google-auth[\s\S]*upshift\[gcs\]"):
        GoogleWallet().get()


def test_without_google_credentials_it_says_where_they_could_come_from(no_aws: None) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        open_objects("gs://team-data/store").get("one")
    text = str(raised.value)
    assert "no Google Cloud credentials were found" in text
    assert "GOOGLE_APPLICATION_CREDENTIALS" in text and "gcloud auth application-default login" in text


# Azure


def test_an_account_is_told_by_variables_or_a_connection_string(azure: pytest.MonkeyPatch) -> None:
    assert AzureContainer("data").endpoint == "https://team.blob.core.windows.net"
    azure.setenv("AZURE_STORAGE_KEY", "a2V5")
    found = wallet().get()
    assert isinstance(found, SharedKey) and (found.account, found.key) == ("team", b"key")
    azure.delenv("AZURE_STORAGE_KEY")
    azure.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2021&sig=a%2Bb%3D")
    shared = wallet().get()
    assert isinstance(shared, Sas) and shared.query == [("sv", "2021"), ("sig", "a+b=")]
    azure.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        "DefaultEndpointsProtocol=https;AccountName=other;AccountKey=b3RoZXI=;EndpointSuffix=core.chinacloudapi.cn",
    )
    assert AzureContainer("data").endpoint == "https://other.blob.core.chinacloudapi.cn"
    found = wallet().get()
    assert isinstance(found, SharedKey) and (found.account, found.key) == ("other", b"other")
    azure.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    assert AzureContainer("data").endpoint == "http://127.0.0.1:10000/devstoreaccount1"


def test_a_pod_of_aks_has_a_workload_identity(
    platform: tuple[str, Answers], azure: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, answers = platform
    token = tmp_path / "token"
    token.write_text("of the pod\n")
    azure.setenv("AZURE_FEDERATED_TOKEN_FILE", str(token))
    azure.setenv("AZURE_CLIENT_ID", "client")
    azure.setenv("AZURE_AUTHORITY_HOST", f"{address}/")
    with pytest.raises(ConfigError, match="AZURE_TENANT_ID is not set"):
        wallet().get()
    azure.setenv("AZURE_TENANT_ID", "tenant")
    seen: list[dict[str, str]] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        seen.append(form(request))
        return 200, json.dumps({"access_token": "entra", "expires_in": 3599})

    answers["POST", "/tenant/oauth2/v2.0/token"] = answer
    found = wallet().get()
    assert isinstance(found, Token) and found.value == "entra"
    assert found.expires is not None and 3000 < found.expires - time.time() < 3700
    assert seen[0]["client_assertion"] == "of the pod" and seen[0]["client_id"] == "client"
    assert seen[0]["scope"] == "https://storage.azure.com/.default"
    azure.delenv("AZURE_FEDERATED_TOKEN_FILE")
    azure.setenv("AZURE_CLIENT_SECRET", "secret")
    assert wallet().get().source == "the service principal client"
    assert seen[1]["client_secret"] == "secret" and "client_assertion" not in seen[1]


def test_machines_and_services_have_managed_identities(
    platform: tuple[str, Answers], azure: pytest.MonkeyPatch
) -> None:
    address, answers = platform

    def machine(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        assert request.headers["metadata"] == "true"
        return 200, json.dumps({"access_token": "imds", "expires_on": str(int(time.time()) + 3600)})

    answers["GET", IDENTITY] = machine
    azure.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", address)
    found = wallet().get()
    assert isinstance(found, Token) and found.value == "imds"
    service = "/msi?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com&client_id=mine"
    answers["GET", service] = lambda r: (
        (200, json.dumps({"access_token": "service", "expires_on": "2524608000"}))
        if r.headers["x-identity-header"] == "secret"
        else (401, "no")
    )
    azure.setenv("IDENTITY_ENDPOINT", f"{address}/msi")
    azure.setenv("IDENTITY_HEADER", "secret")
    azure.setenv("AZURE_CLIENT_ID", "mine")
    found = wallet().get()
    assert isinstance(found, Token) and found.value == "service"
    azure.setenv("IDENTITY_HEADER", "wrong")
    with pytest.raises(StoreUnavailable, match=r"managed identity of this service gives no Azure[\s\S]*401"):
        wallet().get()


def test_without_azure_credentials_it_says_where_they_could_come_from(
    platform: tuple[str, Answers], azure: pytest.MonkeyPatch
) -> None:
    azure.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", platform[0])  # where nobody has an identity
    azure.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(StoreUnavailable, match=r"no Azure credentials were found[\s\S]*upshift\[azure\]"):
        wallet().get()
    azure.setenv("AZURE_STORAGE_KEY", "not base64")
    with pytest.raises(ConfigError, match="the key in AZURE_STORAGE_KEY cannot be one of a storage account"):
        wallet().get()
    azure.delenv("AZURE_STORAGE_ACCOUNT")
    with pytest.raises(
        ConfigError, match=r"account of az://data is not known[\s\S]*Set AZURE_STORAGE_ACCOUNT"
    ):
        open_objects("az://data/store")


@pytest.mark.parametrize("address", ["az://", "az://Data", "az://a--b", "gs://", "gs://a b"])
def test_what_cannot_be_a_container_is_refused(azure: pytest.MonkeyPatch, address: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a"):
        open_objects(address)
