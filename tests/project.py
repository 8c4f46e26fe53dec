"""A user's project, driven as a user does: files in a folder, and the ``upshift`` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import attrs

from prepared import UPSHIFT, Prepared

HEADER = "from upshift import DockerSettings, ResourceSettings, Retry, pipeline, step, unmapped\n"


@attrs.frozen
class Outcome:
    """What a command did: its exit code, what it printed, and its standard error."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Everything that the user saw."""
        return self.out + self.err


def as_users_have_it(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the tests without what only tests have."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Project:
    """A folder with a user's files, and an ``UPSHIFT_HOME`` of its own.

    Parameters
    ----------
    folder
        Where the files are; it is the working folder of every command.
    home
        ``UPSHIFT_HOME``.
    prepared
        Interpreters that run ``upshift`` in a fork of themselves; None: each command starts its own.
    libraries
        Modules that the pipelines here import, and that take seconds: the interpreter has them already.
    """

    def __init__(
        self, folder: Path, home: Path, prepared: Prepared | None = None, libraries: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.home = home
        self.libraries = libraries
        self._prepared = prepared
        folder.mkdir(parents=True, exist_ok=True)

    def with_home(self, home: Path) -> Project:
        """The same project, as another machine sees it."""
        return Project(self.folder, home, self._prepared, self.libraries)

    def write(self, code: str, name: str = "pipeline.py", *, header: str = HEADER) -> Path:
        """A file of this name; the usual imports come first."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(header + dedent(code), encoding="utf-8")
        return file

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What commands run with."""
        return {**as_users_have_it(os.environ), "UPSHIFT_HOME": str(self.home), **(extra or {})}

    def call(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
    ) -> Outcome:
        """Run a command to its end. Its output may hold any bytes."""
        environment = self.environment(env)
        usable = self._prepared if command[0] == UPSHIFT else None
        if interpreter := usable and usable.interpreter(environment, self.libraries):
            done = interpreter.run(command[1:], cwd=cwd or self.folder, env=environment, timeout=timeout)
        else:
            done = subprocess.run(
                command,
                cwd=cwd or self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        return Outcome(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def shell(self, script: str, *, env: Mapping[str, str]) -> Outcome:
        """Run a script of bash, in which ``upshift`` is one of these commands, too."""
        folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
        usable = self._prepared
        if interpreter := usable and usable.interpreter(self.environment(env), self.libraries):
            commands = self.folder.parent / "commands"
            interpreter.write_command(commands)
            folders.insert(0, str(commands))
        return self.call(["bash", "-c", script], env={**env, "PATH": os.pathsep.join(folders)})

    def upshift(self, *args: str, expect: int | None = 0, **options: Any) -> Outcome:
        """Run ``upshift ARGS``; it must exit with ``expect``, unless that is None."""
        return self._expected(self.call([UPSHIFT, *args], **options), expect)

    def python(self, *args: str, expect: int | None = 0, **options: Any) -> Outcome:
        """Run ``python ARGS``; it must exit with ``expect``, unless that is None."""
        return self._expected(self.call([sys.executable, *args], **options), expect)

    def run(self, code: str, *args: str, expect: int | None = 0, **options: Any) -> Outcome:
        """Write ``pipeline.py`` and run it."""
        self.write(code)
        return self.upshift("run", "pipeline.py", *args, expect=expect, **options)

    def start(self, *args: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start ``upshift ARGS`` in a process group of its own, as a shell does."""
        return subprocess.Popen(
            [*prefix, UPSHIFT, *args],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def show(self, run: str = "latest") -> dict[str, Any]:
        """``upshift show RUN --json``."""
        shown: dict[str, Any] = json.loads(self.upshift("show", run, "--json").out)
        return shown

    def tasks(self, step: str, run: str = "latest") -> list[dict[str, Any]]:
        """The tasks of a step, as ``show --json`` gives them."""
        steps = {s["name"]: s["tasks"] for s in self.show(run)["steps"]}
        tasks: list[dict[str, Any]] = steps[step]
        return tasks

    def attempt(self, step: str, run: str = "latest") -> dict[str, Any]:
        """The last attempt of a step's first task."""
        last: dict[str, Any] = self.tasks(step, run)[0]["attempts"][-1]
        return last

    def fifo(self, name: str) -> Path:
        """A named pipe, for a step to tell the test something, or to wait for it."""
        path = self.folder / name
        os.mkfifo(path)
        return path

    @staticmethod
    def _expected(outcome: Outcome, expect: int | None) -> Outcome:
        assert expect is None or outcome.code == expect, f"exit {outcome.code}, not {expect}:\n{outcome.text}"
        assert "Traceback" not in outcome.text or "/upshift/" not in outcome.text, (
            f"a stack trace of Upshift's own reached the user:\n{outcome.text}"
        )
        return outcome
