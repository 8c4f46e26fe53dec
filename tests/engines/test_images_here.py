"""What the other tests of this folder stand on: the engines, the registry, and the images in it."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from registries import LoopbackRegistry

from upshift.images.base import Reference
from upshift.images.containers.engine import ContainerEngine


def test_the_registry_wants_a_password(registry: LoopbackRegistry) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{registry.address}/v2/", timeout=30)
    assert registry.ask("GET", "").status == 200


def test_an_image_can_be_pulled_and_runs(
    engine: ContainerEngine, base_image_name: str, registry: LoopbackRegistry
) -> None:
    insecure = ["--tls-verify=false"] if engine.name == "podman" else []
    engine.run(["pull", *insecure, base_image_name])
    code = "import ssl, sqlite3, ctypes; print('hello')"
    answer = engine.run(["run", "--rm", base_image_name, "python3", "-c", code])
    assert answer.stdout == "hello\n"
    found = engine.inspect(Reference.parse(base_image_name))
    assert found is not None and found.in_engine
    assert (
        found.digest
        == registry.ask(
            "HEAD",
            "python/manifests/" + found.reference.version,
            headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
        ).headers["Docker-Content-Digest"]
    )
