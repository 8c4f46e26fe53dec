"""Runs on Kubeflow as users meet them: a stand-in for its API, a bucket, and pods that are processes here.

In containers, by Kubeflow's own SDK, they are in ``tests/engines/test_kubeflow.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buckets import KEYS, BucketHere
from kubeflow_here import KubeflowHere, Local, error, kubeflow_here
from prepared import Prepared
from project import Outcome, Project
from stand_in_registry import StandInRegistry, layer_with_python
from upshift.backends.kubeflow.pipeline import text_of

LONG = 120.0
PODS = Path(__file__).parents[1] / "kubeflow_pods.py"
PIPELINE = """
import os, time

@step
def load(n: int) -> int:
    print(f"loading {n}", flush=True)
    return n

@step(retries=Retry(times=1, on=["user-error"]))
def train(n: int) -> int:
    print("training", flush=True)
    if os.path.exists(os.environ["SWITCHES"] + "/fail"):
        raise ValueError("no luck")
    while os.path.exists(os.environ["SWITCHES"] + "/hold"):
        time.sleep(0.02)
    return n + 1

@pipeline
def training(n: int = 3):
    return train(load(n))
"""


class Kubeflow:
    """A project with a target of Kubeflow, and the server that it names."""

    def __init__(
        self, project: Project, server: KubeflowHere, bucket: BucketHere, image: str, switches: Path
    ) -> None:
        self.project = project
        self.server = server
        self.switches = switches
        self._image = image
        self._bucket = bucket
        self.configure(host=server.address)
        project.write(PIPELINE)

    def configure(self, **options: Any) -> None:
        said = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
        text = f"""
