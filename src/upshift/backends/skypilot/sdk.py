"""SkyPilot's SDK, through :mod:`.agent` in the Python that has it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError

_AGENT = Path(__file__).with_name("agent.py")
_LONGEST_LINE = 512  # of a script, in which its interpreter is named


class Refused(BackendError):
    """What SkyPilot says to what it does not do."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"SkyPilot refuses it: {said}")
        self.kind = kind  # its own class of errors
        self.said = said


def python_of(command: str | None = None) -> str:
    """The interpreter that has SkyPilot: this one, or that of its command ``sky``.

    Raises
    ------
    BackendError
        There is none.
    """
    if command is None and importlib.util.find_spec("sky") is not None:
        return sys.executable
    path = shutil.which(command or "sky")
    if path is not None:
        with open(path, "rb") as file:
            first = file.readline(_LONGEST_LINE).decode(errors="replace")
        if first.startswith("#!") and "python" in first:
            return first[2:].split()[0].strip()
    raise BackendError(
        f"{command or 'sky'} is no command of SkyPilot's here",
        why="Steps are given to SkyPilot through its own Python package.",
        fix='Install it, best in an environment of its own: uv tool install "skypilot[aws]", with the clouds '
        "that you use. Where its command is not on the PATH, the target names it: "
        'options = { sky = "/opt/sky/bin/sky" }.',
    )


class Sdk:
    """Each thread that calls has an agent of its own: one may take minutes, while machines are rented."""

    def __init__(self, command: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._command = command
        self._environment = {
            **environ,
            "SKYPILOT_DISABLE_USAGE_COLLECTION": environ.get("SKYPILOT_DISABLE_USAGE_COLLECTION", "1"),
        }
        self._here = threading.local()
        self._agents: list[subprocess.Popen[str]] = []

    def call(self, name: str, **arguments: Any) -> Any:
        """What a function of the agent gives.

        Raises
        ------
        Refused
            SkyPilot does not do it.
        NotNow
            Its server does not answer.
        """
        agent = self._agent()
        assert agent.stdin is not None
        assert agent.stdout is not None
        try:
            agent.stdin.write(json.dumps({"call": name, "with": arguments}) + "\n")
            agent.stdin.flush()
            line = agent.stdout.readline()
        except OSError:
            line = ""
        if not line:
            code = agent.wait()
            self._let_go(agent)
            raise NotNow(
                f"SkyPilot does not answer: its SDK ended with {code}, in {python_of(self._command)}"
            )
        told = json.loads(line)
        if "answer" in told:
            return told["answer"]
        if told["refused"]:
            raise Refused(told["error"], told["said"])
        raise NotNow(f"SkyPilot does not answer: {told['said']}")

    def close(self) -> None:
        """Let go of the agents."""
        for agent in list(self._agents):
            agent.terminate()
            agent.wait()
            self._let_go(agent)

    def _let_go(self, agent: subprocess.Popen[str]) -> None:
        self._agents.remove(agent)
        for stream in (agent.stdin, agent.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what it was to be asked is still unsent
                    stream.close()

    def _agent(self) -> subprocess.Popen[str]:
        agent: subprocess.Popen[str] | None = getattr(self._here, "agent", None)
        if agent is None or agent not in self._agents:
            agent = self._here.agent = subprocess.Popen(
                [python_of(self._command), str(_AGENT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
                start_new_session=True,  # whoever interrupts the engine does not interrupt a submission
            )
            self._agents.append(agent)
        return agent
