"""Which of several processes is why a task failed. The texts are those that the libraries print."""

from __future__ import annotations

import pytest

from upshift.model.spec import Failure, Stack
from upshift.runtime.launch.blame import End, cause, follows
from upshift.runtime.launch.stacks import listed, whereabouts

PAIR = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537]"
RESET = f"{PAIR} Read error [127.0.0.1]:24732: Connection reset by peer. This is typically caused by a remote"
CLOSED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:1"
)
GLOO_TIMEOUT = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 5000ms for recv operation to complete"
)
MONITORED = (
    "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n Original exception: \n"
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
)
STORE_GONE = "DistNetworkError: Broken pipe"
STORE_RECV = (
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
    "shutdown or crash?"
)
STORE_KEYS = "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0"
UNJOINED = "DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined."
NO_MAIN = (
    "DistNetworkError: The client socket has timed out after 5000ms while trying to connect to "
    "(127.0.0.1, 45369)."
)
NCCL_REMOTE = (
    "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote "
    "process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed "
    "possibly due to a network error or a remote process exiting prematurely."
)
NCCL_LATE = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [Rank 6] NCCL watchdog thread terminated with exception: [Rank 6] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1800902 "
    "milliseconds before timing out.\nException raised from checkTimeout at ../torch/csrc/x.cpp:525\n"
)
MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /__w/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. "
    "8 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch in "
    "your code?\n"
)
ABORTED = "the step's process was killed by SIGABRT"
KILLED = "the step's process was killed by SIGKILL, which Upshift did not send"


def end(rank: int, message: str | None, at: float = 0.0, *, exit_code: int | None = None, **more: str) -> End:
    """A rank that failed with these words; None: it returned."""
    log, reason = more.pop("log", ""), more.pop("reason", "user-error")
    failure = Failure(reason=reason, message=message, **more) if message is not None else None  # type: ignore[arg-type]
    return End(rank=rank, at=at, failure=failure, node=f"node-{rank}", log=log, exit_code=exit_code)


@pytest.mark.parametrize(
    "text",
    [
        RESET, CLOSED, GLOO_TIMEOUT, MONITORED, NCCL_REMOTE,
        STORE_GONE, STORE_RECV, STORE_KEYS, UNJOINED, NO_MAIN,
        "RuntimeError: Connection reset by peer",
        "RuntimeError: Socket Timeout",
    ],
)  # fmt: skip
def test_an_error_that_follows_gives_way_to_the_end_that_it_follows_from(text: str) -> None:
    missed = end(0, text, at=1.0)
    assert follows(missed)
    killed = end(1, KILLED, at=1.2, reason="infrastructure")
    assert not follows(killed)
    assert cause([missed, killed]) == Failure(reason="infrastructure", message=KILLED, rank=1, node="node-1")


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad batch",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "OperationalError: Lock wait timeout exceeded; try restarting transaction",
        "TimeoutError: timed out",
        "TimeoutError: wait timeout after 5ms, keys: a, b",
        "SSHException: Connection closed by remote peer",
        "RuntimeError: ffmpeg wrote nothing, exit code 0",
        "RuntimeError: a worker was killed by SIGKILL",
        KILLED,
        "GPU 0 is out of memory (NVIDIA H100): 21.5 GB could not be allocated",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory",
    ],
)
def test_an_error_of_its_own_is_the_cause_at_once(text: str) -> None:
    assert not follows(end(2, text))
    found = cause([end(2, text, at=5.0), end(0, RESET, at=4.9), end(1, STORE_GONE, at=5.1)])
    assert (found.rank, found.node, found.message) == (2, "node-2", text)


def test_the_first_of_several_errors_counts_and_of_equal_ones_that_of_the_lowest_rank() -> None:
    assert cause([end(0, "ValueError: b", at=2.0), end(3, "ValueError: a", at=1.0)]).rank == 3
    assert cause([end(3, "ValueError: a"), end(1, "ValueError: a")]).rank == 1
    assert cause([end(2, RESET, at=2.0), end(1, CLOSED, at=1.0)]).message == CLOSED


