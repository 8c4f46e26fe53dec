"""The Slurm that ``make engines`` starts, for tests; and one of its own for a test that breaks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

CONF = Path("/run/upshift-engines/slurm/slurm.conf")
SCRIPT = Path(__file__).parent / "engines" / "slurm"


@attrs.frozen
class SlurmHere:
    """A cluster."""

    folder: Path
    port: int = 16817
    prefix: str = "n"

    @property
    def environment(self) -> Mapping[str, str]:
        """What commands of Slurm's need to find it."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, input: str | None = None) -> str:
        """What a command prints."""
        done = subprocess.run(
            command, input=input, env=self.environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    def job(self, name: str, form: str = "%i") -> str:
        """What ``squeue`` says of the newest job of which a step of this name is an attempt."""
        listed = self.run("squeue", "--states=all", "--noheader", f"--format=%i|%j|{form}").splitlines()
        rows = [line.split("|", 2) for line in listed]
        found = [row for row in rows if row[1].rpartition("-")[0] == name]
        return max(found, key=lambda row: int(row[0]))[2] if found else ""

    def daemon(self, name: str) -> int:
        """The process id of a daemon: ``slurmctld``, ``slurmd-n1``."""
        return int((self.folder / f"{name}.pid").read_text())

    @property
    def runs(self) -> bool:
        """Whether its controller does; its folder may be what a machine that was turned off has left."""
        try:
            return Path(f"/proc/{self.daemon('slurmctld')}/comm").read_text().strip() == "slurmctld"
        except (OSError, ValueError):
            return False

    def start_controller(self) -> None:
        """Start it again, as its own daemon."""
        program = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        self.run(program)
        own = self.folder / "slurmctld.own"  # which it writes after it has gone to the background
        while not own.exists() or not own.read_text().strip():
            time.sleep(0.05)
        own.rename(self.folder / "slurmctld.pid")


def slurm_here() -> SlurmHere:
    """The shared cluster; the test is skipped where there is none."""
    here = SlurmHere(CONF.parent)
    if shutil.which("sinfo") is None or not here.runs:
        pytest.skip("Slurm does not run: make engines")
    return here


@contextmanager
def slurm_of_its_own(*, port: int = 16917, prefix: str = "m") -> Iterator[SlurmHere]:
    """A cluster that a test may break."""
    slurm_here()
    folder = CONF.parent.with_name(f"slurm-to-break-{prefix}")
    arguments = (str(folder), str(port), prefix)
    subprocess.run([SCRIPT, "start", *arguments], check=True, capture_output=True, timeout=120)
    try:
        yield SlurmHere(folder, port, prefix)
    finally:
        subprocess.run([SCRIPT, "stop", *arguments], check=True, capture_output=True, timeout=120)
