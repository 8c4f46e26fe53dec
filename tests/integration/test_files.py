"""Files and folders as values: by content, each task with its own copy, which goes with the task."""

from __future__ import annotations

import signal

import upshift
from project import Project

MADE = """
import os
import signal
from pathlib import Path

@step
def make() -> Path:
    Path("made.txt").write_text("made")
    return Path("made.txt")
"""


def test_a_step_may_write_to_its_copy_and_nobody_else_sees_it(project: Project) -> None:
    code = """
@step
def spoil(file: Path) -> str:
    file.chmod(0o600)
    file.write_text("spoilt")
    return str(file)

@step
def read(file: Path) -> str:
    return file.read_text()

@pipeline
def example():
    file = make()
    spoilt = spoil(file)
    return spoilt, read.after(spoilt)(file), file
"""
    project.run(MADE + code)
    spoilt, text, file = upshift.get_run("latest").output
    assert text == file.read_text() == "made"
    assert spoilt.startswith(str(project.home / "scratch"))


def test_copies_go_with_their_task_even_if_it_is_killed(project: Project) -> None:
    code = """
@step
def die(file: Path) -> None:
    Path("copy").write_text(str(file))
    os.kill(os.getpid(), signal.SIGKILL)

@pipeline
def example():
    die(make())
"""
    project.run(MADE + code, expect=1)
    assert (project.folder / "copy").read_text().startswith(str(project.home / "scratch"))
    assert list((project.home / "scratch").iterdir()) == []


def test_copies_go_with_the_next_run_if_everybody_was_killed(project: Project) -> None:
    code = """
import psutil

@step
def kill(file: Path, deadly: bool) -> None:
    if deadly:
        server = psutil.Process().parent().parent()
        server.parent().kill()  # the engine
        server.kill()
        signal.pause()

@pipeline
def example(deadly: bool):
    kill(make(), deadly)
"""
    project.run(MADE + code, "--param", "deadly=true", expect=-signal.SIGKILL)
    assert len(list((project.home / "scratch").iterdir())) == 1
    project.upshift("run", "pipeline.py", "--param", "deadly=false")
    assert list((project.home / "scratch").iterdir()) == []


def test_files_in_containers_go_from_step_to_step_by_content(project: Project) -> None:
    code = """
from dataclasses import dataclass

@dataclass
class Trained:
    weights: Path
    logs: list[Path]

@step
def train() -> Trained:
    files = [Path(name) for name in ("w.bin", "a.log")]
    for file in files:
        file.write_text(file.name)
    return Trained(files[0], files[1:])

@step
def check(trained: Trained, more: dict[str, Path]) -> list[str]:
    Path("w.bin").unlink()
    return [file.read_text() for file in (trained.weights, *trained.logs, more["input"])]

@pipeline
def example(more: dict[str, Path]):
    return check(train(), more)
"""
    (project.folder / "in.txt").write_text("input")
    project.run(MADE + code, "--param", 'more={"input": "in.txt"}')
    assert upshift.get_run("latest").output == ["w.bin", "a.log", "input"]
