"""A step that waits for a device is shown to wait, for what, and afterwards for how long."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from nvml import FakeNvml, Gpu
from project import UPSHIFT, Project

WAITING = """
@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def train() -> int:
    open("told", "w").close()
    open("go").close()
    return 1

@pipeline
def training():
    return train()
"""


@pytest.fixture
def gpu(fake_nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU."""
    for name, value in fake_nvml([Gpu()]).environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def start(project: Project) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts ``upshift ARGS``, and ends it with the test."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(project.start("run", "pipeline.py"))
        return started[-1]

    yield start
    for engine in started:
        engine.kill()
        engine.communicate()


def test_what_waits_is_told_from_what_runs(
    project: Project, gpu: None, start: Callable[[], subprocess.Popen[str]]
) -> None:
    project.write(WAITING)
    told, go = project.fifo("told"), project.fifo("go")
    first = start()
    told.read_text()
    has_it = project.show()["id"]
    second = start()
    assert second.stderr is not None
    line = next(line for line in second.stderr if "waits for" in line)
    assert f"GPU 0 (NVIDIA H100 80GB HBM3) is held by train of run {has_it}" in line

    shown = project.upshift("show", "latest", env={"COLUMNS": "40"}).out
    assert "waits for 1 × GPU: GPU 0" in " ".join(shown.split())
    assert "granted  –" in shown
    attempt = project.attempt("train")
    assert attempt["status"] == "pending" and attempt["granted"] is None
    top = json.loads(project.upshift("top", "--json").out)["running"]
    (waits,) = (one for one in top if one["waits"] is not None)
    assert waits["granted"] is None and "GPU 0 (NVIDIA H100 80GB HBM3) is held by" in waits["waits"]
    assert "train  waiting: waits for" in project.upshift("top").out

    os.close(os.open(go, os.O_WRONLY))
    assert first.wait(60) == 0
    told.read_text()
    os.close(os.open(go, os.O_WRONLY))
    assert second.wait(60) == 0
    waited = project.attempt("train")["granted"]["waited"]
    assert waited >= 1.0
    shown = project.upshift("show", "latest", env={"COLUMNS": "40"}).out
    assert "waits for" not in shown and "waited " in " ".join(shown.split())
    subprocess.run([UPSHIFT, "report", "latest", "-o", "page.html"], cwd=project.folder, check=True)
    assert 'class="bar waiting"' in (project.folder / "page.html").read_text()
