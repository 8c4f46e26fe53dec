"""A container's watch, and the broker that hands out devices: what must not be lost, whatever happens."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from signal import Signals

import attrs
import pytest

from upshift.backends.base import Ended, Event, Logged, LogGrew
from upshift.backends.docker.container import OwnFolder
from upshift.backends.docker.launching import KILLED, ContainerLaunch, DeviceBroker, Pool
from upshift.backends.docker.watch import TAKEN, TRIES, ContainerWatch
from upshift.errors import BackendError
from upshift.images.containers.engine import ContainerEngine
from upshift.model.spec import Code, EntryPoint, Failure, Hardware, TaskId, TaskSpec
from upshift.runtime.supervisor.device_pool import Grant
from upshift.runtime.supervisor.protocol import AT_ONCE, WITH_GRACE

NAME = "upshift-one-1-0123456789ab"


class Told:
    """A watch of an engine that must not be asked, and what it has told."""

    def __init__(self, tmp_path: Path) -> None:
        self.events: list[Event] = []
        self.over: list[ContainerWatch] = []
        command = (str(tmp_path / "no-engine"),)
        engine = ContainerEngine(
            name="docker", command=command, version="0", platform="linux/amd64", buildkit=False
        )
        self.watch = ContainerWatch(
            engine,
            NAME,
            pool=Pool(),
            sink=self.events.append,
            node="here",
            memory=None,
            user=None,
            again=self.over.append,
            over=self.over.append,
        )


@pytest.fixture
def told(tmp_path: Path, upshift_home: Path) -> Told:
    return Told(tmp_path)


def test_what_is_cancelled_before_there_is_a_container_gets_none(told: Told) -> None:
    threads = threading.enumerate()
    told.watch.cancel(0)
    assert threading.enumerate() == threads  # nobody is there to be killed later
    own = OwnFolder(NAME)
    told.watch.launch(ContainerLaunch(name=NAME, arguments=("run",), order=b"", own=own))
    assert told.events == [Ended(handle=NAME, reason="cancelled", message="cancelled before it was started")]
    assert told.over == [told.watch] and not own.path.exists()


def test_what_is_left_before_there_is_a_container_gets_none(told: Told) -> None:
    told.watch.leave()
    own = OwnFolder(NAME)
    told.watch.launch(ContainerLaunch(name=NAME, arguments=("run",), order=b"", own=own))
    assert told.events == [] and not own.path.exists()


def test_lines_that_make_no_sense_are_nothing(told: Told) -> None:
    lines = [
        *("", "[]", "7", '"ended"', "{", "null", '{"event": "log"}', '{"event": "log", "size": "x"}'),
        *('{"event": "logged", "values": 7, "step": 1}', '{"event": ["ended"]}'),
        json.dumps({"event": "log", "size": 3}),
        json.dumps({"event": "logged", "values": {"loss": 0.5}, "step": 2}),
    ]
    told.watch._listen(io.BytesIO("\n".join(lines).encode()))
    assert told.events == [
        LogGrew(handle=NAME, size=3),
        Logged(handle=NAME, values={"loss": 0.5}, step=2),
    ]


def test_a_folder_that_cannot_be_made_leaves_nothing(upshift_home: Path) -> None:
    half = upshift_home / "containers" / NAME
    half.mkdir(parents=True)
    (half / "tmp").write_text("no folder")
    with pytest.raises(BackendError, match="cannot be made"):
        OwnFolder(NAME)
    assert not half.exists()


def test_who_fails_at_the_desk_is_told_and_the_next_one_is_served(upshift_home: Path) -> None:
    spec = TaskSpec(
        task=TaskId(run="r", step="s"),
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store="/s",
        granted=Hardware(gpus=()),
    )
    refused: SimpleQueue[Failure] = SimpleQueue()
    served: SimpleQueue[Grant | None] = SimpleQueue()
    broker = DeviceBroker()

    def fail(grant: Grant | None) -> None:
        raise ZeroDivisionError("of the test's")

    def ask(name: str, ready: Callable[[Grant | None], None]) -> None:
        task = attrs.evolve(spec, task=TaskId(run="r", step=name))
        broker.ask(name, task, ready=ready, tell=str, refuse=refused.put, wait=60, share=False)

    ask("first", fail)
    ask("second", served.put)
    grant = served.get(timeout=60)
    assert grant is not None and grant.devices == ()
    broker.close()


def test_what_is_said_of_another_attempt_in_the_same_container_is_not_told(told: Told) -> None:
    for of, size in (("another", 1), (NAME, 2), ("another", 3)):
        told.watch._hear(json.dumps({"event": "log", "of": of, "size": size}).encode())
    assert told.events == [LogGrew(handle=NAME, size=2)]


LOG = {"event": "log", "size": 2}
ENDED = {"event": "ended", "problem": None}
KILLED_FROM_OUTSIDE = f"the container was killed from outside (exit code {KILLED}), says Docker 0"


ENDING = """#!/bin/sh
case $1 in
  logs) echo '{"event": "ended", "problem": null, "completed": true}';;
  container) echo >> asked
    [ $(wc -l < asked) -lt 4 ] && echo running && exit
    echo no such container >&2
    exit 1;;
