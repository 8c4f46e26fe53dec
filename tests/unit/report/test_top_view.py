"""``upshift top``: what runs, laid out for wide and narrow pages."""

from __future__ import annotations

import attrs
import pytest

from upshift.model.spec import Device, Hardware, TaskId
from upshift.report.terminal import Page, cells
from upshift.report.terminal.top import lines
from upshift.report.views.top import DeviceNow, GpuNow, Now, Running
from upshift.runs.catalog.rows import RunRow
from upshift.runtime.storage.series import Series

GB = 1_000_000_000
RUN = RunRow(
    id="20261121-161039-a6z3", pipeline="training", status="running", target="local", store="", started=0
)
H100 = {"model": "NVIDIA H100 80GB HBM3", "memory": 85_899_345_920, "vendor": "nvidia"}


def running(
    step: str, index: int | None = None, *, gpus: tuple[GpuNow, ...] = (), **fields: object
) -> Running:
    busy = {f"gpu.{n}.busy": [0, 50, 100] for n in range(len(gpus))}
    values: dict[str, object] = {
        "run": RUN,
        "task": TaskId(run=RUN.id, step=step, index=index),
        "attempt": 1,
        "node": None,
        "started": 0.0,
        "seconds": 133.0,
        "granted": Hardware(cpu_count=2, memory=16 * GB),
        "now": {"cpu": 1.02, "memory": 3.1 * GB},
        "gpus": gpus,
        "minute": Series(columns={"time": [1, 2, 3], "cpu": [0, 1, 2], **busy}),
    }
    return Running(**(values | fields))  # type: ignore[arg-type]


GPUS = tuple(
    GpuNow(uuid=f"GPU-{n}", index=n, busy=busy, memory=70 * GB, power=650, temperature=61)
    for n, busy in enumerate((97, 3))
)
TRAIN = running("train", 3, gpus=GPUS, attempt=2)
DEVICES = (
    DeviceNow(device=Device(index=0, uuid="GPU-0", **H100), holder=TRAIN),  # type: ignore[arg-type]
    DeviceNow(device=Device(index=1, uuid="GPU-1", **H100), holder=TRAIN),  # type: ignore[arg-type]
    DeviceNow(device=Device(index=2, uuid="GPU-2", **H100), pid=4711),  # type: ignore[arg-type]
    DeviceNow(device=Device(index=3, uuid="GPU-3", partition="1g.10gb", **H100)),  # type: ignore[arg-type]
)


def shown(now: Now, width: int) -> str:
    found = lines(now, Page(width))
    assert all(cells(line) <= width for line in found), found
    return "\n".join(found)


def test_nothing_runs() -> None:
    assert shown(Now(at=0.0, running=()), 80).startswith("nothing runs · ")


def test_a_line_for_each_step_with_what_it_uses_of_what_it_has() -> None:
    text = shown(Now(at=0.0, running=(running("load"), TRAIN), devices=DEVICES), 120)
    assert "2 steps of 1 run" in text and "20261121-161039-a6z3 · training" in text
    (load,) = (line for line in text.splitlines() if line.startswith("load"))
    assert load.split("  ")[0] == "load" and "1.02 of 2" in load and "3.1 GB of 16 GB" in load
    assert load.endswith("▁▅█"), "CPUs, of those that it has"
    (train,) = (line for line in text.splitlines() if line.startswith("train[3] #2"))
    assert "1.00 of 2" in train and "2 min 13 s" in train


def test_who_has_which_device() -> None:
    text = shown(Now(at=0.0, running=(TRAIN,), devices=DEVICES), 120).splitlines()
    rows = text[text.index("") + 1 :]
    first, second, third, fourth = rows[-4:]
    assert "97 %" in first and "70 GB of 85.9 GB" in first and "650 W" in first and "61 °C" in first
    assert first.endswith("train[3] #2") and second.endswith("train[3] #2")
    assert third.endswith("process 4711") and "– of 85.9 GB" in third
    assert fourth.endswith("free") and "1g.10gb" in fourth


@pytest.mark.parametrize("width", [20, 40, 60, 68, 80, 100, 200])
def test_no_line_is_wider_than_the_page_and_no_index_is_cut(width: int) -> None:
    long = running("a_step_with_quite_a_long_name_for_a_step", 12345, gpus=GPUS)
    text = shown(Now(at=0.0, running=(running("load"), long), devices=DEVICES), width)
    assert "[12345]" in text


def test_a_step_of_which_nothing_is_known_yet() -> None:
    text = shown(Now(at=0.0, running=(running("load", now={}, minute=Series(), granted=None),)), 80)
    (line,) = (line for line in text.splitlines() if line.startswith("load"))
    assert line.split() == ["load", "2", "min", "13", "s", "–", "–"]


def test_a_run_whose_engine_is_gone_says_so() -> None:
    gone = running("load", run=attrs.evolve(RUN, status="interrupted"))
    assert "interrupted, and its tasks continue" in shown(Now(at=0.0, running=(gone,)), 100)


@pytest.mark.parametrize("width", [20, 80, 120])
def test_what_waits_says_for_what(width: int) -> None:
    waiting = running("fit", waits="waits for 1 × GPU: GPU 0 is held by load", granted=None, now={})
    text = shown(Now(at=0.0, running=(TRAIN, waiting)), width)
    assert "1 step of 1 run, 1 waits" in " ".join(text.split())
    assert "fit waiting: waits for 1 × GPU: GPU 0 is held by load" in " ".join(text.split())
    assert "nothing runs, 1 waits" in " ".join(shown(Now(at=0.0, running=(waiting,)), width).split())


def test_as_json() -> None:
    data = Now(at=0.0, running=(TRAIN,), devices=DEVICES).as_json()
    (one,) = data["running"]
    assert (one["run"], one["step"], one["index"], one["attempt"]) == (RUN.id, "train", 3, 2)
    assert (one["cpu"], one["memory"], one["read"], one["seconds"]) == (1.02, 3_100_000_000, None, 133.0)
    assert one["gpus"][0]["busy"] == 97 and one["granted"]["cpu_count"] == 2
    assert data["devices"][0]["holder"] == {"run": RUN.id, "task": "train[3]", "attempt": 2}
    assert data["devices"][2]["pid"] == 4711 and data["devices"][3]["holder"] is None


def test_a_step_of_several_processes_says_how_many() -> None:
    granted = Hardware(cpu_count=2, nodes=2, processes=8)
    text = shown(Now(at=0.0, running=[running("train", granted=granted, attempt=2)]), 100)
    assert "train #2 (8 processes on 2 nodes)  2 min 13 s" in text
