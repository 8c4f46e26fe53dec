"""``python -m upshift.runtime SPEC``: any spec, by hand or under a backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from upshift.model.spec import Device, Hardware
from upshift.model.spec.hardware import SCHEDULER, enforced
from upshift.runs.history.attempts import read_cards
from upshift.runtime.accelerators.vendor import Inventory
from upshift.runtime.supervisor.records import Observations


def command(bench, spec) -> list[str]:  # type: ignore[no-untyped-def]
    return [
        sys.executable,
        "-m",
        "upshift.runtime",
        str(Path(bench.store.address) / bench.store.write_spec(spec)),
    ]


def test_it_runs_a_spec_shows_the_log_and_records_the_result(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def add(a, b):\n    print('adding')\n    return a + b\n")
    spec = bench.spec("add", inputs={"a": 1, "b": 2}, request={"cpu_count": 1, "memory": "200MB"})
    done = subprocess.run(command(bench, spec), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "adding\n", "")
    result = bench.store.read_result(spec.task, 1)
    assert bench.output(result) == 3
    assert result.seen.cpu_count == 1 and result.granted.details["memory_limit"] in ("cgroup", "watchdog")


def test_it_keeps_what_the_step_logs_and_shows(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        "import upshift\n"
        "def train():\n    upshift.log(step=1, loss=0.5)\n    upshift.current.card.append('done')\n"
    )
    spec = bench.spec("train")
    done = subprocess.run(command(bench, spec), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    result = bench.store.read_result(spec.task, 1)
    assert result.metrics["loss"].last == 0.5 and result.cards[0].media == "text/markdown"
    assert read_cards(bench.store.cards_path(spec.task, 1)) == result.cards


def test_a_failing_step_exits_1_and_says_why(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def boom():\n    raise ValueError('no good')\n")
    spec = bench.spec("boom")
    done = subprocess.run(command(bench, spec), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "user-error: ValueError: no good" in done.stderr


def test_a_result_is_never_made_twice(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def one():\n    return 1\n")
    spec = bench.spec("one")
    subprocess.run(command(bench, spec), check=True)
    again = subprocess.run(command(bench, spec), capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "has a result already" in again.stderr and "Traceback" not in again.stderr


def test_an_attempt_that_was_given_up_does_not_run(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def one():\n    print('ran')\n    return 1\n")
    spec = bench.spec("one")
    assert bench.store.claim_attempt(spec.task, spec.attempt, by="an engine")
    done = subprocess.run(command(bench, spec), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"attempt 1 of {spec.task} has been given up, or has begun before\n"
    assert bench.store.read_result(spec.task, 1) is None


def test_what_nobody_asked_for_is_recorded_as_its_scheduler_gave_it(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def one():\n    return 1\n")
    spec = attrs.evolve(bench.spec("one"), granted=Hardware(details=enforced(SCHEDULER)))
    subprocess.run(command(bench, spec), check=True)
    result = bench.store.read_result(spec.task, 1)
    assert result.granted.cpu_count == result.seen.cpu_count
    assert result.granted.details["enforced_by"]["cpu"] == "scheduler"
    assert "cpus" not in result.granted.details  # nobody has chosen any


def test_devices_without_a_uuid_are_seen() -> None:
    device = Device(vendor="gaudi", model="HL-225", index=3)

    class Known:
        inventories = (Inventory(vendor="gaudi", devices=(device,)),)

        def want(self, call):  # type: ignore[no-untyped-def]
            call()

    seen = Observations(Hardware(gpus=(device,)), Known)
    assert seen.record(cpu_count=1, memory=1, details={}).gpus == (device,)


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "cannot read"), ("not json", "is not a task's spec"), ('{"task": 3}', "is not a task's spec")],
)
def test_what_is_no_spec_is_refused_in_a_line(tmp_path, content, text) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "spec.json"
    if content is not None:
        path.write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "upshift.runtime", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert text in done.stderr and "Traceback" not in done.stderr


def test_a_store_that_cannot_be_claimed_is_told_in_a_line(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def one():\n    return 1\n")
    arguments = command(bench, bench.spec("one"))
    (bench.store.root / "claims").write_text("in the way")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("the task could not be started: ") and "Traceback" not in done.stderr


def test_sigterm_cancels_the_step_and_the_result_says_so(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("import time\ndef slow():\n    print('up', flush=True)\n    time.sleep(1000)\n")
    spec = bench.spec("slow")
    with subprocess.Popen(command(bench, spec), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 130
    assert bench.store.read_result(spec.task, 1).status == "cancelled"


def interpreters() -> list[str]:
    """Every other Python from 3.10 on that this machine has."""
    found = []
    roots = [*Path.home().glob(".pyenv/versions/*/bin"), *map(Path, os.environ["PATH"].split(os.pathsep))]
    for minor in range(10, 16):
        for root in roots:
            path = root / f"python3.{minor}"
            if path.is_file() and "shims" not in path.parts:
                found.append(str(path))
                break
    return found


@pytest.mark.parametrize("python", interpreters())
def test_the_runtime_blob_runs_a_spec_under_a_python_with_nothing_installed(project, python: str) -> None:  # type: ignore[no-untyped-def]
    from upshift.code.runtime_package import runtime_blob

    bench = project(
        "import sys\ndef version(data):\n    print(data)\n    return list(sys.version_info[:2])\n"
    )
    blob = bench.store.blob_path(runtime_blob(bench.store))
    spec = bench.spec("version", inputs={"data": {"a": [1, 2.5, None]}}, request={"memory": "200MB"})
    path = Path(bench.store.address) / bench.store.write_spec(spec)
    done = subprocess.run(
        [python, "-I", "-S", str(blob), str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={"UPSHIFT_HOME": os.environ["UPSHIFT_HOME"]},
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "{'a': [1, 2.5, None]}\n"
    minor = int(Path(python).name.rpartition(".")[2])
    assert bench.output(bench.store.read_result(spec.task, 1)) == [3, minor]
