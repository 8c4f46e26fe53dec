"""What is read from a registry, and what is said when it cannot be."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from registry_kit import QUICK, Waits, image, log_in, open_registries

from stand_in_registry import OCI_INDEX, OCI_MANIFEST, StandInRegistry, digest_of
from upshift.errors import ImageError
from upshift.images.registries.client import Registries

AMD = "linux/amd64"


def test_an_image_is_what_its_manifest_and_configuration_say_and_no_layer_is_read(
    registry: StandInRegistry, registries: Registries
) -> None:
    config = {
        "Env": ["PATH=/usr/bin", "CUDA_VERSION=12.1.1", "ODD=a=b"],
        "Labels": {"maintainer": "somebody"},
        "User": "app",
        "Entrypoint": ["/entry", "--now"],
        "WorkingDir": "/work",
    }
    digest = registry.add("ml/base", "1", config=config, layers=(b"one", b"three"))
    parent = registries.parent(image(registry.name, "ml/base:1"), AMD)
    assert (parent.digest, parent.platform, parent.bytes) == (digest, AMD, 8)
    assert parent.environment == {"PATH": "/usr/bin", "CUDA_VERSION": "12.1.1", "ODD": "a=b"}
    assert parent.labels == {"maintainer": "somebody"}
    assert parent.user == "app"
    assert parent.layers == (digest_of(b"one"), digest_of(b"three"))
    assert not parent.in_engine
    assert not [seen for seen in registry.asked("GET", "/blobs/") if parent.layers[0] in seen.path]


def test_of_an_image_for_several_platforms_the_one_that_is_asked_for_is_read(
    registry: StandInRegistry, registries: Registries
) -> None:
    amd = registry.add("base", "amd")
    arm = registry.add("base", "arm", architecture="arm64")
    entries = [
        {"digest": amd, "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": arm, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": digest_of(b"note"), "platform": {"os": "unknown", "architecture": "unknown"}},
    ]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    listed = registry.add_manifest("base", "1", OCI_INDEX, index)
    both = image(registry.name, "base:1")
    assert registries.parent(both, AMD).digest == amd
    assert registries.parent(both, "linux/arm64").digest == arm
    assert registries.digest(both) == listed
    with pytest.raises(ImageError) as caught:
        registries.parent(both, "linux/ppc64le")
    assert caught.value.what == f"{both} is not for linux/ppc64le"
    assert caught.value.why == "it is for linux/amd64, linux/arm64"
    assert "platform in DockerSettings" in str(caught.value.fix)


def test_an_image_for_one_other_platform_is_refused(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("base", "1", architecture="arm64")
    with pytest.raises(ImageError, match="is not for linux/amd64") as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.why == "it is for linux/arm64"


def test_a_tag_that_is_not_there_is_refused_with_the_nearest_one(
    registry: StandInRegistry, registries: Registries
) -> None:
    for tag in ("2.1.0", "2.2.0", "latest"):
        registry.add("ml/base", tag)
    with pytest.raises(ImageError) as caught:
        registries.parent(image(registry.name, "ml/base:2.1"), AMD)
    assert caught.value.what == f"there is no image {registry.name}/ml/base:2.1"
    assert caught.value.why == f"{registry.name}/ml/base is there, and has 2.1 not among its 3 tags"
    assert caught.value.fix == "Nearest: 2.1.0, 2.2.0."


def test_a_repository_that_is_not_there_is_refused(registry: StandInRegistry, registries: Registries) -> None:
    missing = image(registry.name, "ml/nothing:1")
    with pytest.raises(ImageError) as caught:
        registries.parent(missing, AMD)
    assert caught.value.what == f"there is no image {missing}"
    assert "has no repository ml/nothing" in str(caught.value.why)
    assert registries.digest(missing) is None
    assert registries.tags(missing) == []


def test_a_digest_is_looked_up_without_reading_the_image(
    registry: StandInRegistry, registries: Registries
) -> None:
    digest = registry.add("base", "1")
    assert registries.digest(image(registry.name, "base:1")) == digest
    assert [seen.method for seen in registry.seen if "/manifests/" in seen.path] == ["HEAD"]


def test_tags_are_read_page_after_page(registry: StandInRegistry, registries: Registries) -> None:
    registry.page = 2
    for number in range(5):
        registry.add("base", f"v{number}")
    assert registries.tags(image(registry.name, "base")) == ["v0", "v1", "v2", "v3", "v4"]


def test_a_registry_whose_next_page_is_always_the_same_keeps_nobody(
    registry: StandInRegistry, registries: Registries
) -> None:
    page = b'{"tags": ["a"]}'
    same = {"Link": '</v2/base/tags/list?n=1000>; rel="next"'}
    registry.goes_wrong("GET", "/tags/", times=100, status=200, body=page, headers=same)
    assert registries.tags(image(registry.name, "base")) == ["a"]
    assert len(registry.asked("GET", "/tags/")) <= 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_blob_is_read_to_its_end_though_connections_are_lost_in_the_middle(ranges: bool) -> None:
    content = bytes(range(256)) * 40_000
    with StandInRegistry(ranges=ranges) as registry, open_registries() as registries:
        digest = registry.add_blob("base", content)
        registry.goes_wrong("GET", "/blobs/", cut=3_000_000)
        registry.goes_wrong("GET", "/blobs/", cut=5_000_000)
        registry.goes_wrong("GET", "/blobs/", status=503)
        assert b"".join(registries.blob(image(registry.name, "base"), digest)) == content


def test_a_blob_that_never_gets_on_is_given_up(registry: StandInRegistry, registries: Registries) -> None:
    digest = registry.add_blob("base", b"content" * 100)
    registry.goes_wrong("GET", "/blobs/", times=100, cut=0)
    with pytest.raises(ImageError) as caught:
        list(registries.blob(image(registry.name, "base"), digest))
    assert f"{digest[:19]}… of {registry.name}/base:latest cannot be read" == caught.value.what
    assert caught.value.why == f"the connection to {registry.name} was lost"
    assert len(registry.asked("GET", "/blobs/")) == 5


def test_a_blob_that_is_not_what_its_digest_says_is_refused_at_its_end(
    registry: StandInRegistry, registries: Registries
) -> None:
    digest = digest_of(b"true")
    registry.blobs["base", digest] = b"false"
    with pytest.raises(ImageError, match="not match its digest"):
        list(registries.blob(image(registry.name, "base"), digest))


def test_a_blob_that_is_not_there_is_refused(registry: StandInRegistry, registries: Registries) -> None:
    reference, digest = image(registry.name, "base"), digest_of(b"nothing")
    assert not registries.has_blob(reference, digest)
    with pytest.raises(ImageError, match="cannot be read") as caught:
        list(registries.blob(reference, digest))
    assert caught.value.why == f"{registry.name}/base has it not"


def test_a_manifest_that_is_not_what_its_digest_says_is_refused(
    registry: StandInRegistry, registries: Registries
) -> None:
    digest = registry.add("base", "1")
    registry.manifests["base", digest] = (OCI_MANIFEST, b"{}")
    with pytest.raises(ImageError, match="not match its digest"):
        registries.parent(image(registry.name, f"base@{digest}"), AMD)


def test_a_digest_of_the_other_kind_is_compared_too(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("base", "1")
    kind, content = registry.manifests["base", "1"]
    digest = "sha512:" + hashlib.sha512(content).hexdigest()
    name = image(registry.name, f"base@{digest}")
    registry.manifests["base", digest] = (kind, content)
    assert registries.parent(name, AMD).digest == registries.digest(name) == digest
    registry.manifests["base", digest] = (kind, content + b" ")
    with pytest.raises(ImageError, match="not match its digest"):
        registries.parent(name, AMD)


@pytest.mark.parametrize("stated", ["junk", "sha256:", "sha512:" + "0" * 128, "md5:" + "0" * 32])
def test_what_a_registry_states_as_a_digest_is_not_believed(
    stated: str, registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("base", "1")
    kind, content = registry.manifests["base", "1"]
    name = image(registry.name, "base:1")
    headers = {"Content-Type": kind, "Docker-Content-Digest": stated}
    registry.goes_wrong("GET", "/manifests/", status=200, body=content, headers=headers)
    with pytest.raises(ImageError, match="not match its digest"):
        registries.parent(name, AMD)
    if len(stated) < 100:  # what has the form of one is compared where it is read
        registry.goes_wrong("HEAD", "/manifests/", status=200, headers=headers)
        assert registries.digest(name) == digest_of(content)


@pytest.mark.parametrize(
    "manifest",
    [
        {"schemaVersion": 1, "history": []},
        {"schemaVersion": 2, "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}},
        {"schemaVersion": 2},
    ],
)
def test_what_is_no_container_image_is_refused(
    registry: StandInRegistry, registries: Registries, manifest: dict[str, Any]
) -> None:
    registry.add_manifest("chart", "1", OCI_MANIFEST, manifest)
    with pytest.raises(ImageError, match="is not a container image"):
        registries.parent(image(registry.name, "chart:1"), AMD)


@pytest.mark.parametrize(
    "layers", [[{"digest": "../../secret"}], [{"size": 3}], [7], "text", [{"digest": ["x"]}]]
)
def test_a_hostile_manifest_is_refused_in_words(
    registry: StandInRegistry, registries: Registries, layers: Any
) -> None:
    registry.add("base", "1")
    kind, body = registry.manifests["base", "1"]
    registry.add_manifest("base", "2", kind, {**json.loads(body), "layers": layers})
    with pytest.raises(ImageError, match="is not a container image") as caught:
        registries.parent(image(registry.name, "base:2"), AMD)
    assert "is malformed" in str(caught.value.why)


def test_a_configuration_without_an_end_is_refused(registry: StandInRegistry, registries: Registries) -> None:
    registry.add("base", "1")
    kind, body = registry.manifests["base", "1"]
    manifest = json.loads(body)
    manifest["config"]["digest"] = registry.add_blob("base", b" " * (17 << 20))
    registry.add_manifest("base", "1", kind, manifest)
    with pytest.raises(ImageError, match="cannot be read") as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.why == "its configuration has more than 16 MiB"


def test_what_is_no_registry_is_named_as_such(registry: StandInRegistry, registries: Registries) -> None:
    page = b"<html>Welcome</html>"
    registry.goes_wrong("GET", "/", times=100, status=200, body=page, headers={"Content-Type": "text/html"})
    with pytest.raises(ImageError, match="cannot be read") as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert "answers with something else than a document of a registry" in str(caught.value.why)
    assert caught.value.fix == "Check the name of the registry."


def test_a_registry_that_is_down_is_named_with_what_the_system_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = f"127.0.0.1:{listener.getsockname()[1]}"
    with open_registries() as registries, pytest.raises(ImageError) as caught:
        registries.parent(image(name, "base:1"), AMD)
    assert caught.value.what == f"{name}/base:1 cannot be read"
    assert caught.value.why == f"{name} cannot be reached: connection refused"
    assert "NO_PROXY" in str(caught.value.fix)


def test_a_registry_whose_name_is_not_known_is_named() -> None:
    with open_registries() as registries, pytest.raises(ImageError) as caught:
        registries.parent(image("registry.invalid", "base:1"), AMD)
    assert caught.value.why == "registry.invalid cannot be reached: its name is not known on this network"


def test_a_registry_that_says_nothing_is_not_waited_for(registry: StandInRegistry) -> None:
    registry.add("base", "1")
    registry.goes_wrong("GET", "/manifests/", silent=True)
    with open_registries(timeout=QUICK) as registries, pytest.raises(ImageError) as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.why == f"{registry.name} has not answered within 0.3 s"
    assert len(registry.asked("GET", "/manifests/")) == 1


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(registry: StandInRegistry, part: str) -> None:
    registry.add("base", "1")
    registry.goes_wrong("GET", "/manifests/", drip=part)
    with open_registries(timeout=QUICK) as registries, pytest.raises(ImageError) as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    said = {"head": "has not answered within 0.3 s", "body": "sends less than 1,000 bytes a second"}
    assert caught.value.why == f"{registry.name} {said[part]}"


def test_a_blob_that_comes_byte_by_byte_is_given_up(registry: StandInRegistry) -> None:
    digest = registry.add_blob("base", bytes(10_000))
    registry.goes_wrong("GET", "/blobs/", times=99, drip="body")
    with open_registries(timeout=QUICK) as registries, pytest.raises(ImageError) as caught:
        list(registries.blob(image(registry.name, "base:1"), digest))
    assert caught.value.why == f"{registry.name} sends less than 1,000 bytes a second"


def test_trouble_that_passes_is_not_seen(registry: StandInRegistry) -> None:
    digest, waits = registry.add("base", "1"), Waits()
    registry.goes_wrong("GET", "/manifests/", status=500)
    registry.goes_wrong("GET", "/manifests/", cut=5)
    with open_registries(waits=waits) as registries:
        assert registries.parent(image(registry.name, "base:1"), AMD).digest == digest
    assert waits.seconds == [0.2, 1.0]


def test_trouble_that_stays_is_told_with_what_the_registry_says(
    registry: StandInRegistry, registries: Registries
) -> None:
    said = json.dumps({"errors": [{"code": "UNKNOWN", "message": "disk\x1b[31m is\n full"}]}).encode()
    registry.goes_wrong("GET", "/manifests/", times=9, status=500, body=said)
    with pytest.raises(ImageError) as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.what == f"{registry.name}/base:1 cannot be read"
    assert caught.value.why == f"{registry.name} answers 500 (disk[31m is full), 3 times"
    assert caught.value.fix == "Try again later; see its log."


def test_half_an_answer_is_none(registry: StandInRegistry, registries: Registries) -> None:
    registry.add("base", "1")
    registry.goes_wrong("GET", "/manifests/", times=9, cut=7)
    with pytest.raises(ImageError) as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.why == f"the connection to {registry.name} was lost after 7 bytes (3 times)"


def test_a_registry_that_is_asked_too_often_is_waited_for_as_it_says(registry: StandInRegistry) -> None:
    digest, waits = registry.add("base", "1"), Waits()
    registry.goes_wrong("HEAD", "/manifests/", status=429, headers={"Retry-After": "7"})
    with open_registries(waits=waits) as registries:
        assert registries.digest(image(registry.name, "base:1")) == digest
        assert waits.seconds == [7.0]
        registry.goes_wrong("HEAD", "/manifests/", status=429, headers={"Retry-After": "3600"})
        with pytest.raises(ImageError) as caught:
            registries.digest(image(registry.name, "base:1"))
    assert caught.value.why == f"{registry.name} lets nobody ask so often"
    assert "docker login" in str(caught.value.fix)


def test_a_blob_may_lie_elsewhere_and_the_login_is_not_sent_there(tmp_path: Path) -> None:
    with StandInRegistry() as storage, StandInRegistry(login=("ann", "secret")) as registry:
        log_in(tmp_path, registry.name, "ann", "secret")
        digest = storage.add_blob("there", b"content")
        to = {"Location": f"http://{storage.name}/v2/there/blobs/{digest}"}
        registry.goes_wrong("GET", "/blobs/", status=307, headers=to)
        with open_registries(home=tmp_path) as registries:
            assert b"".join(registries.blob(image(registry.name, "base"), digest)) == b"content"
        assert "Authorization" in registry.asked("GET", "/blobs/")[-1].headers
        assert "Authorization" not in storage.seen[-1].headers


def test_a_blob_that_the_registry_keeps_elsewhere_is_there(
    registry: StandInRegistry, registries: Registries
) -> None:
    elsewhere = {"Location": "http://storage.invalid/blob"}
    registry.goes_wrong("HEAD", "/blobs/", status=307, headers=elsewhere)
    assert registries.has_blob(image(registry.name, "base"), digest_of(b"layer"))


def test_storage_that_refuses_is_told_from_a_registry_that_wants_a_login(
    registry: StandInRegistry, registries: Registries
) -> None:
    with StandInRegistry() as storage:
        to = {"Location": f"http://{storage.name}/blob"}
        registry.goes_wrong("GET", "/blobs/", status=307, headers=to)
        storage.goes_wrong("GET", "/blob", status=403)
        with pytest.raises(ImageError) as caught:
            list(registries.blob(image(registry.name, "base"), digest_of(b"layer")))
    assert "answers 403" in str(caught.value.why)
    assert "login" not in str(caught.value)


def test_redirects_without_an_end_are_given_up(registry: StandInRegistry, registries: Registries) -> None:
    here = {"Location": "/v2/base/manifests/1"}
    registry.goes_wrong("GET", "/manifests/", times=99, status=307, headers=here)
    with pytest.raises(ImageError) as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.why == f"{registry.name} redirects without an end"
