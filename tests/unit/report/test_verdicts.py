"""One line on what a step needs: from its records alone."""

from __future__ import annotations

from typing import Any

import pytest

from upshift.model.spec import Device, Hardware
from upshift.report.views.records import Verdicts, verdict

GB = 1_000_000_000


def gpus(*busy_peaks: float | None, own: int | None = 40 * GB) -> tuple[Device, ...]:
    return tuple(
        Device(index=n, memory=80 * GB, details={"busy_peak": peak, "own_memory_peak": own})
        for n, peak in enumerate(busy_peaks)
    )


def broken(**details: Any) -> tuple[Device, ...]:
    """Two GPUs; of the first one the driver says all that."""
    one, other = gpus(99, 0)
    return Device(index=0, memory=80 * GB, details={**one.details, **details}), other


def records(asked: Hardware, devices: tuple[Device, ...] = (), **details: Any) -> dict[str, Hardware | None]:
    used = Hardware(gpus=devices or None, details={"seconds": 60.0} | details)
    return {"asked": asked, "granted": asked, "seen": None, "used": used}


TWO, FOUR = Hardware(gpus=(Device(),) * 2), Hardware(gpus=(Device(),) * 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(
            records(TWO, gpus(99, 98), gpu_mean=1.04, gpu_idle=0.61, gpu_idle_cpu_bound=0.58),
            "asked 2 GPUs, used 1.04 on average; 61 % of the time both idle while one CPU was at 100 %: "
            "the data loader",
            id="the data loader",
        ),
        pytest.param(
            records(TWO, gpus(99, 98), gpu_mean=1.04, gpu_idle=0.61, gpu_idle_cpu_bound=0.1),
            "asked 2 GPUs, used 1.04 on average; 61 % of the time both idle",
            id="idle for another reason",
        ),
        pytest.param(
            records(FOUR, gpus(99, 98, 90, 95), gpu_mean=2.0, gpu_idle=0.3, gpu_idle_cpu_bound=0.0),
            "asked 4 GPUs, used 2.00 on average; 30 % of the time all idle",
            id="all of several",
        ),
        pytest.param(
            records(Hardware(gpus=(Device(),)), gpus(99), gpu_mean=0.5, gpu_idle=0.1),
            "asked 1 GPU, used 0.50 on average",
            id="one that is half busy",
        ),
        pytest.param(
            records(FOUR, gpus(99, 0, 1, 0), gpu_mean=0.97),
            "asked 4 GPUs, used 1: nothing ran on GPUs 1, 2 and 3",
            id="not distributed",
        ),
        pytest.param(
            records(TWO, gpus(0, 3), gpu_mean=0.0, gpu_idle=1.0), "asked 2 GPUs, used none", id="none"
        ),
        pytest.param(
            records(FOUR, gpus(0, 3), gpu_mean=0.0, gpu_idle=1.0), "got 2 GPUs, used none", id="degraded"
        ),
        pytest.param(records(TWO, gpus(99, None), gpu_mean=1.6), None, id="one does not tell"),
        pytest.param(records(TWO, gpus(99, 99), gpu_mean=1.9), None, id="well used"),
        pytest.param(records(TWO, gpus(None, None)), None, id="nobody tells"),
        pytest.param(
            records(
                Hardware(gpus=(Device(memory=80 * GB),)), gpus(99, own=5 * GB), gpu_mean=0.9, gpu_idle=0.0
            ),
            "asked 80 GB of GPU memory, peak 5 GB",
            id="GPU memory",
        ),
        pytest.param(
            records(Hardware(memory=64 * GB), memory_peak=3 * GB), "asked 64 GB, peak 3 GB", id="memory"
        ),
        pytest.param(records(Hardware(memory=64 * GB), memory_peak=20 * GB), None, id="enough of it"),
        pytest.param(records(Hardware(memory=GB), memory_peak=10_000_000), None, id="too little to matter"),
        pytest.param(
            records(Hardware(memory=4 * GB), memory_peak=int(3.9 * GB)),
            "asked 4 GB, peak 3.9 GB: hardly any is left",
            id="close to the limit",
        ),
        pytest.param(records(Hardware(memory=4 * GB), memory_peak=5 * GB), None, id="its failure tells"),
        pytest.param(
            records(Hardware(cpu_count=8), cpu_mean=1.0, cpu_peak=1.02),
            "asked 8 CPUs, used 1.0: one thread",
            id="one thread",
        ),
        pytest.param(
            records(Hardware(cpu_count=8), cpu_mean=2.13, cpu_peak=8.0),
            "asked 8 CPUs, used 2.1 on average",
            id="now and then",
        ),
        pytest.param(records(Hardware(cpu_count=8), cpu_mean=4.5, cpu_peak=8.0), None, id="most of them"),
        pytest.param(
            records(Hardware(cpu_count=1), cpu_mean=0.1, cpu_peak=0.5), None, id="one CPU is the least"
        ),
        pytest.param(records(Hardware(), cpu_mean=0.1, memory_peak=1), None, id="nothing was asked for"),
        pytest.param(
            records(Hardware(cpu_count=8, memory=64 * GB), cpu_mean=1.0, cpu_peak=1.0, memory_peak=3 * GB),
            "asked 64 GB, peak 3 GB; asked 8 CPUs, used 1.0: one thread",
            id="both",
        ),
        pytest.param(
            records(Hardware(cpu_count=8), cpu_mean=1.0, seconds=9.9), None, id="too short to be judged"
        ),
        pytest.param({"asked": Hardware(cpu_count=8), "used": None}, None, id="no record"),
        pytest.param(
            records(
                TWO,
                broken(problem="GPU is lost", lost_at=2.03, xids=[{"at": 2.0, "code": 79}]),
                seconds=3.0,
                gpu_mean=0.1,
            ),
            "GPU 0 was lost at 2.0 s (Xid 79): do not trust what it computed after that",
            id="lost in a short step",
        ),
        pytest.param(
            records(TWO, broken(problem="NVML: GPU is lost", lost_at=12.0), gpu_mean=0.1),
            "GPU 0 was lost at 12.0 s (NVML: GPU is lost): do not trust what it computed after that; "
            "asked 2 GPUs, used 1: nothing ran on GPU 1",
            id="lost, before all others",
        ),
        pytest.param(
            records(TWO, broken(xids=[{"at": 1.0, "code": 79}]), seconds=3.0),
            "GPU 0 was lost at 1.0 s (Xid 79): do not trust what it computed after that",
            id="off the bus",
        ),
        pytest.param(
            records(TWO, broken(ecc_errors=2), seconds=3.0),
            "GPU 0 had 2 uncorrected memory errors: do not trust what it computed",
            id="memory errors",
        ),
        pytest.param(
            records(TWO, broken(ecc_errors=1, xids=[{"at": 1.25, "code": 48}]), seconds=3.0),
            "GPU 0 had an uncorrected memory error (Xid 48, at 1.2 s): do not trust what it computed",
            id="a memory error with its event",
        ),
        pytest.param(
            records(TWO, broken(ecc_errors=0, xids=[{"at": 1.0, "code": 31}]), seconds=3.0),
            None,
            id="a mistake of the program's",
        ),
        pytest.param(
            {"asked": Hardware(cpu_count=8), "used": Hardware()}, None, id="a record of another kind"
        ),
    ],
)
def test_what_is_said(given: dict[str, Hardware | None], said: str | None) -> None:
    assert verdict(given) == said


