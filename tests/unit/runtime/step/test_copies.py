"""What a step writes to its own copies of files is told of, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.runtime.step.remarks import Copies
from upshift.runtime.storage import home_folders


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of a folder that was given to this process, beside what other processes of the task have."""
    monkeypatch.setenv(home_folders.VARIABLE, str(tmp_path))
    (tmp_path / "other").mkdir()
    folder = tmp_path / "input0" / "data"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    return folder


def test_a_changed_or_new_file_is_told_of(data: Path) -> None:
    copies = Copies({"data": {"train": data}, "n": 3})
    (data / "a.txt").write_text("changed")
    (data / "b.txt").write_text("new")
    (said,) = copies.remarks("work", None)
    assert said.startswith("work wrote data/a.txt and 1 more to its own copy of an input")
    assert not list(copies.remarks("work", [data / "b.txt"]))


def test_the_copy_of_a_single_file_is_one(data: Path) -> None:
    copies = Copies({"data": data / "a.txt"})
    assert not list(copies.remarks("work", None))
    (data / "a.txt").write_text("changed")
    (said,) = copies.remarks("work", None)
    assert said.startswith("work wrote a.txt to")


def test_what_other_processes_write_to_copies_of_theirs_is_not_told_of(data: Path, tmp_path: Path) -> None:
    copies = Copies({"data": data})
    (tmp_path / "other" / "late.txt").write_text("still being copied")
    assert not list(copies.remarks("work", None))


def test_bytecode_of_modules_in_a_copy_is_not_told_of(data: Path) -> None:
    copies = Copies({"data": data})
    (data / "__pycache__").mkdir()
    (data / "__pycache__" / "module.cpython-311.pyc").write_text("")
    assert not list(copies.remarks("work", None))


def test_a_path_that_is_no_copy_may_be_written_to(data: Path, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    copies = Copies({"out": outside})
    (outside / "result.txt").write_text("here")
    assert not list(copies.remarks("work", None))
