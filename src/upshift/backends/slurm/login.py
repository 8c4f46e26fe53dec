"""A login node that is reached through ``ssh``: Slurm's commands run there.

Connections are shared (ssh_config(5), ControlMaster), so that a command costs one round trip. Variables go in
on standard input, before a script: not on a command line, which others see, and without asking the server to
accept them.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence

import attrs

from upshift.errors import BackendError, ConfigError
from upshift.model.configuration import Target

FAILED = 255
"""What ``ssh`` ends with where it is ssh that failed: ssh(1), "EXIT STATUS"."""
CONNECT = 15
"""Seconds for a connection."""
KEPT = 120
"""Seconds that a connection is kept for the next command."""
_END = "#"
_READ = f'while IFS= read -r line && [ "$line" != "{_END}" ]; do eval "$line"; done; exec '
_HOPELESS = re.compile(
    r"(?i)permission denied|host key verification failed|remote host identification has changed"
    r"|could not resolve hostname|bad configuration option|too many authentication failures|no such identity"
)
"""What ssh says where it would say the same again."""


@attrs.frozen
class Login:
    """A login node."""

    address: str  # as ssh takes it: "ann@login.example.org", or a Host of ~/.ssh/config

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs a command there, which finds what a login shell finds."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT,
            "ServerAliveInterval": CONNECT,
            "ControlMaster": "auto",
            "ControlPersist": KEPT,
            "ControlPath": f"{_connections()}/%C",
        }
        said = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        inside = shlex.join(["sh", "-lc", _READ + shlex.join(command)])
        return ["ssh", "-T", *said, "--", self.address, inside]

    def input(self, more: Mapping[str, str], script: str | None) -> str:
        """Its standard input."""
        for name, value in more.items():
            if "\n" in value:
                raise BackendError(f"the value of {name} has several lines, which do not go through ssh")
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in more.items()]
        return "".join([*lines, f"{_END}\n", script or ""])

    def refusal(self, said: str) -> BackendError | None:
        """The error for what ssh says; None: it may be different in a second."""
        if not _HOPELESS.search(said):
            return None
        asks = "Permission denied" in said
        return BackendError(
            f"ssh {self.address} does not let Upshift in" if asks else f"ssh {self.address} fails",
            why=said,
            fix="Nobody answers a question for a password or a new host here: set up a key (ssh-copy-id) or "
            f"an agent, and see that this works: ssh -o BatchMode=yes {self.address} sinfo",
        )


def login_of(target: Target, store: str) -> Login | None:
    """The login node that a target names.

    Raises
    ------
    ConfigError
        That makes no sense, or nodes would not see the store.
    """
    address = target.options.get("ssh")
    if address is None:
        return None
    owner = f"target {target.name!r}"
    if not isinstance(address, str) or not re.fullmatch(r"[^\s-]\S*", address):
        raise ConfigError(
            f"{owner}: ssh = {address!r} is invalid",
            fix='Write ssh = "ann@login.example.org", or a Host of ~/.ssh/config.',
        )
    if "://" in store:
        raise ConfigError(
            f"{owner}: its store is {store}, and its jobs are submitted through ssh",
            why="What a job prints before it works goes to a folder that this machine sees, too.",
            fix='Name a folder that both see: store = "/shared/upshift".',
        )
    return Login(address)


def _connections() -> str:
    """A folder of this user's for the sockets of connections, whose paths are short (unix(7): 108 bytes)."""
    folder = os.path.join(tempfile.gettempdir(), f"upshift-ssh-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not os.path.isdir(folder):
        raise BackendError(
            f"{folder} is not a folder of your own, which nobody else may enter", fix="Remove it."
        )
    return folder
