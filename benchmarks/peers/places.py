"""Where a tool is measured: its environment, and a home that is the same before each measurement."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.install import NotInstalled, install
from benchmarks.peers.processes import Ended, Failed, run
from benchmarks.peers.tools import ROOT, Tool

PROGRAMS = Path(__file__).with_name("programs")
ENVIRONMENTS = ROOT / ".venv-peers"
PASSING = ("work", "tmp")
"""Folders of a home that are empty before each measurement: where commands run, and temporary files."""


@attrs.frozen(kw_only=True)
class Installed:
    """What ``pip install`` of a tool brought along: versions by package, and bytes."""

    packages: Mapping[str, str]
    size: int


def installed(tool: Tool) -> Installed:
    """Install a tool into an environment of its own, unless that is there.

    Raises
    ------
    Failed
        It cannot be installed.
    """
    folder = ENVIRONMENTS / tool.environment
    stamp = folder / "installed.json"
    wanted = {"requirements": list(tool.requirements), "python": platform.python_version()}
    if stamp.exists() and str(ROOT) not in tool.requirements:  # the code here may have changed
        kept = json.loads(stamp.read_text())
        if {name: kept[name] for name in wanted} == wanted:
            return Installed(packages=kept["packages"], size=kept["size"])
    shutil.rmtree(folder, ignore_errors=True)
    try:
        packages, size = install(folder, *tool.requirements)
        install(folder, "numpy")  # for the array; not a part of the tool
    except NotInstalled as error:
        raise Failed(f"does not install: {error}") from None
    stamp.write_text(json.dumps({**wanted, "packages": packages, "size": size}))
    return Installed(packages=packages, size=size)


class Place:
    """A tool in its environment, with a home folder of its own.

    The home is made by one trivial run, so that what a tool does only the first time (databases, accounts)
    does not count. Each measurement begins with a copy of it, at the same path.
    """

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool = tool
        self._home = folder / tool.name
        self._warm = folder / f"{tool.name}.warm"
        self._bin = ENVIRONMENTS / tool.environment / "bin"
        self._installed: Installed | Failed = Failed("is not installed")
        self.failure: Failed | None = None
        """Why nothing can be run here."""

    def prepare(self) -> None:
        """Install the tool, and make the home. What goes wrong is raised by whatever is measured here."""
        try:
            self._installed = installed(self.tool)
            self._warm_up()
        except Failed as failure:
            self.failure = failure
            if not isinstance(self._installed, Installed):
                self._installed = failure

    @property
    def installed(self) -> Installed:
        """What the installation brought along.

        Raises
        ------
        Failed
            It cannot be installed.
        """
        if isinstance(self._installed, Failed):
            raise self._installed
        return self._installed

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of what is installed; empty if it cannot be."""
        return {} if isinstance(self._installed, Failed) else self._installed.packages

    def _warm_up(self) -> None:
        self._warm.mkdir()
        for name, text in self.tool.files.items():
            (self._warm / name).write_text(text)
        with self._fresh_home():
            try:
                self._run(*self.tool.trivial)
            except Failed as failure:
                raise Failed(f"does not run: {failure}") from None
            for passing in PASSING:
                shutil.rmtree(self._home / passing)
            shutil.rmtree(self._warm)
            self._home.rename(self._warm)

    def program(self, measure: str, size: int, *, watch_memory: bool = False) -> dict[str, float]:
        """What the tool's program prints, and ``memory`` in bytes where that is watched.

        Raises
        ------
        Failed
            It does not run.
        """
        file = str(PROGRAMS / self.tool.program)
        with self._fresh_home():
            ended = self._run("python", file, measure, str(size), watch_memory=watch_memory)
        lines = [line for line in ended.output.splitlines() if line.startswith("{")]
        if not lines:
            raise Failed(f"{self.tool.program} has ended without a result")
        found: dict[str, float] = json.loads(lines[-1])
        return {**found, "memory": ended.peak} if watch_memory else found

    def seconds(self, *command: str) -> float:
        """How long a command takes, in a fresh copy of the home.

        Raises
        ------
        Failed
            It does not run.
        """
        with self._fresh_home():
            return self._run(*command).seconds

    def _run(self, *command: str, **options: Any) -> Ended:
        words = [word.replace("{programs}", str(PROGRAMS)) for word in command]
        words[0] = str(self._bin / words[0])
        return run(words, env=self._variables(), cwd=self._home / "work", **options)

    def _variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._bin.parent),
            "HOME": str(self._home),
            "TMPDIR": str(self._home / "tmp"),
            "USER": "bench",
            "LANG": "C.UTF-8",
            "DO_NOT_TRACK": "1",
            **{name: v.replace("{home}", str(self._home)) for name, v in self.tool.variables.items()},
        }

    @contextmanager
    def _fresh_home(self) -> Iterator[None]:
        if self.failure:
            raise self.failure
        shutil.copytree(self._warm, self._home, symlinks=True)
        for passing in PASSING:
            (self._home / passing).mkdir()
        try:
            yield
        finally:
            shutil.rmtree(self._home, ignore_errors=True)
