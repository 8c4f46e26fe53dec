"""What a user reads of the images that Upshift has built."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from upshift.images.built import BuiltImage
from upshift.report.terminal import Page, cells
from upshift.report.terminal.images import kept_json, kept_table, pruned_text

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
RECIPE = "sha256:" + "a" * 64
HERE = BuiltImage(
    place="docker",
    reference="sha256:" + "b" * 64,
    names=("upshift:upshift-" + "a" * 64,),
    recipe=RECIPE,
    made=NOW.timestamp() - 7200,
    bytes=182_000_000,
    containers=1,
    project="churn",
    ours=False,
)
THERE = BuiltImage(
    place="r.example.org/ml/upshift",
    reference="r.example.org/ml/upshift:x",
    names=("r.example.org/ml/upshift:upshift-" + "a" * 64,),
    recipe=RECIPE,
)
NAMELESS = BuiltImage(place="podman", reference="sha256:" + "c" * 64, names=(), recipe=RECIPE)


def test_each_image_has_a_line() -> None:
    lines = kept_table([HERE, THERE, NAMELESS], Page(120), NOW).splitlines()
    assert [re.split("  +", line) for line in (lines[0], *lines[2:])] == [
        ["image", "of project", "recipe", "size", "built", "in"],
        [
            *("upshift:upshift-aaaaaaaaaaaa…", "churn, another home"),
            *("sha256:aaaaaaaaaaaa", "182 MB", "2 hours ago"),
            "docker, 1 container",
        ],
        ["upshift-aaaaaaaaaaaa…", "–", "sha256:aaaaaaaaaaaa", "–", "–", "r.example.org/ml/upshift"],
        ["sha256:cccccccccccc", "–", "sha256:aaaaaaaaaaaa", "–", "–", "podman"],
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_wider_than_the_page(width: int) -> None:
    text = kept_table([HERE, THERE, NAMELESS], Page(width), NOW)
    assert max(cells(line) for line in text.splitlines()) <= width


def test_json_has_times_in_utc() -> None:
    here, there, _ = kept_json([HERE, THERE, NAMELESS])
    assert (here["made"], there["made"]) == ("2026-11-21T10:00:00Z", None)
    assert here["bytes"] == 182_000_000 and here["names"] == HERE.names


def test_what_was_removed_and_what_stays() -> None:
    assert pruned_text([HERE], {"x": "a container is of it"}, dry_run=False).splitlines() == [
        "removed upshift:upshift-aaaaaaaaaaaa…, in docker",
        "stays: x: a container is of it",
    ]
    assert pruned_text([NAMELESS], {}, dry_run=True) == "would remove sha256:cccccccccccc, in podman"
    assert pruned_text([], {}, dry_run=True) == "Nothing to remove."
    assert pruned_text([], {}, [HERE], dry_run=True).splitlines() == [
        "Nothing to remove.",
        "1 more image was not built with this UPSHIFT_HOME: upshift image list shows whose, --all removes it "
        "as well.",
    ]
    assert pruned_text([], {}, [THERE, THERE], dry_run=False).splitlines() == [
        "Nothing to remove.",
        "2 images in r.example.org/ml/upshift stay: a registry does not tell who had them built. --all "
        "removes them.",
    ]


def test_what_does_not_tell_its_age_stays_in_a_line() -> None:
    assert pruned_text([], {}, [], [THERE], dry_run=False).splitlines() == [
        "Nothing to remove.",
        "1 more image in r.example.org/ml/upshift stays, since nothing tells when it was built. Without "
        "--older-than it goes.",
    ]
    assert pruned_text([], {}, [], [THERE, NAMELESS, THERE], dry_run=True).splitlines()[1:] == [
        "2 more images in r.example.org/ml/upshift would stay, since nothing tells when they were built. "
        "Without --older-than they go.",
        "1 more image in podman would stay, since nothing tells when it was built. Without --older-than it "
        "goes.",
    ]
