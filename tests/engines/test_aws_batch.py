"""Steps as jobs of AWS Batch, as moto has it: each job is a real container, and S3 is beside it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from image_kit import ImageMaker, containers_removed
from registries import LoopbackRegistry

from batch_here import BatchHere, batch_here
from buckets import KEYS
from project import Project
from upshift.images.containers.engine import ContainerEngine

LONG = 240.0
"""Seconds after which what was promised is not believed in any more."""


@pytest.fixture(scope="module")
def here(running_registry: LoopbackRegistry) -> Iterator[BatchHere]:
    """AWS Batch, whose machines are logged in to the registry."""
    with batch_here({"DOCKER_CONFIG": str(running_registry.login)}) as made:
        yield made


@pytest.fixture(scope="module")
def image(image_maker: ImageMaker) -> str:
    """An image with the running Python, whose containers have by it what they have of a role and of ECS."""
    return image_maker.push("batch/steps:1", environment={**KEYS, "HF_TOKEN": "hf_abcdefgh"})


@pytest.fixture
def project(
    here: BatchHere,
    image: str,
    registry: LoopbackRegistry,
    docker: ContainerEngine,
    session_label: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Project]:
    for name, value in here.environment.items():
        monkeypatch.setenv(name, value)
    made = Project(tmp_path / "project", tmp_path / "home")
    made.write(
        f"""
store = "{here.bucket.address}/{tmp_path.name}"

