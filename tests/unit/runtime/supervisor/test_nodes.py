"""A task on several nodes: a supervisor each, started as a cluster would start them."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from several_nodes import SAY, Cluster


@pytest.fixture
def cluster(project: Callable[[str], Any]) -> Iterator[Callable[[str], Cluster]]:
    made: list[Cluster] = []

    def make(source: str) -> Cluster:
        made.append(Cluster(project(SAY + source)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_all_ranks_of_all_nodes_run_and_the_first_ones_value_is_the_output(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster("def train():\n    print(sorted(me().items()), flush=True)\n    return me()\n")
    spec = two.spec("train", per_node=2)
    result = two.run(spec)
    assert two.bench.output(result)["WORLD_SIZE"] == "4", two.said
    assert {line.partition("] ")[0] for line in two.log(spec).splitlines()} == {
        f"[rank {n}" for n in range(4)
    }
    seen = result.seen.details
    assert [(one["rank"], one["node"], one["local_rank"], one["host"]) for one in seen["ranks"]] == [
        (0, 0, 0, "127.0.0.1"),
        (1, 0, 1, "127.0.0.1"),
        (2, 1, 0, "127.0.0.2"),
        (3, 1, 1, "127.0.0.2"),
    ]
    assert len({one["pid"] for one in seen["ranks"]} - {0}) == 4
    assert "('GROUP_RANK', '1'), ('LOCAL_RANK', '0'), ('MASTER_ADDR', '127.0.0.1')" in two.log(spec)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_to_fail_on_any_node_is_the_error_and_ends_the_others(cluster, rank: int) -> None:  # type: ignore[no-untyped-def]
    two = cluster(
        "def train():\n"
        f"    if os.environ['RANK'] == '{rank}':\n        raise ValueError('no good')\n"
        "    time.sleep(1000)\n"
    )
    failure = two.run(two.spec("train")).failure
    assert (failure.reason, failure.message) == ("user-error", "ValueError: no good")
    assert (failure.rank, failure.node) == (rank, f"127.0.0.{rank + 1}")
    assert "raise ValueError('no good')" in failure.traceback and failure.where.startswith("steps.py:")
    assert [process.returncode for process in two.supervisors] == [1, 0]


def test_what_all_nodes_were_granted_and_have_used_is_in_the_records(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster(
        "def train():\n"
        "    held = bytearray(80_000_000 if os.environ['RANK'] == '1' else 1)\n"
        "    until = time.process_time() + 0.3\n"
        "    while time.process_time() < until:\n        pass\n"
    )
    result = two.run(two.spec("train", request={"cpu_count": 1, "memory": "300MB", "num_nodes": 2}))
    assert result.status == "completed", result.failure
    used = result.used.details
    assert result.used.nodes == 2 and used["cpu_seconds"] > 0.6
    assert [one["node"] for one in used["by_node"]] == [0, 1]
    assert all(one["cpu_seconds"] > 0.3 for one in used["by_node"])
    assert used["by_node"][1]["memory_peak"] > 70_000_000 > used["by_node"][0]["memory_peak"]
    assert result.used.memory == used["by_node"][1]["memory_peak"]
    assert [one["rank"] for one in used["ranks"]] == [0, 1]
    assert all(one["cpu_seconds"] > 0.3 for one in used["ranks"])
    assert used["ranks"][1]["memory_peak"] > 70_000_000 > used["ranks"][0]["memory_peak"]
    granted = result.granted.details["by_node"]
    assert [len(one["cpus"]) for one in granted] == [1, 1]
    assert [one["memory_limit"] for one in granted] == [result.granted.details["memory_limit"]] * 2
    assert [one["host"] for one in result.seen.details["by_node"]] == ["127.0.0.1", "127.0.0.2"]


def test_a_further_node_that_goes_beyond_its_memory_is_told_as_that(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster(
        "def train():\n"
        "    if os.environ['RANK'] == '1':\n        held = bytearray(400_000_000)\n"
        "    time.sleep(1000)\n"
    )
    failure = two.run(two.spec("train", request={"memory": "200MB"})).failure
    assert failure.reason == "out-of-memory" and "asked for 200 MB of memory" in failure.message
    assert failure.node == "127.0.0.2"


def test_metrics_and_long_output_of_all_nodes_arrive_whole(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster(
        "def train():\n"
        "    for number in range(20_000):\n"
        "        print(os.environ['RANK'], number, 'x' * 100)\n"
        "    upshift.log(step=1, loss=float(os.environ['RANK']))\n"
    )
    spec = two.spec("train")
    result = two.run(spec)
    assert result.status == "completed", result.failure
    for rank in (0, 1):
        text = two.bench.store.rank_log_path(spec.task, 1, rank).read_text()
        printed = [line for line in text.splitlines() if line.endswith("x")]
        assert printed == [f"{rank} {number} {'x' * 100}" for number in range(20_000)]
    assert result.metrics["loss"].last == 0.0


TELL = (
    "def train(fifo):\n"
    "    if os.environ['RANK'] == '1':\n"
    "        with open(fifo, 'w') as pipe:\n"
    "            print(os.getpid(), file=pipe)\n"
    "    time.sleep(1000)\n"
)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def is_gone(pid: int) -> bool:
    """Waits for the end of a process."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 30)[0])
    finally:
        os.close(descriptor)


