"""What a user's function can rely on, and what it can do wrong, in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from upshift.backends.base import Ended, Job, LogGrew, Started
from upshift.model.spec import Collected
from upshift.runtime.storage import artifacts

Project = Callable[[str], "object"]


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for init to take note of its end does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_the_result_carries_the_value_the_log_and_all_four_records(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def add(a, b=1):\n    print('adding')\n    return a + b\n")
    result = bench.run("add", request={"cpu_count": 1, "memory": "200MB"}, inputs={"a": 2, "b": 3})
    assert bench.output(result) == 5
    assert bench.log(result) == b"adding\n"
    assert result.log_bytes == 7
    assert result.asked.cpu_count == 1 and result.asked.memory == 200_000_000
    assert result.granted.cpu_count == 1 and len(result.granted.details["cpus"]) == 1
    assert result.seen.cpu_count == 1 and 199_000_000 < result.seen.memory <= 200_000_000
    assert result.used.cpu_count is not None and result.used.details["seconds"] > 0


def test_a_users_exception_keeps_only_the_users_frames(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        def helper():
            raise ValueError("no good")
        def boom():
            helper()
        """
    )
    failure = bench.run("boom").failure
    assert failure.reason == "user-error"
    assert failure.message == "ValueError: no good"
    assert failure.where.endswith("steps.py:3")
    assert "upshift" not in failure.traceback.replace(str(bench.folder), "")
    assert "in helper" in failure.traceback and "in boom" in failure.traceback


def test_place_and_remedy_of_an_error_of_upshifts_are_told_once(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import upshift
        from upshift.errors import GraphError
        def here():
            upshift.log(loss=object())
        def elsewhere():
            raise GraphError("no", where="other.py:9", why="so", fix="Yes.")
        """
    )
    failure = bench.run("here").failure
    assert failure.message == "SettingsError: upshift.log(): the metric 'loss' is of type object"
    assert failure.where.endswith("steps.py:5") and failure.fix.startswith("A metric is one number")
    assert failure.traceback.endswith("\nSettingsError: upshift.log(): the metric 'loss' is of type object")
    failure = bench.run("elsewhere").failure
    assert (failure.message, failure.fix) == ("GraphError: no: so (other.py:9)", "Yes.")
    assert failure.where.endswith("steps.py:7")


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        ("import os; os._exit(3)", "user-error", "ended with exit code 3 before the step returned"),
        ("import sys; sys.exit(4)", "user-error", "called sys.exit(4)"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "stopped-from-outside",
            "killed by SIGKILL",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            "stopped-from-outside",
            "killed by SIGTERM",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "user-error", "killed by SIGSEGV"),
        ("raise KeyboardInterrupt", "user-error", "KeyboardInterrupt"),
        ("return lambda: (yield)", "completed", ""),
        ("import _thread; return {'a': [1, _thread.allocate_lock()]}", "user-error", "lock"),
        ("class E(Exception):\n        __str__ = None\n    raise E", "user-error", "E"),
    ],
)
def test_however_a_step_ends_the_cause_is_named(project, body: str, reason: str, text: str) -> None:  # type: ignore[no-untyped-def]
    bench = project(f"def end():\n    {body}\n")
    result = bench.run("end")
    if reason == "completed":
        assert result.status == "completed", result.failure
        return
    assert result.failure.reason == reason
    assert text in result.failure.message


@pytest.mark.parametrize(
    "body",
    [
        "sys.stderr.close()",
        "sys.stderr = None",
        "sys.stderr = Odd()",
        "file.write_text('x'); file.parent.chmod(0)",
        "file.write_text('x'); return {Unshown(): [1.5]}",
    ],
)
def test_no_step_fails_for_a_remark_that_cannot_be_made(project, body: str) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        f"""
        import sys
        class Odd:
            def __getattribute__(self, name): raise RuntimeError(name)
        class Unshown:
            def __repr__(self): raise RuntimeError
        def act(file) -> int:
            {body}
            return 1.5
        """
    )
    (bench.folder / "data").mkdir()
    (bench.folder / "data" / "file").write_text("words")
    result = bench.run("act", inputs={"file": bench.folder / "data" / "file"})
    assert result.status == "completed", result.failure


def test_bytes_that_are_not_utf8_are_kept_as_they_are(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("import os\ndef say():\n    os.write(1, b'\\xff\\xfe\\n'); print('ok')\n")
    assert bench.log(bench.run("say")) == b"\xff\xfe\nok\n"


def test_fifty_megabytes_of_output_are_kept_whole(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        "import sys\ndef say():\n    for i in range(50):\n        sys.stdout.write('x' * 999_999 + '\\n')\n"
    )
    result = bench.run("say")
    assert result.status == "completed"
    assert result.log_bytes == 50_000_000
    assert bench.store.log_path(result.task, 1).stat().st_size == 50_000_000


def test_shared_memory_counts_in_the_peak(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        from multiprocessing.shared_memory import SharedMemory
        def fill(size):
            global kept
            kept = SharedMemory(create=True, size=size)
            kept.buf[:] = b"x" * size
            kept.unlink()
        """
    )
    size = 64 << 20
    filled = bench.run("fill", inputs={"size": size})
    assert filled.used.memory > 1.9 * size, "the shared memory, and the bytes that it was filled with"


