"""How a container is started, with which devices, what its engine knows of it, and which are used again.

A task of a mapped step gets a container in which another task of its step has completed and left nothing
behind, where there is one or soon will be, and a new one elsewhere. So there are about as many as tasks run
at once. What could tell two tasks apart by it keeps a container of its own: see :func:`key_of`.

Which devices a container gets has to be known before it starts. So the engine waits for them and takes their
locks, on the thread of a :class:`DeviceBroker`; the supervisor in the container takes the locks over, and has
them as long as it lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs

from upshift.backends.docker.container import OwnFolder
from upshift.backends.docker.offers import Options
from upshift.errors import ImageError
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.model.settings.sizes import format_size
from upshift.model.spec import Hardware, TaskSpec, encode
from upshift.model.spec.hardware import SUPERVISOR, enforced
from upshift.model.spec.task import Failure
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.device_queue import DeviceQueue, Ready, Refuse, Tell
from upshift.runtime.supervisor.forkable import OWN_THREAD_PREFIX

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_pool import Grant


PATIENCE = 60.0
"""Seconds for one command of the engine."""
KILLED = 137
"""128 + SIGKILL."""


def state_of(engine: ContainerEngine, name: str) -> str | None:
    """State of a container: ``"running"``; empty: there is none; None: the engine does not answer."""
    try:
        answer = engine.run(
            ["container", "inspect", "--format", "{{.State.Status}}", name], timeout=PATIENCE, check=False
        )
    except ImageError:
        return None
    if answer.returncode == 0:
        return answer.stdout.strip()
    return "" if "no such container" in answer.stderr.lower() else None


def ran_out_of_memory(engine: ContainerEngine, name: str, since: float) -> bool:
    """Whether the kernel has killed in it for want of memory, since then (seconds since the epoch)."""
    return bool(_events(engine, name, "oom", since))


def exit_code(engine: ContainerEngine, name: str, since: float) -> int | None:
    """What it ended with, since then; None: the engine does not know any more."""
    for event in _events(engine, name, "died" if engine.name == PODMAN else "die", since):
        attributes = event.get("Actor", {}).get("Attributes", {})
        with contextlib.suppress(TypeError, ValueError):
            return int(attributes.get("exitCode", event.get("ContainerExitCode")))
    return None


def violent_end(
    engine: ContainerEngine, name: str, since: float, *, code: int | None, memory: int | None
) -> tuple[str, str] | None:
    """Why a container was killed that ended with this code, of so much memory; None: it was not."""
    if ran_out_of_memory(engine, name, since):
        limit = f" of {format_size(memory)}" if memory is not None else ""
        return "out-of-memory", f"the container went beyond its memory{limit}, says {engine.title}"
    if code == KILLED:
        return (
            "infrastructure",
            f"the container was killed from outside (exit code {code}), says {engine.title}",
        )
    return None


def complaint(said: Path | None) -> str:
    """What a command of the engine has complained of, in this file; empty: nothing."""
    if said is None:
        return ""
    try:
        text = said.read_text(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return "\n".join(lines[-8:])


def _events(engine: ContainerEngine, name: str, kind: str, since: float) -> list[dict[str, Any]]:
    """What the engine remembers of a container, though it is gone."""
    window = ["--since", f"{since - 1:.0f}", "--until", f"{time.time() + 1:.0f}"]
    filters = ["--filter", f"container={name}", "--filter", f"event={kind}"]
    form = ["--stream=false", "--format", "json"] if engine.name == PODMAN else ["--format", "{{json .}}"]
    with contextlib.suppress(ImageError, ValueError):
        answer = engine.run(["events", *window, *filters, *form], timeout=PATIENCE, check=False)
        return [json.loads(line) for line in answer.stdout.splitlines() if line.strip()]
    return []


Key = tuple[object, ...]
"""What makes two attempts alike for a container."""

_commands: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


@attrs.frozen(kw_only=True)
class ContainerLaunch:
    """How a container is started, or one that runs already is given an order."""

    name: str  # the container
    arguments: tuple[str, ...]  # after the engine's name
    order: bytes = attrs.field(repr=False)  # what it reads on its standard input
    own: OwnFolder  # its own folder
    # containers in which the attempt before may still run: an engine that did not answer for long was given
    # up
    before: tuple[str, ...] = ()
    grant: LentDevices | None = None  # what the broker gave; given back when the container is gone
    # arguments that start a container which removes what this one has left in its own folder
    sweeping: tuple[str, ...] = ()
    key: Key | None = None  # which attempts it may serve, one after the other; None: this one alone
    process: subprocess.Popen[bytes] | None = None  # the engine's command, where the container runs already

    @property
    def gone(self) -> bool:
        """Whether the container has ended; one that was never started has not."""
        return self.process is not None and self.process.poll() is not None

    def dismiss(self) -> None:
        """Let a container go that runs and has nothing to do."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):  # it has gone already
                self.process.stdin.close()

    def remove(self) -> None:
        """Wait until such a container is gone, and remove its own folder."""
        if self.process is not None:
            self.dismiss()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:  # the engine does not answer, nor will it soon
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        self.own.remove()


