"""The port at which the processes of a task will meet, kept by its supervisor until rank 0 has it."""

from __future__ import annotations

from upshift.launch.ports import Port, keep
from upshift.spec import Launch
from upshift.worker import sockets


def keep_port(launch: Launch) -> Port:
    """Keep the port of a launch; no child of this process does.

    Raises
    ------
    BackendError
        It is taken, or may not be used.
    """
    from upshift.launch.arguments.meanings import LAUNCHERS  # no other step needs its tables

    port = keep(launch.port, argument=LAUNCHERS[launch.launcher].port)
    for one in port.held:
        sockets.private(one)
    return port
