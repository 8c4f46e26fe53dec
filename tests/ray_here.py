"""The Ray that ``make engines`` starts, for tests; and one of its own for a test that breaks it."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from buckets import KEYS

FOLDER = Path("/run/upshift-engines/ray")
SCRIPT = Path(__file__).parent / "engines" / "ray"


@attrs.frozen
class RayHere:
    """A cluster."""

    folder: Path = FOLDER
    port: int = 8365
    net: int = 18

    @property
    def address(self) -> str:
        """That of its dashboard."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[str]:
        """The addresses of the nodes that are no heads."""
        return [f"127.0.{self.net}.{number}" for number in (2, 3)]

    def ask(self, path: str, method: str = "GET") -> Any:
        """What the dashboard answers."""
        request = urllib.request.Request(f"{self.address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def jobs(self, step: str) -> list[dict[str, Any]]:
        """The jobs of which a step of this name is an attempt, the oldest first."""
        listed = [job for job in self.ask("/api/jobs/") if job["submission_id"]]
        found = [job for job in listed if job["submission_id"].rpartition("-")[0] == step]
        return sorted(found, key=lambda job: job["start_time"])

    def job(self, name: str) -> dict[str, Any]:
        """One job."""
        found: dict[str, Any] = self.ask(f"/api/jobs/{name}")
        return found

    def stop(self, name: str) -> None:
        """Stop a job, as anybody may: ``ray job stop``."""
        self.ask(f"/api/jobs/{name}/stop", "POST")

    def node(self, address: str) -> int:
        """The process id of what started the node of this address, of those that are no heads."""
        return int((self.folder / f"worker-{int(address.rpartition('.')[2]) - 1}.pid").read_text())


def nodes_apart(home: Path | str) -> str:
    """The option of a target whose nodes share a bucket only: credentials, and where each has its folder."""
    there = {**KEYS, "UPSHIFT_NODE_HOME": str(home)}
    variables = ", ".join(f'{name} = "{value}"' for name, value in there.items())
    return f"env_vars = {{ {variables} }}"


def ray_here() -> RayHere:
    """The shared cluster; the test is skipped where there is none."""
    here = RayHere()
    try:
        here.ask("/api/version")
    except OSError:
        pytest.skip("Ray does not run: make engines")
    return here


@contextmanager
def ray_of_its_own(*, port: int = 8375, net: int = 19) -> Iterator[RayHere]:
    """A cluster that a test may break, of a head and two more nodes."""
    ray_here()
    folder = FOLDER.with_name(f"ray-to-break-{net}")
    arguments = (str(folder), str(port), str(net), "2")
    subprocess.run([SCRIPT, "start", *arguments], check=True, capture_output=True, timeout=280)
    try:
        yield RayHere(folder, port, net)
    finally:
        subprocess.run([SCRIPT, "stop", *arguments], check=True, capture_output=True, timeout=120)
