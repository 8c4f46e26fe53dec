"""What an installation of the core brings along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Effort, Report, Row

ROOT = Path(__file__).parents[1]


def measure(effort: Effort) -> Report:
    """Packages and bytes of a fresh environment with nothing but the core."""
    with tempfile.TemporaryDirectory(prefix="upshift-bench-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder, "bin", "python")
        before = _bytes(folder)
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
        size = _bytes(folder) - before
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True
        )
    packages = {p["name"] for p in json.loads(listed.stdout)} - {"pip", "setuptools", "wheel"}
    return Report(
        title="Installing the core",
        how="`pip install` of this project into a fresh environment, compiled modules included; pip itself "
        f"does not count. Packages: {', '.join(sorted(packages))}.",
        rows=[
            Row(what="packages, Upshift included", value=len(packages), unit="", target=15),
            Row(what="size", value=size / 1e6, unit="MB", target=25),
        ],
    )


def _bytes(folder: str) -> int:
    return sum(
        os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(folder) for name in names
    )
