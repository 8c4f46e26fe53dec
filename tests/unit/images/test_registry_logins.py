"""Who we are to a registry: what it asks for, and what is told and never told."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from registry_kit import image, log_in, open_registries

from stand_in_registry import StandInRegistry, digest_of
from upshift.errors import ImageError
from upshift.images.registries import session
from upshift.images.registries.answers import login_command

PASSWORD = 'pa:ss w"örd$'


@pytest.mark.parametrize("bearer", [False, True])
def test_a_login_is_used_where_the_registry_wants_one(bearer: bool, tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", PASSWORD), bearer=bearer) as registry:
        digest = registry.add("ml/base", "1")
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        with open_registries(home=tmp_path) as registries:
            base = image(registry.name, "ml/base:1")
            assert registries.digest(base) == digest
            assert registries.parent(base, "linux/amd64").digest == digest
            registries.check_writable(base)
        # Reading and writing are two tokens; each is fetched once.
        assert len(registry.asked("GET", "/token")) == (2 if bearer else 0)


def test_threads_share_a_login_and_its_token(tmp_path: Path) -> None:
    blobs = [bytes([number]) * 100_000 for number in range(24)]
    with StandInRegistry(login=("ann", PASSWORD), bearer=True) as registry:
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        base = image(registry.name, "base")
        with open_registries(home=tmp_path) as registries, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda blob: registries.upload_blob(base, blob, digest_of(blob)), blobs))
            read = pool.map(lambda blob: b"".join(registries.blob(base, digest_of(blob))), blobs)
            assert list(read) == blobs
        assert len(registry.asked("GET", "/token")) == 2  # to push, and to pull
        assert len([seen for seen in registry.seen if seen.path == "/v2/"]) == 1


def test_threads_whose_token_ends_get_on_with_the_next_one(tmp_path: Path) -> None:
    blobs = [bytes([number]) * 10 for number in range(40)]
    with StandInRegistry(login=("ann", PASSWORD), bearer=True) as registry:
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        base = image(registry.name, "base")
        for blob in blobs:
            registry.add_blob("base", blob)
        with open_registries(home=tmp_path) as registries, ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                read = pool.map(lambda blob: b"".join(registries.blob(base, digest_of(blob))), blobs)
                assert list(read) == blobs
                registry.tokens.clear()
        assert len(registry.asked("GET", "/token")) == 5


@pytest.mark.parametrize("bearer", [False, True])
def test_threads_that_learn_at_once_that_a_login_is_wanted_all_use_it(bearer: bool, tmp_path: Path) -> None:
    with StandInRegistry() as registry:
        digest = registry.add("base", "1")
        base = image(registry.name, "base:1")
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        with open_registries(home=tmp_path) as registries, ThreadPoolExecutor(8) as pool:
            assert registries.digest(base) == digest
            registry.login, registry.bearer = ("ann", PASSWORD), bearer
            assert set(pool.map(lambda _: registries.digest(base), range(40))) == {digest}


def test_a_token_is_fetched_anew_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now))
    with StandInRegistry(login=("ann", PASSWORD), bearer=True) as registry:
        registry.add("base", "1")
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        with open_registries(home=tmp_path) as registries:
            for later, fetched in ((0, 1), (230, 1), (20, 2)):  # of the 300 seconds that it says
                now += later
                assert registries.digest(image(registry.name, "base:1"))
                assert len(registry.asked("GET", "/token")) == fetched


def test_an_identity_token_is_exchanged(tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", "the token"), bearer=True) as registry:
        digest = registry.add("base", "1")
        file = log_in(tmp_path, registry.name, "x", "y")
        file.write_text(json.dumps({"auths": {registry.name: {"identitytoken": "the token"}}}))
        with open_registries(home=tmp_path) as registries:
            assert registries.digest(image(registry.name, "base:1")) == digest
        assert len(registry.asked("POST", "/token")) == 1


def test_a_token_that_is_no_longer_taken_is_fetched_anew(tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", PASSWORD), bearer=True) as registry:
        digest = registry.add("base", "1")
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        with open_registries(home=tmp_path) as registries:
            base = image(registry.name, "base:1")
            assert registries.digest(base) == digest
            registry.tokens.clear()
            assert registries.digest(base) == digest


def test_a_registry_that_wants_a_login_where_there_is_none_says_where_one_was_looked_for(
    tmp_path: Path,
) -> None:
    with StandInRegistry(login=("ann", PASSWORD)) as registry:
        file = log_in(tmp_path, "registry.example.org", "ann", PASSWORD)
        with open_registries(home=tmp_path) as registries, pytest.raises(ImageError) as caught:
            registries.parent(image(registry.name, "base:1"), "linux/amd64")
    name = registry.name
    assert caught.value.what == f"{name}/base:1 cannot be read"
    assert (
        caught.value.why
        == f"{name} wants a login, and there is none for it in {file} (authentication required)"
    )
    assert caught.value.fix == f"Log in: docker login {name} (or podman login {name})"


@pytest.mark.parametrize("bearer", [False, True])
def test_a_login_that_is_not_taken_is_named_without_its_secret(bearer: bool, tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", PASSWORD), bearer=bearer) as registry:
        file = log_in(tmp_path, registry.name, "ann", "wrong-secret")
        with open_registries(home=tmp_path) as registries, pytest.raises(ImageError) as caught:
            registries.check_writable(image(registry.name, "base:1"))
    assert f"does not take the login 'ann' from {file}" in str(caught.value.why)
    assert "Log in again: docker login" in str(caught.value.fix)
    assert "wrong-secret" not in str(caught.value)


def test_a_login_of_a_variable_is_changed_there(tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", PASSWORD)) as registry:
        login = json.dumps({"auths": {registry.name: {"username": "ann", "password": "wrong-secret"}}})
        with (
            open_registries(environ={"DOCKER_AUTH_CONFIG": login}) as registries,
            pytest.raises(ImageError) as caught,
        ):
            registries.digest(image(registry.name, "base:1"))
    assert "does not take the login 'ann' from DOCKER_AUTH_CONFIG" in str(caught.value.why)
    assert caught.value.fix == "Put another one into DOCKER_AUTH_CONFIG"
    assert "wrong-secret" not in str(caught.value)


def test_a_login_without_the_permission_is_told_from_one_that_is_wrong(tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", PASSWORD)) as registry:
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        registry.goes_wrong("POST", "/uploads/", status=403)
        with open_registries(home=tmp_path) as registries, pytest.raises(ImageError) as caught:
            registries.check_writable(image(registry.name, "base:1"))
    assert f"{registry.name} does not allow it to the login 'ann'" in str(caught.value.why)
    assert "ask for the permission" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("registry", "command"),
    [
        ("docker.io", "docker login"),
        (
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
            "aws ecr get-login-password --region cn-north-1 | docker login --username AWS "
            "--password-stdin 123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
        ),
        ("us-docker.pkg.dev", "gcloud auth configure-docker us-docker.pkg.dev"),
        ("ours.azurecr.io", "az acr login --name ours"),
    ],
)
def test_each_cloud_has_its_way_to_log_in(registry: str, command: str) -> None:
    assert login_command(registry) == command


def test_a_helper_that_is_missing_is_told_only_where_a_login_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / ".docker" / "config.json"
    file.parent.mkdir()
    file.write_text('{"credsStore": "missing"}')
    with StandInRegistry() as registry, open_registries(home=tmp_path) as registries:
        registry.add("base", "1")
        assert registries.digest(image(registry.name, "base:1"))
    with StandInRegistry(login=("ann", PASSWORD)) as registry, open_registries(home=tmp_path) as registries:
        with pytest.raises(ImageError) as caught:
            registries.digest(image(registry.name, "base:1"))
        assert f"docker-credential-missing, which {file} names, is not installed" in str(caught.value.why)


def test_a_realm_that_gives_no_tokens_is_named(tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", PASSWORD), bearer=True) as registry:
        log_in(tmp_path, registry.name, "ann", PASSWORD)
        registry.goes_wrong("GET", "/token", status=200, body=b"[]")
        with open_registries(home=tmp_path) as registries, pytest.raises(ImageError) as caught:
            registries.digest(image(registry.name, "base:1"))
    assert "which gives the tokens of" in str(caught.value.why)


def test_nothing_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with StandInRegistry(login=("ann", "s3cret-word"), bearer=True) as registry:
        registry.add("base", "1")
        log_in(tmp_path, registry.name, "ann", "s3cret-word")
        with open_registries(home=tmp_path) as registries:
            registries.parent(image(registry.name, "base:1"), "linux/amd64")
        assert registry.tokens
        for secret in ("s3cret-word", *registry.tokens):
            assert secret not in caplog.text