def order_in_turn(order: bytes, name: str, path: str) -> bytes:
    """The order for an attempt of this name, with this spec, in a container that serves several."""
    return json.dumps({"of": name, "spec": path, "order": json.loads(order)}).encode() + b"\n"


def order_for(spec: TaskSpec, secrets: Mapping[str, str], grant: Grant | None) -> bytes:
    """What the supervisor in the container is told when it is ready."""
    from upshift.runtime.supervisor.protocol import order_of

    if grant is None:
        devices = () if spec.granted is not None and spec.granted.gpus == () else None
        return order_of(argv=tuple(sys.argv), secrets=dict(secrets), devices=devices)
    from upshift.runtime.accelerators import locks

    return order_of(
        argv=tuple(sys.argv),
        secrets=dict(secrets),
        devices=grant.devices,
        held=os.environ.get(locks.HELD),
        remarks=grant.remarks,
        less=grant.less,
        waited=grant.waited,
    )


def talk(
    command: Sequence[str],
    *,
    stdin: int,
    stderr: int | IO[bytes],
    folder: Path | None = None,  # its working folder
) -> subprocess.Popen[bytes]:
    """Start a command of the engine, which goes on where this process is killed or interrupted.

    Raises
    ------
    OSError
        It cannot be started.
    """
    process = subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, cwd=folder, start_new_session=True
    )
    _commands.add(process)
    return process


def _let_go_in_child() -> None:
    """A fork, for local steps of the same run, must not keep these pipes open: nobody would see their end."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for command in list(_commands):
        for stream in (command.stdin, command.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    os.dup2(nowhere, stream.fileno(), inheritable=False)
    os.close(nowhere)
    _commands.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


SOON = 2.0
"""Seconds that a task waits for a container in which another one has just completed."""


def key_of(spec: TaskSpec, options: Options) -> Key | None:
    """Which attempts may have the container of this one after it; None: it has one for itself.

    A retry has, for what was there may have been the reason; several processes, devices, a user of the
    image's own and arguments of the user's, which may do away with any bound, are not shared either.
    """
    granted, docker = spec.granted or Hardware(), spec.settings.docker
    if docker is not None and docker.reuse_container is False:
        return None
    if spec.task.index is None or spec.attempt > 1 or spec.launch is not None or granted.gpus:
        return None
    if spec.user is not None or options.arguments:
        return None
    same = spec.task.run, spec.task.step, spec.store, spec.image, spec.interpreter, spec.runtime
    return (*same, json.dumps(encode(granted), sort_keys=True))


class Pool:
    """The containers that have nothing to do now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: list[ContainerLaunch] = []
        self._soon: Counter[Key] = Counter()
        self._waiting: Counter[Key] = Counter()
        self._spoilt: set[Key] = set()
        self._open = True

    def reusable(self, key: Key | None) -> Key | None:
        """The key, unless containers were not as before when an attempt with it had completed."""
        with self._changed:
            return None if key in self._spoilt else key

    def expects(self, key: Key) -> bool:
        """Whether it is worth while to :meth:`take`."""
        with self._changed:
            return any(launch.key == key for launch in self._free) or self._soon[key] > self._waiting[key]

    def take(self, key: Key) -> ContainerLaunch | None:
        """A container, waited for where one will be free soon; None: there is none."""
        deadline = time.monotonic() + SOON
        with self._changed:
            self._waiting[key] += 1
            try:
                while self._open:
                    for launch in self._free:
                        if launch.key == key and not launch.gone:
                            self._free.remove(launch)
                            return launch
                    left = deadline - time.monotonic()
                    if not self._soon[key] or left <= 0:
                        break
                    self._changed.wait(left)
            finally:
                self._waiting[key] -= 1
        return None

    def expect(self, key: Key) -> None:
        """A container is about to be free: :meth:`settle` follows."""
        with self._changed:
            self._soon[key] += 1

    def settle(
        self,
        key: Key,
        launch: ContainerLaunch | None,
        *,
        expected: bool,  # whether :meth:`expect` was called
        spoilt: bool,  # whether what runs there leaves something behind
    ) -> bool:
        """A container is free, or not: False, and it has to go."""
        gone = self._take_gone()
        with self._changed:
            self._soon[key] -= expected
            if spoilt:
                self._spoilt.add(key)
            kept = launch is not None and self._open
            if launch is not None and kept:
                self._free.append(launch)
            self._changed.notify_all()
        for other in gone:
            other.remove()
        return kept

    def close(self) -> None:
        """Let all of them go, and wait until they are gone."""
        with self._changed:
            self._open = False
            free, self._free = self._free, []
            self._changed.notify_all()
        for launch in free:
            launch.dismiss()
        for launch in free:
            launch.remove()

    def _take_gone(self) -> list[ContainerLaunch]:
        """Take out the containers that have left by themselves, for want of orders."""
        with self._changed:
            gone = [launch for launch in self._free if launch.gone]
            self._free = [launch for launch in self._free if launch not in gone]
        return gone


