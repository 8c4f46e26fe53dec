"""Images that are pushed to a registry, and then run by an engine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import base_image
import pytest
from registries import LoopbackRegistry

from upshift.errors import ImageError
from upshift.images.base import (
    Contents,
    Image,
    Ingredients,
    Lock,
    Parent,
    Progress,
    Recipe,
    Reference,
    tag_of,
)
from upshift.images.building import packing
from upshift.images.building.builder import Builder, Destination, FoundImage
from upshift.images.building.packages import resolve
from upshift.images.containers.engine import ContainerEngine
from upshift.images.parents.contents import contents_of
from upshift.images.registries.client import Registries
from wheels import sdist, wheel

PLATFORM = "linux/amd64"


@attrs.frozen
class Shop:
    """Builds on the base image, into its registry."""

    registry: LoopbackRegistry
    registries: Registries
    parent: Parent
    contents: Contents
    builder: Builder
    folder: Path

    def ingredients(self, *requirements: str, **more: Any) -> Ingredients:
        own = {name: more.pop(name) for name in ("paths", "repository", "tag", "rebuild") if name in more}
        recipe = Recipe(
            parent=str(self.parent.reference), platform=PLATFORM, requirements=requirements, **more
        )
        return Ingredients(recipe=recipe, **own)

    def lock(self, ingredients: Ingredients) -> Lock | None:
        if not ingredients.recipe.requirements:
            return None
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return resolve(ingredients.recipe, ingredients.paths, self.contents, folder)

    def build(self, ingredients: Ingredients, tell: Callable[[Progress], None] = lambda _: None) -> Image:
        lock = self.lock(ingredients)
        return self.builder.build(ingredients, self.parent, self.contents, lock, tell=tell)

    def find(self, ingredients: Ingredients) -> FoundImage | None:
        return self.builder.find(ingredients, self.parent)

    def manifest(self, image: Image) -> dict[str, Any]:
        reference = Reference.parse(image.reference)
        found = self.registries.parent(reference, PLATFORM).manifest
        assert found is not None
        return dict(found)

    def tags(self, repository: str = "upshift") -> list[str]:
        registry = self.builder.destination.registry
        return self.registries.tags(Reference.parse(f"{registry}/{repository}"))


@pytest.fixture
def shop(base_image_name: str, registry: LoopbackRegistry, tmp_path: Path) -> Iterator[Shop]:
    with Registries() as registries:
        parent = registries.parent(Reference.parse(base_image_name), PLATFORM)
        contents = contents_of(parent, registries=registries)
        folder = registry.name(f"shop-{os.urandom(4).hex()}")
        destination = Destination(platform=PLATFORM, registry=folder)
        builder = Builder(destination, registries, ImageError("no container engine here"))
        yield Shop(registry, registries, parent, contents, builder, tmp_path)


@pytest.fixture
def python(
    docker: ContainerEngine, registry: LoopbackRegistry
) -> Iterator[Callable[[Image, str], subprocess.CompletedProcess[str]]]:
    """Runs code in an image with a real engine, as somebody else than root."""
    pulled = []

    def run(image: Image, code: str) -> Any:
        pulled.append(image.reference)
        assert image.interpreter is not None
        command = ["run", "--rm", "--user", "1234:1234", image.reference, image.interpreter, "-c", code]
        return docker.run(command, check=False)

    yield run
    for reference in pulled:
        docker.run(["rmi", "--force", reference], check=False)


def test_a_real_engine_runs_it_and_the_packages_are_there(shop: Shop, python: Callable[..., Any]) -> None:
    image = shop.build(
        shop.ingredients("six==1.16.0", "packaging", environment={"GREETING": 'a "b" $HOME\n'})
    )
    code = (
        "import json, os, sys, six, packaging, importlib.metadata as m; print(json.dumps("
        "[six.__version__, six.__file__, six.__cached__, m.version('six'), os.environ['GREETING'], "
        "os.path.exists(six.__cached__), sys.executable]))"
    )
    ran = python(image, code)
    assert ran.returncode == 0, ran.stderr
    version, file, _, metadata, greeting, compiled, executable = json.loads(ran.stdout)
    assert (version, metadata) == ("1.16.0", "1.16.0")
    assert file == f"/opt/upshift/lib/python{base_image.MINOR}/site-packages/six.py"
    assert greeting == 'a "b" $HOME\n'
    assert compiled
    assert executable == image.interpreter


def test_what_has_no_wheel_is_built_here_unless_it_was_compiled(
    shop: Shop, python: Callable[..., Any], tmp_path: Path, docker: ContainerEngine
) -> None:
    code = "import from_source, sys; print(from_source.PREFIX == sys.base_prefix)"
    for compiled in (False, True):
        made = sdist(tmp_path, "from_source", f"{1 + compiled}.0", compiled=compiled)
        asked = shop.ingredients(f"./{made.name}", files={made.name: "sha256:x"}, paths={made.name: made})
        if compiled:
            with pytest.raises(ImageError, match="has no wheel for the image"):
                shop.build(asked)
        with_engine = Builder(shop.builder.destination, shop.registries, docker)
        image = attrs.evolve(shop, builder=with_engine).build(asked)
        assert python(image, code).stdout.strip() == str(compiled or sys.base_prefix == "/usr/local")


def test_it_is_recognized_by_a_tag_and_nothing_is_made_again(shop: Shop) -> None:
    ingredients = shop.ingredients("six==1.16.0")
    assert shop.find(ingredients) is None
    image = shop.build(ingredients)
    found = shop.find(ingredients)
    assert found is not None
    assert (found.image.reference, found.lock) == (image.reference, shop.lock(ingredients))
    assert shop.tags() == [tag_of(image.recipe)]
    assert shop.find(shop.ingredients("six==1.17.0")) is None


def test_it_is_the_same_to_the_last_byte_wherever_it_is_made(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingredients = shop.ingredients("six==1.16.0", "packaging==24.0", "pygments==2.18.0")
    first = shop.build(ingredients)
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "another" / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    second = shop.build(ingredients)
    assert first == second
    assert str(tmp_path) not in json.dumps(shop.manifest(first))


def test_scripts_data_and_pth_files_work(shop: Shop, python: Callable[..., Any], tmp_path: Path) -> None:
    made = wheel(
        tmp_path,
        "oddities",
        "1.0",
        {
            "oddities/__init__.py": "def main():\n    print('said by the script')\n",
            "oddities-hook.pth": "import os; os.environ['ODDITIES'] = 'hooked'\n",
            "oddities-1.0.dist-info/entry_points.txt": "[console_scripts]\noddities = oddities:main\n",
            "oddities-1.0.data/data/share/oddities/table.txt": "data\n",
        },
    )
    image = shop.build(
        shop.ingredients(f"./{made.name}", files={made.name: "sha256:x"}, paths={made.name: made})
    )
    code = (
        "import os, sys, subprocess, json, importlib.metadata as m; print(json.dumps(["
        "subprocess.run(['oddities'], capture_output=True, text=True).stdout, os.environ.get('ODDITIES'), "
        "open(sys.prefix + '/share/oddities/table.txt').read(), "
        "[str(f.locate()) for f in m.files('oddities') if not f.locate().exists()], "
        "m.distribution('oddities').read_text('direct_url.json')]))"
    )
    ran = python(image, code)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == ["said by the script\n", "hooked", "data\n", [], None]


def test_what_the_parent_holds_is_kept_where_it_fits_and_hidden_where_it_does_not(
    shop: Shop, python: Callable[..., Any], tmp_path: Path
) -> None:
    below = shop.build(shop.ingredients("six==1.15.0", "idna==3.4"))
    parent = shop.registries.parent(Reference.parse(below.reference), PLATFORM)
    contents = attrs.evolve(
        shop.contents, packages={**(shop.contents.packages or {}), "six": "1.15.0", "idna": "3.4"}
    )
    on_top = attrs.evolve(shop, parent=parent, contents=contents)
    image = on_top.build(on_top.ingredients("idna>=3.7", "python-dateutil==2.9.0"))
    code = (
        "import json, six, idna, dateutil, importlib.metadata as m; "
        "print(json.dumps([six.__version__, m.version('six'), idna.__version__, m.version('idna')]))"
    )
    ran = python(image, code)
    assert ran.returncode == 0, ran.stderr
    kept, said, replaced, said_too = json.loads(ran.stdout)
    assert kept == said == "1.15.0"  # python-dateutil needs six, and any version does
    assert replaced == said_too and replaced not in ("3.4", "3.5", "3.6")
    layers = shop.manifest(image)["layers"]
    assert layers[: len(parent.layers)] == shop.manifest(below)["layers"]
    assert len(layers) == len(parent.layers) + 1


def test_a_folder_that_distributions_share_goes_on_in_the_parent(
    shop: Shop, python: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = (
        wheel(
            tmp_path, f"acme_{name}", "1.0", {"acme/__init__.py": "", f"acme/{name}/__init__.py": "x = 1\n"}
        )
        for name in ("one", "two")
    )
    below = shop.build(shop.ingredients(f"./{one.name}", files={one.name: "1"}, paths={one.name: one}))
    parent = shop.registries.parent(Reference.parse(below.reference), PLATFORM)
    on_top = attrs.evolve(shop, parent=parent)
    image = on_top.build(on_top.ingredients(f"./{two.name}", files={two.name: "2"}, paths={two.name: two}))
    ran = python(image, "import acme.one, acme.two; print(acme.one.__file__, acme.two.__file__)")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [
        f"/opt/upshift/lib/python{base_image.MINOR}/site-packages/acme/one/__init__.py",
        f"/opt/upshift-2/lib/python{base_image.MINOR}/site-packages/acme/two/__init__.py",
    ]


def test_podman_runs_it_too(shop: Shop, podman: ContainerEngine) -> None:
    image = shop.build(shop.ingredients("six==1.16.0"))
    assert image.interpreter is not None
    options = ["--rm", "--tls-verify=false", "--network", "none"]
    ran = podman.run(
        ["run", *options, image.reference, image.interpreter, "-c", "import six; print(six.__version__)"],
        check=False,
    )
    podman.run(["rmi", "--force", image.reference], check=False)
    assert ran.stdout.strip() == "1.16.0", ran.stderr


def test_a_large_distribution_is_a_layer_that_images_share_and_is_not_installed_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, python: Callable[..., Any], tmp_path: Path
) -> None:
    monkeypatch.setattr(packing, "LARGE", 300_000)
    first = shop.build(shop.ingredients("pygments==2.18.0"))
    packed: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.stage == "pack":
            packed.append(progress.text)

    second = shop.build(shop.ingredients("pygments==2.18.0", "six==1.16.0"), tell)
    assert packed == ["six 1.16.0"]
    own = len(shop.parent.layers)
    assert shop.manifest(first)["layers"][own] == shop.manifest(second)["layers"][own]
    assert shop.manifest(first)["layers"][own + 1] != shop.manifest(second)["layers"][own + 1]
    ran = python(second, "import pygments, six, subprocess; subprocess.run(['pygmentize', '-V'], check=True)")
    assert ran.returncode == 0 and "2.18.0" in ran.stdout, ran.stderr

    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "another" / "home"))
    fresh = shop.build(shop.ingredients("pygments==2.18.0", "six==1.16.0"))
    assert fresh == second  # what is known saves time, and changes nothing


def test_a_layer_that_is_there_takes_the_place_of_what_the_parent_holds(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, python: Callable[..., Any]
) -> None:
    monkeypatch.setattr(packing, "LARGE", 300_000)
    contents = attrs.evolve(shop.contents, packages={**(shop.contents.packages or {}), "pygments": "2.17.0"})
    older = attrs.evolve(shop, contents=contents)
    older.build(older.ingredients("pygments==2.18.0"))
    image = older.build(older.ingredients("pygments==2.18.0", "six==1.16.0"))
    ran = python(image, "import pygments, six; print(pygments.__version__)")
    assert ran.stdout.strip() == "2.18.0", ran.stderr


def test_a_layer_of_several_that_is_there_is_not_packed_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packing, "MIDDLE", 100_000)
    several = ("pygments==2.18.0", "idna==3.10")
    first = shop.build(shop.ingredients(*several))
    packed: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.stage == "pack":
            packed.append(progress.text)

    second = shop.build(shop.ingredients(*several, "six==1.16.0"), tell)
    assert "six 1.16.0" in packed and not [text for text in packed if "pygments" in text]
    own = len(shop.parent.layers)
    assert shop.manifest(first)["layers"][own] == shop.manifest(second)["layers"][own]
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "another" / "home"))
    assert shop.build(shop.ingredients(*several, "six==1.16.0")) == second


def test_a_layer_that_another_repository_has_is_taken_over_and_not_sent(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LARGE", 300_000)
    shop.build(shop.ingredients("pygments==2.18.0"))
    pushed: list[str] = []
    shop.build(
        shop.ingredients("pygments==2.18.0", repository="other"),
        lambda progress: pushed.append(progress.text) if progress.stage in ("push", "pull") else None,
    )
    assert [text for text in pushed if "pygments" in text or "a layer of" in text] == []
    assert len(shop.tags("other")) == 1


def test_names_that_the_user_wants_are_given_and_given_again(shop: Shop) -> None:
    plain = shop.ingredients("six==1.16.0", repository="team/train")
    image = shop.build(plain)
    named = attrs.evolve(plain, tag="latest")
    assert shop.find(named) is None
    again = shop.build(named)
    assert again.reference == image.reference
    assert again.name is not None and again.name.endswith("/team/train:latest")
    assert shop.tags("team/train") == ["latest", tag_of(image.recipe)]


def test_the_parent_is_the_image_where_nothing_is_added(shop: Shop) -> None:
    found = shop.find(shop.ingredients())
    assert found is not None
    assert found.image.reference == str(shop.parent.reference.with_digest(shop.parent.digest))
    assert shop.tags() == []


def test_a_requirement_that_does_not_exist_leaves_no_name(shop: Shop) -> None:
    with pytest.raises(ImageError, match="no-such-package-of-upshift") as caught:
        shop.build(shop.ingredients("no-such-package-of-upshift==1.0"))
    assert caught.value.what == "no index has one of the requirements"
    assert caught.value.fix
    assert shop.tags() == []


def test_requirements_that_conflict_are_told_in_the_installers_words(shop: Shop) -> None:
    with pytest.raises(ImageError, match=r"six==1\.15\.0"):
        shop.build(shop.ingredients("six==1.15.0", "six==1.16.0"))
    assert shop.tags() == []


def test_a_building_that_nobody_wants_any_more_ends_and_leaves_nothing(shop: Shop) -> None:
    class Enough(Exception):
        pass

    def tell(progress: Progress) -> None:
        if progress.stage == "push":
            raise Enough

    with pytest.raises(Enough):
        shop.build(shop.ingredients("six==1.16.0"), tell)
    assert shop.tags() == []
    assert list((Path(os.environ["UPSHIFT_HOME"]) / "cache" / "images").glob("building-*")) == []


def test_the_user_of_the_settings_runs_it(shop: Shop, docker: ContainerEngine) -> None:
    image = shop.build(shop.ingredients(user="4321"))
    ran = docker.run(["run", "--rm", image.reference, "id", "-u"])
    docker.run(["rmi", "--force", image.reference], check=False)
    assert ran.stdout.strip() == "4321"


def test_an_image_for_another_machine_gets_that_machines_wheels(shop: Shop) -> None:
    arm = attrs.evolve(shop.parent, platform="linux/arm64")
    recipe = Recipe(parent=str(arm.reference), platform="linux/arm64", requirements=("markupsafe==3.0.2",))
    ingredients = Ingredients(recipe=recipe)
    image = shop.builder.build(ingredients, arm, shop.contents, shop.lock(ingredients), tell=lambda _: None)
    layer = shop.manifest(image)["layers"][-1]["digest"]
    content = b"".join(shop.registries.blob(Reference.parse(image.reference), layer))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        (built,) = [member.name for member in archive if member.name.endswith(".so")]
        library = archive.extractfile(built)
        assert library is not None
        header = library.read(20)
    assert built.endswith("-aarch64-linux-gnu.so")
    assert header[:4] == b"\x7fELF" and header[18] == 183  # EM_AARCH64


def test_packages_for_another_python_come_without_bytecode_and_this_is_said(shop: Shop) -> None:
    other = "3.12" if base_image.MINOR != "3.12" else "3.13"
    contents = attrs.evolve(shop.contents, python=f"{other}.1")
    ingredients = shop.ingredients("six==1.16.0", "markupsafe==3.0.2")
    (finding,) = shop.builder.unresolvable(ingredients, shop.parent, contents)
    assert finding.severity == "note" and f"the image has Python {other}" in finding.what
    image = attrs.evolve(shop, contents=contents).build(ingredients)
    layer = shop.manifest(image)["layers"][-1]["digest"]
    content = b"".join(shop.registries.blob(Reference.parse(image.reference), layer))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = archive.getnames()
    assert f"opt/upshift/lib/python{other}/site-packages/six.py" in names
    assert not [name for name in names if name.endswith(".pyc")]
    assert [name for name in names if f"cpython-{other.replace('.', '')}-x86_64" in name]
