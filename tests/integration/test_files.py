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


WRITES = """
from pathlib import Path

@step
def work(data: Path, out: Path) -> str:
    (out / "result.txt").write_text(data.read_text())
    return "done"

@pipeline
def example(data: Path, out: Path):
    return work(data, out)
"""


def test_a_path_that_leads_nowhere_is_refused_before_anything_runs(project: Project) -> None:
    (project.folder / "data.txt").write_text("data")
    params = ("--param", "data=data.txt", "--param", "out=results")
    refused = project.run(WRITES, *params, expect=2)
    assert "Error: out: there is no file or folder 'results'" in refused.err
    assert f"{project.folder}/results is not there" in refused.err
    assert "parameter as str, or pass str(…)" in refused.err
    assert "where: pipeline.py:" in refused.err
    assert upshift.list_runs() == []
    assert project.upshift("plan", "pipeline.py", *params, expect=2).err == refused.err
    (project.folder / "params.json").write_text('{"data": "data.txt", "out": "results"}')
    assert project.upshift("run", "pipeline.py", "--params-file", "params.json", expect=2).err == refused.err


def test_a_path_that_leads_nowhere_is_refused_wherever_it_is(project: Project) -> None:
    project.write("""
from dataclasses import dataclass
from pathlib import Path

import upshift

@dataclass
class Config:
    out: Path

@step
def work(config: dict) -> None: ...

@pipeline
def example(name: str):
    work({"all": [Config(Path(name))]})

try:
    example("results")
except upshift.UsageError as error:
    print(error)
""")
    out = project.python("pipeline.py").out
    assert "config['all'][0].out: there is no file or folder 'results'" in out
    assert "where: pipeline.py:17" in out


def test_what_is_neither_a_file_nor_a_folder_is_refused_too(project: Project) -> None:
    (project.folder / "link").symlink_to("/dev/null")
    (project.folder / "out").mkdir()
    refused = project.run(WRITES, "--param", "data=link", "--param", "out=out", expect=2)
    assert f"the path {project.folder}/link cannot be saved" in refused.err


def test_what_is_written_to_a_copy_and_lost_is_told(project: Project) -> None:
    (project.folder / "data.txt").write_text("data")
    (project.folder / "results").mkdir()
    done = project.run(WRITES, "--param", "data=data.txt", "--param", "out=results")
    assert "upshift: work wrote results/result.txt to its own copy of an input" in done.out
    assert "pass the path as a str" in done.out
    assert list((project.folder / "results").iterdir()) == []

    kept = WRITES.replace("-> str", "-> Path").replace('"done"', "out")
    done = project.run(kept, "--param", "data=data.txt", "--param", "out=results")
    assert "its own copy" not in done.text
    output = upshift.get_run("latest").output
    assert (output / "result.txt").read_text() == "data"

    in_place = WRITES.replace("out: Path", "out: str").replace("(out / ", "(Path(out) / ")
    done = project.run(in_place, "--param", "data=data.txt", "--param", "out=results")
    assert "its own copy" not in done.text
    assert (project.folder / "results" / "result.txt").read_text() == "data"


def test_the_content_of_a_path_decides_whether_a_step_runs_again(project: Project) -> None:
    project.write("""
from pathlib import Path

@step
def read(data: Path) -> str:
    return data.read_text()

@pipeline
def example(data: Path):
    return read(data)
""")
    data = project.folder / "data.txt"
    reasons = []
    for text in ("one", "one", "two"):
        data.write_text(text)
        project.upshift("run", "pipeline.py", "--param", "data=data.txt")
        run = upshift.get_run("latest")
        assert run.output == text
        reasons.append(run["read"].tasks[0].cache_reason or "")
    assert reasons[0] == "first run"
    assert reasons[1].startswith("same code, inputs and environment")
    assert reasons[2] == "input changed: data"


def test_a_path_that_is_a_default_is_like_one_that_is_given(project: Project) -> None:
    project.write("""
from pathlib import Path
from upshift import External

@step
def read(data: Path = Path("data.txt"), more: tuple = (Path("more.txt"),)) -> str:
    return data.read_text() + more[0].read_text()

@step
def look(data: External = External("large.bin")) -> str:
    return Path(data.uri).read_text()

@pipeline
def example():
    return read(), look()
""")
    for name in ("data.txt", "more.txt", "large.bin"):
        (project.folder / name).write_text("one")
    project.upshift("run", "pipeline.py")
    (project.folder / "more.txt").write_text("other")
    (project.folder / "large.bin").write_text("another")
    project.upshift("run", "pipeline.py")
    run = upshift.get_run("latest")
    assert run.output == ("oneother", "another")
    assert run["read"].tasks[0].cache_reason == "input changed: more"
    assert run["look"].tasks[0].cache_reason == "input changed: data"
    (project.folder / "data.txt").unlink()
    said = project.upshift("run", "pipeline.py", expect=2).err
    assert "Error: data, by default: there is no file or folder 'data.txt'" in said
