"""Ctrl-C and ``upshift cancel``: what runs is stopped, what is done is kept."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest
from engine_kit import Bench, Killed, kill_when_idle, killed_run, never

from upshift.backends import registry
from upshift.backends.base import Ended
from upshift.backends.fake import Fail, FakeCluster, Hang
from upshift.engine.control import Command, Control, ask, socket_path
from upshift.engine.ownerless import cancel
from upshift.engine.schedule import SystemClock
from upshift.errors import NotFound, RunCancelled, RunFailed, RunOwned, StoreUnavailable, UpshiftError
from upshift.model.configuration import Target, load_configuration
from upshift.model.graph import FromStep, Graph, Node
from upshift.runs.lease import Lease, leases
from upshift.runtime.storage.store import Store


def one() -> int:
    return 1


def double(x: int) -> int:
    return 2 * x


def chain(bench: Bench) -> Graph:
    return bench.graph(
        {"one": (bench.step(one), {}), "double": (bench.step(double), {"x": FromStep(node="one")})}
    )


@pytest.fixture
def held(bench: Bench) -> Bench:
    bench.cluster = FakeCluster(bench.script, instant=False)
    bench.outcomes = {("double", 0): Hang()}
    return bench


def interrupt() -> bool:
    os.kill(os.getpid(), signal.SIGINT)
    return True


def test_ctrl_c_stops_what_runs_and_keeps_what_is_done(held: Bench) -> None:
    held.clock.idle = lambda: held.cluster.finish() or interrupt()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RunCancelled) as caught:
        held.run(chain(held))
    run = caught.value.run
    assert caught.value.exit_code == 130
    assert f"upshift resume {run.id}" in str(caught.value)
    assert run.status == "cancelled"
    assert {s.name: s.status for s in run.steps} == {"one": "completed", "double": "cancelled"}
    assert [grace for _, grace in held.cluster.cancelled] == [10.0]
    assert held.watcher.notices == [
        "stopping: 1 task is being ended (up to 10 s); press Ctrl-C again to kill it"
    ]
    assert signal.getsignal(signal.SIGINT) is before
    assert leases(held.store.address) == []
    assert not socket_path(run.id).exists()


def test_a_second_ctrl_c_stops_without_grace(held: Bench) -> None:
    cancel = held.cluster.cancel
    graces: list[float] = []

    def slowly(handle: str, grace: float) -> None:
        graces.append(grace)
        if grace == 0:
            cancel(handle, grace)

    held.cluster.cancel = slowly  # type: ignore[method-assign]
    held.clock.idle = lambda: held.cluster.finish() or interrupt()
    with pytest.raises(RunCancelled):
        held.run(chain(held))
    assert graces == [10.0, 0.0]
    first, second = held.watcher.notices
    assert first.startswith("stopping: 1 task is being ended")
    assert second == "killing 1 task"


def test_a_keyboard_interrupt_that_is_raised_counts_as_well(held: Bench) -> None:
    def raised() -> bool:
        if held.cluster.finish():
            return True
        raise KeyboardInterrupt

    held.clock.idle = raised
    with pytest.raises(RunCancelled):
        held.run(chain(held))


def test_a_signal_wakes_the_real_clock_at_once() -> None:
    inbox: SimpleQueue[str] = SimpleQueue()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: inbox.put("signal"))
    sender = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        sender.start()
        assert SystemClock().wait(inbox, None) == "signal"
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_another_process_cancels_a_run_through_its_engine(held: Bench) -> None:
    answers: list[str] = []

    def ask_for_it() -> bool:
        if held.cluster.finish():
            return True
        run_id = held.catalog.runs()[0].id
        assert ask(str(socket_path(run_id)), "ping") == "pong"
        answers.append(cancel("latest", held.configuration))
        return True

    held.clock.idle = ask_for_it
    with pytest.raises(RunCancelled) as caught:
        held.run(chain(held))
    assert answers == [f"run {caught.value.run.id} is being cancelled"]
    assert held.watcher.notices == ["stopping, as upshift cancel asks: 1 task is being ended (up to 10 s)"]


def test_ctrl_c_says_how_many_tasks_it_ends(held: Bench) -> None:
    held.outcomes = {("double", 0): Hang()}
    steps = {"double": held.step(double)}
    nodes = [Node(name="double", step="double", inputs={"x": held.listed(1, 2, 3)}, over=("x",))]
    held.clock.idle = interrupt
    with pytest.raises(RunCancelled):
        held.run(held.graph(nodes, steps, FromStep(node="double")))
    assert held.watcher.notices == [
        "stopping: 3 tasks are being ended (up to 10 s); press Ctrl-C again to kill them"
    ]


def test_cancelling_a_run_that_has_ended_says_so(bench: Bench) -> None:
    run = bench.run(chain(bench))
    assert cancel(run.id, bench.configuration) == f"run {run.id} has ended already: completed"
    with pytest.raises(NotFound):
        cancel("nothing", bench.configuration)


def test_a_run_that_has_ended_is_named_so_where_nothing_can_be_written(bench: Bench) -> None:
    run = bench.run(chain(bench))
    folder = bench.folder / "store" / "leases"
    folder.rmdir()
    folder.touch()  # so that not even root can write a lease
    assert cancel(run.id, bench.configuration) == f"run {run.id} has ended already: completed"


def test_a_run_whose_engine_was_killed_is_cancelled_and_its_jobs_are_stopped(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_when_idle(held, finished=1)
    run_id = killed_run(held, chain(held), monkeypatch)
    assert len(held.cluster.running) == 1
    monkeypatch.setattr("upshift.engine.ownerless.open_backend", held.cluster.open)
    said = cancel(run_id, held.configuration)
    assert said.endswith("1 of its tasks still ran and were stopped")
    assert held.cluster.running == {}
    run = held.look(run_id)
    assert run.status == "cancelled"
    assert {s.name: s.status for s in run.steps} == {"one": "completed", "double": "cancelled"}
    held.outcomes = {}
    held.clock.idle = never
    assert held.run(chain(held), resume=run_id).output == 2


@pytest.mark.parametrize("submitted", [True, False])
def test_a_job_that_the_engine_was_killed_before_it_recorded_is_stopped(
    held: Bench, monkeypatch: pytest.MonkeyPatch, submitted: bool
) -> None:
    held.outcomes = {("one", 0): Hang()}
    submit = held.cluster.submit

    def killed(job, sink):  # type: ignore[no-untyped-def]
        if submitted:
            submit(job, sink)
        raise Killed

    monkeypatch.setattr(held.cluster, "submit", killed)
    run_id = killed_run(held, chain(held), monkeypatch)
    assert held.catalog.attempts(run_id) == []
    assert len(held.cluster.running) == submitted
    monkeypatch.setattr("upshift.engine.ownerless.open_backend", held.cluster.open)
    said = cancel(run_id, held.configuration)
    assert said.endswith("1 of its tasks still ran and were stopped") == submitted
    assert held.cluster.running == {}
    run = held.look(run_id)
    assert {s.name: s.status for s in run.steps} == {"one": "cancelled", "double": "cancelled"}
    held.outcomes = {}
    held.clock.idle = never
    monkeypatch.setattr(held.cluster, "submit", submit)
    assert held.run(chain(held), resume=run_id).output == 2


def test_an_owner_that_does_not_answer_is_named(bench: Bench) -> None:
    run = bench.run(chain(bench))
    with Lease(run.id, bench.store.address), pytest.raises(RunOwned, match=run.id):
        cancel(run.id, bench.configuration)


def test_a_forked_child_does_not_keep_the_lease(upshift_home: Path) -> None:
    store = str(upshift_home / "store")
    lease = Lease("r1", store)
    release = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=release.wait)
    child.start()
    lease.release()
    try:
        script = "import sys; from upshift.runs.lease import Lease; Lease('r1', sys.argv[1]).release()"
        subprocess.run([sys.executable, "-c", script, store], check=True)
    finally:
        release.set()
        child.join()


def test_a_store_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be written") as caught:
        Lease("r1", str(blocked))
    assert "must be a folder" in str(caught.value)


def test_a_store_in_a_folder_that_cannot_be_made_is_explained() -> None:
    """The kernel says there that the folder is missing, which it also is while somebody removes it."""
    with pytest.raises(StoreUnavailable, match="cannot be written") as caught:
        Lease("r1", "/proc/store")
    assert caught.value.why == "No such file or directory"


def test_the_control_socket_works_under_a_long_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / ("x" * 120)))
    inbox: SimpleQueue[object] = SimpleQueue()
    path = str(socket_path("r1"))
    with Lease("r1", str(tmp_path / "store")) as lease:
        control = Control(lease, inbox)
        control.start()
        try:
            assert ask(path, "cancel") == "cancelling"
            assert inbox.get_nowait() is Command.CANCEL
            assert inbox.empty()
            assert ask(path, "dance") == "unknown request"
        finally:
            control.close()
    assert ask(path, "ping") is None


def test_a_control_socket_that_cannot_be_made_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(self: socket.socket, address: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Lease("r1", str(tmp_path / "store")) as lease:
        monkeypatch.setattr(socket.socket, "bind", full)
        with pytest.raises(StoreUnavailable, match="cannot keep its state") as caught:
            Control(lease, SimpleQueue())
    assert caught.value.why == "No space left on device"
    assert "UPSHIFT_HOME" in (caught.value.fix or "")


@pytest.mark.parametrize("full", [False, True], ids=["", "on a full disk"])
def test_a_stopped_job_that_leaves_no_result_counts_as_cancelled(
    held: Bench, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise StoreUnavailable("the store cannot be written", why="No space left on device")

    def vanish(handle: str, grace: float) -> None:
        job = held.cluster.running.pop(handle)
        assert job.spec.task.step == "double"
        if full:
            monkeypatch.setattr(Store, "claim_attempt", refuse)
        held.cluster._sinks[handle](Ended(handle=handle))

    held.cluster.cancel = vanish  # type: ignore[method-assign]
    held.clock.idle = lambda: held.cluster.finish() or interrupt()
    with pytest.raises(RunCancelled) as caught:
        held.run(chain(held))
    attempt = caught.value.run["double"].tasks[0].attempts[0]
    assert (attempt.status, attempt.reason) == ("cancelled", "cancelled")


def test_a_failure_elsewhere_while_stopping_leaves_the_run_failed(held: Bench) -> None:
    held.outcomes = {("one", 0): Fail()}
    with pytest.raises(RunFailed) as caught:
        held.run(chain(held))
    assert not isinstance(caught.value, RunCancelled)


def test_an_unknown_backend_says_how_to_register_one(bench: Bench) -> None:
    with pytest.raises(NotFound, match="no backend is named 'mainframe'") as caught:
        registry.open_backend(Target(name="x", backend="mainframe"), store="", sink=lambda event: None)
    assert "upshift.backends" in str(caught.value)
    assert "Known: aws-batch, docker, " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('backend = "slrum"', "no backend is named 'slrum', which target 'big' asks for"),
        ('backend = "local"\noptions = { partition = "x" }', "backend 'local' has no option 'partition'"),
    ],
)
def test_what_is_wrong_with_a_target_is_said_with_its_place_in_the_configuration(
    tmp_path: Path, text: str, what: str
) -> None:
    file = tmp_path / "upshift.toml"
    file.write_text(f"[targets.big]\n{text}\n")
    with pytest.raises(UpshiftError) as caught:
        registry.open_backend(
            load_configuration(tmp_path, {}).target("big"), store="", sink=lambda event: None
        )
    assert what in caught.value.what and "entry point" not in str(caught.value.fix)
    assert caught.value.where == f"{file} [targets.big]"


def test_who_cannot_be_answered_at_once_is_answered_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    accept, refused = socket.socket.accept, [errno.EMFILE, errno.ECONNABORTED]

    def scarce(self: socket.socket) -> tuple[socket.socket, object]:
        if refused:
            number = refused.pop()
            raise OSError(number, os.strerror(number))
        return accept(self)

    monkeypatch.setattr("upshift.engine.control._PAUSE", 0.01)
    monkeypatch.setattr(socket.socket, "accept", scarce)
    with Lease("r1", str(tmp_path / "store")) as lease:
        control = Control(lease, SimpleQueue())
        control.start()
        try:
            assert ask(str(socket_path("r1")), "ping") == "pong"
            assert refused == []
        finally:
            control.close()
