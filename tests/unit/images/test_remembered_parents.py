"""A parent is read in full once; then its name is asked for, and where nobody answers it is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_kit import image

from stand_in_registry import StandInRegistry
from upshift.errors import ImageError
from upshift.images.parents.contents import read_parent
from upshift.images.registries.client import Registries

AMD = "linux/amd64"


def test_a_name_is_read_in_full_once_and_then_asked_for_only(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("ml/base", "1", config={"Env": ["A=b=c"], "User": "app"}, layers=(b"one", b"three"))
    name = image(registry.name, "ml/base:1")
    first = read_parent(registries, name, AMD)
    assert first == (registries.parent(name, AMD), None)
    registry.seen.clear()
    assert read_parent(registries, name, AMD) == first
    assert [seen.method for seen in registry.seen] == ["HEAD"]


def test_what_was_published_anew_under_a_name_is_read_anew(
    registry: StandInRegistry, registries: Registries
) -> None:
    name = image(registry.name, "ml/base:1")
    registry.add("ml/base", "1", config={"User": "one"})
    read_parent(registries, name, AMD)
    registry.add("ml/base", "1", config={"User": "two"})
    parent, doubt = read_parent(registries, name, AMD)
    assert (parent.user, doubt) == ("two", None)


def test_a_digest_is_not_asked_for_again(registry: StandInRegistry, registries: Registries) -> None:
    digest = registry.add("ml/base", "1")
    name = image(registry.name, f"ml/base@{digest}")
    first = read_parent(registries, name, AMD)
    registry.seen.clear()
    assert read_parent(registries, name, AMD) == first
    assert registry.seen == []


def test_where_nobody_answers_it_is_what_it_was_and_that_is_said(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    known, _ = read_parent(registries, name, AMD)
    registry.goes_wrong("HEAD", "/manifests/", status=500, times=100)
    registry.goes_wrong("GET", "/manifests/", status=500, times=100)
    parent, doubt = read_parent(registries, name, AMD)
    assert parent == known
    assert doubt is not None
    assert doubt.severity == "warning"
    assert "is taken for what it was on 20" in doubt.what
    assert "500" in (doubt.evidence or "")
    with pytest.raises(ImageError, match="500"):
        read_parent(registries, image(registry.name, "ml/base:2"), AMD)


@pytest.mark.parametrize("status", [401, 403])
def test_a_login_that_is_refused_is_an_error_though_it_was_read_before(
    status: int, registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    known, _ = read_parent(registries, name, AMD)
    registry.goes_wrong("HEAD", "/manifests/", status=status, times=100)
    parent, refused = read_parent(registries, name, AMD)
    assert parent == known
    assert refused is not None
    assert (refused.severity, refused.what) == ("error", f"{name} cannot be read")
    assert "wants a login" in (refused.evidence or "") and "docker login" in (refused.fix or "")


def test_a_registry_that_lets_nobody_ask_so_often_is_in_trouble(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    read_parent(registries, name, AMD)
    registry.goes_wrong("HEAD", "/manifests/", status=429, times=100)
    _, doubt = read_parent(registries, name, AMD)
    assert doubt is not None and doubt.severity == "warning"


def test_any_other_answer_is_an_error_though_it_was_read_before(
    registry: StandInRegistry, registries: Registries
) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    read_parent(registries, name, AMD)
    registry.goes_wrong("HEAD", "/manifests/", status=418)
    with pytest.raises(ImageError, match="418"):
        read_parent(registries, name, AMD)


def test_what_is_gone_is_not_remembered(registry: StandInRegistry, registries: Registries) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    read_parent(registries, name, AMD)
    registry.manifests.clear()
    with pytest.raises(ImageError, match="there is no image"):
        read_parent(registries, name, AMD)


def test_each_platform_is_remembered_by_itself(registry: StandInRegistry, registries: Registries) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    read_parent(registries, name, AMD)
    with pytest.raises(ImageError, match="not for linux/arm64"):
        read_parent(registries, name, "linux/arm64")


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"digest": 3}', b"[]"])
def test_a_memory_that_is_not_whole_is_none(
    registry: StandInRegistry, registries: Registries, upshift_home: Path, damage: bytes
) -> None:
    registry.add("ml/base", "1")
    name = image(registry.name, "ml/base:1")
    first = read_parent(registries, name, AMD)
    [kept] = (upshift_home / "cache" / "images" / "parents").iterdir()
    kept.write_bytes(damage)
    assert read_parent(registries, name, AMD) == first
