"""Pipelines as chains of SkyPilot's tasks: what is written, what is refused, and what its machines do."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from buckets import KEYS, BucketHere
from prepared import Prepared
from project import Project
from stand_in_registry import StandInRegistry
from upshift.backends.skypilot.task import Link, grants, pipeline_of
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry

GOLDEN = Path(__file__).parent / "skypilot_chains" / "training.yaml"
ID = "sky-managed-2026-11-24-20-59-01-123456_scoring_{}_7-{}"
PIPELINE = """
from upshift import ResourceSettings, pipeline, step

@step
def load(n: int) -> list[int]:
    print("loading", n)
    return list(range(n))

@step(retries=2, settings={"resources": ResourceSettings(accelerator="H100:8", cpu_count=64, memory="400GB")})
def train(items: list[int]) -> int:
    return sum(items)

@step
def is_good(loss: int) -> bool:
    return loss > 100

@step
def publish(loss: int) -> str:
    raise RuntimeError("never")

@pipeline
def scoring(n: int = 4):
    loss = train(load(n))
    publish.when(is_good(loss))(loss)
"""

PLAIN = PIPELINE.replace('accelerator="H100:8", cpu_count=64, memory="400GB"', "cpu_count=1")
"""For machines that are this one."""


def link(node: str, request: ResourceSettings, **more: object) -> Link:
    fields = {
        "node": node,
        "command": ("python3", "-c", "BOOT\nSTRAP", "s3://b/blobs/ab", "-m", "m", "s3://b", "sha256:01"),
        "image": "registry.example.org/ml/train@sha256:00",
        "granted": grants(request, {})[0],
        "settings": {"infra": "aws"},
        "environment": {"AWS_REGION": "eu-west-1"},
    }
    return Link(**{**fields, **more})  # type: ignore[arg-type]


def test_a_chain_has_a_task_for_each_step_with_its_own_machine() -> None:
    links = [
        link("load", ResourceSettings(cpu_count=2)),
        link("train", ResourceSettings(accelerator="H100:8", memory="400GB"), retry=Retry(times=2)),
    ]
    shown = pipeline_of("training", links, file="train.py")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()
    head, load, train = yaml.safe_load_all(shown)
    assert head == {"name": "training"}
    assert (load["name"], load["resources"]["cpus"]) == ("load", "2+")
    assert train["resources"]["accelerators"] == "H100:8"
    assert train["resources"]["job_recovery"] == {"max_restarts_on_errors": 2}
    assert load["run"].count("upshift end") == 1 and train["run"].count("upshift end") == 2


@pytest.fixture
def project(
    bucket: BucketHere, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project whose target rents machines; SkyPilot is not here."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL_S3": bucket.endpoint}.items():
        monkeypatch.setenv(name, value)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as layer:
        python = tarfile.TarInfo("usr/local/bin/python3.11")
        python.mode = 0o755
        layer.addfile(python)
        link = tarfile.TarInfo("usr/local/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, "python3.11"
        layer.addfile(link)
    made = Project(tmp_path / "project", tmp_path / "home", prepared)
    with StandInRegistry() as registry:
        registry.add("base", "1", layers=(packed.getvalue(),))
        made.write(
            f"""
[targets.sky]
backend = "skypilot"
store = "{bucket.address}/team"
options = {{ image = "{registry.name}/base:1", infra = "aws" }}

[targets.here]
backend = "local"
store = "{bucket.address}/team"
""",
            "upshift.toml",
            header="",
        )
        yield made


def exported(project: Project, text: str, *, expect: int = 0) -> str:
    project.write(text, "flow.py", header="")
    done = project.upshift("export", "skypilot", "flow.py", "-o", "task.yaml", expect=expect)
    return done.text


def machine(task: dict[str, str], number: int, home: Path) -> subprocess.CompletedProcess[str]:
    """What a rented machine does with a task."""
    passed = (*KEYS, "AWS_ENDPOINT_URL_S3", "LANG")
    (home / "bin").mkdir(parents=True, exist_ok=True)
    python = home / "bin" / "python3"
    if not python.exists():
        python.symlink_to(sys.executable)
    names = ["load", "train", "is_good", "publish"][: number + 1]
    ids = [ID.format(name, position) for position, name in enumerate(names)]
    return subprocess.run(
        ["bash", "-c", task["run"]],
        env={
            **{name: os.environ[name] for name in passed if name in os.environ},
            **task.get("envs", {}),
            "PATH": f"{home / 'bin'}:/usr/bin:/bin",
            "HOME": str(home),
            "UPSHIFT_NODE_HOME": str(home / "node"),
            "SKYPILOT_TASK_ID": ids[-1],
            "SKYPILOT_TASK_IDS": "\n".join(ids),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_its_machines_do_one_step_each_of_the_same_run(project: Project, tmp_path: Path) -> None:
    assert "wrote task.yaml" in exported(project, PLAIN)
    name, *tasks = yaml.safe_load_all((project.folder / "task.yaml").read_text())
    assert name == {"name": "scoring"}
    assert [task["name"] for task in tasks] == ["load", "train", "is_good", "publish"]
    for number, task in enumerate(tasks):  # each on another machine
        done = machine(task, number, tmp_path / f"machine-{number}")
        assert done.returncode == 0, done.stderr
    run = ID.format("load", 0).replace("_", "-")
    shown = project.upshift("show", run, "--json").out
    found = yaml.safe_load(shown)
    assert found["status"] == "completed"
    statuses = {step["name"]: step["tasks"][0]["status"] for step in found["steps"]}
    assert statuses == {
        "load": "completed", "train": "completed", "is_good": "completed", "publish": "skipped",
    }  # fmt: skip
    assert "loading 4" in project.upshift("logs", run, "load").out


def test_a_step_that_fails_ends_the_run(project: Project, tmp_path: Path) -> None:
    exported(project, PLAIN.replace("return list(range(n))", 'raise ValueError("no data")'))
    _, load, *_ = yaml.safe_load_all((project.folder / "task.yaml").read_text())
    done = machine(load, 0, tmp_path / "machine")
    assert done.returncode == 1
    run = ID.format("load", 0).replace("_", "-")
    assert yaml.safe_load(project.upshift("show", run, "--json").out)["status"] == "failed"


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (
            "    loss = train(load(n))\n    publish.when(is_good(loss))(loss)\n",
            "    train.map(items=[[1], [2]])\n",
            "is mapped",
        ),
        ("cpu_count=1", "gpu_count=8", "8 × GPU"),
        ("@step(retries=2,", '@step(secrets={"TOKEN": "env:HOME"},', "train has secrets"),
        ("@step(retries=2,", '@step(on="here",', "and an exported pipeline on SkyPilot alone"),
    ],
)
def test_what_a_chain_cannot_express_is_refused(project: Project, before: str, after: str, what: str) -> None:
    assert what in exported(project, PLAIN.replace(before, after), expect=2)
    assert not (project.folder / "task.yaml").exists()
