"""SkyPilot itself: its SDK reads the tasks that are written for it, and its server knows no cloud here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from upshift.backends.base import Ask
from upshift.backends.skypilot.backend import Sdk, SkyPilot
from upshift.errors import BackendError, RequestRefused
from upshift.model.settings.resources import ResourceSettings

ROOT = Path(__file__).parents[2]
TASKS = sorted((ROOT / "tests/unit/backends/skypilot_tasks").glob("*.yaml"))
READ = """
import sys, sky, yaml
for path in sys.argv[1:]:
    task = sky.Task.from_yaml_config({**yaml.safe_load(open(path)), "secrets": {"UPSHIFT_ORDER": "{}"}})
    (resources,) = task.resources
    print(task.num_nodes, resources.cpus, resources.memory, resources.accelerators, resources.disk_size)
"""


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SkyPilot's command, in a home of its own; its server is stopped at the end."""
    command = next(iter(ROOT.glob(".engines/skypilot-*/bin/sky")), None)
    if command is None:
        pytest.skip("SkyPilot is not installed: make engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
        yield command
        subprocess.run([command, "api", "stop"], capture_output=True, check=True, timeout=60)


def test_skypilot_reads_the_tasks_that_are_written_for_it(sky: Path) -> None:
    read = subprocess.run(
        [sky.with_name("python"), "-c", READ, *TASKS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert dict(zip([path.stem for path in TASKS], read.stdout.splitlines(), strict=True)) == {
        "gpus": "1 8+ 60+ {'H100': 8} 1000",
        "machine": "1 96+ 932+ {'Trainium': 16} 256",
        "nodes": "3 None None {'RTXA6000': 1} 256",
        "small": "1 None None None 256",
        "tpu": "1 None None {'tpu-v5litepod-8': 1} 256",
    }


CHAIN = """
import sys
from sky.utils import dag_utils
dag = dag_utils.load_chain_dag_from_yaml(sys.argv[1])
assert dag.is_chain()
print(dag.name)
for task in dag.tasks:
    (resources,) = task.resources
    print(task.name, resources.cpus, resources.accelerators, resources.job_recovery)
"""


def test_skypilot_reads_the_chain_that_a_pipeline_is_exported_as(sky: Path) -> None:
    read = subprocess.run(
        [sky.with_name("python"), "-c", CHAIN, TASKS[0].parents[1] / "skypilot_chains" / "training.yaml"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    name, load, train = read.stdout.splitlines()
    assert (name, load) == ("training", "load 2+ None None")
    assert train.startswith("train None {'H100': 8}") and "'max_restarts_on_errors': 2" in train


@pytest.mark.timeout(300)
def test_where_no_cloud_is_enabled_skypilot_itself_says_so(sky: Path) -> None:
    sdk = Sdk(str(sky), os.environ)
    skypilot = SkyPilot(sdk)
    try:
        found = {finding.name: finding for finding in skypilot.findings({})}
        assert "SkyPilot 0.14" in found["access"].text
        assert (found["clouds"].status, found["clouds"].remedy) == (
            "problem",
            "See what they lack: sky check.",
        )
        with pytest.raises(RequestRefused) as caught:
            skypilot.offer(Ask(request=ResourceSettings(cpu_count=2)), {})
        assert "SkyPilot would not take a job like this: " in caught.value.what
        assert skypilot.find(["train-0123456789ab"]) == {}
        with pytest.raises(BackendError, match="SkyPilot refuses it"):
            skypilot.submit('name: "a"\nnum_nodes: "many"\nrun: |\n  true\n', {})
    finally:
        sdk.close()
