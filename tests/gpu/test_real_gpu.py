"""What was asked, granted, seen and used, on a real NVIDIA GPU with real PyTorch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

import upshift
from project import Project
from upshift.runtime.storage.series import Series, read_series

Measured = Callable[[str, str], None]

HEADER = """\
import os, time
import torch
import upshift
from upshift import ResourceSettings, gpu_profile, pipeline, resources, step
"""


def output(project: Project, code: str, *args: str, **options: Any) -> Any:
    """The output of the pipeline in ``code``."""
    project.write(code, header=HEADER)
    project.upshift("run", "pipeline.py", "--strict", *args, **options)
    return upshift.get_run("latest").output


def uuids() -> list[str]:
    """The GPUs of this machine, as the driver names them."""
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return [
        line.rpartition("UUID: ")[2].rstrip(")") for line in done.stdout.splitlines() if "UUID: GPU" in line
    ]


def test_the_request_of_the_documents_this_project_began_with(project: Project, measured: Measured) -> None:
    code = """
@step(settings={"resources": ResourceSettings(cpu_count=2, gpu_count=1, memory="16GB")})
def training_step(size: int) -> dict:
    upshift.cleanup_memory()
    x = torch.randn(size, size, device="cuda")
    properties = torch.cuda.get_device_properties(0)
    return {"sum": float((x @ x).sum()), "name": properties.name, "count": torch.cuda.device_count()}

@pipeline
def my_gpu_pipeline(size: int = 2048):
    return training_step(size)
"""
    told = output(project, code)
    assert told["count"] == 1
    attempt = project.attempt("training_step")
    (granted,) = attempt["granted"]["gpus"]
    assert granted["uuid"] in uuids()
    assert granted["model"] == told["name"]
    assert abs(granted["memory"] - torch.cuda.get_device_properties(0).total_memory) < 2 * 2**30
    (framework,) = attempt["seen"]["frameworks"]
    assert (framework["name"], framework["devices"]) == ("torch", 1)
    measured("Granted to a step that asked for 1 GPU", f"{granted['model']}, {granted['uuid'][:8]}…")


def test_the_step_sees_the_devices_that_it_was_granted_and_no_other(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def look(i: int) -> tuple[str, int]:
    return os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count()

@pipeline
def example():
    return look.map(i=[0, 1, 2])
"""
    variables, counts = output(project, code)
    assert set(counts) == {1}
    granted = [task["attempts"][-1]["granted"]["gpus"][0]["uuid"] for task in project.tasks("look")]
    assert variables == granted
    assert set(granted) <= set(uuids())


def test_a_step_that_asks_for_none_sees_none(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=0)})
def blind() -> tuple[bool, int]:
    return torch.cuda.is_available(), torch.cuda.device_count()

@pipeline
def example():
    return blind()
"""
    assert output(project, code) == (False, 0)


def test_two_tasks_never_have_one_gpu_at_once(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def hold(i: int) -> tuple[str, float, float]:
    began = time.monotonic()
    x = torch.ones(1000, 1000, device="cuda")
    for _ in range(200):
        x = (x @ x).clamp(0, 1)
    torch.cuda.synchronize()
    return os.environ["CUDA_VISIBLE_DEVICES"], began, time.monotonic()

@pipeline
def example():
    return hold.map(i=list(range(6)))
"""
    held: dict[str, list[tuple[float, float]]] = {}
    for uuid, began, ended in zip(*output(project, code), strict=True):
        held.setdefault(uuid, []).append((began, ended))
    for times in held.values():
        assert all(first[1] <= second[0] for first, second in pairwise(sorted(times)))


LOAD = """
@gpu_profile(interval=1)
@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def half_busy(seconds: float, size: int) -> int:
    held = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            y = x @ x
        torch.cuda.synchronize()
    time.sleep(seconds)
    return torch.cuda.memory_reserved()

@pipeline
def example():
    return half_busy(8.0, 8192)
"""


def test_usage_near_a_known_load(project: Project, measured: Measured) -> None:
    reserved = output(project, LOAD, timeout=120)
    used = project.attempt("half_busy")["used"]
    (gpu,) = used["gpus"]
    series = _series("half_busy")
    busy = [value for value in series.columns["gpu.0.busy"] if value is not None]
    own = [value for value in series.columns["gpu.0.own_memory"] if value is not None]
    assert 30 <= sum(busy) / len(busy) <= 75
    assert max(busy) >= 90
    assert reserved <= max(own) <= reserved + 2**30
    assert any(value is not None and value > 0 for value in series.columns["gpu.0.power"])
    measured("Busy half of the time: mean utilization", f"{sum(busy) / len(busy):.0f} %")
    measured(
        "Memory reserved by PyTorch, and own memory seen", f"{reserved / 1e9:.2f} GB, {max(own) / 1e9:.2f} GB"
    )
    measured("What `used` says of the GPU", f"`{json.dumps(gpu)}`")


