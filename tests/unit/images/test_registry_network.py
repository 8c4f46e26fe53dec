"""How a registry is reached: https or http, whose certificates, through which proxy."""

from __future__ import annotations

import selectors
import shlex
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from registry_kit import QUICK, image, log_in, open_registries

from stand_in_registry import StandInRegistry, digest_of
from upshift.errors import ImageError, MissingExtra
from upshift.images.registries import transport
from upshift.images.registries.client import Registries
from upshift.images.registries.transport import RegistryTransport

AMD = "linux/amd64"
_OPENSSL = """
openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=loopback
    -addext subjectAltName=IP:127.0.0.1 -keyout loopback.key -out loopback.crt
"""


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that nobody trusts; its key lies beside it."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        shlex.split(_OPENSSL),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "loopback.crt"


class Tunnel(socketserver.ThreadingTCPServer):
    """A proxy that passes everything on to one port of this machine."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.port = port
        self.seen = ""

    def __enter__(self) -> Tunnel:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Passing(socketserver.StreamRequestHandler):
    server: Tunnel

    def handle(self) -> None:
        while (line := self.rfile.readline()).strip():
            self.server.seen += line.decode()
        self.connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        to = ("127.0.0.1", self.server.port)
        with socket.create_connection(to) as there, selectors.DefaultSelector() as waiting:
            waiting.register(self.connection, selectors.EVENT_READ, there)
            waiting.register(there, selectors.EVENT_READ, self.connection)
            while True:
                for key, _ in waiting.select():
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    key.data.sendall(data)


@pytest.fixture
def secure(certificate: Path) -> Iterator[StandInRegistry]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with StandInRegistry(tls=context) as registry:
        yield registry


@pytest.fixture
def not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on this machine is treated as if it were on another one."""
    monkeypatch.setattr("upshift.images.registries.session.is_loopback", lambda host: False)
    monkeypatch.setattr("upshift.images.registries.transport.is_loopback", lambda host: False)


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_certificate_is_trusted_where_a_variable_names_its_authority(
    variable: str, secure: StandInRegistry, certificate: Path, not_loopback: None
) -> None:
    digest = secure.add("base", "1")
    with open_registries(environ={variable: str(certificate)}) as registries:
        assert registries.parent(image(secure.name, "base:1"), AMD).digest == digest


