"""Which images Upshift has built, in a registry and in an engine, and what goes with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from registry_kit import image, open_registries

from stand_in_registry import StandInRegistry
from upshift.errors import ImageError
from upshift.images.base import RECIPE_LABEL, TAG_PREFIX
from upshift.images.built import built_in_engine, built_in_registry, remove_from_registry
from upshift.images.containers.engine import ContainerEngine

FIRST, SECOND = TAG_PREFIX + "a" * 64, TAG_PREFIX + "b" * 64


@pytest.mark.parametrize("tag_deletion", [True, False])
def test_an_image_is_listed_and_removed_with_all_of_its_names(tag_deletion: bool) -> None:
    with StandInRegistry(tag_deletion=tag_deletion) as registry, open_registries() as registries:
        repository = image(registry.name, "ml/upshift")
        assert built_in_registry(registries, repository) == []
        registry.add("ml/upshift", "somebodys")
        for tag in (FIRST, "named-by-its-user"):
            registry.add("ml/upshift", tag, config={"User": "first"}, layers=(b"12345", b"678"))
        registry.add("ml/upshift", SECOND, architecture="arm64")
        first, second = built_in_registry(registries, repository)
        assert first.names == (f"{repository.name}:{FIRST}", f"{repository.name}:named-by-its-user")
        assert (first.recipe, first.bytes) == ("sha256:" + "a" * 64, 8)
        assert second.names == (f"{repository.name}:{SECOND}",)
        remove_from_registry(registries, first)
        assert registry.tags("ml/upshift") == ["somebodys", SECOND]


def engine_that_lists(folder: Path, names: list[str], *, gone: str, complaint: str) -> ContainerEngine:
    """An engine that has images of these names, and says ``complaint`` where it is asked for ``gone``."""
    for name in names:
        recipe = f"sha256:{name.removeprefix(TAG_PREFIX)}"
        labels = {"Labels": {RECIPE_LABEL: recipe}}
        said = {"Id": f"sha256:{name}", "RepoTags": [f"upshift:{name}"], "Config": labels}
        (folder / f"sha256:{name}").write_text(json.dumps(said))
    (folder / "gone").write_text(complaint)
    ids = " ".join(f"sha256:{name}" for name in names)
    program = folder / "docker"
    program.write_text(
        f"""#!/bin/sh
case "$*" in
  "images --quiet"*) echo {ids} ;;
  "image inspect"*"sha256:{gone}"*) cat '{folder}/gone' >&2; exit 1 ;;
  "image inspect --format"*) cat "{folder}/$5" ;;
  "image inspect"*) echo "this asks for several: $*" >&2; exit 1 ;;
esac
"""
    )
    program.chmod(0o755)
    return ContainerEngine(name="docker", command=(str(program),), version="28.2.2", platform="linux/amd64")


def test_an_image_that_is_removed_while_images_are_listed_is_left_out(tmp_path: Path) -> None:
    complaint = f"Error response from daemon: No such image: sha256:{FIRST}"
    engine = engine_that_lists(tmp_path, [FIRST, SECOND], gone=FIRST, complaint=complaint)
    assert [image.names for image in built_in_engine(engine)] == [(f"upshift:{SECOND}",)]


def test_an_engine_that_cannot_describe_an_image_is_not_taken_for_one_without_it(tmp_path: Path) -> None:
    engine = engine_that_lists(tmp_path, [FIRST, SECOND], gone=FIRST, complaint="database is locked")
    with pytest.raises(ImageError, match="image inspect failed"):
        built_in_engine(engine)