def test_many_tasks_are_told_of_by_the_longest_that_is_like_most() -> None:
    verdicts = Verdicts()
    lazy = Hardware(cpu_count=8)
    for index, (mean, seconds) in enumerate([(1.0, 20.0), (1.1, 99.0), (7.5, 500.0)]):
        verdicts.add(f"f[{index}]", records(lazy, cpu_mean=mean, cpu_peak=mean, seconds=seconds))
    verdicts.add("f[3]", records(Hardware(memory=64 * GB), memory_peak=GB))
    assert verdicts.line() == "asked 8 CPUs, used 1.1: one thread (f[1]; so did 2 of 4 tasks)"


def test_what_broke_in_one_of_many_tasks_is_said() -> None:
    verdicts = Verdicts()
    for index in range(3):
        verdicts.add(f"f[{index}]", records(Hardware(cpu_count=8), cpu_mean=1.0, cpu_peak=1.0))
    verdicts.add("f[3]", records(TWO, broken(ecc_errors=2), seconds=1.0))
    assert verdicts.line() == (
        "GPU 0 had 2 uncorrected memory errors: do not trust what it computed (f[3]; so did 1 of 4 tasks)"
    )


def test_of_one_task_its_own_is_said() -> None:
    verdicts = Verdicts()
    assert verdicts.line() is None
    verdicts.add("f", records(Hardware(cpu_count=8), cpu_mean=1.0, cpu_peak=1.0))
    assert verdicts.line() == "asked 8 CPUs, used 1.0: one thread"
