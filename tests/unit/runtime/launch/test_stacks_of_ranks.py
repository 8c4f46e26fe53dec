"""What the stacks of ranks say. The texts are those that faulthandler and py-spy write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import upshift
from upshift.runtime.launch.stacks import JOINING, StackAnswer, answer, waits_for_others

STDLIB = os.path.dirname(os.__file__)
TORCH = "/env/lib/python3.11/site-packages/torch"
OWN = '  File "/home/me/train.py", line 17 in work\n  File "/home/me/train.py", line 45 in train\n'
MAIN = "Current thread 0x00007f29ecde0b80 (most recent call first):\n"
OTHER = "Thread 0x00007fb714a116c0 (most recent call first):\n"
QUEUE = (
    f'  File "{STDLIB}/threading.py", line 327 in wait\n'
    f'  File "{STDLIB}/multiprocessing/queues.py", line 231 in _feed\n'
)
JOINS = (
    f'  File "{TORCH}/distributed/rendezvous.py", line 199 in _create_c10d_store\n'
    f'  File "{TORCH}/distributed/distributed_c10d.py", line 1892 in init_process_group\n'
    f'  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper\n'
)
GATHERS = (
    f'  File "{TORCH}/distributed/distributed_c10d.py", line 4287 in all_gather\n'
    f'  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper\n'
    f'  File "{TORCH}/distributed/distributed_c10d.py", line 3513 in all_gather_object\n'
    f'  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper\n'
)
BUILDS = (
    f'  File "{TORCH}/distributed/utils.py", line 292 in _verify_param_shape_across_processes\n'
    f'  File "{TORCH}/nn/parallel/distributed.py", line 900 in __init__\n'
)
BACKWARD = (
    f'  File "{TORCH}/autograd/graph.py", line 979 in _engine_run_backward\n'
    f'  File "{TORCH}/_tensor.py", line 623 in backward\n'
)
LOADER = (
    f'  File "{STDLIB}/selectors.py", line 415 in select\n'
    f'  File "{STDLIB}/multiprocessing/queues.py", line 113 in get\n'
    f'  File "{TORCH}/utils/data/dataloader.py", line 1291 in _try_get_data\n'
)
SPIED = f"""\
Process 6562: /env/bin/python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 6562 (idle): "MainThread"
    0x7fb84e2a3f16 (libc.so.6)
    std::condition_variable::wait (libstdc++.so.6.0.30)
    c10d::Reducer::finalize_backward (libtorch_cpu.so)
    std::_Function_handler<void (), c10d::Reducer::mark_variable_ready(int)>::_M_invoke (libtorch_cpu.so)
    _engine_run_backward ({TORCH}/autograd/graph.py:979)
    Tensor.backward ({TORCH}/_tensor.py:623)
    work (/home/me/train.py:30)
    <module> (/home/me/train.py:46)
    0x7fb84e24524a (libc.so.6)
Thread 6600 (idle): "Thread-1"
    wait ({STDLIB}/threading.py:327)