def test_a_store_that_does_not_answer_keeps_no_rank_from_printing(cluster, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    two = cluster(
        "def train():\n"
        "    for number in range(20_000):\n"
        "        print(os.environ['RANK'], number, 'x' * 50, flush=True)\n"
        f"    open('{tmp_path}/printed' + os.environ['RANK'], 'w').close()\n"
        f"    while not os.path.exists('{tmp_path}/go'):\n        time.sleep(0.01)\n"
        "    return 1\n"
    )
    spec = two.spec("train", per_node=2)
    own = two.bench.store.rank_log_path(spec.task, 1, 0)
    own.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(own)  # whoever opens it to write waits until somebody reads
    printed = [tmp_path / f"printed{rank}" for rank in range(4)]
    deadline = time.monotonic() + 60
    with ThreadPoolExecutor() as pool:
        started = [two.start(spec, node) for node in range(2)]
        ended = [pool.submit(process.communicate, timeout=90) for process in started]
        while not all(path.exists() for path in printed):
            if time.monotonic() > deadline:
                two.close()
                pytest.fail("a rank still prints")
            time.sleep(0.05)
        (tmp_path / "go").touch()
        assert sum(line.startswith(b"0 ") for line in own.read_bytes().splitlines()) == 20_000
        two.said = [one.result() for one in ended]
    assert two.result(spec).status == "completed"
    for rank in range(4):
        of_rank = [line for line in two.log(spec).splitlines() if line.startswith(f"[rank {rank}] {rank} ")]
        assert [int(line.split()[3]) for line in of_rank] == list(range(20_000))


def test_a_node_that_dies_ends_the_attempt_and_is_named(cluster, fifo: Path) -> None:  # type: ignore[no-untyped-def]
    two = cluster(TELL)
    spec = two.spec("train", inputs={"fifo": str(fifo)})
    first, second = two.start(spec, 0), two.start(spec, 1)
    (pid,) = two.heard(fifo)
    second.kill()
    two.said = [first.communicate(timeout=60)]
    failure = two.result(spec).failure
    assert failure.reason == "infrastructure" and failure.node == "127.0.0.2"
    assert failure.message == "node 1 (127.0.0.2) is gone: it has closed the connection"
    assert is_gone(pid)


def test_a_node_whose_first_one_dies_ends_its_processes_and_leaves(cluster, fifo: Path) -> None:  # type: ignore[no-untyped-def]
    two = cluster(TELL)
    spec = two.spec("train", inputs={"fifo": str(fifo)})
    first, second = two.start(spec, 0), two.start(spec, 1)
    (pid,) = two.heard(fifo)
    first.kill()
    _, said = second.communicate(timeout=60)
    assert second.returncode == 1 and said.strip() == "node 0 is gone: it has closed the connection"
    assert is_gone(pid)


@pytest.mark.parametrize("node", [0, 1])
def test_sigterm_to_any_supervisor_cancels_on_all_nodes(cluster, fifo: Path, node: int) -> None:  # type: ignore[no-untyped-def]
    two = cluster(TELL)
    spec = two.spec("train", inputs={"fifo": str(fifo)})
    started = [two.start(spec, 0), two.start(spec, 1)]
    (pid,) = two.heard(fifo)
    started[node].send_signal(signal.SIGTERM)
    two.said = [process.communicate(timeout=60) for process in started]
    assert two.result(spec).status == "cancelled"
    assert [process.returncode for process in started] == [130, 0]
    assert is_gone(pid)


def test_a_node_that_never_comes_is_named_with_what_was_seen_of_it(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster("def train():\n    pass\n")
    two.wait = 1.0
    spec = two.spec("train")
    two.said = [two.start(spec, 0, 3, main=None).communicate(timeout=60)]
    failure = two.result(spec).failure
    assert failure.reason == "infrastructure"
    assert failure.message.startswith(
        "nodes 1, 2 of 3 did not come within 1 s. Nobody has connected from there"
    )
    assert f"port {two.port}" in failure.message and "has started" in failure.fix


def test_a_node_that_cannot_reach_the_first_one_says_so_in_its_name(cluster, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Node 0 waits at another port than node 1 is told: as if a firewall were between them."""
    two = cluster("def train():\n    pass\n")
    two.wait = 6.0
    spec = two.spec("train")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started = [two.start(spec, 0), two.start(spec, 1, port=port, wait=4.0)]
    two.said = [process.communicate(timeout=60) for process in started]
    failure = two.result(spec).failure
    assert "node 1 of 2 did not come within 6 s. node 1 (127.0.0.2)" in failure.message
    assert f"cannot reach node 0 at 127.0.0.1:{port}" in failure.message
    assert started[1].returncode == 1 and f"cannot reach node 0 at 127.0.0.1:{port}" in two.said[1][1]


def test_who_does_not_know_the_token_is_no_node(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster("def train():\n    return me()\n")
    spec = two.spec("train")
    first = two.start(spec, 0)
    stranger = two.start(spec, 1, token="guessed", port=two.port)
    _, said = stranger.communicate(timeout=60)
    assert stranger.returncode == 1
    assert said.strip() == "node 0 has refused node 1: that is not a node of this attempt"
    two.start(spec, 1).communicate(timeout=60)
    first.communicate(timeout=60)
    two.said = []
    assert two.result(spec).status == "completed"


def test_a_port_that_somebody_else_has_is_refused_with_who_that_is(cluster) -> None:  # type: ignore[no-untyped-def]
    two = cluster("def train():\n    pass\n")
    spec = two.spec("train")
    with socket.create_server(("127.0.0.1", two.port)):
        two.said = [two.start(spec, 0).communicate(timeout=60)]
    failure = two.result(spec).failure
    assert failure.reason == "infrastructure"
    assert (
        f"node 0 cannot listen for the other nodes at port {two.port}: Process {os.getpid()}"
        in failure.message
    )
    assert failure.fix == "Another attempt takes another port."
