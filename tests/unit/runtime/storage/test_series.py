"""The series of an attempt: what is read is what was written, however the file ends."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from upshift.model.spec import Device, Hardware
from upshift.runtime.storage.series import LARGE, SeriesWriter, given, header, read_series, sample


def test_there_is_none(tmp_path: Path) -> None:
    assert read_series(tmp_path / "missing") is None
    (tmp_path / "empty").write_text(header(1.0, ["time"]))
    assert read_series(tmp_path / "empty") is None


def test_columns_that_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "series"
    gpu = {"uuid": "GPU-1"}
    file.write_text(
        header(5.0, ["time", "cpu"])
        + sample([1, 0.5])
        + header(5.0, ["time", "cpu", "gpu.0.busy"], [gpu])
        + sample([2, 0.6, 99])
        + header(5.0, ["time", "cpu"])
        + sample([3, None])
    )
    series = read_series(file)
    assert series is not None and len(series) == 3 and series.started == 5.0 and series.gpus == (gpu,)
    assert series.columns == {"time": [1, 2, 3], "cpu": [0.5, 0.6, None], "gpu.0.busy": [None, 99, None]}


def test_a_torn_end_and_strange_lines(tmp_path: Path) -> None:
    file = tmp_path / "series"
    file.write_bytes(
        header(5.0, ["time", "cpu"]).encode()
        + b"[1,2]\n[1,2,3]\n\xff\xfe\n7\n[2,3]\n[3,".replace(b"7", b"null")
    )
    series = read_series(file)
    assert series is not None and series.columns == {"time": [1, 2], "cpu": [2, 3]}


@pytest.mark.parametrize(
    "line",
    [
        '{"columns":5}',
        '{"columns":[["time"]]}',
        '{"columns":["time","cpu","cpu"]}',
        '{"columns":["cpu","time"]}',
        '{"columns":["time","cpu"],"gpus":3}',
        '{"columns":["time","cpu"],"gpus":[3],"started":"now"}',
        '{"columns":["time","cpu"],"started":1e400}',
        '[2,"much"]',
        "[2,true]",
        "[null,5]",
        "[2,NaN]",
        "[2,1e999]",
        f"[2,{10**400}]",
        f"[2,1{'0' * 5000}]",
        "[" * 100_000,
        "5",
    ],
)
def test_what_is_strange_is_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "series"
    top = header(5.0, ["time", "cpu"], [{"uuid": "GPU-1"}])
    file.write_text(f"{line}\n{top}[1,1]\n{line}\n{top}[3,3]\n")
    series = read_series(file)
    assert series is not None and series.columns == {"time": [1, 3], "cpu": [1, 3]}
    assert series.started == 5.0 and series.gpus == ({"uuid": "GPU-1"},)


def test_of_a_device_what_is_strange_is_left_out(tmp_path: Path) -> None:
    strange = {"uuid": "GPU-1", "model": [1], "memory": "much", "index": 10**400}
    whole = {"uuid": "GPU-2", "vendor": "nvidia", "index": 1, "model": "H100", "memory": 80 << 30}
    (tmp_path / "series").write_text(header(5.0, ["time"], [strange, whole]) + sample([1]))
    series = read_series(tmp_path / "series")
    assert series is not None and series.gpus == ({"uuid": "GPU-1"}, whole)


def writer(folder: Path, **options: int) -> SeriesWriter:
    return SeriesWriter(
        folder / "series", 5.0, [{"uuid": "GPU-1"}], temporaries=str(folder / "tmp"), **options
    )


def test_each_sample_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    assert writing.name is None
    writing.write({"time": 1.0, "cpu": 0.25, "gpu.0.busy": None})
    writing.write({"time": 2.004, "cpu": 0.5, "gpu.0.busy": 97})
    series = read_series(tmp_path / "series")
    assert series is not None and series.columns["gpu.0.busy"] == [None, 97]
    assert series.columns["time"] == [1, 2.0] and series.gpus == ({"uuid": "GPU-1"},)
    writing.close()
    assert writing.name == "series"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (math.nan, "null"),
        (math.inf, "null"),
        (0, "0"),
        (0.98765, "0.9877"),
        (97, "97"),
        (1980, "1980"),
        (12_345, "12340"),
        (85_899_345_920, "8.59e10"),
        (1e-7, "1e-07"),
    ],
)
def test_a_number_has_four_digits_that_count_and_no_more(value: float | None, text: str) -> None:
    assert sample([1, value]) == f"[1.00,{text}]\n"


def test_a_long_series_is_thinned_again_and_again(tmp_path: Path) -> None:
    writing = writer(tmp_path, most=8)
    for second in range(1, 101):
        writing.write(
            {"time": float(second), "cpu": second % 2, "gpu.0.ecc_errors": second // 50, "gpu.0.xid": None}
        )
        assert writing.samples <= 8
    series = read_series(tmp_path / "series")
    assert series is not None
    assert series.columns["time"] == [16, 32, 48, 64, 80, 96]
    assert set(series.columns["cpu"]) == {0.5}, "what is an amount is averaged"
    assert series.columns["gpu.0.ecc_errors"] == [0, 0, 0, 1, 1, 1], "what is counted is not"
    assert "gpu.0.xid" not in series.columns
    assert not list((tmp_path / "tmp").iterdir())


def test_a_long_series_is_compressed_at_its_end_and_reads_the_same(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for second in range(3000):
        writing.write({"time": float(second)} | {f"gpu.{n}.busy": (second * n) % 100 for n in range(8)})
    before, size = read_series(tmp_path / "series"), (tmp_path / "series").stat().st_size
    writing.close()
    assert size > LARGE
    assert (tmp_path / "series").stat().st_size < size / 3
    assert read_series(tmp_path / "series") == before
    torn = tmp_path / "torn"
    torn.write_bytes((tmp_path / "series").read_bytes()[:5000])
    some = read_series(torn)
    assert some is not None and 0 < len(some) < 3000


def test_of_a_compressed_series_that_is_damaged_the_beginning_is_read(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for second in range(3000):
        writing.write({"time": float(second)} | {f"gpu.{n}.busy": (second * n) % 100 for n in range(8)})
    writing.close()
    whole = (tmp_path / "series").read_bytes()
    assert whole.startswith(b"\x1f\x8b")
    for place in range(10, len(whole), len(whole) // 40):
        (tmp_path / "series").write_bytes(whole[:place] + b"\xff" * 20 + whole[place + 20 :])
        series = read_series(tmp_path / "series")
        assert series is None or {len(values) for values in series.columns.values()} == {len(series)}


def test_no_sample_of_a_long_series_makes_much_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    monkeypatch.setattr(
        "upshift.runtime.storage.series.sample", lambda values: lines.append(values) or sample(values)
    )
    writing = writer(tmp_path, most=512)
    for second in range(2000):
        writing.write({"time": float(second), "cpu": 1})
        assert len(lines) <= 10, "what it is merged to, and nothing of what came before"
        lines.clear()
    series = read_series(tmp_path / "series")
    assert series is not None and series.columns["time"] == [*range(3, 2000, 4)]


def test_a_series_that_has_just_been_thinned_is_compressed_as_well(tmp_path: Path) -> None:
    writing = writer(tmp_path, most=1000)
    for second in range(1000):
        writing.write({"time": float(second)} | {f"gpu.{n}.power": second * n for n in range(40)})
    writing.close()
    assert (tmp_path / "series").read_bytes().startswith(b"\x1f\x8b")
    writing.close()
    series = read_series(tmp_path / "series")
    assert series is not None and len(series) == 500 == writing.samples


def test_the_end_of_a_long_series_is_read_alone(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for second in range(3000):
        writing.write({"time": float(second), "cpu": 1} | ({"gpu.0.busy": 5} if second > 3 else {}))
    last = read_series(tmp_path / "series", tail=2000)
    assert last is not None and 50 < len(last) < 200
    assert last.columns["time"][-1] == 2999 and last.columns["gpu.0.busy"][-1] == 5
    assert last.gpus == ({"uuid": "GPU-1"},)


def test_where_the_end_cannot_be_understood_alone_all_is_read(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for second in range(3000):
        writing.write({"time": float(second), "cpu": 1} | ({"gpu.0.busy": 5} if second > 1000 else {}))
    assert read_series(tmp_path / "series", tail=2000) == read_series(tmp_path / "series")


def test_a_full_disk_ends_the_series_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "series").mkdir()
    writing = writer(tmp_path)
    writing.write({"time": 1.0, "cpu": 1})
    writing.write({"time": 2.0, "cpu": 1})
    writing.close()
    assert writing.gap is not None and (writing.gap.since, writing.gap.why) == (1.0, "Is a directory")


def test_a_grant_of_models_is_one_of_devices_once_there_are_samples(tmp_path: Path) -> None:
    granted = Hardware(cpu_count=2, gpus=(Device(vendor="nvidia", model="NVIDIA L4", kind="L4"),))
    assert given(granted, read_series(tmp_path / "none")) is granted
    assert given(None, None) is None
    known = {"uuid": "GPU-1", "vendor": "nvidia", "index": 1, "model": "NVIDIA L4", "driver": "580"}
    path = tmp_path / "series"
    path.write_text(header(0.0, ["time", "cpu"], [known]) + sample([1.0, 0.5]))
    found = given(granted, read_series(path))
    device = Device(vendor="nvidia", model="NVIDIA L4", kind="L4", uuid="GPU-1", index=1)
    assert found == Hardware(cpu_count=2, gpus=(device,))


def test_what_is_lost_as_the_file_is_closed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SeriesWriter(tmp_path / "series", 5.0, temporaries=str(tmp_path))
    writer.write({"time": 1.5, "cpu": 1.0})
    close = os.close

    def full(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as nfs:
        nfs.setattr(os, "close", full)
        writer.close()
    assert writer.gap is not None
    assert (writer.gap.why, writer.gap.since) == ("Disk quota exceeded", 1.5)