def test_output_is_told_while_the_step_runs(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("import time\ndef say():\n    print('first')\n    time.sleep(30)\n")
    spec = bench.spec("say")
    handle = bench.submit(spec)
    assert bench.wait_for(LogGrew).size == 6
    bench.backend.cancel([handle], grace=5)
    bench.end(handle)
    assert bench.store.read_result(spec.task, 1).status == "cancelled"


def test_children_that_outlive_their_step_are_killed(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import os, subprocess, time
        def leave(path):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if os.fork() == 0:  # a daemon: new session, orphaned twice
                os.setsid()
                pid = os.fork()
                if pid:
                    open(path, "w").write(str(pid))
                    os._exit(0)
                time.sleep(1000)
            while not os.path.exists(path) or not os.path.getsize(path):
                time.sleep(0.001)
            return child.pid
        """
    )
    path = bench.folder / "daemon"
    pids = [bench.output(bench.run("leave", inputs={"path": str(path)})), int(path.read_text())]
    bench.backend.close()
    for pid in pids:
        assert not alive(pid)


def test_a_step_may_leave_threads_running_and_change_directory(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import os, threading, time
        def untidy():
            threading.Thread(target=time.sleep, args=(1000,)).start()
            os.chdir("/")
            return os.getcwd()
        def tidy():
            return os.getcwd()
        """
    )
    assert bench.output(bench.run("untidy")) == "/"
    assert bench.output(bench.run("tidy")) == str(bench.folder)


def test_steps_do_not_share_globals_but_share_what_the_module_loaded(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("seen = []\ndef count():\n    seen.append(1)\n    return len(seen)\n")
    assert [bench.output(bench.run("count")) for _ in range(3)] == [1, 1, 1]


def test_an_input_that_is_gone_is_named_for_its_producer_to_run_again(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def use(data):\n    return len(data)\n")
    spec = bench.spec("use", inputs={"data": b"x" * 10_000})
    digest = spec.inputs["data"].digest
    bench.store.blob_path(digest).unlink()
    bench.end(bench.submit(spec))
    failure = bench.store.read_result(spec.task, 1).failure
    assert failure.reason == "infrastructure" and failure.lost == (digest,)


def test_a_task_whose_spec_is_gone_fails_and_the_others_go_on(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(LEAVE)
    spec, handle, below = leaving(bench)
    ended = bench.end(str(bench.backend.submit([Job(spec=bench.spec("ok"), spec_path="nowhere.json")])[0]))
    assert ended.reason == "infrastructure"
    assert ended.message == "the task could not be started: there is no task spec nowhere.json"
    assert all(map(alive, below))
    bench.backend.cancel([handle], grace=0)
    bench.end(handle)
    assert bench.store.read_result(spec.task, 1).status == "cancelled"


def test_a_task_fails_while_nothing_can_be_claimed_and_the_next_one_runs(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(LEAVE)
    claims = bench.store.root / "claims"
    claims.parent.mkdir()
    claims.write_text("in the way")
    ended = bench.end(bench.submit(bench.spec("ok")))
    assert ended.reason == "infrastructure"
    assert ended.message.startswith("the task could not be started: ")
    server = ended.handle.partition("/")[0]
    claims.unlink()
    spec = bench.spec("ok")
    handle = bench.submit(spec)
    bench.end(handle)
    assert bench.output(bench.store.read_result(spec.task, 1)) == "ok"
    assert handle.partition("/")[0] == server


def test_a_task_whose_cells_are_gone_has_its_result_all_the_same(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("import os\ndef end():\n    os._exit(3)\n")
    spec = bench.spec("end")
    cells = artifacts.save({"cell": ["In[1]", "x" * 10_000]}, bench.store)
    bench.store.blob_path(cells.digest).unlink()
    spec = attrs.evolve(spec, entry=attrs.evolve(spec.entry, cells=cells))
    bench.end(bench.submit(spec))
    failure = bench.store.read_result(spec.task, 1).failure
    assert "ended with exit code 3" in failure.message


def test_a_module_that_fails_to_import_is_the_users_error(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("import nowhere_to_be_found\ndef f(): pass\n")
    failure = bench.run("f").failure
    assert failure.reason == "user-error"
    assert failure.message == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert failure.fix.startswith("Install 'nowhere_to_be_found' in the environment of the step")
    assert failure.where.endswith("steps.py:1")


def test_a_timeout_stops_a_step_that_is_stuck_in_c_code(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import re, signal
        def stuck():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            re.match(r"(a+)+$", "a" * 64 + "b")
        """
    )
    result = bench.run("stuck", timeout=0.3, grace=0.2)
    assert result.status == "failed"
    assert result.failure.reason == "timeout"
    assert result.failure.message == "the step was still running after 0.3 s"


def test_cancelling_gives_the_step_time_to_clean_up(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import signal, sys, time
        def tidy(path):
            def stop(*_):
                open(path, "w").write("cleaned")
                sys.exit(0)
            signal.signal(signal.SIGTERM, stop)
            print("ready")
            time.sleep(1000)
        """
    )
    path = bench.folder / "mark"
    spec = bench.spec("tidy", inputs={"path": str(path)})
    handle = bench.submit(spec)
    bench.wait_for(LogGrew)
    bench.backend.cancel([handle], grace=30)
    bench.end(handle)
    assert path.read_text() == "cleaned"
    assert bench.store.read_result(spec.task, 1).failure.reason == "cancelled"


def test_cpus_are_pinned_and_zero_gpus_means_none_is_visible(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import os
        def look():
            seen = os.environ.get
            return [len(os.sched_getaffinity(0)), seen("CUDA_VISIBLE_DEVICES"), seen("OMP_NUM_THREADS")]
        """
    )
    assert bench.output(bench.run("look", request={"cpu_count": 1, "gpu_count": 0})) == [1, "", "1"]


def test_where_this_process_cannot_be_forked_the_fork_server_starts_afresh(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        from pathlib import Path
        def parent():
            import os
            return Path(f"/proc/{os.getppid()}/cmdline").read_text()
        """
    )
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert "--forkserver" in bench.output(bench.run("parent"))
    finally:
        done.set()
        thread.join()


def test_where_the_fork_server_cannot_be_forked_the_step_starts_afresh(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import threading
        from pathlib import Path
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        def own(): return Path("/proc/self/cmdline").read_text()
        """
    )
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert "--step" in bench.output(bench.run("own", request={"memory": "500MB", "cpu_count": 1}))
    finally:
        done.set()
        thread.join()


def test_the_engine_may_stop_listening_and_the_step_goes_on(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("import time\ndef slow():\n    print('up')\n    time.sleep(0.5)\n    return 'done'\n")
    spec = bench.spec("slow")
    handle = bench.submit(spec)
    bench.wait_for(LogGrew)
    bench.backend.close()
    bench.backend = bench.open()
    assert bench.backend.attach({handle: Job(spec=spec, spec_path="")}) == {handle: None}
    bench.end(handle)
    assert bench.output(bench.store.read_result(spec.task, 1)) == "done"


LEAVE = """
import os, subprocess, time
def leave():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(os.getppid(), os.getpid(), child.pid, flush=True)
    time.sleep(1000)
def ok():
    return "ok"
"""


def leaving(bench):  # type: ignore[no-untyped-def]
    """Start a step that leaves a process; its spec, handle, and the pids of zygote, step, process."""
    spec = bench.spec("leave")
    handle = bench.submit(spec)
    bench.wait_for(LogGrew)
    return spec, handle, [int(word) for word in bench.store.log_path(spec.task, 1).read_text().split()]


def test_when_the_zygote_is_killed_its_tasks_fail_and_the_next_one_runs(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(LEAVE)
    spec, handle, (zygote, *below) = leaving(bench)
    os.kill(zygote, signal.SIGKILL)
    bench.end(handle)
    failure = bench.store.read_result(spec.task, 1).failure
    assert failure.reason == "stopped-from-outside" and "killed by SIGKILL" in failure.message
    assert not any(map(alive, below))
    assert bench.output(bench.run("ok")) == "ok"


def test_when_the_fork_server_is_killed_nothing_of_its_tasks_survives(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(LEAVE)
    spec, handle, (zygote, *below) = leaving(bench)
    server = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    ended = bench.end(handle)
    assert ended.reason == "infrastructure" and "fork server died" in ended.message
    assert bench.store.read_result(spec.task, 1) is None
    assert not any(map(alive, [zygote, *below]))
    assert bench.backend.attach({handle: None}) == {handle: Ended(handle=handle)}
    assert bench.output(bench.run("ok")) == "ok"


SAYING = """
import os
from upshift.runtime.messages import channel

def say(text):
    os.write(channel._descriptor, text.encode())
    return "said"

def go_on(text):
    for _ in range(1 + (1 << 26) // len(text)):
        say(text)
    return say("end\\n")

def wait(fifo):
    with open(fifo) as file:
        return file.read()
"""


@pytest.mark.parametrize(
    "text",
    [
        '{"card": 1}',
        '{"card": {"title": "x", "media": "y", "digest": "z", "bytes": 1, "at": "soon"}}',
        '{"outcome": 1}',
        '{"outcome": {"peak": "much"}}',
        '{"outcome": {"cpu_seconds": NaN}}',
        '{"diagnosis": {"failure": 7}}',
        '{"framework": []}',
        "[" * 60_000,
        '{"metric":[["a"],\t[1.0,3,1' + "0" * 400 + "]]}",
    ],
)
def test_what_a_step_writes_into_its_own_pipe_disturbs_nobody(project, text: str) -> None:  # type: ignore[no-untyped-def]
    bench = project(SAYING)
    fifo = bench.folder / "fifo"
    os.mkfifo(fifo)
    other = bench.spec("wait", inputs={"fifo": str(fifo)})
    handle = bench.submit(other)
    assert bench.output(bench.run("say", inputs={"text": text + "\n"})) == "said"
    fifo.write_text("go")
    bench.end(handle)
    assert bench.output(bench.store.read_result(other.task, 1)) == "go"


def test_a_line_without_an_end_is_not_kept(project) -> None:  # type: ignore[no-untyped-def]
    bench = project(SAYING)
    assert bench.output(bench.run("go_on", inputs={"text": "x" * 60_000})) == "said"


def test_started_is_told_before_ended(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def f():\n    return sorted([2, 1])\n")
    handle = bench.submit(bench.spec("f"))
    assert bench.wait_for(Started).handle == handle
    bench.end(handle)
    assert sys.platform == "linux"


def test_files_read_from_the_store_are_gone_when_the_task_is(project, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    bench = project(
        """
        import os
        def read(path):
            print(path, flush=True)
            return path.read_text()
        def die(path):
            print(path, flush=True)
            os._exit(1)
        """
    )
    (bench.folder / "data.txt").write_text("words")
    results = [bench.run(name, inputs={"path": bench.folder / "data.txt"}) for name in ("read", "die")]
    bench.backend.close()
    for result in results:
        copy = Path(bench.log(result).decode().strip())
        assert copy.name == "data.txt" and not copy.exists() and not copy.parent.parent.exists()


def test_a_spec_larger_than_a_pipe_reaches_the_step(project) -> None:  # type: ignore[no-untyped-def]
    bench = project("def count(values):\n    return len(values)\n")
    item = bench.spec("count", inputs={"values": [1, 2, 3]}).inputs["values"]
    spec = attrs.evolve(bench.spec("count"), inputs={"values": Collected(items=(item,) * 20_000)})
    bench.end(bench.submit(spec))
    assert bench.output(bench.store.read_result(spec.task, 1)) == 20_000
