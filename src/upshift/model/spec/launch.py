"""Many processes for one step: what was asked for, and which of them a process is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Launch:
    """How many processes make one task, and how they are started.

    Upshift's supervisor is the launcher: it starts the processes, and gives each the environment that
    the launcher of this name would have given it.

    Parameters
    ----------
    launcher
        ``"accelerate"``, ``"torchrun"``, or ``"parallel"``: the nodes of a flow's ``num_parallel``.
    processes
        How many over all nodes, as it was asked for.
    counted
        Whether somebody has said how many; else it is one on each node.
    per_node
        How many on each node: decided when the step is offered its hardware, None before.
    devices
        Whether each process is to have a device of its own.
    arguments
        What else the launcher was told: its own arguments by their Python names, those alone that were given.
    files
        Texts of the files that its arguments name, by argument: its configuration (YAML or JSON), and others.
    port
        The port of the main process; None: one that is free.
    hang
        Seconds without progress after which the processes are stopped; None: it is only said.
    numa_binding
        Whether each process keeps to the CPUs of the NUMA node of its device; None: where there are several.
    """

    launcher: str
    processes: int = 1
    counted: bool = True
    per_node: int | None = None
    devices: bool = False
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    files: Mapping[str, str] = attrs.field(factory=dict)
    port: int | None = None
    hang: float | None = None
    numa_binding: bool | None = None

    @property
    def each(self) -> int:
        """How many a node has; one, as long as that is not decided."""
        return self.per_node or 1


@attrs.frozen(kw_only=True)
class Rank:
    """Which of the processes of a task one is.

    Parameters
    ----------
    rank, world_size
        Its number over all nodes, from 0, and how many there are.
    local_rank, local_world_size
        The same on its own node. Ranks of a node follow each other.
    node, nodes
        Number of its node, from 0, and how many there are.
    address, port
        Where the process of rank 0 listens for the others.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0


@attrs.frozen(kw_only=True)
class Stack:
    """Where one of the processes of a task was when all of them were asked.

    Parameters
    ----------
    rank
        Which one.
    waits
        What it waits for, where that is known: ``"all_reduce"``, ``"init_process_group"``; None: it works.
    where
        The user's innermost line, ``file:line``.
    silent
        Why it did not say where it was: its process is stopped, for example. None: it did.
    text
        The Python stacks of all of its threads.
    """

    rank: int
    waits: str | None = None
    where: str | None = None
    silent: str | None = None
    text: str = ""
