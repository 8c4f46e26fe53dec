"""The port at which the processes of a task will meet, kept by its supervisor until rank 0 has it."""

from __future__ import annotations

from upshift.model.spec import Launch
from upshift.runtime import forks
from upshift.runtime.launch.ports import Port, keep


def keep_port(launch: Launch) -> Port:
    """Keep the port of a launch; no child of this process does.

    Raises
    ------
    BackendError
        It is taken, or may not be used.
    """
    from upshift.runtime.launch.arguments.meanings import LAUNCHERS  # no other step needs its tables

    port = keep(launch.port, argument=LAUNCHERS[launch.launcher].port)
    for one in port.held:
        forks.private(one)
    return port
