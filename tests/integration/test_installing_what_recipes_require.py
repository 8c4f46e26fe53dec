"""What a recipe requires is resolved once, and installed as it was resolved. No network is asked."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from upshift import DockerSettings
from upshift.errors import ImageError
from upshift.images.base import Contents, Ingredients, Lock
from upshift.images.building.packages import Installer, resolve
from upshift.images.recipes.recipe import make_ingredients
from wheels import wheel


def package(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A wheel whose module says its version."""
    return wheel(folder, name, version, {f"{name}.py": f"version = {version!r}\n"}, needs=needs)


def made(project: Path, **fields: Any) -> Ingredients:
    return make_ingredients(DockerSettings(**fields), project=project, platform="linux/amd64")


IMAGE = Contents(
    python="{}.{}.{}".format(*sys.version_info[:3]),
    interpreter="/usr/local/bin/python3",
    site_packages="/usr/local/lib/site-packages",
    packages={"pip": "24.0"},
)


def locked(ingredients: Ingredients, folder: Path) -> Lock:
    folder.mkdir()
    return resolve(ingredients.recipe, ingredients.paths, IMAGE, folder)


def installed(ingredients: Ingredients, folder: Path) -> dict[str, str]:
    """What ends up in an image, by what each module says of itself."""
    folder.mkdir()
    lock = locked(ingredients, folder / "locking")
    (folder / "installing").mkdir()
    installer = Installer(ingredients.recipe, ingredients.paths, IMAGE, folder / "installing")
    installer.install(lock, lambda progress: None)
    return {path.stem: path.read_text().split("'")[1] for path in installer.packages.glob("*.py")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_wheels_constraints_and_markers(project: Path, installer: str, tmp_path: Path) -> None:
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
    assert installed(ingredients, tmp_path / "made") == {"shared": "1.0", "tool": "1.0"}


def test_hashes_are_checked(project: Path, tmp_path: Path) -> None:
    path = package(project / "dist", "tool", "1.0")
    good = hashlib.sha256(path.read_bytes()).hexdigest()
    args = {"find-links": str(project / "dist"), "no-index": None}
    bad = made(
        project, requirements=[f"tool==1.0 --hash=sha256:{'0' * 64}"], python_package_installer_args=args
    )
    with pytest.raises(ImageError) as caught:
        installed(bad, tmp_path / "bad")
    assert "hash" in str(caught.value).lower()
    fine = made(project, requirements=[f"tool==1.0 --hash=sha256:{good}"], python_package_installer_args=args)
    assert installed(fine, tmp_path / "fine") == {"tool": "1.0"}


def test_files_that_changed_behind_a_lock_are_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(project / "dist", "tool", "1.0")
    args = {"find-links": str(project / "dist"), "no-index": None}
    ingredients = made(project, requirements=["tool"], python_package_installer_args=args)
    lock = locked(ingredients, tmp_path / "locking")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another"))
    wheel(project / "dist", "tool", "1.0", {"tool.py": "version = 'evil'\n"})
    (tmp_path / "installing").mkdir()
    installer = Installer(ingredients.recipe, ingredients.paths, IMAGE, tmp_path / "installing")
    with pytest.raises(ImageError, match="hash"):
        installer.install(lock, lambda progress: None)
    assert not list(installer.packages.glob("*.py"))


def test_another_index_behind_the_same_settings_is_another_identity(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingredients = made(project, requirements=["tool"])
    found = []
    for version in ("1.0", "2.0"):
        index = tmp_path / version / "simple" / "tool"
        made_wheel = package(index, "tool", version)
        (index / "index.html").write_text(f'<a href="{made_wheel.name}">{made_wheel.name}</a>')
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"file://{index.parent}")
        found.append(locked(ingredients, tmp_path / f"locking-{version}"))
    assert [lock.versions["tool"] for lock in found] == ["1.0", "2.0"]
    parent = f"sha256:{1:064}"
    assert ingredients.recipe.identity(parent, found[0]) != ingredients.recipe.identity(parent, found[1])


def test_what_the_image_has_is_not_installed_again(project: Path, tmp_path: Path) -> None:
    package(project / "dist", "tool", "2.0")
    package(project / "dist", "shared", "1.0", "tool>=1")
    args = {"find-links": str(project / "dist"), "no-index": None}
    ingredients = made(project, requirements=["shared"], python_package_installer_args=args)
    has = attrs.evolve(IMAGE, packages={"tool": "1.5+cu121"})
    (tmp_path / "with").mkdir()
    assert resolve(ingredients.recipe, {}, has, tmp_path / "with").versions == {"shared": "1.0"}
    assert locked(ingredients, tmp_path / "without").versions == {"shared": "1.0", "tool": "2.0"}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_what_a_package_needs_of_upshift_is_not_taken_from_an_index(
    project: Path, tmp_path: Path, installer: str
) -> None:
    package(project / "dist", "upshift", "99.0")
    package(project / "dist", "steps", "1.0", "upshift>=0.1", "tool")
    package(project / "dist", "tool", "1.0")
    ingredients = made(
        project,
        requirements=["steps", "upshift==99.0"],
        python_package_installer=installer,
        python_package_installer_args={"find-links": str(project / "dist"), "no-index": None},
    )
    assert installed(ingredients, tmp_path / "made") == {"steps": "1.0", "tool": "1.0"}


def test_a_lock_with_packages_of_another_index_installs_the_very_files(project: Path, tmp_path: Path) -> None:
    path = package(project / "dist", "tool", "1.0")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (project / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "tests"\n'
        '[[packages]]\nname = "tool"\nversion = "1.0"\nindex = "https://index.example.org/simple"\n'
        f'wheels = [{{ url = "file://{path}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    )
    ingredients = made(project, pyproject_path="pylock.toml")
    assert not any("index.example.org" in line for line in ingredients.recipe.requirements)
    assert installed(ingredients, tmp_path / "made") == {"tool": "1.0"}


def test_what_is_locked_is_installed_whatever_date_uv_is_limited_to(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_wheel = package(project / "simple" / "tool", "tool", "1.0")
    digest = hashlib.sha256(made_wheel.read_bytes()).hexdigest()
    link = f"<a href={made_wheel.name}#sha256={digest}>{made_wheel.name}</a>"
    page = f"<!DOCTYPE html><html><body>{link}</body></html>"
    (project / "simple" / "tool" / "index.html").write_text(page)
    index = f"--index-url {(project / 'simple').as_uri()}"
    ranged = made(project, requirements=[index, "tool>=1"])
    lock = locked(ranged, tmp_path / "before")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2020-01-01")  # uv leaves out what has no date, too
    with pytest.raises(ImageError, match="newer than exclude-newer allows") as caught:
        locked(ranged, tmp_path / "after")
    assert "UV_EXCLUDE_NEWER" in (caught.value.fix or "")
    (tmp_path / "installing").mkdir()
    installer = Installer(ranged.recipe, ranged.paths, IMAGE, tmp_path / "installing")
    assert [one.name for one in installer.install(lock, lambda progress: None)] == ["tool"]
    saved = made(project, requirements=[index, *lock.text.splitlines()])
    assert installed(saved, tmp_path / "saved") == {"tool": "1.0"}
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text('exclude-newer = "2020-01-01"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # what stands there, uv cannot be asked to leave out
    with pytest.raises(ImageError, match="newer than exclude-newer allows"):
        locked(saved, tmp_path / "with-uv-toml")
