"""The two builders make images with the same contents from the same recipe, known by the same digest."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from registries import LoopbackRegistry

from upshift.config import DockerSettings
from upshift.images.base import RECIPE_LABEL, Builder, Destination
from upshift.images.containers.builder import EngineBuilder
from upshift.images.containers.engine import ContainerEngine
from upshift.images.daemonless.builder import DaemonlessBuilder
from upshift.images.parents.contents import contents_of
from upshift.images.recipes.recipe import make_ingredients
from upshift.images.reference import Reference
from upshift.images.registries.client import Registries
from wheels import wheel

LOOK = """
import importlib.metadata as m, json, os, our_own, pip, six
names = ("GREETING", "PATH_TO", "HOME")
print(json.dumps({
    "packages": sorted((d.metadata["Name"].lower(), d.version) for d in m.distributions()),
    "environment": {name: os.environ.get(name) for name in names},
    "user": os.getuid(),
    "compiled": os.path.exists(six.__cached__) and os.path.exists(our_own.__cached__),
}))
"""


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_they_give_the_same_image(
    docker: ContainerEngine, registry: LoopbackRegistry, base_image_name: str, tmp_path: Path, installer: str
) -> None:
    made = wheel(tmp_path, "our_own", "1.5", {"our_own.py": "NAME = 'ours'\n"})
    settings = DockerSettings(
        parent_image=base_image_name,
        requirements=[f"./{made.name}", "six==1.16.0", "attrs<24", "pip", "upshift"],
        environment={"GREETING": 'two\n"lines" of $HOME', "PATH_TO": "C:\\temp"},
        user="65534:65534",
    )
    pips = attrs.evolve(settings, python_package_installer=installer)
    with Registries() as registries:
        destination = Destination(platform=docker.platform, registry=registry.name(f"builders-{installer}"))
        builders: list[Builder] = [
            EngineBuilder(docker, destination, registries),
            DaemonlessBuilder(destination, registries),
        ]
        seen = []
        # What one of them has made, the other one finds: so each gets a repository of its own.
        for builder, one, name in zip(builders, (pips, settings), ("engine", "daemonless"), strict=True):
            ingredients = make_ingredients(
                attrs.evolve(one, target_repository=name), project=tmp_path, platform=docker.platform
            )
            parent = registries.parent(Reference.parse(base_image_name), docker.platform)
            contents = contents_of(parent, registries=registries)
            image = builder.build(ingredients, parent, contents, tell=lambda progress: None)
            assert all(other.find(ingredients, parent, contents) == image for other in builders)
            labels = registries.parent(Reference.parse(image.reference), docker.platform).labels
            assert labels[RECIPE_LABEL] == image.recipe == ingredients.recipe.digest(parent.digest)
            python = image.interpreter or "python3"
            docker.run(["pull", image.reference])
            seen.append(json.loads(docker.run(["run", "--rm", image.reference, python, "-c", LOOK]).stdout))
    assert seen[0] == seen[1]
    assert seen[0]["compiled"] and ["six", "1.16.0"] in seen[0]["packages"]
    assert "upshift" not in dict(seen[0]["packages"])
