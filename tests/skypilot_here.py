"""The stand-in of SkyPilot for tests: its command, and jobs that are processes of this machine."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

STAND_IN = Path(__file__).parent / "sky_stand_in"


@attrs.frozen
class Sky:
    """What a test does to it."""

    folder: Path
    command: Path

    def job(self, id: str) -> dict[str, Any]:
        """A job as it was submitted."""
        found: dict[str, Any] = json.loads((self.folder / f"{id}.json").read_text())
        return found

    def refuses(self, error: str) -> None:
        """Calls raise this error from now on: ``TYPE: text``."""
        (self.folder / "refuses").write_text(error)

    def becomes(self, id: str, status: str) -> None:
        """What becomes of a job in the cloud."""
        (self.folder / f"{id}.status").write_text(status)

    @contextmanager
    def full(self, status: str) -> Iterator[None]:
        """No machine can be rented while the block runs: what a job is in the meantime."""
        with open(self.folder / "rented", "a+") as rented:
            fcntl.flock(rented, fcntl.LOCK_EX)
            rented.write(status)
            rented.flush()
            try:
                yield
            finally:
                if status == "STARTING":
                    rented.truncate(0)

    def until_printed(self, id: str, text: str) -> None:
        """Wait until a job has printed this."""
        while text not in (self.folder / f"{id}.log").read_text():
            time.sleep(0.01)

    def breaks(self) -> None:
        """SkyPilot cannot be imported from now on."""
        self.command.write_text(f"#!{self.command.with_name('broken')}\n")
        self.command.with_name("broken").write_text("#!/bin/sh\nexit 1\n")
        self.command.with_name("broken").chmod(0o755)

    def is_mended(self) -> None:
        """It can again."""
        self.command.write_text(f"#!{sys.executable}\n")


@contextmanager
def sky_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sky]:
    """SkyPilot's command is on the PATH, and its jobs run here while the block does."""
    here = Sky(tmp_path / "sky", tmp_path / "bin" / "python-of-sky" / "sky")
    here.folder.mkdir()
    here.command.parent.mkdir(parents=True)
    here.is_mended()
    here.command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{here.command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SKY_STAND_IN", str(here.folder))
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    try:
        yield here
    finally:
        for path in here.folder.glob("*.json"):
            with suppress(ProcessLookupError):
                os.killpg(json.loads(path.read_text())["pid"], signal.SIGKILL)
