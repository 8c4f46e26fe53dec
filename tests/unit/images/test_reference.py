"""Names of images are read as Docker reads them; where images go in a registry."""

from __future__ import annotations

import pytest

from upshift.errors import ImageError
from upshift.images.base import Reference, repository_in, tag_of

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("python", "docker.io", "library/python", "latest", None),
        ("python:3.11-slim", "docker.io", "library/python", "3.11-slim", None),
        ("pytorch/pytorch:2.1.0", "docker.io", "pytorch/pytorch", "2.1.0", None),
        ("docker.io/python", "docker.io", "library/python", "latest", None),
        ("index.docker.io/library/python", "docker.io", "library/python", "latest", None),
        ("registry-1.docker.io/a/b:c", "docker.io", "a/b", "c", None),
        ("localhost/base", "localhost", "base", "latest", None),
        ("localhost:5000/base", "localhost:5000", "base", "latest", None),
        ("127.0.0.1:5000/a/b/c:1", "127.0.0.1:5000", "a/b/c", "1", None),
        ("[::1]:5000/base", "[::1]:5000", "base", "latest", None),
        ("Registry.Example.org/ml/base", "registry.example.org", "ml/base", "latest", None),
        (f"python@{DIGEST}", "docker.io", "library/python", None, DIGEST),
        (f"host:1/a__b/c-d--e.f:1.0_x@{DIGEST}", "host:1", "a__b/c-d--e.f", "1.0_x", DIGEST),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/x:y", "763104351884.dkr.ecr.us-east-1.amazonaws.com",
         "x", "y", None),
    ],
)  # fmt: skip
def test_a_name_has_a_registry_a_repository_and_a_version(
    text: str, registry: str, repository: str, tag: str | None, digest: str | None
) -> None:
    read = Reference.parse(text)
    assert (read.registry, read.repository, read.tag, read.digest) == (registry, repository, tag, digest)
    assert Reference.parse(str(read)) == read
    assert Reference.parse(read.full) == read


def test_a_name_is_shown_as_people_write_it_and_in_full_for_engines_that_ask_for_it() -> None:
    assert str(Reference.parse("docker.io/library/python:3.11")) == "python:3.11"
    assert str(Reference.parse("docker.io/pytorch/pytorch")) == "pytorch/pytorch:latest"
    assert str(Reference.parse("localhost:5000/base")) == "localhost:5000/base:latest"
    assert Reference.parse("python:3.11").full == "docker.io/library/python:3.11"
    assert Reference.parse("python:3.11").name == "docker.io/library/python"


def test_a_digest_says_more_than_a_tag() -> None:
    read = Reference.parse(f"base:1@{DIGEST}")
    assert read.version == DIGEST
    assert str(read.with_tag("2")) == "base:2"
    assert str(Reference.parse("base:1").with_digest(DIGEST)) == f"base@{DIGEST}"


@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        ("", "nothing names the repository", "REGISTRY/NAME:TAG"),
        ("localhost:5000/", "nothing names the repository", "REGISTRY/NAME:TAG"),
        ("Python:3.11", "upper case", "'python'"),
        ("python:", "nothing follows the colon", "a tag is"),
        ("python:a b", "'a b' is not a tag", "a tag is"),
        ("python:" + "x" * 129, "is not a tag", "128"),
        ("py thon", "white space", "without"),
        ("python\n", "white space", "without"),
        ("https://registry.example.org/a", "scheme", "'registry.example.org/a'"),
        ("docker://python:3", "scheme", "'python:3'"),
        ("a/../b", "is not a valid repository name", "a-z, 0-9"),
        ("a//b", "is not a valid repository name", "a-z, 0-9"),
        ("-x", "is not a valid repository name", "a-z, 0-9"),
        ("host:port/a", "is not a registry", "HOST:PORT"),
        ("user@host.org/a", "is not a digest", "64 characters"),
        ("python@sha256:abc", "is not a digest", "64 characters"),
        (DIGEST, "the id of an image", "docker tag"),
        ("a/" * 130 + "b", "longer than 255", "shorter"),
    ],
)
def test_what_is_no_name_is_refused_with_the_part_that_is_wrong(text: str, why: str, fix: str) -> None:
    with pytest.raises(ImageError) as caught:
        Reference.parse(text)
    assert caught.value.what == f"{text!r} is not a valid image name"
    assert why in str(caught.value.why)
    assert fix in str(caught.value.fix)


def test_a_tag_that_is_none_is_refused() -> None:
    with pytest.raises(ImageError, match="is not a valid image name"):
        Reference.parse("base").with_tag("a/b")


def test_for_messages_most_of_a_digest_is_left_out() -> None:
    text = "r.example.org/ml/upshift:upshift-" + "a" * 64
    assert Reference.parse(text).brief == "r.example.org/ml/upshift:upshift-aaaaaaaaaaaa…"
    assert str(Reference.parse(text)) == text


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