def test_the_traceback_stays_as_it_is() -> None:
    found = cause([end(1, "ValueError: x", traceback="Traceback …", where="train.py:3", fix="do")])
    assert (found.traceback, found.where, found.fix) == ("Traceback …", "train.py:3", "do")


def test_an_error_that_was_raised_from_one_that_follows_follows_too() -> None:
    wrapped = end(
        0, "TrainingFailed: epoch 3", traceback=f"{RESET}\n\nThe above exception was the direct cause"
    )
    assert cause([wrapped, end(1, KILLED, at=1.0)]).rank == 1


def test_lines_of_code_in_a_traceback_say_nothing_of_what_was_raised() -> None:
    lines = f"Traceback (most recent call last):\n  File 'a.py', line 1, in f\n    raise_({RESET!r})\n"
    assert not follows(end(0, "KeyError: 'x'", traceback=f"{lines}KeyError: 'x'"))
    assert follows(
        end(0, "KeyError: 'x'", traceback=f"{lines}{RESET}\n\nDuring handling\n\n{lines}KeyError: 'x'")
    )


def test_words_of_an_error_are_no_exit_and_no_crash() -> None:
    running = [Stack(rank=0, waits="barrier")]
    message = "RuntimeError: ffmpeg wrote nothing, exit code 0"
    found = cause([end(1, message, fix="look")], running)
    assert (found.message, found.fix) == (message, "look")


def test_a_rank_that_returned_early_is_named_and_where_it_was_missed_is_shown() -> None:
    ends = [end(1, None, at=1.0), end(0, RESET, at=1.1, traceback="Traceback …", where="train.py:7")]
    found = cause(ends)
    assert found.message == "rank 1 returned, while rank 0 waited for it"
    assert (found.rank, found.node, found.where) == (1, "node-1", "train.py:7")
    assert found.traceback == "Rank 0 waited here:\nTraceback …"
    assert found.fix is not None and "depends on the rank" in found.fix


def test_who_returned_is_not_blamed_for_what_another_did() -> None:
    ends = [end(1, None, at=1.0), end(0, RESET, at=1.1), end(2, KILLED, at=1.2)]
    assert cause(ends).rank == 2


def test_several_that_returned_early_are_named_together() -> None:
    ends = [end(3, None, at=1.0), end(2, None, at=1.2), end(1, None, at=1.3), end(0, RESET, at=1.4)]
    assert cause(ends).message == "ranks 1-3 returned, while rank 0 waited for them"


def test_a_rank_that_returned_without_joining_is_named() -> None:
    found = cause([end(1, None), end(0, UNJOINED, at=60.0)])
    assert found.message == "rank 1 returned without having joined the others, while rank 0 waited for it"


@pytest.mark.parametrize(
    "message",
    ["the step called sys.exit(0)", "the step's process ended with exit code 0 before the step returned"],
)
def test_who_exits_without_an_error_is_named_with_who_waited(message: str) -> None:
    running = [Stack(rank=2, waits="barrier"), Stack(rank=3, waits="sleep"), Stack(rank=4, waits="a lock")]
    found = cause([end(0, RESET, at=1.0), end(1, message, at=0.9, exit_code=0)], running)
    assert found.message == f"{message}, while ranks 0 and 2 waited for it"
    assert found.rank == 1
    nobody = cause([end(1, message, exit_code=0)], running[1:])
    assert (nobody.message, nobody.fix) == (message, "Let each of the ranks return from the step.")


def test_an_exit_with_a_code_is_an_error_and_stays_as_it_is() -> None:
    message = "the step called sys.exit(10)"
    assert cause([end(1, message, exit_code=10), end(0, RESET)]).message == message


