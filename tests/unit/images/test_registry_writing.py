"""What is put into a registry: all of it, or nothing under a name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
from registry_kit import QUICK, image, log_in, open_registries

from stand_in_registry import OCI_MANIFEST, StandInRegistry, digest_of
from upshift.errors import ImageError
from upshift.images.base import Progress
from upshift.images.registries.client import Registries

CONTENT = bytes(range(256)) * 20_000  # 5 MB
DIGEST = digest_of(CONTENT)


def test_a_file_is_uploaded_and_how_far_it_is_is_told(
    registry: StandInRegistry, registries: Registries, tmp_path: Path
) -> None:
    file = tmp_path / "layer"
    file.write_bytes(CONTENT)
    told: list[Progress] = []
    base = image(registry.name, "ml/base")
    registries.upload_blob(base, file, DIGEST, tell=told.append, text="torch")
    assert registry.blobs["ml/base", DIGEST] == CONTENT
    assert registries.has_blob(base, DIGEST)
    assert {(one.stage, one.text, one.total) for one in told} == {("push", "torch", len(CONTENT))}
    done = [one.done or 0 for one in told]
    assert done == sorted(done) and done[-1] == len(CONTENT) and len(done) > 3


def test_an_upload_that_loses_its_connection_goes_on_where_the_registry_is(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", lose=2_000_000)
    registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert registry.blobs["base", DIGEST] == CONTENT
    _, second = registry.asked("PUT")
    assert second.headers["Content-Range"] == f"2000000-{len(CONTENT) - 1}"
    assert int(second.headers["Content-Length"]) == len(CONTENT) - 2_000_000
    assert len(registry.asked("POST")) == 1


def test_an_upload_during_which_the_token_ends_goes_on_with_the_next_one(tmp_path: Path) -> None:
    with StandInRegistry(login=("ann", "secret"), bearer=True) as registry:
        log_in(tmp_path, registry.name, "ann", "secret")
        wants = {"WWW-Authenticate": f'Bearer realm="http://{registry.name}/token",service="stand-in"'}
        registry.goes_wrong("PUT", "/uploads/", status=401, headers=wants)
        with open_registries(home=tmp_path) as registries:
            registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
        assert registry.blobs["base", DIGEST] == CONTENT
        first, second = registry.asked("PUT")
        assert first.headers["Authorization"] != second.headers["Authorization"]
        assert len(registry.asked("POST")) == 1


def test_an_upload_begins_again_where_the_registry_has_forgotten_it(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", lose=2_000_000)
    registry.goes_wrong("GET", "/uploads/", status=404)
    registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert registry.blobs["base", DIGEST] == CONTENT
    assert len(registry.asked("POST")) == 2


def test_an_upload_begins_again_where_the_registry_has_kept_nothing(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", lose=2_000_000, keep=False)
    registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert registry.blobs["base", DIGEST] == CONTENT
    assert len(registry.uploads) == 0  # what was begun first is given up


def test_an_upload_of_which_only_the_answer_is_lost_is_done(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", cut=0)
    registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert registry.blobs["base", DIGEST] == CONTENT
    assert len(registry.asked("PUT")) == 1


def test_an_upload_outlives_a_restart_of_the_registry() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(StandInRegistry())
        first.goes_wrong("PUT", "/uploads/", lose=1000)
        second = StandInRegistry(port=first.port)
        happens: Iterator[Callable[[], object]] = iter([first.__exit__, second.__enter__])

        def wait(seconds: float) -> None:
            next(happens)()

        stack.callback(second.__exit__)
        with open_registries(waits=wait) as registries:
            registries.upload_blob(image(first.name, "base"), CONTENT, DIGEST)
        assert second.blobs["base", DIGEST] == CONTENT


def test_an_upload_ends_with_an_error_whatever_its_tries_met(registry: StandInRegistry) -> None:
    registry.goes_wrong("PUT", "/uploads/", times=2, lose=1000, keep=False)
    registry.goes_wrong("PUT", "/uploads/", times=9, silent=True)
    with (
        open_registries(timeout=QUICK) as registries,
        pytest.raises(ImageError, match="nothing can be pushed"),
    ):
        registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert not registry.blobs
    assert len(registry.asked("PUT")) == 3


def test_an_upload_during_trouble_of_the_registry_is_tried_again(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", status=503)
    registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert registry.blobs["base", DIGEST] == CONTENT


def test_an_upload_that_is_always_lost_is_given_up_and_nothing_of_it_is_there(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", times=99, lose=1000, keep=False)
    with pytest.raises(ImageError) as caught:
        registries.upload_blob(image(registry.name, "ml/base:1"), CONTENT, DIGEST)
    assert caught.value.what == f"nothing can be pushed to {registry.name}/ml/base"
    assert "was lost" in str(caught.value.why) and "4 times" in str(caught.value.why)
    assert not registry.blobs


def test_a_registry_that_takes_the_content_and_says_nothing_is_not_waited_for(
    registry: StandInRegistry,
) -> None:
    registry.goes_wrong("PUT", "/uploads/", times=99, silent=True)
    with open_registries(timeout=QUICK) as registries, pytest.raises(ImageError) as caught:
        registries.upload_blob(image(registry.name, "base"), b"content", digest_of(b"content"))
    assert f"{registry.name} has not answered within 0.3 s" in str(caught.value.why)


def test_content_that_is_not_what_its_digest_says_is_refused_by_the_registry_and_not_sent_twice(
    registry: StandInRegistry, registries: Registries
) -> None:
    with pytest.raises(ImageError) as caught:
        registries.upload_blob(image(registry.name, "base"), b"other", DIGEST)
    assert "provided digest did not match uploaded content" in str(caught.value.why)
    assert len(registry.asked("PUT")) == 1
    assert not registry.blobs


def test_a_layer_that_is_too_large_for_what_is_in_front_of_the_registry(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/uploads/", status=413)
    with pytest.raises(ImageError) as caught:
        registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST)
    assert caught.value.why == f"{registry.name} answers 413"
    assert "limits the size of a request" in str(caught.value.fix)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no more"), TimeoutError()])
def test_whoever_is_told_the_progress_can_end_the_upload(
    registry: StandInRegistry, registries: Registries, error: BaseException
) -> None:
    def enough(progress: Progress) -> NoReturn:
        raise error

    with pytest.raises(type(error)) as caught:
        registries.upload_blob(image(registry.name, "base"), CONTENT, DIGEST, tell=enough)
    assert caught.value is error
    assert not registry.blobs
    assert len(registry.asked("PUT")) <= 1


def test_a_file_that_is_gone_is_named(
    registry: StandInRegistry, registries: Registries, tmp_path: Path
) -> None:
    with pytest.raises(ImageError) as caught:
        registries.upload_blob(image(registry.name, "base"), tmp_path / "gone", DIGEST)
    assert caught.value.why == f"{tmp_path}/gone cannot be read: No such file or directory"
    assert not registry.seen


def test_a_blob_is_taken_over_from_another_repository_without_sending_it(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add_blob("library/python", CONTENT)
    own, python = image(registry.name, "ml/base"), image(registry.name, "library/python")
    assert registries.mount_blob(own, DIGEST, python)
    assert registry.blobs["ml/base", DIGEST] == CONTENT
    assert not registries.mount_blob(own, digest_of(b"nowhere"), python)
    assert not registry.uploads
    assert not registries.mount_blob(own, DIGEST, image("registry.invalid", "library/python"))


def test_a_name_is_given_to_an_image_that_is_there_and_to_no_other(
    registry: StandInRegistry, registries: Registries
) -> None:
    base = image(registry.name, "ml/base:1")
    manifest = json.dumps(
        {"schemaVersion": 2, "config": {"digest": DIGEST}, "layers": [{"digest": digest_of(b"layer")}]}
    ).encode()
    registries.upload_blob(base, CONTENT, DIGEST)
    with pytest.raises(ImageError) as caught:
        registries.put_manifest(base, manifest, OCI_MANIFEST)
    assert caught.value.what == f"{base} cannot be pushed"
    assert "blob unknown to registry" in str(caught.value.why)
    assert registries.digest(base) is None
    registries.upload_blob(base, b"layer", digest_of(b"layer"))
    assert registries.put_manifest(base, manifest, OCI_MANIFEST) == digest_of(manifest)
    assert registries.digest(base) == digest_of(manifest)


@pytest.mark.parametrize("stated", ["junk", DIGEST])
def test_a_registry_that_has_another_image_than_was_pushed_is_an_error(
    stated: str, registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("PUT", "/manifests/", status=201, headers={"Docker-Content-Digest": stated})
    with pytest.raises(ImageError, match="not match its digest") as caught:
        registries.put_manifest(image(registry.name, "base:1"), b"{}", OCI_MANIFEST)
    assert caught.value.what == f"{registry.name}/base:1 cannot be pushed"


def test_a_name_that_was_given_while_the_answer_was_lost_is_given_once(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add_blob("base", CONTENT)
    manifest = json.dumps({"config": {"digest": DIGEST}, "layers": []}).encode()
    registry.goes_wrong("PUT", "/manifests/", cut=0)
    assert registries.put_manifest(image(registry.name, "base:1"), manifest, OCI_MANIFEST)
    assert registry.tags("base") == ["1"]


@pytest.mark.parametrize("tag_deletion", [True, False])
def test_a_tag_is_removed_or_else_its_image(tag_deletion: bool) -> None:
    with StandInRegistry(tag_deletion=tag_deletion) as registry, open_registries() as registries:
        registry.add("base", "1")
        registry.add("base", "2")
        other = registry.add("base", "3", config={"User": "x"})
        registries.delete(image(registry.name, "base:1"))
        assert registry.tags("base") == (["2", "3"] if tag_deletion else ["3"])
        registries.delete(image(registry.name, f"base@{other}"))
        assert "3" not in registry.tags("base")
        registries.delete(image(registry.name, "base:1"))  # it is gone already


def test_a_registry_that_removes_nothing_says_how_it_would(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("base", "1")
    registry.goes_wrong("DELETE", "/manifests/", times=2, status=405)
    with pytest.raises(ImageError) as caught:
        registries.delete(image(registry.name, "base:1"))
    assert caught.value.what == f"{registry.name}/base:1 cannot be removed"
    assert "REGISTRY_STORAGE_DELETE_ENABLED" in str(caught.value.fix)
    assert registry.tags("base") == ["1"]


def test_whether_something_can_be_pushed_is_tried_without_leaving_anything(
    registry: StandInRegistry, registries: Registries
) -> None:
    registries.check_writable(image(registry.name, "ml/new"))
    assert not registry.uploads and not registry.blobs
    registry.goes_wrong("POST", "/uploads/", status=403)
    with pytest.raises(ImageError, match="nothing can be pushed"):
        registries.check_writable(image(registry.name, "ml/new"))
