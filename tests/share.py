"""One of several pytest sessions that share the tests; ``side_by_side.py`` starts it and hears of each test.

Every session collects all tests. One that is free takes the next module, so that what a module sets up is set
up once. Modules about one cluster go together, and a suite that runs over all backends is taken apart by them
(:func:`share_of`).
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

CLUSTERS = ("slurm", "ray", "skypilot")
"""Of which there is one: one session takes all modules of ``engines`` that are about it."""
APART = "ground"
"""The parameter of tests that each run over all backends, most of them waiting for theirs."""
LONG = {
    "engines": 3.0,
    "integration": 1.0,
    "contract": 1.0,
    "chaos": 10.0,
    "browser": 1.0,
    "fuzz": 1.0,
    "unit": 0.1,
}
"""Folders, and the seconds of a test in them that has not run yet. What takes longest comes first,
so that what is left at the end is short."""


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
        left_out = [item for item in items if item.nodeid in passed]
        config.hook.pytest_deselected(items=left_out)
        gone = {*left_out}
        items[:] = [item for item in items if item not in gone]


class Sharing:
    """Runs the modules that this session gets.

    Parameters
    ----------
    shared
        A folder that all sessions have: ``ear`` is the socket that hears what became of tests,
        ``seconds.json`` says how long tests took the last time, if that is known.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._mouth.connect(str(shared / "ear"))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of all tests, those of the modules that this session gets."""
        if session.testsfailed:  # what could not be collected was told
            return True
        shares = self._in_order(session.items)
        for share in self._taken(list(shares)):
            items = shares[share]
            # After the last one, all is torn down that does not belong to the whole session.
            for item, following in zip(items, [*items[1:], session], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
                if following is session or module_of(item.nodeid) != module_of(following.nodeid):
                    self.tell(ended=module_of(item.nodeid))
        return True

    def _in_order(self, items: Sequence[pytest.Item]) -> dict[str, list[pytest.Item]]:
        seconds: dict[str, float] = json.loads((self._shared / "seconds.json").read_bytes())
        shares: dict[str, list[pytest.Item]] = {}
        for item in items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            share = share_of(module_of(item.nodeid), str(parameters.get(APART, "")))
            shares.setdefault(share, []).append(item)

        def place(share: str) -> tuple[float, str]:
            took = (seconds.get(item.nodeid, _guess(item.nodeid)) for item in shares[share])
            return -sum(took), share

        return {share: shares[share] for share in sorted(shares, key=place)}

    def _taken(self, shares: Sequence[str]) -> Iterator[str]:
        """The shares that no other session has taken, one after the other."""
        names = hashlib.sha256("\n".join(shares).encode()).hexdigest()
        while True:
            with open(self._shared / "taken", "a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                number, others = [*file.read().split(), "0", names][:2]
                assert others == names, "another session has collected other tests"
                file.truncate(0)
                file.write(f"{int(number) + 1} {names}")
            if int(number) >= len(shares):
                return
            yield shares[int(number)]

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


def module_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def share_of(module: str, backend: str = "") -> str:
    """What a session takes at once: a module, one backend's tests of it, or all modules about a cluster."""
    words = Path(module).stem.split("_") if "/engines/" in module else []
    clusters = [cluster for cluster in CLUSTERS if cluster in words]
    return f"engines {clusters[0]}" if clusters else f"{module} {backend}".strip()


def _guess(test: str) -> float:
    return next((seconds for folder, seconds in LONG.items() if f"/{folder}/" in test), 0.0)


def error_of(report: Any) -> str:
    """Why a test failed or was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (str(report.longrepr or "") if crash is None else crash.message).strip().splitlines()
    if crash is None:
        return lines[-1].strip() if lines else ""
    return f"{lines[0] if lines else 'failed'} ({os.path.basename(crash.path)}:{crash.lineno})"
