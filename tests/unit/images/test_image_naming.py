"""Where images go in a registry."""

from __future__ import annotations

import pytest

from upshift.errors import ImageError
from upshift.images.reference import repository_in, tag_of


@pytest.mark.parametrize(
    ("repository", "registry", "name"),
    [
        (None, "r.example.org/ml", "r.example.org/ml/upshift"),
        ("train", "r.example.org/ml/", "r.example.org/ml/train"),
        ("team/train", "127.0.0.1:5000", "127.0.0.1:5000/team/train"),
        ("other.org/team/train", "r.example.org/ml", "other.org/team/train"),
        ("localhost/train", "r.example.org", "localhost/train"),
        ("train", "docker.io/me", "docker.io/me/train"),
    ],
)
def test_a_repository_is_below_the_targets_registry_unless_it_names_one(
    repository: str | None, registry: str, name: str
) -> None:
    assert repository_in(registry, repository).name == name


def test_without_any_registry_the_way_to_name_one_is_shown() -> None:
    with pytest.raises(ImageError, match=r'registry = "registry.example.org/ml"'):
        repository_in(None, "train")


def test_tags_hold_the_whole_digest() -> None:
    assert tag_of("sha256:" + "a" * 64) == "upshift-" + "a" * 64
