"""The parts of which an image is made, each by itself."""

from __future__ import annotations

import gzip
import importlib.util
import json
import marshal
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import attrs
import pytest

from upshift.errors import ImageError
from upshift.images.base import (
    RECIPE_LABEL,
    Contents,
    Finding,
    Ingredients,
    Lock,
    LockedPackage,
    Parent,
    Recipe,
    Reference,
)
from upshift.images.building import bytecode
from upshift.images.building.builder import Builder, Destination
from upshift.images.building.delivery import Additions, compose, compose_in_engine
from upshift.images.building.packing import Entry, ImageLayout, Layer, last_entries, record_of, write_layer
from upshift.images.registries.answers import DOCKER_MANIFEST, OCI_MANIFEST
from upshift.images.registries.client import Registries
from upshift.images.uv import platform_of

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
CONTENTS = Contents(
    python="3.11.7",
    interpreter="/usr/local/bin/python3",
    site_packages="/usr/local/lib/python3.11/site-packages",
    packages={"pip": "24.0"},
    glibc="2.36",
)
PARENT = Parent(
    reference=Reference.parse("registry.example.org/base/python:3.11"),
    digest="sha256:" + "b" * 64,
    platform="linux/amd64",
    environment={"PATH": "/usr/local/bin:/bin"},
    layers=("sha256:" + "1" * 64,),
    config={
        "architecture": "amd64",
        "created": "2026-01-01T00:00:00Z",
        "container": "of the build",
        "config": {"Env": ["PATH=/usr/local/bin:/bin", "A=1"], "Labels": {"of": "parent"}, "User": "ml"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "2" * 64]},
        "history": [{"created_by": "base"}],
    },
    manifest={
        "mediaType": DOCKER_MANIFEST,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json"},
        "layers": [{"mediaType": "x", "digest": "sha256:" + "1" * 64, "size": 10}],
    },
)
LAYER = Layer(digest="sha256:" + "3" * 64, diff_id="sha256:" + "4" * 64, bytes=7)


