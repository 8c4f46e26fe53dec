"""What a user reads of an image before it is built, and while it is."""

from __future__ import annotations

import io
import json
from typing import Any

import attrs
import pytest

from screen import Screen
from upshift.images.base import (
    ERROR,
    NOTE,
    WARNING,
    Contents,
    Finding,
    Image,
    Ingredients,
    Lock,
    LockedPackage,
    Parent,
    Progress,
    Recipe,
    Reference,
)
from upshift.images.building.builder import Destination
from upshift.images.preparing import Prepared
from upshift.report.terminal import Page, cells
from upshift.report.terminal.images import Building, called, changes, finding_lines, show_image
from upshift.report.views.plan import image_json

DIGEST = "sha256:" + "a" * 64
PYTORCH = "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
PULLS_TORCH = Finding(
    severity=ERROR,
    field="requirements",
    what="torchvision without a pin pulls torch 2.15 over the image's 2.1.0+cu121",
    evidence="torch 2.1.0+cu121 in pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
    fix="torchvision==0.16.0",
    source="https://pypi.org/project/torchvision, 2026-11-21",
)
OLD_DRIVER = Finding(severity=WARNING, field="parent_image", what="the driver may be too old")
KNOWN = Finding(severity=NOTE, field="", what="an image of AWS")


def prepared(*findings: Finding, image: Image | None = None, recipe: Any = None, **fields: Any) -> Prepared:
    described = recipe or {"requirements": ("torchvision",)}
    parent = Parent(
        reference=Reference.parse(PYTORCH), digest=DIGEST, platform="linux/amd64", bytes=3_210_000_000
    )
    values: dict[str, Any] = {
        "ingredients": Ingredients(
            recipe=Recipe(parent=PYTORCH, platform="linux/amd64", **described),
            notes=("upshift==0.3 in requirements: this very Upshift is used",),
            origins={"parent_image": "flow.py:9 (@pipeline)", "requirements": "flow.py:3 (@step)"},
        ),
        "destination": Destination(platform="linux/amd64", registry="r.example.org/ml"),
        "parent": parent,
        "contents": Contents(
            python="3.10.13", cuda="12.1", packages={"torch": "2.1.0+cu121", "six": "1", "attrs": "2"},
            source="table",
        ),
        "lock": Lock(packages=(LockedPackage(name="torchvision", version="0.16.0"),)),
        "recipe": "sha256:" + "b" * 64,
        "digest": "sha256:" + "c" * 64,
    }  # fmt: skip
    return Prepared(findings=findings, image=image, **{**values, **fields})


def shown(one: Prepared, page: Page | None = None) -> str:
    return show_image(one, steps=["train", "score"], place="on cluster", page=page)


def test_everything_that_is_known_of_an_image() -> None:
    assert shown(prepared(KNOWN, PULLS_TORCH)).splitlines() == [
        "image of train, score · on cluster",
        f"  parent  {PYTORCH}",
        "          linux/amd64, 3.21 GB, sha256:aaaaaaaaaaaa",
        "  holds   Python 3.10.13, CUDA 12.1, torch 2.1.0+cu121, 2 more packages (table)",
        "  adds    torchvision",
        "  from    parent_image: flow.py:9 (@pipeline); requirements: flow.py:3 (@step)",
        "  note    upshift==0.3 in requirements: this very Upshift is used",
        "  locked  1 package: torchvision 0.16.0",
        "  recipe  sha256:bbbbbbbbbbbb",
        "  image   is not built: 1 error",
        "  ✗ requirements: torchvision without a pin pulls torch 2.15 over the image's 2.1.0+cu121",
        "    torch 2.1.0+cu121 in pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
        "    source: https://pypi.org/project/torchvision, 2026-11-21",
        "    → torchvision==0.16.0",
        "  · an image of AWS",
    ]


def test_what_a_run_would_do_about_it() -> None:
    assert "would be built and pushed to r.example.org/ml" in shown(prepared())
    there = Image(reference=f"r.example.org/ml/x@{DIGEST}", recipe=DIGEST, name="r.example.org/ml/x:1")
    assert "is there: r.example.org/ml/x:1, sha256:aaaaaaaaaaaa" in shown(prepared(image=there))
    assert called(Image(reference=DIGEST, recipe=DIGEST)) == "sha256:aaaaaaaaaaaa"
    tagged = Image(reference=f"r/x@{DIGEST}", recipe=DIGEST, name="r/x:upshift-" + "b" * 64)
    assert called(tagged) == "r/x:upshift-bbbbbbbbbbbb…, sha256:aaaaaaaaaaaa"
    again = prepared(image=there)
    again = attrs.evolve(again, ingredients=attrs.evolve(again.ingredients, rebuild=True))
    assert "would be built" in shown(again)


def test_what_is_added_kind_by_kind() -> None:
    everything = {
        "apt_packages": ("git", "libgl1"),
        "requirements": ("six==1.16", "x" * 100),
        "installer_args": ("--no-deps",),
        "environment": {"HF_HOME": "/data"},
        "user": "1000",
        "dockerfile": "FROM a",
        "context": {"a": DIGEST, "b": DIGEST},
    }
    text = shown(prepared(recipe=everything))
    for line in (
        "what a Dockerfile makes, which copies 2 files",
        "apt packages git, libgl1",
        "six==1.16, xxxxxxxx",
        "variables HF_HOME=/data",
        "the user 1000",
        "--no-deps",
    ):
        assert line in text
    assert "adds    nothing: skip_build" in shown(prepared(recipe={"skip_build": True}))
    assert "adds    nothing: the parent is the image" in shown(prepared(recipe={"installer": "uv"}))


