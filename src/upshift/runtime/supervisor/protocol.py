"""What a backend and the supervisor of a single task say to each other.

The backend writes one order to standard input, which has what no file may hold (secrets, devices). The
supervisor writes events to standard output, a line of JSON each. Signals cancel.

Where a scheduler is between them, nobody holds those streams: the order comes in an environment variable,
and how the attempt goes is kept in the store (:class:`LiveRecord`). If the scheduler cannot send these
signals, a record in the store has their name; and if others see the environment of a job, the order is
sealed in the store, and the key is in the environment::

    engine ── content, sealed ──► store ─────────────────┐
           ── key, and where that is ──► environment ──► supervisor: the variables

Who may describe the job has the key and not the content, and who may read the store the content and not the
key. In a folder each node has a file of its own, which is gone once it is read. In a bucket all nodes read
one object, which the engine removes when the attempt has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import ConfigError, UpshiftError
from upshift.model.spec import Device, MetricValue, encode
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.storage.objects import open_objects

if TYPE_CHECKING:
    from upshift.model.spec import TaskSpec
    from upshift.runtime.storage.store import Store
    from upshift.runtime.supervisor.attempt import SupervisedAttempt


@attrs.frozen(kw_only=True)
class Order:
    """What a backend says on standard input."""

    secrets: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # values, by variable
    # Its locks are taken over by the supervisor; None: the backend hands out no devices.
    devices: tuple[Device, ...] | None = None
    descriptors: tuple[int, ...] = ()  # open files of this process by which it has their locks already
    held: str | None = None  # as ``accelerators.locks.HELD`` where the backend runs
    remarks: tuple[str, ...] = ()  # what to say of the devices in the step's log
    less: bool = False  # as in ``Grant``, and so is ``waited``
    waited: float = 0.0
    wait: float | None = None  # seconds; set where the supervisor chooses devices itself: DeviceQueue.ask()
    share: bool = False
    argv: tuple[str, ...] = ()  # what modules of the user's are to find in ``sys.argv``
    stop_record: bool = False  # whether a record in the store cancels it, as no signal reaches it


def order_of(**fields: Any) -> bytes:
    """An order as it is said: a line."""
    return json.dumps(encode(Order(**fields))).encode() + b"\n"


ORDER = "UPSHIFT_ORDER"
"""Environment variable with the order of a supervisor that a scheduler starts; the step does not get it."""
UNWANTED = 3
"""Exit code of a supervisor that nobody gave an order."""
TAKEN = 4
"""Exit code of one whose devices somebody else took in the moment when they were handed over."""
RAN_NOTHING = (UNWANTED, TAKEN)
WITH_GRACE = signal.SIGUSR2
"""By this a backend cancels the step, with the grace of its spec. SIGTERM is somebody else's."""
AT_ONCE = signal.SIGUSR1
"""By this it cancels it without grace."""


class Reporter:
    """Watches an attempt, and says how it goes. Nothing waits for who reads that.

    What cannot be said at once is said later; notices that a later one makes good are left out meanwhile.
    """

    def __init__(self, loop: Loop, descriptor: int = 1, *, of: str | None = None) -> None:
        # The attempt's name is in each line where other attempts report there, too.
        self._of = {} if of is None else {"of": of}
        self._loop = loop
        self._descriptor = descriptor
        self._backlog = bytearray()
        self._room: int | None = None
        os.set_blocking(descriptor, False)

    def open(self, spec: TaskSpec, store: Store) -> None:
        """The attempt is known now; a backend that reads the events knows it already."""

    def say(self, event: str, *, droppable: bool = False, **content: Any) -> None:
        """Send an event; a droppable one is left out while others wait to be sent."""
        if droppable and self._backlog:
            return
        self._backlog += json.dumps({"event": event, **self._of, **content}).encode() + b"\n"
        self._write()

    def end(self, problem: str | None, *, completed: bool = False) -> None:
        """Say the last thing: whether the step completed, and why nothing was recorded."""
        self.say("ended", problem=problem, completed=completed)
        os.set_blocking(self._descriptor, True)
        self._write()

    def started(self, attempt: SupervisedAttempt) -> None:
        """The step process runs."""
        self.say("started")

    def log_grew(self, attempt: SupervisedAttempt, size: int) -> None:
        """The log has this many bytes."""
        self.say("log", droppable=True, size=size)

    def logged(
        self, attempt: SupervisedAttempt, step: float | None, values: Mapping[str, MetricValue]
    ) -> None:
        """Metrics have these values."""
        self.say("logged", droppable=True, step=step, values=values)

    def noticed(self, attempt: SupervisedAttempt, text: str) -> None:
        """There is something that the log cannot say."""
        self.say("noticed", text=text)

    def ended(self, attempt: SupervisedAttempt, problem: str | None) -> None:
        """The result is in the store, or is not."""
        self.end(problem, completed=attempt.completed)

    def _write(self) -> None:
        try:
            while self._backlog:
                del self._backlog[: os.write(self._descriptor, self._backlog)]
        except BlockingIOError:
            if self._room is None:
                self._room = os.dup(self._descriptor)
                self._loop.watch_writable(self._room, self._write)
            return
        except OSError:  # nobody reads it any more: the store has all that counts
            self._backlog.clear()
        if self._room is not None:
            self._loop.forget(self._room)
            self._room = None


