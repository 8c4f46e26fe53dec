"""Steps whose processes are to meet at a port that the user has fixed: one has it after the other."""

from __future__ import annotations

import json
import socket

import pytest

from project import Project

CODE = """
import socket
from upshift import current, run_with_torchrun

sockets = []

def meet():
    import os
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("", int(os.environ["MASTER_PORT"])))
    listening.listen()
    sockets.append(listening)  # until the process is gone

@run_with_torchrun(nproc_per_node=1, master_port={port})
@step(settings={{"resources": ResourceSettings(cpu_count=0.1)}})
def train(x: int) -> int:
    meet()
    return x

@run_with_torchrun(nproc_per_node=1, master_port={port})
@step(settings={{"resources": ResourceSettings(cpu_count=0.1)}})
def again(x: list) -> int:
    meet()
    return sum(x)

@pipeline
def training():
    return again(train.map([1, 2, 3, 4]))
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_tasks_that_fix_one_port_have_it_one_after_the_other(project: Project, port: int) -> None:
    project.run(CODE.format(port=port))
    shown = json.loads(project.upshift("show", "latest", "--json").out)
    attempts = [task["attempts"] for step in shown["steps"] for task in step["tasks"]]
    assert [len(each) for each in attempts] == [1] * 5


def test_a_port_that_somebody_else_has_is_refused_in_one_task(project: Project) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        said = project.run(CODE.format(port=port), expect=1).text
    assert f"master_port={port} is taken" in said
