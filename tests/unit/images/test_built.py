"""Which images in a registry Upshift has built, and what goes with them."""

from __future__ import annotations

import pytest
from registry_kit import image, open_registries

from stand_in_registry import StandInRegistry
from upshift.images.built import built_in_registry, remove_from_registry
from upshift.images.reference import TAG_PREFIX

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
