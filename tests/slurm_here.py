"""The Slurm that ``make engines`` starts, for tests; and one of its own for a test that breaks it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
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

    def stop_daemon(self, name: str) -> None:
        """Stop it, and wait for its end."""
        daemon = self.daemon(name)
        os.kill(daemon, signal.SIGTERM)
        subprocess.run(["tail", f"--pid={daemon}", "-f", "/dev/null"], timeout=60, check=True)

    def start_daemon(self, name: str) -> None:
        """Start it again, as its own daemon: ``slurmctld``, ``slurmdbd``."""
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        self.run(program)
        own = self.folder / f"{name}.own"  # which it writes after it has gone to the background
        while not own.exists() or not own.read_text().strip():
            time.sleep(0.05)
        own.rename(self.folder / f"{name}.pid")

    def turn_off(self, node: str) -> None:
        """Kill all that runs on a node at once, as where a machine loses its power."""
        here = {f"SLURM_CONF={self.folder}/slurm.conf", f"SLURMD_NODENAME={node}"}
        jobs = [pid for pid, variables in _environments() if here <= variables]
        daemons = {parent for pid in jobs if _name_of(parent := _parent_of(pid)) == "slurmstepd"}
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none sees another one die
            for pid in (*jobs, *daemons, self.daemon(f"slurmd-{node}")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _environments() -> Iterator[tuple[int, set[str]]]:
    """The processes of this machine, with the variables that each was started with."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), set((entry / "environ").read_text(errors="replace").split("\0"))


def _parent_of(pid: int) -> int:
    """Its parent; 1 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 1


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def slurm_here() -> SlurmHere:
    """The shared cluster; the test is skipped where there is none."""
    here = SlurmHere(CONF.parent)
    if shutil.which("sinfo") is None or not here.runs:
        pytest.skip("Slurm does not run: make engines")
    return here


@contextmanager
def slurm_of_its_own(*, accounting: bool = False) -> Iterator[SlurmHere]:
    """A cluster that a test may break, with ports, names and a folder that no other one has."""
    slurm_here()
    port = next(filter(_are_free, random.sample(range(17_200, 19_900, 6), 450)))
    prefix = f"m{port}x"
    folder = CONF.parent.with_name(f"slurm-{prefix}")
    arguments = (str(folder), str(port), prefix, "accounting" if accounting else "")
    try:
        subprocess.run([SCRIPT, "start", *arguments], check=True, capture_output=True, timeout=120)
        yield SlurmHere(folder, port, prefix)
    finally:
        subprocess.run([SCRIPT, "stop", *arguments], check=True, capture_output=True, timeout=120)


def _are_free(port: int) -> bool:
    """Whether nobody listens at this port and the next five."""
    for one in range(port, port + 6):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", one)) == 0:
                return False
    return True


def instead(program: str, code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of ours before Slurm's own, which it knows as ``real``."""
    real = shutil.which(program)
    own = folder / "bin" / program
    own.parent.mkdir(parents=True, exist_ok=True)
    code = f"import os, re, signal, subprocess, sys\nreal = {real!r}\n{textwrap.dedent(code)}"
    own.write_text(f"#!{sys.executable} -IS\n{code}")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}{os.pathsep}{os.environ['PATH']}")