class DeviceBroker:
    """Hands out the accelerators of this machine. Nothing is started before somebody asks."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asking: dict[str, tuple[TaskSpec, Refuse]] = {}
        self._devices: DeviceQueue | None = None
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._open = True

    def ask(
        self,
        name: str,  # who asks, for :meth:`cancel`
        spec: TaskSpec,
        *,
        ready: Ready,
        tell: Tell,
        refuse: Refuse,
        wait: float,
        share: bool,
    ) -> None:
        """As :meth:`.DeviceQueue.ask` of the supervisor; what it is given runs on the broker's thread.

        If that raises anything, whoever waits then is refused.
        """
        if self._thread is None:
            self._start()
        assert spec.granted is not None
        details = {**spec.granted.details, **enforced(SUPERVISOR)}
        spec = attrs.evolve(spec, granted=attrs.evolve(spec.granted, details=details))

        def served(grant: Grant | None) -> None:
            self._asking.pop(name, None)
            ready(grant)

        def refused(failure: Failure) -> None:
            if self._asking.pop(name, None) is not None:
                refuse(failure)

        def begin() -> None:
            assert self._devices is not None
            self._asking[name] = spec, refused
            self._devices.ask(spec, ready=served, tell=tell, refuse=refused, wait=wait, share=share)

        self.call(begin)

    def cancel(self, name: str) -> None:
        """Whoever asked does not wait any more, if so; it is told by ``refuse``."""

        def stop() -> None:
            if self._devices is not None and name in self._asking:
                self._devices.cancel(self._asking[name][0])

        self.call(stop)

    def call(self, what: Callable[[], None]) -> None:
        """Do something on the broker's thread."""
        if self._thread is None:
            return
        self._calls.put(what)
        os.write(self._wake, b".")

    def close(self) -> None:
        """Nobody waits any more."""
        if self._thread is None:
            return
        self.call(partial(setattr, self, "_open", False))
        self._thread.join()
        self._thread = None
        os.close(self._wake)

    def _start(self) -> None:
        reader, self._wake = os.pipe()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(reader, ready), name=f"{OWN_THREAD_PREFIX}devices", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _serve(self, reader: int, ready: threading.Event) -> None:
        from upshift.runtime.supervisor.device_monitor import DeviceMonitor

        loop = Loop().confined(self._failed)
        accelerators = DeviceMonitor(loop)
        self._devices = DeviceQueue(loop, lambda: accelerators, engine=os.getpid())
        loop.watch(reader, lambda: self._hear(reader))
        ready.set()
        while self._open:
            loop.turn()
        self._devices.forget()
        accelerators.close()
        loop.abandon()

    def _hear(self, reader: int) -> None:
        os.read(reader, 1 << 10)
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            try:
                call()
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Nobody is to wait for ever because of it, and the next one who asks is to be served."""
        if self._devices is not None:
            self._devices.forget()
        for _, refuse in list(self._asking.values()):
            refuse(Failure(reason="infrastructure", message=f"devices cannot be handed out: {error}"))


class LentDevices:
    """What a broker gave to a container."""

    def __init__(
        self,
        grant: Grant,  # what it gave, on its own thread
        broker: DeviceBroker,
    ) -> None:
        self._grant = grant
        self._broker = broker

    @property
    def grant(self) -> Grant:
        """The devices, as the pool has granted them."""
        return self._grant

    def hand_over(self) -> None:
        """The supervisor in the container takes the locks now."""
        self._grant.hand_over()

    def give_back(self) -> None:
        """The container is gone."""
        self._broker.call(self._grant.give_back)
