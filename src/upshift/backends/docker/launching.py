"""How a container is started, and the engine's commands that this process talks to."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs

from upshift.backends.docker.folders import OwnFolder
from upshift.backends.docker.state import PATIENCE
from upshift.model.spec import TaskSpec

if TYPE_CHECKING:
    from upshift.backends.docker.device_broker import LentDevices
    from upshift.runtime.supervisor.devices.pool import Grant

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
    from upshift.runtime.supervisor.serving.protocol import order_of

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