def test_a_rank_that_never_joined_is_named_with_where_it_was() -> None:
    running = [
        Stack(rank=1, where="data.py:12"),
        Stack(rank=2, waits="init_process_group", where="train.py:4"),
    ]
    found = cause([end(0, UNJOINED, traceback="Traceback …")], running)
    assert found.message == "rank 1 never joined: rank 0 waited for it in vain; rank 1 is at data.py:12"
    assert (found.rank, found.where) == (1, "data.py:12")


def test_a_main_process_that_does_not_listen_is_named_with_its_address() -> None:
    found = cause([end(1, NO_MAIN)], [Stack(rank=0, where="data.py:12")])
    assert found.message == (
        "rank 0 never joined: rank 1 waited for it in vain at 127.0.0.1:45369; rank 0 is at data.py:12"
    )


def test_a_rank_that_did_not_come_in_time_is_named() -> None:
    found = cause([end(0, GLOO_TIMEOUT)], [Stack(rank=1, where="data.py:12")])
    assert found.message == (
        "rank 1 did not come to a collective call in which rank 0 waited; rank 1 is at data.py:12"
    )


def test_a_barrier_says_itself_who_is_missing() -> None:
    running = [Stack(rank=1, where="data.py:12"), Stack(rank=2, waits="barrier")]
    assert cause([end(0, MONITORED)], running).rank == 1


def test_the_watchdog_of_nccl_aborts_and_says_why() -> None:
    late = end(6, ABORTED, log=NCCL_LATE)
    assert follows(late)
    assert cause([late, end(2, "ValueError: x", at=9.0)]).rank == 2
    assert cause([late], [Stack(rank=2, where="data.py:9")]).message.startswith("rank 2 did not come")
    alone = cause([late]).message
    assert alone.startswith(ABORTED) and "Watchdog caught collective operation timeout" in alone


def test_a_mismatch_of_sizes_is_said_though_c_plus_plus_alone_knows() -> None:
    found = cause(
        [end(0, RESET, at=1.0), end(1, ABORTED, at=1.1, log=f"epoch 1\n{MISMATCH}", traceback="Stack …")]
    )
    assert found.rank == 1
    assert "Is there a distributed collective mismatch" in found.message
    assert found.fix is not None and "equal size" in found.fix


def test_where_nobody_else_went_the_others_are_told_beside_the_error() -> None:
    found = cause([end(0, RESET)], [Stack(rank=1, where="train.py:9")])
    assert found.message == f"{RESET}\nrank 1 is at train.py:9"
    assert found.rank == 0
    assert cause([end(0, RESET)]).message == RESET


def test_ranks_in_words() -> None:
    assert listed([3]) == "rank 3"
    assert listed([1, 0]) == "ranks 0 and 1"
    assert listed([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7 and 8"


def test_ranks_at_one_place_are_told_together() -> None:
    stacks = [Stack(rank=r, waits="all_reduce", where="a.py:3") for r in (2, 0, 1)]
    stacks += [Stack(rank=3, where="b.py:9"), Stack(rank=4), Stack(rank=5, waits="a lock")]
    assert whereabouts(stacks) == (
        "ranks 0-2 wait in all_reduce (a.py:3), rank 3 is at b.py:9, rank 5 waits for a lock"
    )
    assert (
        whereabouts([Stack(rank=r, waits="sleep", where="a.py:3") for r in (0, 1)])
        == "ranks 0 and 1 sleep (a.py:3)"
    )
    assert whereabouts([]) == ""


def test_ranks_that_do_not_answer_come_first_with_the_reason() -> None:
    stacks = [
        Stack(rank=0, waits="sleep", where="a.py:3"),
        Stack(rank=1, silent="process 7 is stopped", where="a.py:2"),
        Stack(rank=2, silent="process 8 is stopped"),
    ]
    assert whereabouts(stacks) == (
        "rank 1 does not answer: process 7 is stopped (a.py:2), "
        "rank 2 does not answer: process 8 is stopped, rank 0 sleeps (a.py:3)"
    )
