"""The lines of a recipe mean to uv and to pip what they meant to the user. No network is asked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upshift import DockerSettings
from upshift.images.base import Ingredients
from upshift.images.recipes.recipe import make_ingredients
from wheels import wheel


def package(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A wheel whose module says its version."""
    return wheel(folder, name, version, {f"{name}.py": f"version = {version!r}\n"}, needs=needs)


def made(project: Path, **fields: Any) -> Ingredients:
    return make_ingredients(DockerSettings(**fields), project=project, platform="linux/amd64")


def install(ingredients: Ingredients, folder: Path) -> subprocess.CompletedProcess[str]:
    """As both builders do it: the files of the recipe beside its requirements, and there the installer."""
    recipe = ingredients.recipe
    for name, path in ingredients.paths.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(path.read_bytes())
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in recipe.requirements))
    if recipe.installer == "uv":
        command = [
            "-m",
            "uv",
            "pip",
            "install",
            "--offline",
            "--no-config",
            "--cache-dir",
            str(folder / "cache"),
        ]
    else:
        command = ["-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir"]
    return subprocess.run(
        [sys.executable, *command, "--target", "site", "-r", "requirements.txt", *recipe.installer_args],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def installed(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text().split("'")[1] for path in (folder / "site").glob("*.py")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "install"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_wheels_constraints_and_markers(project: Path, folder: Path, installer: str) -> None:
    package(project / "dist", "tool", "1.0")
    package(project / "dist", "tool", "2.0")
    package(project / "dist", "shared", "1.0", "tool")
    package(project / "dist", "other", "1.0")
    (project / "limits.txt").write_text("# not the newest\ntool<2\n")
    (project / "requirements.txt").write_text(
        "--no-index\n-c limits.txt\n"
        "./dist/shared-1.0-py3-none-any.whl ; python_version > '3'\n"
        "./dist/other-1.0-py3-none-any.whl ; python_version < '3'\n"
    )
    ingredients = made(
        project,
        requirements="requirements.txt",
        python_package_installer=installer,
        python_package_installer_args={"find-links": str(project / "dist")},
    )
    answer = install(ingredients, folder)
    assert answer.returncode == 0, answer.stderr
    assert installed(folder) == {"shared": "1.0", "tool": "1.0"}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_hashes_are_checked(project: Path, folder: Path, installer: str) -> None:
    path = package(project / "dist", "tool", "1.0")
    good = hashlib.sha256(path.read_bytes()).hexdigest()
    options = {
        "python_package_installer": installer,
        "python_package_installer_args": {"find-links": str(project / "dist"), "no-index": None},
    }
    bad = install(made(project, requirements=[f"tool==1.0 --hash=sha256:{'0' * 64}"], **options), folder)
    assert bad.returncode != 0
    assert "hash" in bad.stderr.lower()
    answer = install(made(project, requirements=[f"tool==1.0 --hash=sha256:{good}"], **options), folder)
    assert answer.returncode == 0, answer.stderr
    assert installed(folder) == {"tool": "1.0"}


def test_what_a_package_needs_of_upshift_is_not_taken_from_an_index(project: Path, folder: Path) -> None:
    package(project / "dist", "upshift", "99.0")
    package(project / "dist", "steps", "1.0", "upshift>=0.1", "tool")
    package(project / "dist", "tool", "1.0")
    ingredients = made(
        project,
        requirements=["steps", "upshift==99.0"],
        python_package_installer_args={"find-links": str(project / "dist"), "no-index": None},
    )
    answer = install(ingredients, folder)
    assert answer.returncode == 0, answer.stderr
    assert installed(folder) == {"steps": "1.0", "tool": "1.0"}


def test_pip_which_cannot_leave_it_out_fails_rather_than_take_another(project: Path, folder: Path) -> None:
    package(project / "dist", "upshift", "99.0")
    package(project / "dist", "steps", "1.0", "upshift>=0.1")
    ingredients = made(
        project,
        requirements=["steps"],
        python_package_installer="pip",
        python_package_installer_args={"find-links": str(project / "dist"), "no-index": None},
    )
    answer = install(ingredients, folder)
    assert answer.returncode != 0
    assert "the-running-version" in answer.stderr + answer.stdout
    assert installed(folder) == {}


def test_a_lock_with_packages_of_another_index_installs_the_very_files(project: Path, folder: Path) -> None:
    path = package(project / "dist", "tool", "1.0")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (project / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "tests"\n'
        '[[packages]]\nname = "tool"\nversion = "1.0"\nindex = "https://index.example.org/simple"\n'
        f'wheels = [{{ url = "file://{path}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    )
    ingredients = made(project, pyproject_path="pylock.toml")
    assert not any("index.example.org" in line for line in ingredients.recipe.requirements)
    answer = install(ingredients, folder)
    assert answer.returncode == 0, answer.stderr
    assert installed(folder) == {"tool": "1.0"}