[targets.kf]
backend = "kubeflow"
store = "{self._bucket.address}/team"
options = {{ image = "{self._image}"{", " if said else ""}{said} }}
"""
        self.project.write(text, "upshift.toml", header="")

    def run(self, *arguments: str, expect: int | None, **options: Any) -> Outcome:
        return self.project.upshift(
            "run", "pipeline.py", "--on", "kf", *arguments, expect=expect, timeout=LONG, **options
        )

    def detached(self) -> str:
        """The id of a run that was submitted, and is not followed."""
        self.run("--detach", expect=0)
        return list(self.server.runs)[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.project, name)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with StandInRegistry() as registry:
        registry.add("python", "3.11", layers=(layer_with_python(),))
        yield f"{registry.name}/python:3.11"


@pytest.fixture
def pods() -> bool:
    """Whether runs are done; a test says otherwise."""
    return False


@pytest.fixture
def kubeflow(
    bucket: BucketHere,
    image: str,
    pods: bool,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Kubeflow]:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL_S3": bucket.endpoint}.items():
        monkeypatch.setenv(name, value)
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_SA_TOKEN_PATH", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    switches = tmp_path / "switches"
    switches.mkdir()
    there = {"UPSHIFT_HOME": str(tmp_path / "pods"), "SWITCHES": str(switches)}
    local = Local(Path(sys.executable), PODS, there, str(tmp_path / "kfp")) if pods else None
    with kubeflow_here(local) as server:
        project = Project(tmp_path / "project", tmp_path / "home", prepared)
        yield Kubeflow(project, server, bucket, image, switches)


@contextlib.contextmanager
def started(kubeflow: Kubeflow) -> Iterator[subprocess.Popen[str]]:
    """A run that is followed; nothing of it is left."""
    process = kubeflow.project.start("run", "pipeline.py", "--on", "kf")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


runs_are_done = pytest.mark.parametrize("pods", [True])


# -- From the beginning to the end ---------------------------------------------------------------------


def test_a_detached_run_is_submitted_and_on_record_at_once(kubeflow: Kubeflow) -> None:
    said = kubeflow.run("--detach", "-p", "n=5", "--tag", "nightly", expect=0)
    ((run, asked),) = kubeflow.server.runs.items()
    assert f"upshift logs {run} -f follows it" in said.err
    assert f"{kubeflow.server.address}/#/runs/details/{run}" in said.err
    assert asked["display_name"].startswith("training-")
    assert asked["pipeline_spec"]["pipeline_spec"]["pipelineInfo"]["name"] == "training"
    shown = kubeflow.show(run)
    assert (shown["status"], shown["params"]) == ("running", {"n": 5})
    other = kubeflow.project.with_home(kubeflow.project.folder.parent / "other")
    assert other.show(run)["status"] == "running"
    listed = json.loads(other.upshift("runs", "--json").out)
    assert [(one["id"], one["tags"]) for one in listed] == [(run, ["nightly"])]


@runs_are_done
def test_a_run_is_followed_to_its_end(kubeflow: Kubeflow) -> None:
    said = kubeflow.run("-p", "n=4", expect=0)
    (run,) = kubeflow.server.runs
    assert f"run {run}: training on kf" in said.err
    assert "loading 4" in said.out and "training" in said.out
    assert "completed" in said.err.splitlines()[-1]
    shown = kubeflow.show(run)
    assert shown["status"] == "completed"
    attempt = shown["steps"][1]["tasks"][0]["attempts"][0]
    assert (attempt["backend"], attempt["status"]) == ("kubeflow", "completed")
    assert "loading 4" in kubeflow.upshift("logs", run, "load").out


@runs_are_done
def test_a_run_that_failed_is_resumed_in_kubeflow(kubeflow: Kubeflow) -> None:
    (kubeflow.switches / "fail").touch()
    failed = kubeflow.run(expect=1)
    (run,) = kubeflow.server.runs
    assert "step train failed in attempt 2 (user-error): ValueError: no luck" in failed.err
    assert f"upshift resume {run} continues from the last completed step" in failed.err
    (kubeflow.switches / "fail").unlink()
    refused = kubeflow.upshift("resume", run, "--same-code", expect=2, timeout=LONG)
    assert "cannot be resumed with other options" in refused.err
    done = kubeflow.upshift("resume", run, timeout=LONG)
    assert "loading" not in done.out
    assert list(kubeflow.server.runs) == [run]
    shown = kubeflow.show(run)
    assert shown["status"] == "completed"
    tries = {step["name"]: [a["status"] for a in step["tasks"][0]["attempts"]] for step in shown["steps"]}
    assert tries == {"load": ["completed"], "train": ["failed", "failed", "completed"]}
    assert "already complete" in kubeflow.upshift("resume", run, timeout=LONG).err


@runs_are_done
def test_ctrl_c_terminates_the_run_in_kubeflow(kubeflow: Kubeflow) -> None:
    (kubeflow.switches / "hold").touch()
    with started(kubeflow) as process:
        assert process.stdout is not None
        assert any("training" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONG)
    assert process.returncode == 130, said
    assert "Kubeflow is asked to terminate the run" in said
    ((run, there),) = kubeflow.server.runs.items()
    assert there["state"] == "CANCELED"
    shown = kubeflow.show(run)
    assert shown["status"] == "cancelled"
    assert {step["name"]: step["status"] for step in shown["steps"]} == {
        "load": "completed",
        "train": "cancelled",
    }


def test_cancel_from_another_home_is_told_to_whoever_follows(kubeflow: Kubeflow) -> None:
    other = kubeflow.project.with_home(kubeflow.project.folder.parent / "other")
    with started(kubeflow) as following:
        kubeflow.server.until(
            lambda: any(path.startswith("/apis/v2beta1/runs/") for _, path in kubeflow.server.asked)
        )
        (run,) = kubeflow.server.runs
        assert "is being terminated in Kubeflow" in other.upshift("cancel", run).out
        _, said = following.communicate(timeout=LONG)
    assert following.returncode == 130, said
    assert " has cancelled it" in said
    assert other.show(run)["status"] == "cancelled"
    assert "has ended already: cancelled" in other.upshift("cancel", run).out


def test_logs_of_a_run_that_is_terminated_in_kubeflow_come_to_an_end(kubeflow: Kubeflow) -> None:
    run = kubeflow.detached()
    kubeflow.server.set(run, "CANCELED")
    kubeflow.upshift("logs", run, "-f", timeout=LONG)
    assert kubeflow.show(run)["status"] == "cancelled"


def test_python_that_calls_a_pipeline_follows_it_too(kubeflow: Kubeflow) -> None:
    kubeflow.server.begins = lambda run: kubeflow.server.set(run["run_id"], "FAILED", message="no quota")
    kubeflow.write(PIPELINE.replace("@pipeline", '@pipeline(on="kf")') + "\ntraining()\n")
    failed = kubeflow.project.python("pipeline.py", expect=1, timeout=LONG)
    assert "RunFailed" in failed.err and "Kubeflow: no quota" in failed.err


FLOW = """
from upshift import FlowSpec, step