def _series(step: str) -> Series:
    run = upshift.get_run("latest")
    attempt = run[step].tasks[0].attempts[-1]
    series = read_series(attempt.series_path)
    assert series is not None
    return series


def test_memory_of_the_gpu_that_runs_out_is_named(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=1)})
def hungry() -> None:
    held = [torch.empty(2**33, dtype=torch.uint8, device="cuda") for _ in range(1000)]

@pipeline
def example():
    return hungry()
"""
    project.write(code, header=HEADER)
    told = project.upshift("run", "pipeline.py", expect=1).text
    assert project.attempt("hungry")["reason"] == "out-of-memory"
    assert "8.59 GB" in told or "8.00 GiB" in told
    assert "gpu_memory" in told or "batch" in told


def test_cleanup_memory_gives_back_what_the_cache_held(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=1)})
def clean() -> tuple[int, int]:
    held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    del held
    return upshift.cleanup_memory(), torch.cuda.memory_reserved()

@pipeline
def example():
    return clean()
"""
    freed, reserved = output(project, code)
    assert freed >= 2**30
    assert reserved == 0


def test_doctor_finds_nothing_that_would_stop_a_gpu_step(project: Project) -> None:
    told = project.upshift("doctor").text
    assert torch.cuda.get_device_name(0) in told


def test_the_report_has_the_card_of_the_gpu(project: Project) -> None:
    output(project, LOAD.replace("half_busy(8.0, 8192)", "half_busy(3.0, 4096)"), timeout=120)
    project.upshift("report", "latest", "-o", "report.html")
    page = (project.folder / "report.html").read_text(encoding="utf-8")
    assert torch.cuda.get_device_name(0) in page


@pytest.mark.timeout(240)
def test_what_profiling_costs(project: Project, measured: Measured) -> None:
    """CPU time of the processes beside the step, over 30 s with one sample a second."""
    code = """
import psutil

def beside() -> float:
    # Everything above this process, up to the engine, and what they have started beside it.
    me = psutil.Process()
    kin = {p.pid: p for parent in me.parents()[:3] for p in [parent, *parent.children(recursive=True)]}
    kin.pop(me.pid, None)
    total = 0.0
    for process in kin.values():
        if "pytest" not in " ".join(process.cmdline()):
            times = process.cpu_times()
            total += times.user + times.system
    return total

@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def watched() -> float:
    torch.ones(1, device="cuda")
    time.sleep(5)
    before = beside()
    time.sleep(30)
    return beside() - before

@pipeline
def example():
    return watched()
"""
    seconds = output(project, code, timeout=120)
    assert seconds >= 0
    measured("CPU of everything beside the step, one sample a second", f"{seconds / 30:.2%} of one core")


def test_ranks_have_a_gpu_each_and_reduce_over_nccl(project: Project, measured: Measured) -> None:
    gpus = len(uuids())
    code = f"""
from accelerate import Accelerator
from upshift import run_with_accelerate

@run_with_accelerate(num_processes={gpus}, multi_gpu={gpus > 1}, mixed_precision="bf16")
@step(settings={{"resources": ResourceSettings(gpu_count={gpus})}})
def train() -> dict:
    accelerator = Accelerator()
    began = time.monotonic()
    total = accelerator.reduce(torch.ones(1, device=accelerator.device), reduction="sum")
    backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else None
    return {{"total": float(total), "backend": backend, "seconds": time.monotonic() - began}}

@pipeline
def example():
    return train()
"""
    told = output(project, code)
    assert told["total"] == gpus
    attempt = project.attempt("train")
    granted = [gpu["uuid"] for gpu in attempt["granted"]["gpus"]]
    assert [rank["device"] for rank in attempt["seen"]["ranks"]] == granted
    measured(f"{gpus} ranks, a first sum over {told['backend'] or 'one process'}", f"{told['seconds']:.2f} s")


def test_a_batch_that_is_too_large_for_a_rank_is_made_smaller(project: Project) -> None:
    code = """
from accelerate.utils import find_executable_batch_size
from upshift import run_with_accelerate

@run_with_accelerate(num_processes=1)
@step(settings={"resources": ResourceSettings(gpu_count=1)})
def train() -> int:
    tried = []

    @find_executable_batch_size(starting_batch_size=1 << 20)
    def fit(batch_size: int) -> int:
        tried.append(batch_size)
        torch.empty(batch_size, 1 << 20, dtype=torch.uint8, device="cuda")
        return batch_size

    return fit()

@pipeline
def example():
    return train()
"""
    fitted = output(project, code)
    assert 0 < fitted < torch.cuda.get_device_properties(0).total_memory >> 20
