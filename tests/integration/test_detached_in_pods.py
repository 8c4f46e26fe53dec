"""``--detach`` where nodes have nothing of this machine: the engine is a pod, what it needs in a bucket."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from buckets import KEYS, BucketHere
from kubernetes_here import registry_with_python
from kubernetes_scripted import Scripted, scripted
from prepared import Prepared
from project import Project
from skypilot_here import sky_stand_in
from stand_in_registry import StandInRegistry

WAITS = """
    import os, time

    NOW = "as submitted"

    @step(cache=False, retries=0, secrets={"TOKEN": "env:TOKEN"})
    def wait(word: str) -> str:
        print("it waits", flush=True)
        open(f"{GATE}.begun", "w").close()
        while not os.path.exists(GATE):
            time.sleep(0.05)
        return f"{word} {NOW} {len(os.environ['TOKEN'])}"

    @step(on="local", cache=False)
    def here(said: str) -> str:
        print("beside the engine")
        return f"{said}, {'engine' if 'KUBECONFIG' in os.environ else 'nowhere'}"

    @pipeline
    def example(word: str = "x"):
        return here(wait(word))
"""


@pytest.fixture
def server(home_of_pods: Path) -> Iterator[Scripted]:
    with scripted(home_of_pods) as made:
        credentials = {"metadata": {"name": "s3"}, "stringData": dict(KEYS)}
        made.put("secrets", "ml", credentials)
        yield made


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with registry_with_python() as made:
        yield made


@pytest.fixture
def project(
    server: Scripted,
    registry: StandInRegistry,
    bucket: BucketHere,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    made = Project(tmp_path / "project", tmp_path / "home", prepared)
    configure(made, bucket, registry)
    made.write(WAITS.replace("GATE", repr(str(tmp_path / "gate"))))
    return made


def configure(project: Project, bucket: BucketHere, registry: StandInRegistry) -> None:
    project.write(
        f"""
store = "{bucket.address}/store"

[targets.cluster]
backend = "kubernetes"

[targets.cluster.options]
image = "{registry.name}/python:3.11"
secrets = ["s3"]
detach = {{ service_account = "engine" }}
""",
        "upshift.toml",
        header="",
    )


def go_on(project: Project) -> None:
    (project.folder.parent / "gate").touch()


def until(there: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 240
    while not (found := there()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def engines(server: Scripted) -> list[dict[str, Any]]:
    return [job for job in server.all("jobs") if job["metadata"]["name"].startswith("engine-")]


def waits(project: Project) -> None:
    begun = project.folder.parent / "gate.begun"
    until(begun.exists, "the step has not begun")
    begun.unlink()


def test_what_was_submitted_runs_in_pods_and_is_followed_from_another_machine(
    project: Project, server: Scripted, bucket: BucketHere
) -> None:
    submitted = project.upshift("run", "pipeline.py", "--on", "cluster", "--detach", "-p", "word=hello")
    (job,) = engines(server)
    name = job["metadata"]["name"]
    assert f"its engine is job ml/{name} of Kubernetes" in submitted.err
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "engine" and pod["automountServiceAccountToken"] is True
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert "never-to-be-seen" not in json.dumps(job)
    project.write("raise SystemExit('edited')")
    waits(project)
    run = project.show()["id"]
    steps = [job for job in server.all("jobs") if job not in engines(server)]
    assert [job["spec"]["template"]["spec"]["automountServiceAccountToken"] for job in steps] == [False]
    other = project.with_home(project.folder.parent / "other")
    until(lambda: other.show(run)["status"] == "running", "the bucket does not say that it runs")
    refused = other.upshift("resume", run, "--same-code", expect=2)
    assert f"another engine owns run {run}" in refused.err
    go_on(project)
    assert "[wait] it waits\n" in other.upshift("logs", run, "-f").out
    log = other.upshift("logs", run, "--engine", "-f").out
    assert "[here] beside the engine\n" in log and re.search(f"run {run}: completed in", log)
    value = other.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert value == "hello as submitted 16, engine\n"
    listed = bucket.boto3.list_objects_v2(Bucket=bucket.name)["Contents"]
    written = [bucket.boto3.get_object(Bucket=bucket.name, Key=one["Key"])["Body"].read() for one in listed]
    assert len(written) > 10 and not any(b"never-to-be-seen" in content for content in written)


@pytest.mark.timeout(300)
def test_it_is_cancelled_and_resumed_and_a_lost_engine_is_told(project: Project, server: Scripted) -> None:
    project.upshift("run", "pipeline.py", "--on", "cluster", "--detach")
    waits(project)
    project.upshift("cancel", "latest")
    project.upshift("logs", "latest", "--engine", "-f")
    assert project.show()["status"] == "cancelled"
    server.hold = lambda pod: {"phase": "Pending"} if pod["metadata"]["name"].startswith("engine-") else None
    project.upshift("resume", "latest", "--same-code", "--detach")
    assert project.show()["status"] == "pending"
    refused = project.upshift("resume", "latest", "--same-code", expect=2)
    assert "waits for its engine" in refused.err
    project.upshift("cancel", "latest")
    server.hold = lambda pod: None
    go_on(project)
    project.upshift("resume", "latest", "--same-code", "--detach")
    project.upshift("logs", "latest", "--engine", "-f")
    assert project.show()["status"] == "completed"


def test_a_pod_of_an_engine_that_dies_leaves_a_run_that_says_why(project: Project, server: Scripted) -> None:
    def breaks(method: str, path: str) -> tuple[int, str] | None:
        return (403, "jobs is forbidden: cannot create") if (method, broken) == ("POST", True) else None

    broken = False
    project.upshift("run", "pipeline.py", "--on", "cluster", "--detach")
    broken = True
    server.faults.append(breaks)
    shown = until(
        lambda: text if "lost" in (text := project.upshift("show", "latest").out) else None, "nothing is lost"
    )
    assert "lost: " in shown and "forbidden: cannot create" in " ".join(shown.split()), shown


def test_what_the_engine_would_not_reach_is_refused(project: Project, server: Scripted) -> None:
    project.write(
        """
        @step(on="docker")
        def there() -> int:
            return 1

        @step(secrets={"KEY": "file:key"})
        def reads() -> int:
            return 1

        @pipeline
        def example():
            return there()

        @pipeline
        def of_files():
            return reads()
        """
    )
    (project.folder / "key").write_text("secret")
    refused = project.upshift("run", "pipeline.py:of_files", "--on", "cluster", "--detach", expect=2)
    assert "secret KEY (file:key) cannot be brought to an engine on 'cluster'" in refused.err
    assert not engines(server)


def test_doctor_says_which_rights_the_account_of_engines_lacks(project: Project, server: Scripted) -> None:
    server.lets = lambda user, asked: asked["verb"] != "create"
    said = " ".join(project.upshift("doctor", "cluster").out.split())
    assert "--detach: service account ml:engine may not create jobs; create secrets; create services" in said


def test_a_machine_that_is_rented_runs_no_engine(
    project: Project,
    registry: StandInRegistry,
    bucket: BucketHere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "rented").mkdir()
    with sky_stand_in(tmp_path / "rented", monkeypatch):
        project.write(
            f"""
store = "{bucket.address}/store"

[targets.rented]
backend = "skypilot"
options = {{ image = "{registry.name}/python:3.11" }}
""",
            "upshift.toml",
            header="",
        )
        refused = project.upshift("run", "pipeline.py", "--on", "rented", "--detach", expect=2)
    assert "target 'rented' runs no engines" in refused.err and "SkyPilot itself" in refused.err
