"""Steps with images on a real Slurm, in containers of Docker and Podman that its jobs start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from registries import LoopbackRegistry

from project import Project
from slurm_here import slurm_here

STEPS = """
    image = DockerSettings(parent_image={parent!r}, requirements=["six==1.17.0"])

    @step(on="local")
    def load() -> int:
        return 20

    @step(settings={{"docker": image, "resources": ResourceSettings(cpu_count=1, memory="400MB")}})
    def train(x: int) -> dict:
        import os, pathlib, sys, six
        print("training with six", six.__version__)
        held = pathlib.Path("/data/numbers").read_text()
        return dict(y=2 * x, python=sys.executable, job=os.environ["SLURM_JOB_ID"], held=held)

    @step(settings={{"docker": image}}, cache=False, grace=30)
    def wait(x: dict) -> None:
        import signal
        signal.signal(signal.SIGTERM, lambda *_: print("it was told to end", flush=True) or exit())
        print("it waits", flush=True)
        signal.pause()

    @step
    def beside(trained: dict) -> dict:
        import sys
        return dict(trained, here=sys.executable)

    @pipeline
    def example():
        return beside(train(load()))

    @pipeline
    def stopped():
        wait(train(load()))
"""


@pytest.fixture(params=["docker", "podman"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    request.getfixturevalue(name)
    return name


@pytest.fixture
def project(
    kind: str,
    tmp_path: Path,
    upshift_home: Path,
    registry: LoopbackRegistry,
    base_image_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    monkeypatch.setenv("SLURM_CONF", slurm_here().environment["SLURM_CONF"])
    conf = tmp_path / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(conf))
    made = Project(tmp_path / "project", upshift_home)
    data = tmp_path / "data"
    data.mkdir()
    (data / "numbers").write_text("1 2 3")
    made.write(
        f"""
        [targets.cluster]
        backend = "slurm"
        registry = "{registry.address}/team"
        mounts = {{ "/data" = "{data}" }}
        options = {{ containers = "{kind}" }}
        """,
        "upshift.toml",
        header="",
    )
    made.write(STEPS.format(parent=base_image_name))
    return made


def test_a_step_runs_in_its_image_on_a_node(project: Project, kind: str) -> None:
    import upshift

    done = project.upshift("run", "pipeline.py:example", "--on", "cluster", timeout=250)
    assert "[train] training with six 1.17.0" in done.out
    trained = upshift.get_run("latest").output
    assert (trained["y"], trained["held"]) == (40, "1 2 3")
    assert trained["python"].startswith("/usr/local/bin/python") and trained["job"]
    assert trained["here"] != trained["python"]  # a step without an image runs as ever
    attempt = json.loads(project.upshift("show", "latest", "--json").out)["steps"][1]["tasks"][0]["attempts"][
        0
    ]
    assert attempt["backend"] == "slurm" and "/team/" in attempt["image"]
    script = project.upshift("plan", "pipeline.py:example", "--on", "cluster", "--no-cache", "--show").out
    assert f"exec {kind} run --rm" in script and attempt["image"] in script
    # Signals reach the supervisor in its container, which lets the step end.
    with subprocess.Popen(
        [sys.executable, "-m", "upshift", "run", "pipeline.py:stopped", "--on", "cluster"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert any("[wait] it waits" in line for line in run.stdout)
        run.send_signal(signal.SIGINT)
        assert "it was told to end" in run.stdout.read()
    assert run.returncode == 130