[targets.batch]
backend = "aws-batch"
registry = "{registry.address}/batch"
options = {{ queue = "{here.queue}", iam_role = "{here.role}", region = "{KEYS["AWS_REGION"]}" }}
""",
        "upshift.toml",
        header="",
    )
    with containers_removed(docker, session_label):  # as moto does once it has said that a job has ended
        yield made


SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hugging-face"


def settings(image: str) -> str:
    return f'settings={{"docker": DockerSettings(parent_image="{image}")}}'


def until(there: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONG
    while not (found := there()):
        assert time.monotonic() < deadline, f"not in {LONG:g} s: {what}"
        time.sleep(0.05)
    return found


def test_steps_run_as_jobs_in_their_image_and_a_mapped_one_is_an_array(
    project: Project, here: BatchHere, image: str
) -> None:
    before = len(here.jobs())
    project.run(
        f"""
        import os

        @step
        def numbers() -> list[int]:
            print("here")
            return [1, 2, 3]

        @step
        def square(n: int) -> dict:
            return {{"n": n * n, "order": [name for name in os.environ if "ORDER" in name + os.environ[name]],
                    "job": os.environ["AWS_BATCH_JOB_ID"]}}

        @step(on="local")
        def total(squares: list) -> int:
            assert [one["n"] for one in squares] == [1, 4, 9] and not any(one["order"] for one in squares)
            assert len({{one["job"].partition(":")[0] for one in squares}}) == 1
            return sum(one["n"] for one in squares)

        @pipeline({settings(image)})
        def example():
            return total(square.map(n=numbers()))
        """,
        "--on",
        "batch",
        timeout=LONG,
    )
    run = project.show()
    assert run["status"] == "completed"
    attempt = project.attempt("numbers")
    assert attempt["backend"] == "aws-batch"
    assert (attempt["granted"]["cpu_count"], attempt["granted"]["memory"]) == (1, 4 << 30)
    assert project.upshift("logs", "latest", "numbers").out.strip() == "here"
    jobs = here.jobs()[before:]
    described = here.client.describe_jobs(jobs=[job["jobId"] for job in jobs])["jobs"]
    arrays = [job for job in described if "size" in job.get("arrayProperties", {})]
    assert [job["arrayProperties"]["size"] for job in arrays] == [3]
    assert len({job["jobDefinition"] for job in described}) == 2  # an array's command has a further argument


def test_a_failure_is_told_with_its_own_words_and_the_plan_shows_the_requests(
    project: Project, image: str
) -> None:
    project.write(f"""
        import os

        @step({settings(image)}, secrets={{"HF_TOKEN": "aws:{SECRET}"}})
        def breaks() -> int:
            print("with", os.environ["HF_TOKEN"])
            raise ValueError("no such luck")

        @pipeline
        def example():
            return breaks()
    """)
    shown = project.upshift("plan", "pipeline.py", "--on", "batch", "--show").out
    start = shown.index('{\n  "RegisterJobDefinition"')
    requests = json.JSONDecoder().raw_decode(shown[start:])[0]
    name = requests["RegisterJobDefinition"]["containerProperties"]["image"]
    assert name.startswith(f"{image.rpartition(':')[0]}@sha256:")
    secrets = requests["RegisterJobDefinition"]["containerProperties"]["secrets"]
    assert secrets == [{"name": "HF_TOKEN", "valueFrom": SECRET}]
    variables = {v["name"]: v["value"] for v in requests["SubmitJob"]["containerOverrides"]["environment"]}
    assert variables["UPSHIFT_SPEC"].startswith("s3://store/")
    said = project.upshift("run", "pipeline.py", "--on", "batch", expect=1, timeout=LONG)
    assert "no such luck" in said.err and "pipeline.py:" in said.err
    assert project.attempt("breaks")["reason"] == "user-error"
    assert project.upshift("logs", "latest", "breaks").out.startswith("with ***")
    project.write("""
        @step(secrets={"HF_TOKEN": "env:HOME"})
        def sees() -> int:
            return 1

        @pipeline
        def example():
            return sees()
    """)
    refused = project.upshift("run", "pipeline.py", "--on", "batch", expect=2)
    assert "cannot bring it to the step" in refused.err and "It takes aws:…" in refused.err


def test_a_step_on_several_nodes_is_one_job_whose_nodes_meet(
    project: Project, here: BatchHere, image: str
) -> None:
    before = len(here.jobs())
    project.run(
        f"""
        from upshift import FlowSpec, current, parallel

        class Gang(FlowSpec):
            @step(on="local")
            def start(self):
                self.next(self.work, num_parallel=3)

            @parallel
            @step({settings(image)})
            def work(self):
                self.seat = (current.parallel.node_index, current.parallel.num_nodes)
                print("node", current.parallel.node_index)
                self.next(self.join)

            @step(on="local")
            def join(self, inputs):
                assert sorted(one.seat for one in inputs) == [(0, 3), (1, 3), (2, 3)]
                self.next(self.end)

            @step(on="local")
            def end(self):
                pass
        """,
        "--on",
        "batch",
        timeout=LONG,
    )
    assert project.show()["status"] == "completed"
    assert project.attempt("work")["granted"]["nodes"] == 3
    logs = project.upshift("logs", "latest", "work").out
    assert all(f"node {number}" in logs for number in range(3))
    (job,) = here.jobs()[before:]
    (described,) = here.client.describe_jobs(jobs=[job["jobId"]])["jobs"]
    assert described["nodeProperties"]["numNodes"] == 3


def test_a_run_whose_engine_was_killed_goes_on_with_its_job(
    project: Project, here: BatchHere, image: str, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    project.write(f"""
        import os, time

        @step({settings(image)[:-1]}, "aws-batch": {{"host_volumes": ["{shared}:/mnt/shared"]}}}})
        def wait() -> str:
            open("/mnt/shared/waits", "w").close()
            while not os.path.exists("/mnt/shared/go"):
                time.sleep(0.05)
            return "done"

        @pipeline
        def example():
            return wait()
    """)
    before = len(here.jobs())
    engine = project.start("run", "pipeline.py", "--on", "batch")
    until((shared / "waits").exists, "the step runs")
    engine.send_signal(signal.SIGKILL)
    engine.communicate()
    (shared / "go").touch()
    project.upshift("resume", "latest", timeout=LONG)
    assert project.show()["status"] == "completed"
    assert project.attempt("wait")["number"] == 1 and len(here.jobs()) == before + 1


def test_what_a_container_printed_is_shown_where_no_supervisor_has_said_a_word(
    project: Project, image_maker: ImageMaker
) -> None:
    bare = image_maker.push("batch/bare:1")  # no credentials, and no role in reach
    said = project.run(
        f"""
        @step({settings(bare)})
        def lost() -> int:
            return 1

        @pipeline
        def example():
            return lost()
        """,
        "--on",
        "batch",
        expect=1,
        timeout=LONG,
    )
    assert "exit code 1" in said.err and "it printed: upshift: " in said.err and "credentials" in said.err
    assert project.attempt("lost")["reason"] == "infrastructure"


def test_the_engine_itself_is_a_job_and_whoever_submitted_it_may_go(
    project: Project, here: BatchHere, image: str, image_maker: ImageMaker, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    engine = image_maker.push("batch/engine:1", environment={**KEYS, "AWS_ENDPOINT_URL": here.endpoint})
    text = (project.folder / "upshift.toml").read_text()
    project.write(
        text.replace("options = {", f'options = {{ detach = {{ image = "{engine}" }},'),
        "upshift.toml",
        header="",
    )
    project.write(f"""
        import os, time

        @step({settings(image)[:-1]}, "aws-batch": {{"host_volumes": ["{shared}:/mnt/shared"]}}}})
        def wait() -> str:
            open("/mnt/shared/waits", "w").close()
            while not os.path.exists("/mnt/shared/go"):
                time.sleep(0.05)
            return os.environ["AWS_BATCH_JOB_ID"]

        @step(on="local")
        def beside(job: str) -> list[str]:
            return [job, os.environ["AWS_BATCH_JOB_ID"]]

        @pipeline
        def example():
            return beside(wait())
    """)
    before = len(here.jobs())
    submitted = project.upshift("run", "pipeline.py", "--on", "batch", "--detach", timeout=LONG)
    job = here.jobs()[before]
    assert f"its engine is job {job['jobId']} of AWS Batch" in submitted.err
    until((shared / "waits").exists, "the step runs")
    (shared / "go").touch()
    log = project.upshift("logs", "latest", "--engine", "-f", timeout=LONG).out
    assert "wait: completed in" in log and "beside: completed in" in log
    assert project.show()["status"] == "completed"
    value = project.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert job["jobId"] in value
