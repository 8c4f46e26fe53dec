"""One of several pytest sessions that share the tests; ``side_by_side.py`` starts it and hears of each test.

Every session collects all tests. Their modules are the shares: a session that is free takes the next one, so
that what a module sets up is set up once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

LONG = ("integration", "engines", "contract", "chaos", "browser")
"""Folders whose modules take long. They come first, so that what is left at the end is short."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("side_by_side")
    group.addoption("--share", metavar="FOLDER", type=Path, help="share the tests by way of this folder")
    group.addoption("--unless", metavar="FILE", type=Path, help="leave out the tests that this file names")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.share:
        config.pluginmanager.register(Sharing(config.option.share), "sharing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.unless:
        passed = set(json.loads(config.option.unless.read_bytes()))
        left_out = [i for i in items if i.nodeid in passed and not i.get_closest_marker("any_torch")]
        config.hook.pytest_deselected(items=left_out)
        gone = {*left_out}
        items[:] = [item for item in items if item not in gone]


class Sharing:
    """Runs the modules that this session gets.

    Parameters
    ----------
    shared
        A folder that all sessions have: ``ear`` is the socket that hears what became of tests,
        ``seconds.json`` says how long modules took the last time, if that is known.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._mouth.connect(str(shared / "ear"))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of all tests, those of the modules that this session gets."""
        if session.testsfailed:  # what could not be collected was told
            return True
        modules = self._in_order(session.items)
        for module in self._taken(list(modules)):
            items = modules[module]
            # What the session has set up stays until there is no following test, so there always is one.
            other = next((others[0] for name, others in modules.items() if name != module), None)
            for item, following in zip(items, [*items[1:], other], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
            self.tell(ended=module)
        return True

    def _in_order(self, items: Sequence[pytest.Item]) -> dict[str, list[pytest.Item]]:
        seconds: dict[str, float] = {}
        if (self._shared / "seconds.json").exists():
            seconds = json.loads((self._shared / "seconds.json").read_bytes())
        modules: dict[str, list[pytest.Item]] = {}
        for item in items:
            modules.setdefault(item.nodeid.partition("::")[0], []).append(item)

        def place(module: str) -> tuple[float, bool, str]:
            return -seconds.get(module, 0.0), not any(f"/{folder}/" in module for folder in LONG), module

        return {module: modules[module] for module in sorted(modules, key=place)}

    def _taken(self, modules: Sequence[str]) -> Iterator[str]:
        """The modules that no other session has taken, one after the other."""
        names = hashlib.sha256("\n".join(modules).encode()).hexdigest()
        while True:
            with open(self._shared / "taken", "a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                number, others = [*file.read().split(), "0", names][:2]
                assert others == names, "another session has collected other tests"
                file.truncate(0)
                file.write(f"{int(number) + 1} {names}")
            if int(number) >= len(modules):
                return
            yield modules[int(number)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(begins=nodeid, session=os.getpid())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._tell_report(report, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell_report(report, report.duration)

    def _tell_report(self, report: Any, seconds: float) -> None:
        expected = hasattr(report, "wasxfail") and report.skipped
        printed = (f"--- {name}\n{said}" for name, said in report.sections)
        self.tell(
            test={
                "name": report.nodeid,
                "outcome": "expected" if expected else report.outcome,
                "why": error_of(report),
                "text": "\n".join([report.longreprtext, *printed])[-50_000:] if report.failed else "",
                "seconds": seconds,
            }
        )

    def tell(self, **what: object) -> None:
        """Say something to who has started this session."""
        self._mouth.send(json.dumps(what).encode())


def error_of(report: Any) -> str:
    """Why a test failed or was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (str(report.longrepr or "") if crash is None else crash.message).strip().splitlines()
    if crash is None:
        return lines[-1].strip() if lines else ""
    return f"{lines[0] if lines else 'failed'} ({os.path.basename(crash.path)}:{crash.lineno})"
