"""Which of several nodes a supervisor is on: what a backend says to each in environment variables.

The command of all nodes is the same. What tells them apart a cluster has in variables of its own, which a
backend need not read: a value ``$NAME`` stands for that of another variable::

                       UPSHIFT_NODE                 UPSHIFT_MAIN_NODE
    AWS Batch          $AWS_BATCH_JOB_NODE_INDEX    $AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS
    Slurm, by srun     $SLURM_NODEID                $SLURM_LAUNCH_NODE_IPADDR
    Kubernetes         $JOB_COMPLETION_INDEX        JOB-0.SERVICE
    a loop, Ray        0, 1, …                      the address itself

Sources: AWS Batch, "Environment variables for multi-node parallel jobs"; srun(1), "OUTPUT ENVIRONMENT
VARIABLES"; Kubernetes, "Indexed Job with pod-to-pod communication".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, MutableMapping

import attrs

from upshift.errors import ConfigError

NODE = "UPSHIFT_NODE"
"""Environment variable: the number of this node, from 0."""
NODES = "UPSHIFT_NODES"
"""How many there are."""
MAIN = "UPSHIFT_MAIN_NODE"
"""Where node 0 is found by the others: ``ADDRESS`` or ``ADDRESS:PORT``. Node 0 itself need not be told."""
TOKEN = "UPSHIFT_NODES_TOKEN"
"""What all nodes of this attempt know and nobody else does."""
NAME = "UPSHIFT_NODE_NAME"
"""What to call this node; its host's name where it is not set."""
OWN_ADDRESS = "UPSHIFT_NODE_ADDRESS"
"""The address of its own that this node uses; any, where it is not set."""
PATIENCE = "UPSHIFT_NODES_WAIT"
"""Seconds that nodes wait for each other."""
WAIT = 600.0
"""The same where it is not set: a node may have to fetch its image first."""
QUIET = "UPSHIFT_NODES_SILENCE"
"""Seconds without a sign of life after which a node counts as lost."""
SILENCE = 15.0
"""Where it is not set. Of a supervisor that has died the connection tells at once."""
VARIABLES = (NODE, NODES, MAIN, TOKEN, NAME, OWN_ADDRESS, PATIENCE, QUIET)

_PORTS = range(20_000, 30_000)
"""Below those that kernels hand out by themselves: ``ip_local_port_range`` in ip(7)."""


@attrs.frozen(kw_only=True)
class Seat:
    """Which node of a task this is."""

    node: int  # its number, from 0
    nodes: int
    token: str = attrs.field(repr=False)  # what all nodes of this attempt know
    port: int
    main: str | None = None  # where node 0 listens. On node 0 itself main may be None
    name: str | None = None  # what to call it; None: as its host
    address: str | None = None  # the address of its own that it uses; None: whichever leads to the others
    wait: float = WAIT  # seconds that it waits for the others
    silence: float = SILENCE  # seconds without a sign of life after which another node counts as lost

    def variables(self) -> dict[str, str]:
        """What a supervisor is started with to take this seat."""
        found = {
            NODE: str(self.node),
            NODES: str(self.nodes),
            TOKEN: self.token,
            MAIN: None if self.main is None else f"[{self.main}]:{self.port}",
            NAME: self.name,
            OWN_ADDRESS: self.address,
            PATIENCE: f"{self.wait:g}",
            QUIET: f"{self.silence:g}",
        }
        return {name: value for name, value in found.items() if value is not None}


def take(environment: MutableMapping[str, str]) -> Seat | None:
    """The seat that an environment names, and then no more: what is started here has none.

    None: there is no other node.
    """
    said = {name: environment.get(name, "") for name in VARIABLES}
    found = seat(environment) if any(said[name] for name in (NODE, NODES)) else None
    for name in VARIABLES:
        environment.pop(name, None)
    return found


def seat(environment: Mapping[str, str]) -> Seat | None:
    """The seat that an environment names; None: there is no other node."""
    nodes = _number(environment, NODES, least=1)
    if nodes == 1:
        return None
    node = _number(environment, NODE, least=0, most=nodes - 1)
    token = _value(environment, TOKEN)
    if not token:
        raise _wrong(
            TOKEN, "is not set", "It is made anew for each attempt, and the same on all of its nodes."
        )
    main, port = _place(_value(environment, MAIN), token)
    if main is None and node:
        raise _wrong(MAIN, "is not set", "Every node but the first has to be told where that is.")
    return Seat(
        node=node,
        nodes=nodes,
        token=token,
        main=main,
        port=port,
        name=_value(environment, NAME) or None,
        address=_value(environment, OWN_ADDRESS) or None,
        wait=_seconds(environment, PATIENCE) or WAIT,
        silence=silence(environment),
    )


def name_of(environment: Mapping[str, str]) -> str:
    """What to call this node, one of several or the only one."""
    return _value(environment, NAME) or environment.get("SLURMD_NODENAME") or os.uname().nodename


def silence(environment: Mapping[str, str], otherwise: float = SILENCE) -> float:
    """Seconds without a sign of life after which a node counts as lost."""
    return _seconds(environment, QUIET) or otherwise


def usual_port(token: str) -> int:
    """The port on which node 0 listens where nobody said: all nodes know it, a new attempt has another."""
    return _PORTS[int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "big") % len(_PORTS)]


def _value(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    return environment.get(value[1:], "") if value.startswith("$") else value


def _number(environment: Mapping[str, str], name: str, *, least: int, most: int | None = None) -> int:
    value = _value(environment, name)
    if not value:
        via = environment.get(name, "")
        raise _wrong(name, f"is {via}, which is not set" if via else "is not set", "Set it on every node.")
    if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
        span = f"from {least}" + (f" to {most}" if most is not None else "")
        raise _wrong(name, f"is {value!r}", f"It is a number {span}.")
    return int(value)


def _seconds(environment: Mapping[str, str], name: str) -> float | None:
    text = _value(environment, name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise _wrong(name, f"is {text!r}", "It is a number of seconds.")
    return found


def _place(text: str, token: str) -> tuple[str | None, int]:
    """Address and port; an IPv6 address with a port is in brackets."""
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    else:
        address, port = text, ""
    if port and (not port.isdecimal() or not 0 < int(port) < 1 << 16):
        raise _wrong(
            MAIN, f"is {text!r}", "It is ADDRESS or ADDRESS:PORT, of an IPv6 address [ADDRESS]:PORT."
        )
    return address or None, int(port) if port else usual_port(token)


def _wrong(name: str, how: str, fix: str) -> ConfigError:
    return ConfigError(
        f"the environment variable {name} {how}",
        why="The backend says by it which of several nodes this one is.",
        fix=fix,
    )
