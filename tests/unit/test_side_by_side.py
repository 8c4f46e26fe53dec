"""``make test``: several sessions at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "side_by_side.py"
PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    assert 1 == 2\n"
CANNOT_BE_READ = "def test_it(:\n"


@pytest.mark.parametrize(
    ("second", "end", "status"),
    [(PASSES, "passed", 0), (FAILS, "failed", 1), (CANNOT_BE_READ, "failed", 1), ("", "failed", 1)],
)
def test_all_folders_have_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, end: str, status: int
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds
    shutil.copy(SCRIPT, tmp_path)
    for name, content in (("unit", PASSES), ("chaos", second), ("gpu", FAILS)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(content)
    command = [sys.executable, tmp_path / SCRIPT.name, "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith(f"tests/unit: passed\ntests/chaos: {end}\n")
    assert done.returncode == status
