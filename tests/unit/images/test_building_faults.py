"""Registries and disks that fail while an image is made: no name for half an image."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from registry_kit import open_registries

from stand_in_registry import StandInRegistry
from upshift.errors import ImageError, RecipeError
from upshift.images.base import Contents, Image, Ingredients, Parent, Recipe, Reference, tag_of
from upshift.images.building.builder import Builder, Destination
from upshift.images.building.packages import resolve
from upshift.images.cache import build_folder
from wheels import wheel

PLATFORM = "linux/amd64"
CONTENTS = Contents(
    python="3.11.7",
    interpreter="/usr/local/bin/python3",
    site_packages="/usr/local/lib/python3.11/site-packages",
    packages={"pip": "24.0"},
    glibc="2.36",
)


@attrs.frozen
class Shop:
    source: StandInRegistry
    registry: StandInRegistry
    builder: Builder
    parent: Parent
    ingredients: Ingredients

    def build(self) -> Image:
        recipe, paths = self.ingredients.recipe, self.ingredients.paths
        with build_folder() as folder:
            lock = resolve(recipe, paths, CONTENTS, folder)
        return self.builder.build(self.ingredients, self.parent, CONTENTS, lock, tell=lambda _: None)

    def manifest(self, tag: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.registry.manifests["ml/upshift", tag][1])
        return read


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """The parent is in one registry, the images go to another one."""
    made = wheel(tmp_path, "small", "1.0", {"small.py": "value = 1\n"})
    with StandInRegistry() as source, StandInRegistry() as registry, open_registries() as spoken:
        name = f"{source.name}/base/python:3"
        source.add("base/python", "3", layers=(b"one" * 100_000, b"two" * 100_000))
        parent = spoken.parent(Reference.parse(name), PLATFORM)
        recipe = Recipe(
            parent=name,
            platform=PLATFORM,
            requirements=(f"./{made.name}", "--no-index"),
            files={made.name: "x"},
        )
        yield Shop(
            source,
            registry,
            Builder(
                Destination(platform=PLATFORM, registry=f"{registry.name}/ml"),
                spoken,
                ImageError("no engine"),
            ),
            parent,
            Ingredients(recipe=recipe, paths={made.name: made}),
        )


def test_the_parents_layers_come_along_from_another_registry(shop: Shop) -> None:
    image = shop.build()
    manifest = shop.manifest(tag_of(image.recipe))
    layers = [shop.registry.blobs["ml/upshift", layer["digest"]] for layer in manifest["layers"]]
    assert layers[:2] == [b"one" * 100_000, b"two" * 100_000]
    with tarfile.open(fileobj=io.BytesIO(layers[2])) as archive:
        names = archive.getnames()
    assert "opt/upshift/lib/python3.11/site-packages/small.py" in names
    assert "usr/local/lib/python3.11/site-packages/_upshift.pth" in names


def test_layers_that_are_there_are_neither_read_nor_sent(shop: Shop) -> None:
    shop.build()
    shop.registry.manifests.clear()
    shop.source.seen.clear()
    shop.registry.seen.clear()
    shop.build()
    assert shop.source.asked("GET", "/blobs/") == []
    assert shop.registry.asked("PATCH") == []
    sent = [seen for seen in shop.registry.asked("PUT") if "/blobs/uploads/" in seen.path]
    assert len(sent) == 1  # the configuration


def test_an_upload_that_is_lost_goes_on_and_the_image_is_whole(shop: Shop) -> None:
    shop.registry.goes_wrong("PUT", "/blobs/uploads/", lose=1000)
    image = shop.build()
    manifest = shop.manifest(tag_of(image.recipe))
    for blob in (manifest["config"], *manifest["layers"]):
        assert len(shop.registry.blobs["ml/upshift", blob["digest"]]) == blob["size"]


@pytest.mark.parametrize(
    ("method", "path", "fault"),
    [
        ("PUT", "/blobs/uploads/", {"lose": 1, "keep": False}),
        ("PUT", "/blobs/uploads/", {"status": 500}),
        ("POST", "/blobs/uploads/", {"status": 503}),
        ("HEAD", "/blobs/", {"status": 500}),
        ("PUT", "/manifests/", {"status": 500}),
        ("PUT", "/manifests/", {"status": 400, "body": b'{"errors": [{"code": "BLOB_UNKNOWN"}]}'}),
    ],
)
def test_a_registry_that_fails_for_good_has_no_image_under_any_name(
    method: str, path: str, fault: dict[str, Any], shop: Shop
) -> None:
    shop.registry.goes_wrong(method, path, times=10_000, **fault)
    with pytest.raises(ImageError) as caught:
        shop.build()
    assert caught.value.why
    assert shop.registry.manifests == {}


def test_half_a_layer_of_the_parent_is_not_taken_for_a_layer(shop: Shop) -> None:
    layer = shop.parent.layers[0]
    shop.source.blobs["base/python", layer] = b"something else"
    with pytest.raises(ImageError):
        shop.build()
    assert shop.registry.manifests == {}
    assert ("ml/upshift", layer) not in shop.registry.blobs


def test_after_a_failure_the_next_attempt_completes_it(shop: Shop) -> None:
    shop.registry.goes_wrong("PUT", "/manifests/", times=100, status=500)
    with pytest.raises(ImageError):
        shop.build()
    shop.registry.faults.clear()
    image = shop.build()
    assert shop.registry.tags("ml/upshift") == [tag_of(image.recipe)]


def test_a_full_disk_is_told_and_leaves_nothing(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs to mount a tmpfs")
    try:
        monkeypatch.setenv("UPSHIFT_HOME", str(small))
        with pytest.raises(ImageError, match="the disk is full") as caught:
            shop.build()
        assert caught.value.fix is not None and "UPSHIFT_HOME" in caught.value.fix
        assert shop.registry.manifests == {}
        assert list((small / "cache" / "images").glob("building-*")) == []
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


@pytest.mark.parametrize(
    ("requirements", "why", "fix"),
    [
        (("no-such-package-here==1", "--no-index"), "no-such-package-here was not found", "Correct its name"),
        (("small>=2", "--no-index"), "small", "name the index that has it"),
        (("small @ http://127.0.0.1:9/small-1.0-py3-none-any.whl",), "127.0.0.1:9", "can be reached"),
        (("small @ http://me:secret-word@127.0.0.1:9/small-1.0-py3-none-any.whl",), "***@", "can be reached"),
    ],
)
def test_why_requirements_cannot_be_installed_is_told_with_what_to_do(
    requirements: tuple[str, ...], why: str, fix: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    given = attrs.evolve(shop.ingredients.recipe, requirements=requirements, files={})
    with pytest.raises(ImageError) as caught:
        attrs.evolve(shop, ingredients=Ingredients(recipe=given)).build()
    assert caught.value.why is not None and why in caught.value.why
    assert isinstance(caught.value, RecipeError) == (fix != "can be reached")  # whose fault it is
    assert caught.value.fix is not None and fix in caught.value.fix
    assert "secret-word" not in str(caught.value)


def test_what_a_killed_builder_left_is_removed_by_the_next_one(shop: Shop) -> None:
    cache = Path(os.environ["UPSHIFT_HOME"]) / "cache" / "images"
    (cache / "building-dead").mkdir(parents=True)
    (cache / "building-dead" / "layer-0").write_bytes(b"half")
    (cache / "building-dead.lock").touch()
    shop.build()
    assert list(cache.glob("building-*")) == []
