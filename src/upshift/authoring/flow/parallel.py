"""A step on several nodes at once: ``@parallel``, ``@torchrun``, what such a step knows, and what it leaves.

The step before says how many: ``self.next(self.train, num_parallel=4)``. To the engine the step is one task
with as many processes (:mod:`upshift.runtime.launch`): one on each node, or all of them on one machine that
has no nodes. Each calls the step and saves its own state. That of node 0 waits for the states of the others,
and returns all of them by item, which the join gets.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from upshift.authoring.flow.shape import PARALLEL
from upshift.authoring.options import StepOptions
from upshift.authoring.steps import adding
from upshift.errors import UsageError, user_location
from upshift.model.checks import MOST_PROCESSES_EACH, bad_value, shown
from upshift.model.graph import task_id
from upshift.model.spec import Artifact, from_json, to_json
from upshift.runtime.step.context import current
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.manifest import State

if TYPE_CHECKING:
    from upshift.authoring.flow.definition import FlowClass
    from upshift.runtime.storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_PAUSE = 0.5
"""Seconds between two looks at whether another node has saved its state, at most."""


def parallel(function: Any = None, /) -> Any:
    """Run a step on several nodes at once, each of which knows the others.

    The step before says how many: ``self.next(self.train, num_parallel=4)``. The step after joins what each
    of them has set: ``def join(self, inputs)``. ``upshift.current.parallel`` has ``node_index``,
    ``num_nodes``, ``main_ip`` and ``control_task_id``. Where a target has no nodes, as many processes run on
    one machine. If one fails, all are stopped; a retry starts all of them.
    """
    decorate: Any = adding(StepOptions(flow={PARALLEL: True}))
    return decorate if function is None else decorate(function)


def torchrun(
    function: Any = None,
    /,
    *,
    nproc_per_node: int = 1,
    master_port: int | str | None = None,
    all_nodes_started_timeout: float | None = None,
) -> Any:
    """Have ``upshift.current.torch`` in a step on several nodes; see :func:`parallel`.

    ``current.torch.run(entrypoint="script.py")`` starts ``torchrun`` on each node, for the script. To run the
    step's own body in several processes instead, there is :func:`run_with_torchrun`.

    Parameters
    ----------
    nproc_per_node
        Processes on each node, unless ``run`` says so.
    master_port
        Port of the main node; default: one that is free.
    all_nodes_started_timeout
        Of Metaflow's decorator. The nodes start together here, so that it changes nothing.

    Raises
    ------
    SettingsError
        A value makes no sense.
    """
    port = None if master_port is None else str(master_port)
    if port is not None and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise bad_value("@torchrun", "master_port", master_port, "a port: 29500")
    options = {"processes": _processes("@torchrun", nproc_per_node), "port": port}
    decorate: Any = adding(StepOptions(flow={PARALLEL: options}))
    return decorate if function is None else decorate(function)


def _processes(owner: str, value: Any) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if type(number) is not int or not 1 <= number <= MOST_PROCESSES_EACH:
        raise bad_value(owner, "nproc_per_node", value, f"a whole number from 1 to {MOST_PROCESSES_EACH:,}")
    return number


class Parallel(NamedTuple):
    """Which of several nodes this one is."""

    main_ip: str = "127.0.0.1"
    num_nodes: int = 1
    node_index: int = 0
    control_task_id: str | None = None


def names_of_nodes(options: Mapping[str, Any]) -> Mapping[str, Callable[[], object]]:
    """What ``current`` has of a step's nodes, each with what finds its value when somebody asks."""
    if PARALLEL not in options:
        return {"parallel": Parallel, "is_parallel": lambda: False}
    identity = task_id(str(current.step), current.index)
    index, nodes = current.rank, current.world_size  # so the step shares out the work itself
    main = os.environ.get("MASTER_ADDR", "127.0.0.1")
    names: dict[str, Callable[[], object]] = {
        "parallel": lambda: Parallel(main, nodes, index, identity),
        "is_parallel": lambda: True,
        "task_id": lambda: f"{identity}_node_{index}" if index else identity,
    }
    if options[PARALLEL] is not True:
        executor = TorchRun(Parallel(main, nodes, index, identity), **options[PARALLEL])
        names["torch"] = lambda: executor
    return names


def confirm_size(flow: FlowClass, before: str, told: object) -> None:
    """Refuse a number of nodes that is not the one that was asked for before the run."""
    launch = None if current.spec is None else current.spec.launch
    if launch is not None and told != launch.processes:
        raise UsageError(
            f"num_parallel is {shown(told)}, and was {launch.processes} before the run",
            where=flow.shape.steps[before].location,
            why="As many nodes were asked for before anything ran.",
            fix="Let it be the same each time: a number, a Parameter, or a constant.",
        )