"""


def look(text: str) -> StackAnswer:
    found = answer(1, text, project="/home/me", relative_to="/home/me")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("frames", "waits", "for_others"),
    [
        (JOINS, JOINING, True),
        (GATHERS, "all_gather_object", True),
        (BUILDS, "DistributedDataParallel", True),
        (BACKWARD, None, False),  # what it does in C++ is not seen
        (LOADER, "a worker of the data loader", False),
        (f'  File "{STDLIB}/queue.py", line 171 in get\n', "a queue", False),
        (f'  File "{STDLIB}/threading.py", line 327 in wait\n', "a lock", False),
        (f'  File "{STDLIB}/threading.py", line 1116 in join\n', "a thread", False),
        (f'  File "{STDLIB}/socket.py", line 294 in accept\n', "the network", False),
        (f'  File "{STDLIB}/subprocess.py", line 1264 in wait\n', "another process", False),
        ("", None, False),
    ],
)  # fmt: skip
def test_what_a_rank_waits_for_is_told_by_what_its_line_has_called(
    frames: str, waits: str | None, for_others: bool
) -> None:
    found = look(MAIN + frames + OWN)
    assert (found.stack.rank, found.stack.waits, found.stack.where) == (1, waits, "train.py:17")
    assert found.for_others is waits_for_others(found.stack) is for_others


def test_the_main_thread_counts_and_all_of_them_are_kept() -> None:
    found = look(OTHER + QUEUE + "\n" + MAIN + GATHERS + OWN)
    assert found.stack.waits == "all_gather_object"
    assert "multiprocessing/queues.py" in found.stack.text


def test_a_stack_is_shown_as_python_does_without_what_is_upshifts() -> None:
    ours = f'  File "{os.path.dirname(upshift.__file__)}/worker/inside/step.py", line 3 in run\n'
    text = look(OTHER + QUEUE + "\n" + MAIN + BACKWARD + OWN + ours + ours).stack.text
    assert [line for line in text.splitlines() if not line.startswith("    ")] == [
        "Main thread (most recent call last):",
        '  File "/home/me/train.py", line 45, in train',
        '  File "/home/me/train.py", line 17, in work',
        f'  File "{TORCH}/_tensor.py", line 623, in backward',
        f'  File "{TORCH}/autograd/graph.py", line 979, in _engine_run_backward',
        "",
        "Another thread (most recent call last):",
        f'  File "{STDLIB}/multiprocessing/queues.py", line 231, in _feed',
        f'  File "{STDLIB}/threading.py", line 327, in wait',
    ]
    assert look(MAIN + ours).stack.text == (
        "Main thread (most recent call last):\n  (in no code of the step's)"
    )


def test_the_newest_of_several_answers_counts() -> None:
    first, second = OTHER + QUEUE + "\n" + MAIN + JOINS + OWN, OTHER + QUEUE + "\n" + MAIN + GATHERS + OWN
    found = look(first + second)
    assert found.stack.waits == "all_gather_object"
    assert "rendezvous" not in found.stack.text


def test_what_was_written_as_it_was_stopped_counts_unless_all_threads_were_there_before() -> None:
    stopped = "Stack (most recent call first):\n" + GATHERS + OWN
    assert "_feed" in look(OTHER + QUEUE + "\n" + MAIN + GATHERS + OWN + stopped).stack.text
    moved = look(OTHER + QUEUE + "\n" + MAIN + JOINS + OWN + stopped).stack
    assert moved.waits == "all_gather_object" and "_feed" not in moved.text
    assert (
        look(MAIN + stopped).stack.waits == "all_gather_object"
    )  # it was stopped while it wrote the first one
    assert look(stopped + MAIN + JOINS + OWN).stack.waits == JOINING
    assert look(stopped).stack.waits == "all_gather_object"


def test_the_same_place_is_the_same_state() -> None:
    assert look(OTHER + QUEUE + MAIN + OWN).state == look(MAIN + OWN).state
    assert look(MAIN + OWN).state != look(MAIN + OWN.replace("17", "18")).state


def test_a_function_of_c_is_known_by_the_line_that_calls_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(100)\nlock.acquire()\nx = 1\n")
    found = {}
    for line in (2, 3, 4):
        text = f'{MAIN}  File "{tmp_path}/train.py", line {line} in <module>\n'
        one = answer(0, text, project=str(tmp_path), relative_to=str(tmp_path))
        assert one is not None and not one.for_others and not waits_for_others(one.stack)
        found[line] = one.stack.waits
    assert found == {2: "sleep", 3: "a lock", 4: None}


def test_native_frames_tell_what_python_does_not_know() -> None:
    found = look(SPIED)
    assert (found.stack.waits, found.stack.where) == ("DistributedDataParallel", "train.py:30")
    assert found.for_others
    on_device = SPIED.replace("c10d::Reducer::finalize_backward", "cudaStreamSynchronize").replace(
        "c10d", "x"
    )
    assert (look(on_device).stack.waits, look(on_device).for_others) == ("the device", False)


def test_names_as_py_spy_has_them_are_understood() -> None:
    gets = SPIED.replace("c10d", "x").replace(
        f"_engine_run_backward ({TORCH}/autograd/graph.py:979)", f"Queue.get ({STDLIB}/queue.py:171)"
    )
    assert look(gets).stack.waits == "a queue"
    gathers = SPIED.replace("c10d", "x").replace(
        f"_engine_run_backward ({TORCH}/autograd/graph.py:979)",
        f"all_gather ({TORCH}/distributed/distributed_c10d.py:4287)\n"
        f"    _exception_logger.<locals>.wrapper ({TORCH}/distributed/c10d_logger.py:83)",
    )
    assert look(gathers).stack.waits == "all_gather"


def test_names_that_are_escaped_can_be_read() -> None:
    found = look(MAIN + '  File "/home/me/\\u4e2d.py", line 3 in \\xfcben\n')
    assert found.stack.where == "中.py:3"
    assert "üben" in found.stack.text


@pytest.mark.parametrize("text", ["", "Fatal Python error: Aborted\n", "\x00\x01", "Thread"])
def test_a_text_without_a_stack_is_none(text: str) -> None:
    assert answer(0, text, project=None, relative_to=None) is None


def test_a_stack_without_a_line_of_the_users_has_no_place() -> None:
    found = look(MAIN + QUEUE)
    assert found.stack.where is None


@pytest.mark.parametrize(
    "file", ["<string>", "<attrs generated methods upshift.model.spec.task.Failure-9>", "<frozen os>"]
)
def test_code_that_is_in_no_file_is_no_line_of_the_users(file: str) -> None:
    frames = f'  File "{file}", line 4 in __init__\n  File "/home/me/train.py", line 30 in work\n'
    found = look(f"Current thread 0x1 (most recent call first):\n{frames}")
    assert found.stack.where == "train.py:30"
