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


class NotInstalled(Exception):
    """``pip install`` failed; the text is what it said last."""


def measure(effort: Effort) -> Report:
    """Packages and bytes of a fresh environment with nothing but the core."""
    with tempfile.TemporaryDirectory(prefix="upshift-bench-") as folder:
        packages, size = install(Path(folder), str(ROOT))
    return Report(
        title="Installing the core",
        how="`pip install` of this project into a fresh environment, compiled modules included; pip itself "
        f"does not count. Packages: {', '.join(sorted(packages))}.",
        rows=[
            Row(what="packages, Upshift included", value=len(packages), unit="", target=15),
            Row(what="size", value=size / 1e6, unit="MB", target=25),
        ],
    )


def install(folder: Path, *requirements: str) -> tuple[dict[str, str], int]:
    """Install into the environment in a folder, which is made if it is not there.

    Returns
    -------
    tuple of dict and int
        The versions of all packages that are there now, and the bytes that were added. pip does not count.

    Raises
    ------
    NotInstalled
        pip cannot install this.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    before = _bytes(folder)
    command = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(errors[-1] if errors else done.stderr.strip()[-200:])
    size = _bytes(folder) - before
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
    versions = {package["name"]: package["version"] for package in json.loads(listed.stdout)}
    return {n: v for n, v in versions.items() if n not in ("pip", "setuptools", "wheel")}, size


def _bytes(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(folder) for name in names
    )
