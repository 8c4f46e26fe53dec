"""The series of an attempt: what is read is what was written, however the file ends."""

from __future__ import annotations

from pathlib import Path

from upshift.store.series import header, read_series, sample


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
        header(5.0, ["time", "cpu"]).encode() + b"[1,2]\n[1,2,3]\n\xff\xfe\n7\n[2,3]\n[3,".replace(b"7", b"null")
    )
    series = read_series(file)
    assert series is not None and series.columns == {"time": [1, 2], "cpu": [2, 3]}