def test_a_certificate_is_trusted_for_the_registry_that_it_is_put_down_for(
    secure: StandInRegistry, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CERTIFICATES", (str(tmp_path),))
    folder = tmp_path / secure.name
    folder.mkdir()
    (folder / "ca.crt").write_bytes(certificate.read_bytes())
    digest = secure.add("base", "1")
    with open_registries() as registries:
        assert registries.digest(image(secure.name, "base:1")) == digest


def test_a_certificate_that_nobody_trusts_is_refused_also_of_a_registry_called_insecure(
    secure: StandInRegistry, not_loopback: None
) -> None:
    with open_registries(insecure=(secure.name,)) as registries, pytest.raises(ImageError) as caught:
        registries.parent(image(secure.name, "base:1"), AMD)
    assert f"the certificate of {secure.name} is not trusted here" in str(caught.value.why)
    assert f"/etc/docker/certs.d/{secure.name}/ca.crt" in str(caught.value.fix)
    assert not secure.seen


def test_a_certificate_of_another_host_is_told_from_one_that_is_not_trusted(
    secure: StandInRegistry, certificate: Path
) -> None:
    name = f"localhost:{secure.port}"  # the certificate is that of 127.0.0.1
    with (
        open_registries(environ={"REQUESTS_CA_BUNDLE": str(certificate)}) as registries,
        pytest.raises(ImageError) as caught,
    ):
        registries.digest(image(name, "base:1"))
    assert f"the certificate of {name} is not trusted here" in str(caught.value.why)
    assert "is another host's" in str(caught.value.fix)


def test_a_registry_on_this_machine_may_speak_https(secure: StandInRegistry, certificate: Path) -> None:
    digest = secure.add("base", "1")
    with open_registries(environ={"REQUESTS_CA_BUNDLE": str(certificate)}) as registries:
        assert registries.digest(image(secure.name, "base:1")) == digest


def test_a_file_of_certificates_that_is_none_is_named(
    secure: StandInRegistry, tmp_path: Path, not_loopback: None
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for file in (bad, tmp_path / "gone.pem"):
        with (
            open_registries(environ={"REQUESTS_CA_BUNDLE": str(file)}) as registries,
            pytest.raises(ImageError, match="cannot be read") as caught,
        ):
            registries.digest(image(secure.name, "base:1"))
        assert f"the certificates in {file} cannot be read" in str(caught.value.why)


def test_without_tls_only_registries_that_are_called_insecure_are_spoken_to(
    not_loopback: None, tmp_path: Path
) -> None:
    with StandInRegistry(login=("ann", "secret")) as plain:
        digest = plain.add("base", "1")
        log_in(tmp_path, plain.name, "ann", "secret")
        with open_registries(home=tmp_path) as registries, pytest.raises(ImageError) as caught:
            registries.digest(image(plain.name, "base:1"))
        assert f"{plain.name} does not speak https" in str(caught.value.why)
        assert "insecure_registries" in str(caught.value.fix)
        assert not [seen for seen in plain.seen if "Authorization" in seen.headers]
        with open_registries(home=tmp_path, insecure=(plain.name,)) as registries:
            assert registries.digest(image(plain.name, "base:1")) == digest


def test_the_configuration_names_insecure_registries(
    not_loopback: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with StandInRegistry() as plain:
        digest = plain.add("base", "1")
        (tmp_path / "upshift.toml").write_text(f'insecure_registries = ["{plain.name}"]\n')
        with Registries() as registries:
            assert registries.digest(image(plain.name, "base:1")) == digest


def test_a_realm_without_tls_gets_no_login(
    secure: StandInRegistry, certificate: Path, tmp_path: Path
) -> None:
    secure.login, secure.bearer = ("ann", "secret"), True  # its realm has http
    log_in(tmp_path, secure.name, "ann", "secret")
    with (
        open_registries(home=tmp_path, environ={"REQUESTS_CA_BUNDLE": str(certificate)}) as registries,
        pytest.raises(ImageError) as caught,
    ):
        registries.digest(image(secure.name, "base:1"))
    assert f"wants the login sent to {secure.name} without TLS" in str(caught.value.why)
    assert not [seen for seen in secure.seen if "Authorization" in seen.headers]


def test_a_registry_without_tls_has_the_login_sent_no_further(tmp_path: Path) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="http://auth.example.org/token"'}
    with StandInRegistry() as registry, StandInRegistry(login=("ann", "secret")) as elsewhere:
        registry.add("base", "1")
        registry.goes_wrong("GET", "/v2/", status=401, headers=realm, times=2)
        log_in(tmp_path, registry.name, "ann", "secret")
        environ = {"http_proxy": elsewhere.name}  # all that is not on this machine gets there
        base = image(registry.name, "base:1")
        with open_registries(home=tmp_path, environ=environ) as registries:
            with pytest.raises(ImageError) as caught:
                registries.digest(base)
            assert "wants the login sent to auth.example.org without TLS" in str(caught.value.why)
            assert not elsewhere.seen
        with open_registries(home=tmp_path, environ=environ, insecure=("auth.example.org",)) as registries:
            assert registries.digest(base)
            assert [seen.path for seen in elsewhere.seen] == [
                "http://auth.example.org/token?scope=repository%3Abase%3Apull"
            ]


def test_a_registry_with_tls_that_gives_an_address_of_another_host_without_it_gets_nothing_sent_there(
    secure: StandInRegistry, certificate: Path
) -> None:
    elsewhere = {"Location": "http://storage.example.org/one"}
    secure.goes_wrong("POST", "/uploads/", status=202, headers=elsewhere)
    with (
        StandInRegistry() as proxy,
        open_registries(
            environ={"REQUESTS_CA_BUNDLE": str(certificate), "http_proxy": proxy.name}
        ) as registries,
    ):
        with pytest.raises(ImageError) as caught:
            registries.upload_blob(image(secure.name, "base"), b"content", digest_of(b"content"))
        assert f"{secure.name} names an address without TLS" in str(caught.value.why)
        assert not proxy.seen


def test_a_registry_behind_something_that_ends_tls_may_give_addresses_without_it(
    secure: StandInRegistry, certificate: Path
) -> None:
    secure.uploads["one"] = b""
    place = f"http://{secure.name}/v2/base/blobs/uploads/one"
    secure.goes_wrong("POST", "/uploads/", status=202, headers={"Location": place})
    with open_registries(environ={"REQUESTS_CA_BUNDLE": str(certificate)}) as registries:
        registries.upload_blob(image(secure.name, "base"), b"content", digest_of(b"content"))
    assert secure.blobs["base", digest_of(b"content")] == b"content"


def test_an_upload_that_goes_elsewhere_takes_no_login_along(tmp_path: Path) -> None:
    with StandInRegistry() as storage, StandInRegistry(login=("ann", "secret")) as registry:
        log_in(tmp_path, registry.name, "ann", "secret")
        storage.uploads["one"] = b""
        place = f"http://{storage.name}/v2/there/blobs/uploads/one?signed=yes"
        registry.goes_wrong("POST", "/uploads/", status=202, headers={"Location": place})
        with open_registries(home=tmp_path) as registries:
            registries.upload_blob(image(registry.name, "base"), b"content", digest_of(b"content"))
        assert storage.blobs["there", digest_of(b"content")] == b"content"
        (seen,) = storage.asked("PUT")
        assert "signed=yes&digest=sha256" in seen.path
        assert "Authorization" not in seen.headers
        assert "Authorization" in registry.asked("POST")[-1].headers


def test_what_is_on_https_is_not_looked_for_without(secure: StandInRegistry, certificate: Path) -> None:
    digest = secure.add_blob("base", b"content")
    secure.goes_wrong("GET", "/blobs/", status=307, headers={"Location": "http://storage.example.org/x"})
    with (
        open_registries(environ={"REQUESTS_CA_BUNDLE": str(certificate)}) as registries,
        pytest.raises(ImageError) as caught,
    ):
        list(registries.blob(image(secure.name, "base"), digest))
    assert "redirects from https to http://storage.example.org" in str(caught.value.why)


def test_a_proxy_is_gone_through_with_its_own_login() -> None:
    with StandInRegistry() as proxy:
        digest = proxy.add("base", "1")
        environ = {"http_proxy": f"http://bob:p%40ss@{proxy.name}", "HTTPS_PROXY": "http://127.0.0.1:1"}
        with open_registries(environ=environ, insecure=("registry.invalid",)) as registries:
            # https goes nowhere, so that http is tried
            with pytest.raises(ImageError) as caught:
                registries.digest(image("registry.invalid", "base:1"))
            assert "its proxy gives no connection (connection refused)" in str(caught.value.why)
            assert "HTTPS_PROXY" in str(caught.value.fix)
        del environ["HTTPS_PROXY"]
        with open_registries(environ=environ, insecure=("registry.invalid",)) as registries:
            assert registries.digest(image("registry.invalid", "base:1")) == digest
    assert proxy.seen[-1].path.startswith("http://registry.invalid/v2/")
    assert proxy.seen[-1].headers["Proxy-Authorization"] == "Basic Ym9iOnBAc3M="


def test_a_registry_with_tls_is_reached_through_a_proxy_that_sees_nothing_of_it(
    secure: StandInRegistry, certificate: Path, tmp_path: Path, not_loopback: None
) -> None:
    digest = secure.add("base", "1")
    secure.login = ("ann", "secret")
    log_in(tmp_path, secure.name, "ann", "secret")
    with Tunnel(secure.port) as tunnel:
        environ = {
            "https_proxy": f"http://bob:word@127.0.0.1:{tunnel.server_address[1]}",
            "REQUESTS_CA_BUNDLE": str(certificate),
        }
        with open_registries(home=tmp_path, environ=environ) as registries:
            assert registries.digest(image(secure.name, "base:1")) == digest
    assert f"CONNECT {secure.name} HTTP/1." in tunnel.seen
    assert "basic Ym9iOndvcmQ=".lower() in tunnel.seen.lower()
    assert "/v2/" not in tunnel.seen


@pytest.mark.parametrize(
    ("host", "without", "through"),
    [
        ("registry.example.org", "", True),
        ("registry.example.org", "example.org", False),
        ("registry.example.org", ".example.org", False),
        ("registry.example.org", "*.example.org", False),
        ("registry.example.org", "other.org, registry.example.org:443", False),
        ("registry.example.org", "ample.org", True),
        ("registry.example.org", "*", False),
        ("10.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "11.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.3", False),
        ("127.0.0.1", "", False),
        ("127.8.8.8", "", False),
        ("localhost", "", False),
        ("::1", "", False),
    ],
)
def test_some_hosts_are_reached_without_the_proxy(host: str, without: str, through: bool) -> None:
    environ = {"HTTPS_PROXY": "proxy.example.org:3128", "NO_PROXY": without}
    proxy = transport.proxy_for("https", host, environ)
    assert proxy == ("http://proxy.example.org:3128" if through else None)
    assert transport.proxy_for("http", host, environ) is None


def test_a_host_that_takes_connections_and_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        with open_registries(timeout=QUICK) as registries, pytest.raises(ImageError) as caught:
            registries.digest(image(name, "base:1"))
    assert f"{name} has not answered within 0.3 s" in str(caught.value.why)


def test_a_host_that_takes_no_connections_is_not_waited_for() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # until its queue is full, and the kernel takes no more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        registries = stack.enter_context(open_registries(timeout=QUICK))
        with pytest.raises(ImageError) as caught:
            registries.digest(image(name, "base:1"))
    assert caught.value.why == f"{name} cannot be reached: no connection within 0.3 s"


def test_without_urllib3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(MissingExtra) as caught:
        RegistryTransport()
    assert caught.value.fix == "pip install 'upshift[images]'"