class Training(FlowSpec):
    @step
    def start(self):
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Training()
"""


@pytest.mark.parametrize("how", [("--on", "kf"), ("--with", "kubeflow"), ("--with", "kubeflow:labels={}")])
def test_a_flow_likewise(kubeflow: Kubeflow, how: tuple[str, str]) -> None:
    kubeflow.write(FLOW, "flow.py", header="")
    kubeflow.project.python("flow.py", "run", *how, "--detach", timeout=LONG)
    (run,) = kubeflow.server.runs
    assert kubeflow.show(run)["pipeline"] == "Training"


# -- Submitted once ------------------------------------------------------------------------------------


def test_an_answer_that_is_lost_makes_no_second_run(kubeflow: Kubeflow) -> None:
    kubeflow.server.lose = 1
    run = kubeflow.detached()
    assert list(kubeflow.server.runs) == [run]
    assert kubeflow.show(run)["status"] == "running"


def test_a_server_that_is_busy_gets_the_run_later(kubeflow: Kubeflow) -> None:
    left = [3]

    def busy(method: str, path: str) -> tuple[int, str] | None:
        if method != "POST" or not left[0]:
            return None
        left[0] -= 1
        return 503, "upstream connect error"

    kubeflow.server.faults.append(busy)
    kubeflow.detached()
    assert len(kubeflow.server.runs) == 1


# -- While it goes on ----------------------------------------------------------------------------------


def test_a_server_that_is_away_for_a_while_loses_nobody(kubeflow: Kubeflow) -> None:
    left = [7]

    def away(method: str, path: str) -> tuple[int, str] | None:
        if not kubeflow.server.runs or method != "GET" or not left[0]:
            return None
        left[0] -= 1
        if not left[0]:
            run = next(iter(kubeflow.server.runs))
            kubeflow.server.set(run, "CANCELED")
        return (429, "slow down") if left[0] % 2 else (503, "no healthy upstream")

    kubeflow.server.faults.append(away)
    said = kubeflow.run(expect=130)
    assert "does not answer at" in said.err and "the run continues, and Upshift will ask again" in said.err
    assert "Kubeflow answers again" in said.err
    assert "it was terminated there, and not by this command" in said.err


def test_a_run_that_is_deleted_is_over(kubeflow: Kubeflow) -> None:
    kubeflow.server.begins = lambda run: kubeflow.server.forget(run["run_id"])
    said = kubeflow.run(expect=130)
    assert "it was deleted in Kubeflow" in said.err
    assert kubeflow.show("latest")["status"] == "cancelled"


def test_what_pods_wait_for_is_told(kubeflow: Kubeflow) -> None:
    told = 'ImagePullBackOff: Back-off pulling image "registry.example.org/ml:1"'
    node = {
        "type": "Pod",
        "phase": "Pending",
        "message": told,
        "name": "training-x7.root.steps.load.executor",
    }
    seen = []

    def looked(method: str, path: str) -> None:
        seen.append(path)
        if sum(one.startswith("/apis/v1beta1/runs/") for one in seen) == 2:
            kubeflow.server.set(next(iter(kubeflow.server.runs)), "FAILED")

    kubeflow.server.begins = lambda run: kubeflow.server.nodes.update({run["run_id"]: {"a": node}})
    kubeflow.server.faults.append(looked)  # type: ignore[arg-type]
    said = kubeflow.run(expect=1)
    assert f"load waits: {told}" in said.err
    assert f"step load failed (infrastructure): Kubeflow: load: {told}" in said.err
    (load, train) = kubeflow.show("latest")["steps"]
    assert (load["status"], train["status"]) == ("failed", "cancelled")


# -- Refused -------------------------------------------------------------------------------------------


def _without_host(kubeflow: Kubeflow) -> None:
    kubeflow.configure()


def _nobody_there(kubeflow: Kubeflow) -> None:
    kubeflow.configure(host="http://127.0.0.1:9")


def _wrong_token(kubeflow: Kubeflow) -> None:
    kubeflow.server.token = "right"
    os.environ["KF_TOKEN"] = "expired-long-ago"
    kubeflow.configure(host=kubeflow.server.address, token="env:KF_TOKEN")


def _no_token(kubeflow: Kubeflow) -> None:
    kubeflow.configure(host=kubeflow.server.address, token="env:NO_SUCH_TOKEN")


def _token_itself(kubeflow: Kubeflow) -> None:
    kubeflow.configure(host=kubeflow.server.address, token="eyJhbGciOi")


def _no_namespace(kubeflow: Kubeflow) -> None:
    kubeflow.server.namespaces = {"ada": "ada"}


def _wrong_namespace(kubeflow: Kubeflow) -> None:
    kubeflow.server.namespaces = {"ada": "ada"}
    kubeflow.configure(host=kubeflow.server.address, namespace="eve")


def _wrong_experiment(kubeflow: Kubeflow) -> None:
    kubeflow.server.experiment("nightly")
    kubeflow.configure(host=kubeflow.server.address, experiment="nigthly")


def _version_1(kubeflow: Kubeflow) -> None:
    kubeflow.server.version = 1


def _another_server(kubeflow: Kubeflow) -> None:
    kubeflow.server.faults.append(lambda method, path: error(404, "Not Found"))


def _login_page(kubeflow: Kubeflow) -> None:
    kubeflow.server.faults.append(lambda method, path: (200, "<html>Log in to Dex</html>"))


def _refused_pipeline(kubeflow: Kubeflow) -> None:
    kubeflow.server.faults.append(
        lambda method, path: (
            error(400, "Failed to create a new run: the spec is too large") if method == "POST" else None
        )
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            _without_host,
            ["'kf' does not give the address of Kubeflow Pipelines", "host =", "upshift export kubeflow"],
        ),
        (_nobody_there, ["Kubeflow does not answer at http://127.0.0.1:9", "upshift doctor kf"]),
        (_wrong_token, ["does not know who asks", "The token of target 'kf'", "env:KF_TOKEN"]),
        (_no_token, ["the variable NO_SUCH_TOKEN is not set"]),
        (_token_itself, ["token does not name the source of the value"]),
        (_no_namespace, ["names no namespace", "namespace ="]),
        (_wrong_namespace, ["Kubeflow refuses it", "Namespace:eve", "Correct namespace"]),
        (_wrong_experiment, ["no experiment 'nigthly'", "nightly"]),
        (_version_1, ["version 1, which has no API v2beta1"]),
        (_another_server, ["is no API of Kubeflow Pipelines", "/pipeline"]),
        (_login_page, ["is no API of Kubeflow Pipelines", "token"]),
        (_refused_pipeline, ["Kubeflow refuses it: Failed to create a new run: the spec is too large"]),
    ],
)
def test_a_run_is_refused_with_what_is_missing(
    kubeflow: Kubeflow, wrong: Any, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KF_TOKEN", "")
    wrong(kubeflow)
    refused = kubeflow.run("--detach", expect=None)
    assert refused.code in (1, 2), refused.text
    assert "Traceback" not in refused.err
    for text in told:
        assert text in refused.err
    assert "eyJhbGciOi" not in refused.err or wrong is not _token_itself
    assert not kubeflow.server.runs


def test_what_a_tool_cannot_honour_is_refused(kubeflow: Kubeflow) -> None:
    refused = kubeflow.run("--max-workers", "2", expect=2)
    assert "cannot honour --max-workers" in refused.err


def test_a_misspelt_option_is_told_before_the_bucket_is_asked(
    kubeflow: Kubeflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    kubeflow.configure(hots="http://kubeflow")
    for command in (("run", "pipeline.py", "--on", "kf"), ("export", "kubeflow", "pipeline.py")):
        refused = kubeflow.upshift(*command, expect=2, timeout=LONG)
        assert "has no option 'hots'" in refused.err and "host" in refused.err


# -- Looked at before ----------------------------------------------------------------------------------


def test_plan_shows_the_very_pipeline_that_a_run_submits(kubeflow: Kubeflow) -> None:
    planned = kubeflow.upshift("plan", "pipeline.py", "--on", "kf", "--show", timeout=LONG)
    run = kubeflow.detached()
    spec = kubeflow.server.runs[run]["pipeline_spec"]
    assert planned.out == text_of([spec["pipeline_spec"], spec["platform_spec"]])


def test_doctor_and_targets_say_what_is_missing(kubeflow: Kubeflow) -> None:
    fine = kubeflow.upshift("targets", timeout=LONG)
    assert f"{kubeflow.server.address}, for one user" in fine.out
    kubeflow.server.namespaces = {"ada": "ada"}
    kubeflow.configure(host=kubeflow.server.address, namespace="ada", experiment="tests")
    kubeflow.server.experiment("tests", "ada")
    fine = kubeflow.upshift("doctor", "kf", expect=None, timeout=LONG)
    assert "namespace ada, experiment tests" in fine.out
    kubeflow.server.token = "right"
    bad = kubeflow.upshift("doctor", "kf", expect=1, timeout=LONG)
    assert "does not know who asks" in bad.out and "token" in bad.out
    kubeflow.configure()
    warned = kubeflow.upshift("targets", timeout=LONG)
    assert "no host is named" in warned.out
