"""What a recipe holds of a Dockerfile's context is what the engines themselves copy."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from upshift.errors import ImageError, SettingsError
from upshift.images.containers.engine import ContainerEngine
from upshift.images.recipes.dockerfiles import read_context

LABEL = "dev.upshift.tests"  # by which the session removes what is left

FILES = (
    "a.py",
    "b.txt",
    "docs/a.md",
    "docs/deep/b.md",
    "docs/deep/c.py",
    "src/a.py",
    "src/x/y/z.py",
    "[b]/d",
)

IGNORE_FILES = {
    "none": "",
    "a folder": "docs\n",
    "anywhere": "**/*.py\n",
    "at the top": "*.py\n/b.txt\n",
    "brought back": "*\n!docs\ndocs/deep\n!docs/deep/c.py\n",
    "odd": "# a comment\n\n  ./src/../b.txt  \n**/y\n\\[b\\]\n[a-b].py\n?.txt\n",
    "all below": "src/**\ndocs/*\n",
}

COPIES = {
    "all": "COPY . /",
    "folders": "COPY docs src /",
    "patterns": "COPY *.txt docs/*/*.md /",
    "one": "COPY a.py b.txt /",
    "quotes and tabs": "COPY\t\"a.py\" 'b.txt' /",
}


def copied(engine: ContainerEngine, folder: Path, label: str) -> set[str]:
    """The names of the files that an image has which is built there."""
    tag = f"localhost/what-is-copied:{label}"
    try:
        engine.run(["build", "--tag", tag, "--label", f"{LABEL}={label}", str(folder)])
        container = engine.run(["create", "--label", f"{LABEL}={label}", tag, "nothing"]).stdout.strip()
        try:
            engine.run(["export", "--output", str(folder.parent / "image.tar"), container])
        finally:
            engine.run(["rm", container])
    finally:
        engine.run(["rmi", "--force", tag], check=False)
    with tarfile.open(folder.parent / "image.tar") as archive:
        names = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {content.read().decode() for content in names.values() if content is not None} - {""}


@pytest.mark.parametrize("ignore", IGNORE_FILES)
def test_dockerignore(docker: ContainerEngine, tmp_path: Path, session_label: str, ignore: str) -> None:
    check(docker, tmp_path, session_label, COPIES["all"], IGNORE_FILES[ignore])


@pytest.mark.parametrize("ignore", ["a folder", "brought back"])
def test_what_is_left_out_cannot_be_copied(
    docker_buildkit: ContainerEngine, tmp_path: Path, session_label: str, ignore: str
) -> None:
    with pytest.raises(SettingsError, match=r"\.dockerignore leaves it out") as refused:
        check(docker_buildkit, tmp_path, session_label, COPIES["folders"], IGNORE_FILES[ignore])
    source = refused.value.what.split()[2].rstrip(",")
    with pytest.raises(ImageError, match=rf"excluded by \.dockerignore|{source}"):
        copied(docker_buildkit, tmp_path / "context", session_label)


@pytest.mark.parametrize("copy", COPIES)
def test_sources(engine: ContainerEngine, tmp_path: Path, session_label: str, copy: str) -> None:
    check(engine, tmp_path, session_label, COPIES[copy], IGNORE_FILES["none"])


def check(engine: ContainerEngine, tmp_path: Path, label: str, copy: str, ignore: str) -> None:
    folder = tmp_path / "context"
    for name in FILES:  # each says its own name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".dockerignore").write_text(ignore + "Dockerfile\n.dockerignore\n")
    (folder / "Dockerfile").write_text(f"FROM scratch\n{copy}\n")
    read = read_context(folder / "Dockerfile", folder, where="here")
    assert {name for name in read.files if not name.endswith("/")} == copied(engine, folder, label)