def test_an_image_of_which_nothing_is_known_says_so() -> None:
    text = shown(prepared(contents=Contents()))
    assert "holds   nothing is known of what is in it" in text
    text = shown(attrs.evolve(prepared(PULLS_TORCH, parent=None, contents=Contents()), recipe=None))
    assert "holds" not in text and "recipe" not in text
    assert "no CUDA" in shown(prepared(contents=Contents(cuda="")))


def test_a_terminal_that_knows_ascii_only() -> None:
    lines = finding_lines(PULLS_TORCH, Page(), glyphs=False)
    assert lines[0].startswith("X requirements: ") and lines[-1] == "  -> torchvision==0.16.0"
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_page(width: int) -> None:
    text = shown(prepared(PULLS_TORCH, OLD_DRIVER, KNOWN), Page(width))
    assert max(cells(line) for line in text.splitlines()) <= width


def test_json_has_the_same() -> None:
    told = json.loads(json.dumps(image_json(prepared(PULLS_TORCH), steps=["train"], target="cluster")))
    assert told["parent"]["reference"] == str(Reference.parse(PYTORCH))
    assert told["contents"]["packages"]["torch"] == "2.1.0+cu121"
    assert told["recipe"]["requirements"] == ["torchvision"]
    assert (told["recipe"]["digest"][:8], told["digest"][:8]) == ("sha256:b", "sha256:c")
    assert told["lock"] == ["torchvision==0.16.0"]
    assert told["findings"][0]["severity"] == "error" and told["findings"][0]["fix"] == "torchvision==0.16.0"
    assert told["builds"] is False and told["image"] is None
    assert told["origins"]["requirements"] == "flow.py:3 (@step)"
    assert image_json(prepared(), steps=["train"], target="cluster")["builds"] is True


def test_what_updating_has_changed() -> None:
    def updated(now: dict[str, str] | None, before: dict[str, str] | None) -> list[str]:
        def lock(versions: dict[str, str] | None) -> Lock | None:
            if versions is None:
                return None
            return Lock(
                packages=tuple(LockedPackage(name=name, version=one) for name, one in versions.items())
            )

        return changes(prepared(lock=lock(now), before=lock(before)))

    assert updated({"a": "2", "c": "1", "d": "1"}, {"a": "1", "b": "1", "d": "1"}) == [
        "a 1 → 2",
        "c 1 added",
        "b 1 removed",
    ]
    assert updated({"a": "1"}, {"a": "1"}) == ["requirements resolve to what they did before"]
    assert updated({"a": "1"}, None) == ["resolved for the first time: 1 package: a 1"]
    assert updated(None, None) == ["no requirements"]


class Terminal(io.StringIO):
    """What says that it is one."""

    def isatty(self) -> bool:
        return True


class Turned:
    """A clock that the test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


MADE = Image(reference=f"x@{DIGEST}", recipe=DIGEST, name="x:1")


def test_building_in_lines() -> None:
    stream, clock = io.StringIO(), Turned()
    with Building(stream, ["train"], clock) as building:
        building.found(OLD_DRIVER)
        building.found(KNOWN)
        for done in range(0, 100, 10):
            building.tell(Progress(stage="push", text="layer 1", done=done * 10**6, total=10**8))
            clock.now += 2
        building.made(MADE, was_there=False)
    assert stream.getvalue().splitlines() == [
        "! parent_image: the driver may be too old",
        "image of train: pushing · layer 1: 0 B of 100 MB",
        "image of train: pushing · layer 1: 30 MB of 100 MB",
        "image of train: pushing · layer 1: 60 MB of 100 MB",
        "image of train: pushing · layer 1: 90 MB of 100 MB",
        "image of train: made in 20.0 s: x:1",
    ]


def test_an_image_that_is_there_is_said_to_be() -> None:
    stream = io.StringIO()
    with Building(stream, ["train"]) as building:
        building.made(MADE, was_there=True)
    assert stream.getvalue() == "image of train: is there: x:1\n"


def test_building_that_fails_says_so_and_leaves_the_error_to_speak() -> None:
    stream, clock = Terminal(), Turned()

    def fail() -> None:
        with Building(stream, ["train"], clock) as building:
            building.tell(Progress(stage="build", text="Step 1/2 : RUN \x1b[2Jfalse\r"))
            clock.now = 3
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    screen = Screen(100)
    screen.feed(stream.getvalue())
    assert screen.text.strip() == "image of train: failed after 3.00 s"
    assert "Step 1/2 : RUN false" in stream.getvalue() and "\x1b[2J" not in stream.getvalue()


def test_hundreds_of_locked_packages_and_values_with_line_breaks_stay_short() -> None:
    lines = tuple(f"package-{number}==1.0 --hash=sha256:{'a' * 64}" for number in range(200))
    text = shown(prepared(recipe={"requirements": lines, "environment": {"TEXT": "one\ntwo"}}))
    assert "package-11==1.0 and 188 more" in " ".join(text.split())
    assert "--hash" not in text
    assert "TEXT=one\\ntwo" in text


def test_most_of_a_parents_digest_is_left_out() -> None:
    image = prepared()
    recipe = attrs.evolve(image.ingredients.recipe, parent="r.example.org/ml/upshift:upshift-" + "c" * 64)
    text = shown(attrs.evolve(image, ingredients=attrs.evolve(image.ingredients, recipe=recipe)))
    assert "parent  r.example.org/ml/upshift:upshift-cccccccccccc…\n" in text
