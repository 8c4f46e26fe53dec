"""The size of native thread pools is what was said, by whom it was said."""

from __future__ import annotations

from typing import Any

import pytest

import upshift
from project import Project

CODE = """
import os
import numpy
{script}

{launched}
@step(settings={{"docker": DockerSettings(runtime_environment={environment}), "resources": {resources}}})
def look() -> dict:
    from threadpoolctl import threadpool_info
    pools = sorted({{pool["num_threads"] for pool in threadpool_info()}})
    return {{"variable": os.environ.get("OMP_NUM_THREADS"), "pools": pools}}

@pipeline
def example():
    return look()
"""
HEADER = """
from upshift import DockerSettings, ResourceSettings, pipeline, run_with_accelerate, run_with_torchrun, step
"""
SEVEN = {"OMP_NUM_THREADS": "7"}
TWO = "@run_with_torchrun(nproc_per_node=2)"
ALIVE = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"


def looked(
    project: Project,
    *,
    launched: str = "",
    environment: dict[str, str] | None = None,
    resources: str = "None",
    shell: dict[str, str] | None = None,
    script: str = "",
) -> dict[str, Any]:
    code = CODE.format(launched=launched, environment=environment or {}, resources=resources, script=script)
    project.write(code, header=HEADER)
    project.upshift("run", "pipeline.py", env=shell)
    found: dict[str, Any] = upshift.get_run("latest").output
    return found


@pytest.mark.parametrize("resources", ["None", "ResourceSettings(cpu_count=1)"])
@pytest.mark.parametrize("script", ["", ALIVE], ids=["forked", "fresh"])
def test_what_a_step_sets_stays(project: Project, resources: str, script: str) -> None:
    found = looked(project, environment=SEVEN, resources=resources, script=script)
    assert found["variable"] == "7"
    assert script or found["pools"] == [7]  # OpenBLAS itself starts no more threads than there are CPUs


@pytest.mark.parametrize(
    ("launched", "environment", "variable"),
    [
        (TWO, {}, "5"),
        (TWO, SEVEN, "7"),
        ("@run_with_accelerate(cpu=True, num_processes=2, num_cpu_threads_per_process=3)", SEVEN, "3"),
    ],
)
def test_ranks_have_what_their_user_has_set(
    project: Project, launched: str, environment: dict[str, str], variable: str
) -> None:
    if "accelerate" in launched:
        pytest.importorskip("accelerate")
    shell = {"OMP_NUM_THREADS": "5"}
    found = looked(project, launched=launched, environment=environment, shell=shell)
    assert found["variable"] == variable
    assert int(variable) in found["pools"]
