"""Exported pipelines: Kubeflow's own SDK reads them, and ``kfp.local`` runs each step in a real container."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from image_kit import ImageMaker, containers_removed
from registries import LoopbackRegistry

from buckets import KEYS, BucketHere
from kubeflow_here import Local, kubeflow_here
from project import Project
from upshift.images.containers.engine import ContainerEngine

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LONG = 500.0
"""Seconds after which what was promised is not believed in any more, on a machine that is busy."""
pytestmark = pytest.mark.timeout(600)


@attrs.frozen
class Kubeflow:
    """A project whose target is Kubeflow, and Kubeflow's SDK to run what is exported from it."""

    project: Project
    python: Path
    environment: dict[str, str]
    root: Path
    store: str

    def export(self, *arguments: str) -> Path:
        """A pipeline as a file."""
        file = self.project.folder / "pipeline.yaml"
        self.project.upshift("export", "kubeflow", *arguments, "-o", str(file), timeout=LONG)
        return file

    def run(self, file: Path, **arguments: Any) -> str:
        """Run a file to its end; gives what that printed."""
        said = {"arguments": arguments, "environment": self.environment, "root": str(self.root)}
        done = subprocess.run(
            [self.python, HERE / "run_kubeflow.py", file, json.dumps(said)],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def latest(self) -> dict[str, Any]:
        """How the newest run stands, as the user sees it who exported it."""
        shown = self.project.upshift("show", "latest", "--json", timeout=LONG)
        found: dict[str, Any] = json.loads(shown.out)
        return found


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python that has ``kfp``."""
    found = next(iter(ROOT.glob(".engines/kubeflow-*/bin/python")), None)
    if found is None:
        pytest.skip("the SDK of Kubeflow Pipelines is not installed: make engines")
    return found


@pytest.fixture(scope="module")
def image(image_maker: ImageMaker) -> str:
    return image_maker.push("kubeflow/steps:1", environment=KEYS)


@pytest.fixture
def kubeflow(
    python: Path,
    bucket: BucketHere,
    image: str,
    registry: LoopbackRegistry,
    docker: ContainerEngine,
    session_label: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Kubeflow]:
    environment = {**KEYS, "AWS_ENDPOINT_URL_S3": bucket.endpoint}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    project = Project(tmp_path / "project", tmp_path / "home")
    project.write(
        f"""
[targets.kf]
backend = "kubeflow"
store = "{bucket.address}/team"
registry = "{registry.address}/kubeflow"
options = {{ image = "{image}" }}
""",
        "upshift.toml",
        header="",
    )
    with containers_removed(docker, session_label):
        yield Kubeflow(project, python, environment, tmp_path / "kfp", f"{bucket.address}/team")


def statuses(run: dict[str, Any]) -> dict[str, list[str]]:
    return {step["name"]: [task["status"] for task in step["tasks"]] for step in run["steps"]}


FUNCTIONS = """
from upshift import pipeline, step

@step
def load(n: int) -> list[int]:
    print(f"loading {n}")
    return list(range(n))

@step
def score(item: int, factor: int) -> int:
    return item * factor

@step
def is_good(scores: list[int]) -> bool:
    return sum(scores) > 5

@step
def publish(scores: list[int]) -> str:
    return f"published {scores}"

@step
def complain() -> str:
    return "never"

@step
def is_bad(scores: list[int]) -> bool:
    return False

@step
def after_all(text: str) -> str:
    return text

@pipeline
def scoring(n: int = 3, factor: int = 2):
    items = load(n)
    scores = score.map(item=items, factor=factor)
    published = publish.when(is_good(scores))(scores)
    complained = complain.when(is_bad(scores))()
    after_all(complained)
    return published
"""


def test_a_pipeline_of_functions_runs_in_containers_that_kubeflow_starts(kubeflow: Kubeflow) -> None:
    kubeflow.project.write(FUNCTIONS, header="")
    file = kubeflow.export("pipeline.py")
    said = kubeflow.run(file, factor=5)
    run = kubeflow.latest()
    assert run["status"] == "completed", said
    assert run["params"]["factor"] == 5
    assert statuses(run) == {
        "load": ["completed"],
        "score": ["completed"] * 3,
        "is_good": ["completed"],
        "publish": ["completed"],
        "is_bad": ["completed"],
        "complain": ["skipped"],
        "after_all": ["skipped"],
    }
    attempt = run["steps"][0]["tasks"][0]["attempts"][0]
    assert (attempt["backend"], attempt["asked"]["cpu_count"]) == ("kubeflow", None)
    assert attempt["used"]["cpu_seconds"] > 0
    printed = kubeflow.project.upshift("logs", "latest", "load", timeout=LONG)
    assert "loading 3" in printed.out
    page = kubeflow.project.folder / "report.html"
    kubeflow.project.upshift("report", "latest", "-o", str(page), timeout=LONG)
    assert "complain" in page.read_text()
    kubeflow.project.write("import upshift\nprint(upshift.get_run('latest').output)\n", "look.py", header="")
    assert "published [0, 5, 10]" in kubeflow.project.python("look.py", timeout=LONG).out


FLOW = """
import os

from upshift import FlowSpec, Parameter, catch, step

class Growing(FlowSpec):
    rows = Parameter("rows", default=2)

    @step
    def start(self):
        self.groups = [[n] * self.rows for n in range(2)]
        self.next(self.group, foreach="groups")

    @step
    def group(self):
        self.items = self.input
        self.next(self.item, foreach="items")

    @step
    def item(self):
        self.value = self.input + 1
        self.next(self.joined)

    @step
    def joined(self, inputs):
        self.total = sum(i.value for i in inputs)
        self.next(self.all_joined)

    @step
    def all_joined(self, inputs):
        self.total = sum(i.total for i in inputs)
        self.size = "large" if self.total > 100 else "small"
        self.next({"small": self.small, "large": self.large}, condition="size")

    @catch(var="why")
    @step
    def small(self):
        if self.total < 10:
            os._exit(7)
        self.next(self.end)

    @step
    def large(self):
        self.next(self.end)

    @step
    def end(self):
        print("the end:", self.total, self.why is None)
"""


def test_a_flow_with_foreaches_in_each_other_and_a_switch(kubeflow: Kubeflow) -> None:
    kubeflow.project.write(FLOW, "flow.py", header="")
    file = kubeflow.export("flow.py")
    said = kubeflow.run(file, rows=1)
    run = kubeflow.latest()
    assert run["status"] == "completed", said
    once = ("group.0", "group.1", "item.0", "item.1", "joined.0", "joined.1")
    names = ("start", *once, "all_joined", "small", "end")
    assert statuses(run) == {name: ["completed"] for name in names}
    (small,) = next(step["tasks"] for step in run["steps"] if step["name"] == "small")
    assert [attempt["status"] for attempt in small["attempts"]] == ["failed", "completed"]
    assert "the end: 3 False" in kubeflow.project.upshift("logs", "latest", "end", timeout=LONG).out


FAILING = """
from upshift import Retry, current, pipeline, step

@step(retries=Retry(times=1, on=["user-error"]))
def flaky() -> int:
    if current.attempt == 1:
        raise ValueError("not yet")
    return current.attempt

@step(retries=Retry(times=2, on=["preempted"]))
def hopeless(n: int) -> int:
    raise KeyError("never")

@step
def needs_it(n: int) -> int:
    return n

@pipeline
def failing():
    return needs_it(hopeless(flaky()))
"""


def test_what_fails_is_tried_again_for_the_causes_that_are_worth_it(kubeflow: Kubeflow) -> None:
    kubeflow.project.write(FAILING, header="")
    said = kubeflow.run(kubeflow.export("pipeline.py"))
    run = kubeflow.latest()
    assert run["status"] == "failed", said
    assert statuses(run) == {"flaky": ["completed"], "hopeless": ["failed"], "needs_it": ["cancelled"]}
    attempts = {s["name"]: [a["status"] for a in s["tasks"][0]["attempts"]] for s in run["steps"]}
    assert attempts == {"flaky": ["failed", "completed"], "hopeless": ["failed"], "needs_it": []}
    assert "hopeless is not tried again after user-error: on=['preempted']" in said


def test_the_sdk_of_kubeflow_reads_what_is_written_for_it(python: Path) -> None:
    golden = sorted((ROOT / "tests/unit/backends/kubeflow_pipelines").glob("*.yaml"))
    assert len(golden) == 3
    for file in golden:
        done = subprocess.run(
            [python, HERE / "run_kubeflow.py", file, "{}"],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_single_steps_are_refused(kubeflow: Kubeflow) -> None:
    kubeflow.project.write(FUNCTIONS.replace("@step\ndef load", '@step(on="kf")\ndef load'), header="")
    file = kubeflow.project.folder / "upshift.toml"
    file.write_text(f'store = "{kubeflow.store}"\n{file.read_text()}')
    refused = kubeflow.project.upshift("run", "pipeline.py", expect=2, timeout=LONG)
    assert "takes whole pipelines" in refused.err
    assert "upshift run FILE --on kf" in refused.err
    planned = kubeflow.project.upshift("plan", "pipeline.py", "--on", "kf", timeout=LONG)
    assert "kf (kubeflow)" in planned.out


def test_a_run_is_submitted_and_followed(kubeflow: Kubeflow) -> None:
    kubeflow.project.write(FUNCTIONS, header="")
    program = HERE / "run_kubeflow.py"
    local = Local(kubeflow.python, program, kubeflow.environment, str(kubeflow.root))
    file = kubeflow.project.folder / "upshift.toml"
    with kubeflow_here(local) as server:
        file.write_text(file.read_text().replace("options = {", f'options = {{ host = "{server.address}",'))
        said = kubeflow.project.upshift("run", "pipeline.py", "--on", "kf", "-p", "factor=5", timeout=LONG)
        (run,) = server.runs
        assert server.runs[run]["state"] == "SUCCEEDED", server.printed[run]
    assert "loading 3" in said.out
    assert "complain: skipped" in said.err
    shown = kubeflow.latest()
    assert (shown["id"], shown["status"]) == (run, "completed")
    assert statuses(shown)["score"] == ["completed"] * 3