class LiveRecord:
    """Watches an attempt, and keeps in the store how it goes, for an engine that looks now and then.

    Its start and its end are told at once; what happens between them is gathered for a moment.
    """

    PAUSE = 0.3
    """Seconds for which it is gathered."""

    def __init__(self, loop: Loop, *, element: int | None = None, node: str) -> None:
        self._loop = loop
        self._node = node
        self._element = element
        self._timer: Timer | None = None
        self._said: dict[str, Any] = {}
        self._spec: TaskSpec | None = None
        self._store: Store | None = None
        self._attempt: SupervisedAttempt | None = None  # whose files have grown
        self.completed = False  # whether the last attempt is

    def open(self, spec: TaskSpec, store: Store) -> None:
        """The attempt is known now: the first one, or the next of an element of an array."""
        self._spec, self._store, self.completed = spec, store, False
        self._said = {} if self._element is None else {"element": self._element}

    def end(self, problem: str | None, *, completed: bool = False) -> None:
        """Say the last thing: whether the step completed, and why nothing was recorded."""
        self.completed = completed
        if problem is not None:
            sys.stderr.write(f"{problem}\n")  # which the scheduler keeps, if the store cannot be written
        self._said["ended"] = {"problem": problem, "completed": completed}
        self._write(last=True)

    @staticmethod
    def lost(spec: TaskSpec, store: Store, why: str) -> None:
        """Say for the first node, which cannot any more, why a further one has left."""
        with contextlib.suppress(ValueError, UpshiftError):
            store.live.lose(spec.task, spec.attempt, why)

    def started(self, attempt: SupervisedAttempt) -> None:
        """The step process runs."""
        self._said["node"] = self._node
        self._write()

    def log_grew(self, attempt: SupervisedAttempt, size: int) -> None:
        """The log has this many bytes."""
        self._said["log"] = size
        self._attempt = attempt
        self._gather()

    def logged(
        self, attempt: SupervisedAttempt, step: float | None, values: Mapping[str, MetricValue]
    ) -> None:
        """Metrics have these values."""
        self._said["logged"] = {**self._said.get("logged", {}), **values}
        self._said["step"] = step
        self._attempt = attempt
        self._gather()

    def noticed(self, attempt: SupervisedAttempt, text: str) -> None:
        """There is something that the log cannot say."""
        self._said.setdefault("noticed", []).append(text)
        self._gather()

    def ended(self, attempt: SupervisedAttempt, problem: str | None) -> None:
        """The result is in the store, or is not."""
        self.end(problem, completed=attempt.completed)

    def _gather(self) -> None:
        if self._timer is None:
            self._timer = self._loop.after(self.PAUSE, self._write)

    def _write(self, *, last: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._attempt is not None:  # they are there before they are spoken of
            self._attempt.hand_on()
            self._attempt = None
        if self._spec is not None and self._store is not None:
            with contextlib.suppress(UpshiftError):  # the next one says it again, or the result does
                self._store.live.say(self._spec.task, self._spec.attempt, self._said, last=last)


ORDER_FILE = "UPSHIFT_ORDER_FILE"
"""Environment variable: the key of the sealed variables, and their path, or address in a bucket."""


def sealed(variables: Mapping[str, str]) -> tuple[str, bytes]:
    """A new key, and what it opens."""
    key = os.urandom(32)
    return key.hex(), _sealed(json.dumps(dict(variables)).encode(), key)


def leave(paths: Sequence[Path], content: bytes) -> None:
    """Write sealed variables to files that only this user may read."""
    for path in paths:
        written = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        os.replace(written, path)


def take_order(environment: MutableMapping[str, str]) -> None:
    """Take the sealed variables that an environment names into it.

    Raises
    ------
    ConfigError
        They cannot be read.
    StoreUnavailable
        The bucket does not answer.
    """
    key, _, path = environment.pop(ORDER_FILE, "").partition(" ")
    if not path:
        return
    try:
        content = _in_bucket(path) if "://" in path else _in_file(path)
        environment.update(json.loads(_unsealed(content, bytes.fromhex(key))))
    except FileNotFoundError:
        raise ConfigError(
            f"what this attempt is to know is not there: {path}",
            why="It has been read before: an attempt is started once; or this node does not see the store.",
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"what this attempt is to know cannot be read: {path}: {error}",
            why="Secrets, and the token of several nodes, are handed over through the store, to whoever may "
            "read there what the user may who runs Upshift.",
            fix="Have the cluster run jobs as this user, or with a role that may read the store.",
        ) from None


def _in_file(path: str) -> bytes:
    content = Path(path).read_bytes()
    os.unlink(path)
    return content


def _in_bucket(address: str) -> bytes:
    folder, _, name = address.rpartition("/")
    found = open_objects(folder).get(name)
    if found is None:
        raise FileNotFoundError(address)
    return bytes(found.data)


def _sealed(content: bytes, key: bytes) -> bytes:
    """The content under a key that is used once: a stream cipher of SHAKE-256, and a MAC before it."""
    stream = hashlib.shake_256(b"upshift order" + key).digest(len(content))
    hidden = bytes(a ^ b for a, b in zip(content, stream, strict=True))
    return hmac.digest(key, hidden, "sha256") + hidden


def _unsealed(content: bytes, key: bytes) -> bytes:
    mac, hidden = content[:32], content[32:]
    if not hmac.compare_digest(mac, hmac.digest(key, hidden, "sha256")):
        raise ValueError("it is damaged")
    return _sealed(hidden, key)[32:]
