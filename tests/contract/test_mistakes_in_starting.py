"""What goes wrong when one task is started ends that task, and nothing beside it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_kit import Ground

from upshift.backends.base import Ended, Started
from upshift.model.spec import Hardware, Launch

NO_PORT = Launch(launcher="torchrun", per_node=2, port=99999)
"""Of a spec that no engine makes: the kernel's own functions do not take such a number."""


@pytest.fixture
def ground(tmp_path: Path, upshift_home: Path) -> Iterator[Ground]:
    ground = Ground("local", tmp_path)
    yield ground
    ground.close()


def test_a_mistake_in_starting_a_task_ends_that_task_alone(ground: Ground) -> None:
    watched = ground.open()
    running = watched.started(ground.job("wait"))
    broken = watched.run(ground.job("add", inputs={"a": 1, "b": 2}, launch=NO_PORT))
    assert broken is not None and broken.failure is not None
    assert broken.failure.message.startswith("Upshift could not start the step: OverflowError: ")
    assert broken.failure.fix == "This is a mistake in Upshift: please report it."
    result = watched.run(ground.job("add", inputs={"a": 1, "b": 2}))
    assert result is not None and result.status == "completed"
    assert not any(isinstance(event, Ended) for event in watched.of(running))
    watched.cancel(running, grace=0)
    watched.until(Ended, running)


def test_nor_does_one_when_its_nodes_find_each_other(ground: Ground) -> None:
    watched = ground.open()
    running = watched.started(ground.job("wait"))
    broken = ground.job("add", inputs={"a": 1, "b": 2}, launch=NO_PORT, granted=Hardware(nodes=2))
    result = watched.run(broken)
    assert result is not None and result.failure is not None
    assert "OverflowError" in result.failure.message
    assert not any(isinstance(event, Ended) for event in watched.of(running))
    watched.cancel(running, grace=0)
    watched.until(Ended, running)


def test_a_port_is_had_by_one_task_after_another(ground: Ground) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = Launch(launcher="torchrun", per_node=1, port=port)
    watched = ground.open()
    first = watched.started(ground.job("wait", launch=launch))
    second = watched.submit(ground.job("add", inputs={"a": 1, "b": 2}, launch=launch))
    third = watched.submit(ground.job("add", inputs={"a": 1, "b": 2}, launch=launch))
    other = watched.run(ground.job("add", inputs={"a": 1, "b": 2}))
    assert other is not None and other.status == "completed"
    assert not any(isinstance(event, Started) for event in (*watched.of(second), *watched.of(third)))
    watched.cancel(third, grace=0)
    watched.until(Ended, third)
    watched.cancel(first, grace=0)
    watched.until(Ended, second)
    assert [type(event) for event in watched.of(third)] == [Ended]
    assert Started in [type(event) for event in watched.of(second)]
