"""Supervisors of a task's nodes, started as a cluster would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from upshift.model.spec import Launch, TaskResult, TaskSpec
from upshift.runtime.launch.seats import Seat, usual_port

SAY = (
    "import os, signal, socket, sys, time, upshift\n"
    "def me():\n"
    "    names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'GROUP_RANK', 'MASTER_ADDR')\n"
    "    return {name: os.environ[name] for name in names}\n"
)
"""What the module of every step begins with."""


class Cluster:
    """Starts the supervisors of a task's nodes, and waits for them."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.said: list[tuple[str, str]] = []
        self.addresses = [f"127.0.0.{node + 1}" for node in range(4)]
        self.prefixes: list[Sequence[str]] = [()] * 4
        self.supervisors: list[subprocess.Popen[str]] = []
        self.wait = 60.0
        self.silence = 60.0
        self.port_of_rank_0: int | None = None
        self.token = os.urandom(8).hex()

    def spec(self, function: str, *, nodes: int = 2, per_node: int = 1, **fields: Any) -> TaskSpec:
        launch = Launch(
            launcher="torchrun", processes=nodes * per_node, per_node=per_node, port=self.port_of_rank_0
        )
        return self.bench.spec(function, launch=launch, **fields)  # type: ignore[no-any-return]

    def seat(self, node: int, nodes: int) -> Seat:
        address = self.addresses[node]
        return Seat(
            node=node,
            nodes=nodes,
            token=self.token,
            main=self.addresses[0],
            port=self.port,
            name=address,
            address=address,
            wait=self.wait,
            silence=self.silence,
        )

    def start(self, spec: TaskSpec, node: int, nodes: int = 2, **changed: Any) -> subprocess.Popen[str]:
        path = Path(self.bench.store.address) / self.bench.store.write_spec(spec)
        seat = attrs.evolve(self.seat(node, nodes), **changed)
        process = subprocess.Popen(
            [*self.prefixes[node], sys.executable, "-m", "upshift.runtime", str(path)],
            env={**os.environ, **seat.variables()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.supervisors.append(process)
        return process

    def run(self, spec: TaskSpec, nodes: int = 2) -> TaskResult:
        started = [self.start(spec, node, nodes) for node in range(nodes)]
        self.said = [process.communicate(timeout=60) for process in started]
        return self.result(spec)

    def result(self, spec: TaskSpec) -> TaskResult:
        result = self.bench.store.read_result(spec.task, 1)
        assert result is not None, self.said
        return result  # type: ignore[no-any-return]

    def log(self, spec: TaskSpec) -> str:
        text: str = self.bench.store.log_path(spec.task, 1).read_text()
        return text

    @property
    def port(self) -> int:
        return usual_port(self.token)

    def heard(self, fifo: Path) -> list[int]:
        """Process ids that a step has told through a named pipe."""
        with open(fifo) as pipe:
            return [int(word) for word in pipe.readline().split()]

    def close(self) -> None:
        for process in self.supervisors:
            process.kill()
            process.communicate()
