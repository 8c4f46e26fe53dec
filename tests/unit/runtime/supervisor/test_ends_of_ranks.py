"""Where processes were that are stopped, and why it is not known of others."""

from __future__ import annotations

from typing import Any

import pytest
from members_kit import Process

from upshift.model.spec import Code, EntryPoint, Failure, Launch, Rank, TaskId, TaskSpec, to_json
from upshift.runtime.messages import Seen
from upshift.runtime.supervisor.ends import EndsOfRanks, Gang, stopped
from upshift.runtime.supervisor.nodes import RemoteMember, RemoteNode

SPEC = TaskSpec(
    task=TaskId(run="r", step="train"),
    attempt=1,
    pipeline="p",
    entry=EntryPoint(module="m", qualname="f"),
    code=Code(project="/home/me"),
    store="/nowhere",
    cwd="/home/me",
    launch=Launch(launcher="torchrun"),
)
TIMEOUT = Failure(reason="timeout", message="the step was still running after 3 s")
WAITS = """\
Current thread 0x00007f29ecde0b80 (most recent call first):
  File "/env/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 12 in train
"""


class Silent:
    """The connection to a supervisor that says nothing."""

    def say(self, kind: str, **content: Any) -> None: ...


@pytest.fixture
def gang() -> Gang:
    """Two processes on each of two nodes; those of this node have answered."""
    gang = Gang(None, grace=10, follows=lambda member: False)  # type: ignore[arg-type]
    remote = RemoteNode(1, "127.0.0.2", Silent(), {})  # type: ignore[arg-type]
    for number in range(4):
        rank = Rank(rank=number, world_size=4, node=number // 2, nodes=2)
        log: Any = None
        member = Process(rank) if number < 2 else RemoteMember(rank, remote, log=log, told=log)
        member.feed_sight(to_json(Seen(cpu_count=1, memory=1)) + b"\n")
        member.ask()
        if number < 2:
            member.feed_sight(WAITS.encode())
        gang.members.append(member)
    return gang


def test_ranks_of_a_node_that_does_not_answer_are_told_with_that_node(gang: Gang) -> None:
    found = stopped(TIMEOUT, gang, SPEC)
    assert found.message == (
        "the step was still running after 3 s; ranks 2 and 3 do not answer: nothing comes from "
        "node 1 (127.0.0.2), ranks 0 and 1 wait in all_reduce (train.py:12)"
    )
    assert (found.rank, found.node) == (2, "127.0.0.2")


def test_a_rank_whose_node_answers_is_told_as_any_other(gang: Gang) -> None:
    for number, state in ((2, "T"), (3, "R")):
        member = gang.members[number]
        assert isinstance(member, RemoteMember)
        member.pid = 70 + number
        member.busy(1.0, state)
    assert stopped(TIMEOUT, gang, SPEC).message == (
        "the step was still running after 3 s; rank 2 does not answer: process 72 is stopped until SIGCONT, "
        "rank 3 does not answer: process 73 does not say where it is, "
        "ranks 0 and 1 wait in all_reduce (train.py:12)"
    )


def test_a_rank_that_was_asked_in_its_last_moment_is_not_said_to_keep_silent(gang: Gang) -> None:
    nothing: Any = None
    ends = EndsOfRanks(SPEC, nothing, gang, nothing)
    gang.members[1].pid = 71
    gang.members[1].ask()
    assert [stack.rank for stack in ends.stacks() if stack.silent is not None] == [1, 2, 3]
    gang.failed.append(gang.members[1])
    assert [stack.rank for stack in ends.stacks() if stack.silent is not None] == [2, 3]
