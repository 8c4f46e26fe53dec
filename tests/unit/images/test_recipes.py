"""Settings become a recipe that is the same on every machine; what an environment lacks of them is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from upshift import DockerSettings
from upshift.errors import SettingsError
from upshift.images.base import Ingredients, Recipe
from upshift.images.recipes.recipe import image_asked, lacking, make_ingredients

ORIGIN = "pipeline.py:3 (@step)"


def made(project: Path, **fields: Any) -> Ingredients:
    origins = dict.fromkeys(fields, ORIGIN)
    return make_ingredients(
        DockerSettings(**fields), project=project, platform="linux/amd64", origins=origins
    )


def refused(project: Path, **fields: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        made(project, **fields)
    return str(caught.value)


def test_without_settings_it_is_the_slim_python_of_the_running_version(tmp_path: Path) -> None:
    ingredients = make_ingredients(None, project=tmp_path, platform="linux/arm64")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = Recipe(parent=f"python:{version}-slim", platform="linux/arm64")
    assert ingredients == Ingredients(recipe=recipe, project=tmp_path.name)
    assert ingredients.recipe.adds_nothing


def test_everything_that_decides_is_in_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE Z=0\nFROM $BASE\nCOPY a.txt /\n")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "limits.txt").write_text("six<2\n")
    ingredients = made(
        tmp_path,
        dockerfile="Dockerfile",
        build_context_root=".",
        build_args={"Z": "1", "BASE": "python:3.12"},
        apt_packages=["libgl1", "git", "git"],
        requirements=["six", "-c limits.txt"],
        python_package_installer_args={"system": None, "find-links": ["a", "b"], "v": None, "i": "https://x"},
        environment={"B": 'quo"te\n$HOME', "A": "1"},
        runtime_environment={"NOT": "in it"},
        target_repository="ml/train",
        image_tag="v1",
        prevent_build_reuse=True,
        user="ml",
    )
    recipe = ingredients.recipe
    assert recipe.parent is None
    assert recipe.dockerfile == "ARG BASE Z=0\nFROM $BASE\nCOPY a.txt /\n"
    assert list(recipe.context) == ["a.txt"]
    assert list(recipe.build_args.items()) == [("BASE", "python:3.12"), ("Z", "1")]
    assert recipe.apt_packages == ("git", "libgl1")
    assert recipe.requirements == ("six", "--constraint limits.txt")
    assert recipe.files["limits.txt"].startswith("sha256:")
    assert recipe.installer == "uv"
    assert recipe.installer_args == ("--system", "--find-links=a", "--find-links=b", "-v", "-i", "https://x")
    assert recipe.environment == {"A": "1", "B": 'quo"te\n$HOME'}
    assert recipe.user == "ml"
    assert ingredients.paths["limits.txt"] == tmp_path / "limits.txt"
    assert recipe.files.keys() == ingredients.paths.keys() == {"limits.txt"}
    assert ingredients.context_root == tmp_path
    assert (ingredients.repository, ingredients.tag, ingredients.rebuild) == ("ml/train", "v1", True)
    assert ingredients.origins["dockerfile"] == ORIGIN


def test_the_digest_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    digests = []
    for folder in (tmp_path / "one", tmp_path / "other" / "place"):
        folder.mkdir(parents=True)
        (folder / "requirements.txt").write_text("six\n-c limits.txt\n./tiny-1.0-py3-none-any.whl\n")
        (folder / "limits.txt").write_text("six<2\n")
        (folder / "tiny-1.0-py3-none-any.whl").write_text("a wheel")
        (folder / "Dockerfile").write_text("FROM a\nCOPY . /\n")
        (folder / "root").mkdir()
        (folder / "root" / "file").write_text("x")
        settings = {
            "requirements": "requirements.txt",
            "dockerfile": "Dockerfile",
            "build_context_root": "root",
        }
        digests.append(made(folder, **settings).recipe.digest(None))
    assert digests[0] == digests[1]
    (folder / "limits.txt").write_text("six<3\n")
    assert made(folder, **settings).recipe.digest(None) != digests[0]


def test_what_is_in_no_image_changes_no_digest(tmp_path: Path) -> None:
    plain = made(tmp_path, requirements=["six"]).recipe
    assert made(tmp_path, requirements=["six"], runtime_environment={"A": "1"}, image_tag="x").recipe == plain
    assert made(tmp_path, requirements=["upshift==0.1", "six"]).recipe == plain
    assert made(tmp_path, requirements=["six", "upshift==0.2"]).recipe == plain


def test_another_platform_is_told(tmp_path: Path) -> None:
    ingredients = made(tmp_path, platform="linux/arm64")
    assert ingredients.recipe.platform == "linux/arm64"
    assert ingredients.notes == (
        "platform=linux/arm64: the target runs linux/amd64, which emulates it or cannot run it",
    )
    assert made(tmp_path, platform="linux/amd64").notes == ()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"skip_build": True}, ["parent_image as it is, and none is said"]),
        ({"build_args": {"A": "1"}}, ["build_args is for a Dockerfile", "dockerfile="]),
        ({"build_context_root": "."}, ["build_context_root is for a Dockerfile"]),
        ({"dockerfile": "docker/Dockerfile"}, ["docker/Dockerfile cannot be read"]),
        ({"requirements": "requirements.txt"}, ["requirements.txt cannot be read"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_users_line(
    tmp_path: Path, fields: dict[str, Any], named: list[str]
) -> None:
    text = refused(tmp_path, **fields)
    for word in (*named, ORIGIN):
        assert word in text


def test_an_argument_that_the_dockerfile_does_not_declare_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").write_text(
        "FROM base\nARG WHO=nobody\nARG A=\"1 2\" B='x y' \\\n  C\nRUN echo $WHO\n"
    )
    text = refused(tmp_path, dockerfile="docker/Dockerfile", build_args={"WOH": "me"})
    for word in (
        "docker/Dockerfile declares no ARG WOH",
        "Did you mean WHO, of docker/Dockerfile:2?",
        ORIGIN,
    ):
        assert word in text
    assert "no ARG y" in refused(tmp_path, dockerfile="docker/Dockerfile", build_args={"y": "1"})
    known = {"WHO": "me", "A": "1", "B": "2", "C": "3", "http_proxy": "x", "HTTPS_PROXY": "y"}
    assert made(tmp_path, dockerfile="docker/Dockerfile", build_args=known).recipe.build_args == known


def test_what_this_environment_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAME", "1")
    monkeypatch.setenv("OTHER", "2")
    (tmp_path / "attrs-0.1-py3-none-any.whl").touch()
    settings = DockerSettings(
        requirements=[
            "attrs>=1",
            "attrs>=9999",
            "no_such_package[x]>=2 ; python_version > '3'",
            "no_other ; python_version < '3'",
            "./attrs-0.1-py3-none-any.whl",
            "upshift==99",
        ],
        environment={"SAME": "1", "OTHER": "1"},
        apt_packages=["no-such-package=1.0"],
    )
    found = lacking(settings, project=tmp_path)
    assert found[0].startswith("attrs>=9999 (") and found[0].endswith(" is here)")
    assert found[1:] == (
        "no_such_package[x]>=2",
        "attrs-0.1-py3-none-any.whl",
        "Debian package no-such-package=1.0",
        "variable OTHER",
    )


def test_what_this_environment_has_is_not_named(tmp_path: Path) -> None:
    assert lacking(DockerSettings(requirements=["attrs", "pytest>=1"]), project=tmp_path) == ()
    assert lacking(DockerSettings(replicate_local_python_environment=True), project=tmp_path) == ()
    assert lacking(DockerSettings(runtime_environment={"ANY": "1"}), project=tmp_path) == ()


def test_requirements_that_cannot_be_read_are_named_and_stop_nothing(tmp_path: Path) -> None:
    found = lacking(DockerSettings(requirements="missing.txt"), project=tmp_path)
    assert len(found) == 1
    assert "missing.txt cannot be read" in found[0]


def test_without_packaging_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    found = lacking(DockerSettings(requirements=["attrs"]), project=tmp_path)
    assert found == ("what is in requirements, perhaps (pip install 'upshift[images]' to compare)",)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"parent_image": "x", "requirements": ["a"]}, "image x"),
        ({"dockerfile": "docker/Dockerfile"}, "the image of docker/Dockerfile"),
        ({"user": "ml"}, "its own image"),
        ({"runtime_environment": {"A": "1"}}, None),
        ({"image_tag": "a", "prevent_build_reuse": True}, None),
    ],
)
def test_the_image_that_is_asked_for(fields: dict[str, Any], asked: str | None) -> None:
    assert image_asked(DockerSettings(**fields), adding=False) == asked


def test_what_is_added_counts_only_where_it_is_missing() -> None:
    settings = DockerSettings(requirements=["a"])
    assert image_asked(settings, adding=False) is None
    assert image_asked(settings, adding=True) == "its own image"