def _composed(parent: Parent = PARENT, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    additions = Additions(labels={RECIPE_LABEL: "sha256:r"}, path="/opt/upshift/bin", **more)
    composed = compose(parent, [(LAYER, "six 1.16.0")], additions)
    return json.loads(composed.manifest), json.loads(composed.config)


def test_an_image_is_its_parent_with_layers_on_top() -> None:
    manifest, config = _composed(environment={"A": "2", "B": 'x "y" $Z'})
    assert [layer["digest"] for layer in manifest["layers"]] == ["sha256:" + "1" * 64, LAYER.digest]
    assert manifest["layers"][1] == {
        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "digest": LAYER.digest,
        "size": 7,
    }
    assert config["rootfs"]["diff_ids"] == ["sha256:" + "2" * 64, LAYER.diff_id]
    assert config["config"]["Env"] == ["PATH=/opt/upshift/bin:/usr/local/bin:/bin", "A=2", 'B=x "y" $Z']
    assert config["config"]["Labels"] == {"of": "parent", RECIPE_LABEL: "sha256:r"}
    assert config["config"]["User"] == "ml"
    assert "container" not in config
    assert [entry["created_by"] for entry in config["history"]] == ["base", "upshift: six 1.16.0"]
    assert config["history"][1]["created"] == config["created"] == "2026-01-01T00:00:00Z"


def test_the_parents_form_is_kept_and_the_parent_is_not_changed() -> None:
    oci = attrs.evolve(PARENT, manifest={**(PARENT.manifest or {}), "mediaType": OCI_MANIFEST})
    before = json.dumps([oci.config, oci.manifest])
    manifest, config = _composed(oci, user="1000:1000")
    assert manifest["mediaType"] == OCI_MANIFEST
    assert manifest["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert manifest["layers"][1]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert config["config"]["User"] == "1000:1000"
    assert json.dumps([oci.config, oci.manifest]) == before


def test_in_an_engine_layers_are_named_by_what_they_hold() -> None:
    described = {
        "Id": "sha256:" + "9" * 64,
        "Os": "linux",
        "Architecture": "arm64",
        "Variant": "v8",
        "Created": "2026-01-01T00:00:00Z",
        "Config": {"Env": ["PATH=/bin"], "Hostname": "of no image", "Cmd": None, "Entrypoint": ["python3"]},
        "RootFS": {"Layers": ["sha256:" + "2" * 64]},
    }
    parent = attrs.evolve(PARENT, config=described, manifest=None, in_engine=True)
    additions = Additions(labels={"a": "b"}, environment={"X": "1"}, user="ml")
    composed = compose_in_engine(parent, [(LAYER, "six 1.16.0")], additions)
    config, manifest = json.loads(composed.config), json.loads(composed.manifest)
    assert config["config"] == {
        "Env": ["PATH=/bin", "X=1"],
        "Entrypoint": ["python3"],
        "Labels": {"a": "b"},
        "User": "ml",
    }
    assert (config["architecture"], config["variant"]) == ("arm64", "v8")
    assert config["rootfs"]["diff_ids"] == ["sha256:" + "2" * 64, LAYER.diff_id]
    assert [layer["digest"] for layer in manifest["layers"]] == ["sha256:" + "2" * 64, LAYER.digest]
    assert manifest["config"]["digest"] == composed.config_digest


def test_a_manifest_of_another_form_is_refused() -> None:
    old = attrs.evolve(PARENT, manifest={"mediaType": "application/vnd.docker.distribution.manifest.v1+json"})
    with pytest.raises(ImageError, match="cannot be built upon"):
        _composed(old)


@pytest.mark.parametrize(
    ("platform", "glibc", "called"),
    [
        ("linux/amd64", "2.36", "x86_64-manylinux_2_36"),
        ("linux/amd64", "2.30", "x86_64-manylinux_2_28"),
        ("linux/arm64", "2.99", "aarch64-manylinux_2_40"),
        ("linux/amd64", None, "x86_64-manylinux_2_28"),
        ("linux/amd64", "", "x86_64-unknown-linux-musl"),
        ("linux/amd64", "2.12", None),
        ("linux/s390x", "2.36", None),
    ],
)
def test_wheels_are_for_the_platform_and_the_c_library_of_the_image(
    platform: str, glibc: str | None, called: str | None
) -> None:
    assert platform_of(platform, glibc) == called


def test_a_record_says_nothing_of_the_machine_that_it_was_made_on() -> None:
    content = (
        b"x/b.py,sha256=1,2\r\nx-1.dist-info/direct_url.json,sha256=3,4\r\nbin/x,sha256=5,6\r\nx/a.py,,\r\n"
    )
    places = {"x/b.py": "x/b.py", "x/a.py": "x/a.py", "bin/x": "../../../bin/x"}
    assert record_of(content, {"bin/x"}, places) == b"../../../bin/x,,\nx/a.py,,\nx/b.py,sha256=1,2\n"


def test_folders_that_are_links_are_not_put_into_a_layer_as_folders(tmp_path: Path) -> None:
    layout = ImageLayout(
        python="3.11", interpreter="/bin/python3", site_packages="/lib/python3/dist-packages"
    )
    write_layer(last_entries({}, layout), tmp_path / "layer", compressed=False)
    with tarfile.open(tmp_path / "layer") as archive:
        assert archive.getnames()[-1] == "usr/lib/python3/dist-packages/_upshift.pth"


def test_a_plain_layer_is_the_tar_of_a_packed_one(tmp_path: Path) -> None:
    entries = [Entry(path="a/b", source=b"content")]
    packed = write_layer(entries, tmp_path / "packed")
    plain = write_layer(entries, tmp_path / "plain", compressed=False)
    assert plain.digest == plain.diff_id == packed.diff_id != packed.digest
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == (tmp_path / "plain").read_bytes()
    assert plain.bytes == (tmp_path / "plain").stat().st_size


def test_an_image_on_an_image_of_upshift_has_a_folder_of_its_own() -> None:
    first = ImageLayout.of(CONTENTS, "/bin")
    assert first.site == "/opt/upshift/lib/python3.11/site-packages"
    second = ImageLayout.of(CONTENTS, f"{first.scripts}:/bin")
    assert second.site == "/opt/upshift-2/lib/python3.11/site-packages"
    third = ImageLayout.of(CONTENTS, f"{second.scripts}:{first.scripts}:/bin")
    assert third.site == "/opt/upshift-3/lib/python3.11/site-packages"
    assert len({first.hook[0], second.hook[0], third.hook[0]}) == 3


def test_an_interpreter_finds_packages_before_its_own_and_after_its_library(tmp_path: Path) -> None:
    """With a real interpreter, in a virtual environment; the folders are moved below a test's own."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = tmp_path / f"venv/lib/python{MINOR}/site-packages"
    _package(site, "1 of the image")
    (site / "only_below.py").write_text("")
    layouts = [
        ImageLayout(python=MINOR, interpreter="x", site_packages=str(site), below=level) for level in (0, 1)
    ]
    for layout, version in zip(layouts, ("2 on top", "3 on top of that"), strict=True):
        _package(Path(f"{tmp_path}{layout.site}"), version)
        file, line = layout.hook
        Path(file).write_text(line.replace("'/opt/", f"'{tmp_path}/opt/"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (Path(f"{tmp_path}{layouts[0].site}") / "more.pth").write_text(f"{elsewhere}\n")
    code = (
        "import sys, json, thing, only_below, importlib.metadata as m; print(json.dumps("
        "[thing.version, m.version('thing'), sys.path]))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    ran = subprocess.run(
        [str(tmp_path / "venv/bin/python"), "-c", code], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    version, said, path = json.loads(ran.stdout)
    assert version == "3 on top of that" and said == "3"
    own = [f"{tmp_path}{layouts[1].site}", f"{tmp_path}{layouts[0].site}", str(elsewhere), str(site)]
    assert path[-4:] == own
    assert path[-5].endswith("lib-dynload")


def _package(site: Path, version: str) -> None:
    (site / f"thing-{version[0]}.dist-info").mkdir(parents=True)
    (site / f"thing-{version[0]}.dist-info/METADATA").write_text(f"Name: thing\nVersion: {version[0]}\n")
    (site / "thing.py").write_text(f"version = {version!r}\n")


def test_bytecode_is_the_same_each_time_names_the_image_and_is_not_checked(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("def f():\n    return {'a', 'b'} & set('ab')\nvalue = 41 + 1\n")
    compiled = Path(bytecode.compiled_path(str(source)))
    contents = []
    for seed in ("1", "2"):
        os.utime(source, (int(seed), int(seed)))
        subprocess.run(
            [sys.executable, bytecode.__file__],
            input=f"{source}\t/opt/upshift/module.py\n".encode(),
            env={**os.environ, "PYTHONHASHSEED": "0"},
            check=True,
        )
        contents.append(compiled.read_bytes())
    assert contents[0] == contents[1]
    assert contents[0][4:8] == b"\x01\0\0\0"  # PEP 552: by digest, unchecked
    assert contents[0][8:16] == importlib.util.source_hash(source.read_bytes())
    assert marshal.loads(contents[0][16:]).co_filename == "/opt/upshift/module.py"
    source.write_text("value = 'changed'\n")
    code = "import module; print(module.value)"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "42\n"


def test_what_is_no_python_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'Python 2'\n")
    bytecode.compile_file(str(tmp_path / "old.py"), "/old.py")
    assert not (tmp_path / "__pycache__").exists()


def _problems(contents: Contents = CONTENTS, parent: Parent | None = PARENT, **recipe: Any) -> list[Finding]:
    destination = Destination(
        platform="linux/amd64", registry=recipe.pop("registry", "registry.example.org/ml")
    )
    given = {"parent": "python", "platform": "linux/amd64", "requirements": ("six",), **recipe}
    ingredients = Ingredients(recipe=Recipe(**given))
    missing = ImageError("no container engine is installed", fix="Install one.")
    with Registries() as registries:
        builder = Builder(destination, registries, missing)
        found = [*builder.problems(ingredients), *builder.unresolvable(ingredients, parent, contents)]
    return [one for one in found if one.severity == "error"]


@pytest.mark.parametrize(
    ("given", "field", "what"),
    [
        ({"dockerfile": "FROM x"}, "dockerfile", "built by a container engine: no container engine is"),
        ({"apt_packages": ("git", "curl")}, "apt_packages", "Debian packages are built by"),
        ({"platform": "linux/s390x"}, "platform", "no wheels for this platform"),
        ({"registry": None}, "target_repository", "there is no registry"),
        ({"contents": attrs.evolve(CONTENTS, interpreter=None)}, "parent_image", "its path"),
        ({"contents": attrs.evolve(CONTENTS, complete=False)}, "parent_image", "its packages"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_way_out(given: dict[str, Any], field: str, what: str) -> None:
    (found,) = _problems(**given)
    assert found.field == field
    assert what in found.what
    assert found.fix


LOCK = Lock(
    packages=(
        LockedPackage(name="six", version="1.17.0", hashes=("sha256:" + "1" * 64, "sha256:" + "2" * 64)),
        LockedPackage(name="flash-attn", version="2.8", hashes=("sha256:" + "3" * 64,), wheel=False),
        LockedPackage(
            name="helpers", version="1.2", source="git+https://github.com/acme/helpers@abc", wheel=False
        ),
        LockedPackage(
            name="tiny", version="1.0", source="./2/tiny-1.0-py3-none-any.whl", hashes=("sha256:4",)
        ),
    )
)


def test_a_lock_is_a_requirements_file_that_says_the_same_when_it_is_read() -> None:
    assert LOCK.text.splitlines() == [
        f"six==1.17.0 --hash=sha256:{'1' * 64} --hash=sha256:{'2' * 64}",
        f"flash-attn==2.8 --hash=sha256:{'3' * 64}  # sources",
        "helpers @ git+https://github.com/acme/helpers@abc  # helpers 1.2 sources",
        "./2/tiny-1.0-py3-none-any.whl --hash=sha256:4  # tiny 1.0",
    ]
    assert Lock.parse(LOCK.text) == LOCK
    with pytest.raises(ValueError, match="unpack"):
        Lock.parse("six>=1\n")


def test_what_is_in_an_image_follows_from_its_lock_and_not_from_how_it_was_asked_for() -> None:
    recipe = Recipe(parent="python", platform="linux/amd64", requirements=("six",))
    pinned = attrs.evolve(
        recipe, requirements=("six==1.17.0", "-i https://other.example.org"), installer="pip"
    )
    assert recipe.digest("a") != pinned.digest("a")
    assert recipe.identity("a", LOCK) == pinned.identity("a", LOCK)
    newer = Lock(packages=(attrs.evolve(LOCK.packages[0], version="1.18.0"), *LOCK.packages[1:]))
    patched = Lock(packages=(attrs.evolve(LOCK.packages[0], hashes=("sha256:5",)), *LOCK.packages[1:]))
    others = [
        recipe.identity("b", LOCK),
        recipe.identity("a", newer),
        recipe.identity("a", patched),
        attrs.evolve(recipe, environment={"A": "1"}).identity("a", LOCK),
    ]
    assert len({recipe.identity("a", LOCK), *others}) == 5