def gathered(state: State, store: Store | None) -> list[State] | None:
    """The states of all nodes in their order, on node 0; None on the others.

    Each node saves its own, and its record says where; node 0 waits until all have. If another one fails,
    this process is ended by the supervisor.
    """
    if current.world_size == 1 or store is None or current.spec is None:
        return [state]
    spec = current.spec

    def record(rank: int) -> str:
        return f"{spec.task.step}-{spec.task.index or 0}.{spec.attempt}.node-{rank}.json"

    own = artifacts.save(state, store)
    if current.rank:
        store.write_record(spec.task.run, record(current.rank), to_json(own))
        return None
    found = [own]
    for rank in range(1, current.world_size):
        pause = 0.001
        while (content := store.read_record(spec.task.run, record(rank))) is None:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        found.append(from_json(Artifact, content))
    return [load_state(artifact, store) for artifact in found]


def load_state(artifact: Artifact, store: Store) -> State:
    """A state that is saved, whose artifacts need not be saved again."""
    state = artifacts.load(artifact, store)
    assert isinstance(state, State)
    return state


class TorchRun:
    """``upshift.current.torch``: starts ``torchrun`` on this node, for a script on all of them."""

    def __init__(self, node: Parallel, processes: int, port: str | None) -> None:
        self._node = node
        self._processes = processes
        self._port = port or os.environ.get("MASTER_PORT", "29500")

    def run(
        self,
        torchrun_args: Mapping[str, Any] | Sequence[Any] | None = None,
        entrypoint: str | None = None,
        entrypoint_args: Mapping[str, Any] | Sequence[Any] | None = None,
        nproc_per_node: int | None = None,
        **options: Any,
    ) -> None:
        """Run a script by ``torchrun``, in as many processes on each node.

        Parameters
        ----------
        torchrun_args
            Further options of ``torchrun``: ``{"max_restarts": 2}``; a value of None is a flag.
        entrypoint
            The script.
        entrypoint_args
            Its options: ``{"epochs": 3}`` is ``--epochs 3``; of a list each item as it is.
        nproc_per_node
            Processes on each node.

        Raises
        ------
        UsageError
            There is no script, or PyTorch is not installed.
        RuntimeError
            It failed; what it printed is in the log.
        """
        if entrypoint is None:
            raise UsageError(
                "current.torch.run has no script to run",
                where=user_location(),
                fix='Write current.torch.run(entrypoint="script.py").',
            )
        if options:
            raise UsageError(
                f"current.torch.run has no option {next(iter(options))!r}",
                where=user_location(),
                fix="Options: entrypoint, entrypoint_args, nproc_per_node, torchrun_args. What the script "
                "leaves is kept by self.NAME = Path(…), or current.checkpoint.",
            )
        told = {
            "nnodes": self._node.num_nodes,
            "node_rank": self._node.node_index,
            "master_addr": self._node.main_ip,
            "master_port": self._port,
            "nproc_per_node": self._processes,
        }
        more = list(_options(torchrun_args, pairs=True))
        if nproc_per_node is not None:
            told["nproc_per_node"] = _processes("current.torch.run", nproc_per_node)
        settled = [
            one
            for name, value in told.items()
            if f"--{name}" not in more
            for one in (f"--{name}", f"{value}")
        ]
        command = [sys.executable, "-m", "torch.distributed.run", *settled, *more, entrypoint]
        command += _options(entrypoint_args, pairs=False)
        if find_spec("torch") is None:
            raise UsageError(
                "torchrun is not installed",
                where=user_location(),
                fix="pip install torch, or have it in the image.",
            )
        import subprocess  # what only this needs

        done = subprocess.run(command, check=False)
        if done.returncode:
            raise RuntimeError(
                f"torchrun of {entrypoint} ended with exit code {done.returncode} "
                f"on node {self._node.node_index}"
            )


def _options(given: Any, *, pairs: bool) -> Iterator[str]:
    """Options as texts: of a dictionary ``--name value``; of a list as they are, or in ``pairs``."""
    if given is None:
        return
    if isinstance(given, Mapping):
        for name, value in given.items():
            yield f"--{name}"
            if value is not None and value != "":
                yield _text(value)
    elif pairs:
        for position, value in enumerate(given):
            yield _text(value) if position % 2 else f"--{value}"
    else:
        yield from map(_text, given)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
