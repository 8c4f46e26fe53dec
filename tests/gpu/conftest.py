"""Tests on a machine with a real NVIDIA GPU and a PyTorch that uses it: ``make test-gpu``.

They are not part of ``make test``. What they measure is written to the file named in
``UPSHIFT_GPU_RESULTS``, with the machine and the date.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from project import Project

RESULTS = os.environ.get("UPSHIFT_GPU_RESULTS")  # read before the fixture that clears such variables


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    """An empty project; ``upshift.get_run`` in the test sees its runs."""
    return Project(tmp_path / "project", upshift_home)


@pytest.fixture(scope="session")
def measured() -> Iterator[Callable[[str, str], None]]:
    """Takes a row of the results, what and how much; they are written out when the tests have ended."""
    rows: list[tuple[str, str]] = []
    yield lambda what, value: rows.append((what, value))
    if RESULTS and rows:
        Path(RESULTS).write_text(_page(rows), encoding="utf-8")


def _page(rows: list[tuple[str, str]]) -> str:
    import torch

    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    device = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    facts = [
        ("Date", f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"),
        ("GPUs", f"{len(device)} × {device[0]}"),
        ("PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda}"),
        ("Python", platform.python_version()),
        ("Linux", platform.release()),
    ]
    lines = ["| | |", "| --- | --- |", *(f"| {what} | {value} |" for what, value in [*facts, *rows])]
    return "\n".join(lines) + "\n"
