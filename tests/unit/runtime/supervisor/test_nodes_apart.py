"""Nodes that share no network but one between them: two namespaces of the kernel, and a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from several_nodes import SAY, Cluster


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Apart(Cluster):
    """Each node has a network namespace of its own."""

    def __init__(self, bench: Any, name: str) -> None:
        super().__init__(bench)
        self.names = [f"{name}-{node}" for node in range(2)]
        self.addresses = [f"10.123.45.{node + 1}" for node in range(2)]
        self.prefixes = [("ip", "netns", "exec", each) for each in self.names]

    def build(self) -> None:
        for node, each in enumerate(self.names):
            ip("netns", "add", each)
            ip("-n", each, "link", "set", "lo", "up")
        ends = ["type", "veth", "peer", "name", "wire", "netns", self.names[1]]
        ip("link", "add", "wire", "netns", self.names[0], *ends)
        for address, each in zip(self.addresses, self.names, strict=True):
            ip("-n", each, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", each, "link", "set", "wire", "up")

    def cut(self) -> None:
        """From now on nothing that one node sends reaches the other one, and neither is told."""
        ip("-n", self.names[0], "link", "set", "wire", "down")

    def close(self) -> None:
        super().close()
        for each in self.names:
            subprocess.run(["ip", "netns", "del", each], check=False, capture_output=True)


@pytest.fixture
def apart(project: Callable[[str], Any]) -> Iterator[Callable[[str], Apart]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces are made by root, with ip of iproute2")
    made: list[Apart] = []

    def make(source: str) -> Apart:
        made.append(Apart(project(SAY + source), f"upshift-{os.getpid()}-{len(made)}"))
        made[-1].build()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_ranks_meet_at_the_address_of_the_first_node_in_the_others_network(apart) -> None:  # type: ignore[no-untyped-def]
    two = apart(
        "def train():\n"
        "    at = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "    if os.environ['RANK'] == '0':\n"
        "        with socket.create_server(('', at[1])) as server:\n"
        "            other, where = server.accept()\n"
        "            return [at[0], other.recv(100).decode(), where[0]]\n"
        "    while True:\n"
        "        try:\n"
        "            with socket.create_connection(at) as first:\n"
        "                return first.sendall(b'hello')\n"
        "        except ConnectionRefusedError:\n"
        "            time.sleep(0.05)\n"
    )
    result = two.run(two.spec("train"))
    assert two.bench.output(result) == ["10.123.45.1", "hello", "10.123.45.2"]
    assert [one["host"] for one in result.seen.details["by_node"]] == two.addresses


def test_a_group_of_torch_forms_between_nodes_and_reduces(apart) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    two = apart(
        "def train():\n"
        "    import torch, torch.distributed as dist\n"
        "    dist.init_process_group('gloo')\n"
        "    total = torch.tensor(float(dist.get_rank() + 1))\n"
        "    dist.all_reduce(total)\n"
        "    dist.destroy_process_group()\n"
        "    return [dist.is_initialized(), float(total), os.environ['GLOO_SOCKET_IFNAME']]\n"
    )
    assert two.bench.output(two.run(two.spec("train", per_node=2))) == [False, 10.0, "wire"]


def test_a_node_that_is_cut_off_is_gone_though_nobody_closed_anything(apart, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    os.mkfifo(tmp_path / "fifo")
    two = apart(
        "def train(fifo):\n"
        "    if os.environ['RANK'] == '1':\n"
        "        with open(fifo, 'w') as pipe:\n"
        "            print(os.getpid(), file=pipe)\n"
        "    time.sleep(1000)\n"
    )
    two.silence = 2.0
    spec = two.spec("train", inputs={"fifo": str(tmp_path / "fifo")})
    started = [two.start(spec, 0), two.start(spec, 1)]
    two.heard(tmp_path / "fifo")
    two.cut()
    two.said = [process.communicate(timeout=60) for process in started]
    failure = two.result(spec).failure
    assert failure.reason == "infrastructure" and failure.node == "10.123.45.2"
    assert failure.message.startswith("node 1 (10.123.45.2) is gone: nothing has come from it for ")
    assert started[1].returncode == 1
    assert two.said[1][1].startswith("node 0 is gone: nothing has come from it for ")


def test_an_address_that_leads_nowhere_is_named_in_the_direction_that_fails(apart) -> None:  # type: ignore[no-untyped-def]
    two = apart("def train():\n    pass\n")
    two.wait = 7.0
    spec = two.spec("train")
    started = [two.start(spec, 0), two.start(spec, 1, main="192.0.2.1", wait=5.0)]
    two.said = [process.communicate(timeout=60) for process in started]
    message = two.result(spec).failure.message
    assert f"node 1 (10.123.45.2) cannot reach node 0 at 192.0.2.1:{two.port}" in message
    assert "There is no way to that network (Network is unreachable)." in message


def test_a_port_of_rank_0_that_others_cannot_reach_is_found_out_before_anything_starts(apart) -> None:  # type: ignore[no-untyped-def]
    two = apart("def train():\n    open('started', 'w').close()\n")
    two.port_of_rank_0 = 23_457
    spec = two.spec("train")
    ip("-n", two.names[1], "rule", "add", "ipproto", "tcp", "dport", "23457", "unreachable")
    failure = two.run(spec).failure
    assert failure.reason == "infrastructure"
    assert failure.message.startswith(
        "node 1 (10.123.45.2) (from 10.123.45.2) cannot reach rank 0 at 10.123.45.1:23457: There is no way"
    )
    assert not (two.bench.folder / "started").exists()
