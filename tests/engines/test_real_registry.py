"""The registry client against a real registry with a password, and images that real engines pushed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from registries import PASSWORD, USER, LoopbackRegistry

from cut_wire import CutWire
from stand_in_registry import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, digest_of
from upshift.errors import ImageError
from upshift.images.base import Reference
from upshift.images.containers.engine import ContainerEngine
from upshift.images.registries.client import Registries
from upshift.images.registries.transport import RegistryTransport

AMD = "linux/amd64"


@pytest.fixture
def registries() -> Iterator[Registries]:
    with Registries() as opened:
        yield opened


def push(registries: Registries, name: str, layer: bytes) -> str:
    """A whole image, as a builder pushes it; returns its digest."""
    reference = Reference.parse(name)
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b=c"]}}).encode()
    for blob in (layer, config):
        registries.upload_blob(reference, blob, digest_of(blob))
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": OCI_LAYER, "digest": digest_of(layer), "size": len(layer)}],
    }
    return registries.put_manifest(reference, json.dumps(manifest).encode(), OCI_MANIFEST)


def test_an_image_is_pushed_read_looked_up_and_removed(
    registry: LoopbackRegistry, registries: Registries, tmp_path: Path
) -> None:
    name, layer = registry.name("client/first:1"), os.urandom(3_000_000)
    reference = Reference.parse(name)
    assert registries.digest(reference) is None
    assert registries.tags(reference) == []
    digest = push(registries, name, layer)
    parent = registries.parent(reference, AMD)
    assert (parent.digest, parent.layers, parent.bytes) == (digest, (digest_of(layer),), len(layer))
    assert parent.environment == {"A": "b=c"}
    assert registries.digest(reference) == digest
    assert registries.tags(reference) == ["1"]
    assert b"".join(registries.blob(reference, digest_of(layer))) == layer

    other = Reference.parse(registry.name("client/second"))
    assert not registries.has_blob(other, digest_of(layer))
    assert registries.mount_blob(other, digest_of(layer), reference)
    assert registries.has_blob(other, digest_of(layer))
    assert not registries.mount_blob(other, digest_of(b"nowhere"), reference)

    registries.delete(reference)
    assert registries.digest(reference) is None
    registries.delete(reference)


def test_an_image_without_all_its_blobs_gets_no_name(
    registry: LoopbackRegistry, registries: Registries
) -> None:
    reference = Reference.parse(registry.name("client/half:1"))
    config = b"{}"
    registries.upload_blob(reference, config, digest_of(config))
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": OCI_LAYER, "digest": digest_of(b"nowhere"), "size": 7}],
    }
    with pytest.raises(ImageError) as caught:
        registries.put_manifest(reference, json.dumps(manifest).encode(), OCI_MANIFEST)
    assert caught.value.what == f"{reference} cannot be pushed"
    assert "blob unknown to registry" in str(caught.value.why)
    assert registries.tags(reference) == []


def test_an_upload_that_is_cut_in_the_middle_is_made_whole(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tmp_path / "layer"
    layer.write_bytes(os.urandom(4_000_000))
    digest = digest_of(layer.read_bytes())
    with CutWire(registry.address, after=1_000_000, times=1) as wire:
        logged_in(monkeypatch, tmp_path, wire.address, PASSWORD)
        reference = Reference.parse(f"{wire.address}/client/cut")
        with Registries() as registries:
            registries.upload_blob(reference, layer, digest)
            assert wire.cuts == 1
            assert b"".join(registries.blob(reference, digest)) == layer.read_bytes()


def test_an_upload_that_is_always_cut_leaves_nothing(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3_000_000)
    with CutWire(registry.address, after=1_000_000, times=1000) as wire:
        logged_in(monkeypatch, tmp_path, wire.address, PASSWORD)
        reference = Reference.parse(f"{wire.address}/client/lost")
        with Registries(transport=RegistryTransport(wait=lambda seconds: None)) as registries:
            with pytest.raises(ImageError) as caught:
                registries.upload_blob(reference, content, digest_of(content))
            assert caught.value.what == f"nothing can be pushed to {reference.name}"
            assert f"the connection to {wire.address} was lost" in str(caught.value.why)
            assert not registries.has_blob(reference, digest_of(content))


@pytest.mark.parametrize("password", [None, "wrong"])
def test_without_the_password_nothing_is_read_or_written(
    password: str | None, registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged_in(monkeypatch, tmp_path, registry.address, password)
    reference = Reference.parse(registry.name("client/closed:1"))
    with Registries() as registries:
        for call in (registries.digest, registries.tags, registries.check_writable):
            with pytest.raises(ImageError) as caught:
                call(reference)
            expected = "wants a login" if password is None else f"does not take the login {USER!r}"
            assert expected in str(caught.value.why)
            assert f"docker login {registry.address}" in str(caught.value.fix)


def test_the_password_may_come_from_a_helper(
    registry: LoopbackRegistry, registries: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    answer = json.dumps({"Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    logged_in(monkeypatch, tmp_path, registry.address, None)
    (tmp_path / "login/config.json").write_text(json.dumps({"credHelpers": {registry.address: "tests"}}))
    registries.check_writable(Reference.parse(registry.name("client/helped")))


def test_what_an_engine_pushed_is_read_as_the_engine_has_it(
    engine: ContainerEngine, base_image_name: str, registry: LoopbackRegistry, registries: Registries
) -> None:
    copy = Reference.parse(registry.name(f"client/by-{engine.name}:1"))
    insecure = ["--tls-verify=false"] if engine.name == "podman" else []
    engine.run(["pull", *insecure, base_image_name])
    engine.run(["tag", base_image_name, str(copy)])
    try:
        engine.run(["push", *insecure, str(copy)])
        here = engine.inspect(copy)
    finally:
        engine.run(["rmi", str(copy)])
    parent = registries.parent(copy, AMD)
    assert here is not None
    assert (parent.environment, parent.labels) == (here.environment, here.labels)
    assert parent.layers and registries.has_blob(copy, parent.layers[0])


def logged_in(monkeypatch: pytest.MonkeyPatch, folder: Path, address: str, password: str | None) -> None:
    """Have a login for an address, or none, and no other one."""
    from base64 import b64encode

    login = folder / "login"
    login.mkdir()
    entry = {} if password is None else {"auth": b64encode(f"{USER}:{password}".encode()).decode()}
    (login / "config.json").write_text(json.dumps({"auths": {address: entry}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(login))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(login / "config.json"))