esac
"""


def test_a_container_that_is_about_to_end_is_waited_for_though_the_engine_ends(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke, so that only its log is read."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "no-engine"
    script.write_text(ENDING)
    script.chmod(0o755)

    def hear(event: Event) -> None:
        told.events.append(event)
        told.watch.leave()

    told.watch._sink = hear
    told.watch.attach(NAME)
    told.watch.join(time.monotonic() + 60)
    assert told.events == [Ended(handle=NAME, reason=None, message=None)]
    assert told.over == [told.watch]
    assert (tmp_path / "asked").read_text().count("\n") >= 4


@pytest.mark.parametrize(
    ("heard", "code", "state", "reason", "message"),
    [
        ([ENDED], 0, {}, None, None),
        ([ENDED | {"problem": "no store"}], 1, {}, "infrastructure", "no store"),
        (
            [ENDED | {"problem": "no store"}],
            1,
            {"_user": "ada"},
            "infrastructure",
            "no store (it runs as ada, who has to have access to the store; without user=… it runs as you)",
        ),
        ([], 137, {"_cancelled": 0}, "cancelled", "it was stopped before it could record anything"),
        ([], 125, {"_ordered": False}, "infrastructure", "Docker 0 ended it with 125"),
        ([], KILLED, {}, "infrastructure", KILLED_FROM_OUTSIDE),
        ([LOG], 9, {}, "infrastructure", "the supervisor in the container died: exit code 9"),
        (
            [LOG],
            TAKEN,
            {"_tries": TRIES},
            "infrastructure",
            "somebody else took the devices each time when they were handed over",
        ),
        ([], TAKEN, {}, "again", None),
        ([], KILLED, {"_container": "another"}, "again", None),
        ([LOG], KILLED, {"_container": "another"}, "infrastructure", KILLED_FROM_OUTSIDE),
        ([], KILLED, {"_container": "another", "_tries": TRIES}, "infrastructure", KILLED_FROM_OUTSIDE),
    ],
)
def test_why_an_attempt_ended_is_told_or_it_is_run_again(
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
    heard: list[dict[str, object]],
    code: int,
    state: dict[str, object],
    reason: str | None,
    message: str | None,
) -> None:
    monkeypatch.setattr("upshift.backends.docker.launching.ran_out_of_memory", lambda *_: False)
    watch = told.watch
    for name, value in {"_ordered": True, "_user": None, **state}.items():
        setattr(watch, name, value)
    for line in heard:
        watch._hear(json.dumps({"of": NAME, **line}).encode())
    watch._conclude(code)
    watch._finish(None)
    ends = [event for event in told.events if isinstance(event, Ended)]
    assert ends == ([] if reason == "again" else [Ended(handle=NAME, reason=reason, message=message)])
    assert told.over == [watch]
    assert watch._ordered is (reason != "again" and state.get("_ordered", True))


@pytest.mark.parametrize(("grace", "signals"), [(0, [AT_ONCE]), (0.001, [WITH_GRACE, AT_ONCE])])
def test_what_has_its_order_is_cancelled_by_signals_and_its_container_is_removed_in_the_end(
    told: Told, monkeypatch: pytest.MonkeyPatch, grace: float, signals: list[Signals]
) -> None:
    asked: SimpleQueue[list[str]] = SimpleQueue()
    monkeypatch.setattr(ContainerEngine, "run", lambda engine, args, **_: asked.put(args))
    monkeypatch.setattr("upshift.backends.docker.watch.ENDING", 0.0)
    told.watch._ordered = True
    told.watch.cancel(grace)
    commands = [["kill", "--signal", signal.name, NAME] for signal in signals] + [["rm", "--force", NAME]]
    assert sorted(asked.get(timeout=60) for _ in commands) == sorted(commands)
    assert asked.empty() and told.events == []
