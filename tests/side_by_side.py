"""Runs all tests: in pytest sessions, two more than there are CPUs, which share the modules (``share.py``).

::

    python tests/side_by_side.py [--rest] [ARGUMENT OF PYTEST…]

A test that fails is run once more at the end, by itself. One that passes then is unstable: it is named, also
in ``build/tests/unstable.txt``, and does not count as failed. ``build/tests`` has the output of the sessions,
``failed.txt``, and what the next run wants to know: ``passed.json``, and the ``seconds.json`` of each test
that ran.

With ``--rest``, tests that passed the last time are left out.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE.parent / "build" / "tests"
CPUS = len(os.sched_getaffinity(0))
SESSIONS = CPUS + min(CPUS, 2)
"""Of every session some tests wait, for a process, a limit of time or a cluster; those of the others run."""
SILENCE = 600
"""Seconds after which sessions that tell nothing are ended: no test may take that long."""
ELSEWHERE = "gpu"
"""The folder whose tests need a machine of their own."""
MANY = 10
"""If more tests fail, they are not unstable but broken."""


class Results:
    """What became of every test, and what else went wrong."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.broken: list[str] = []

    def add(self, name: str, outcome: str, why: str, text: str, seconds: float) -> None:
        """A test was set up, called or torn down, or a module could not be collected."""
        self.seconds[name] += seconds
        if outcome == "failed" or self.outcomes.get(name, "passed") == "passed":
            self.outcomes[name], self.why[name] = outcome, why
        if text:
            print(f"\n____ {name}\n{text}\n", flush=True)

    def those(self, outcome: str) -> list[str]:
        """The tests of which this became."""
        return [name for name, became in self.outcomes.items() if became == outcome]

    def counts(self, module: str = "") -> str:
        """How many of its tests passed, failed, …"""
        ends = collections.Counter(end for name, end in self.outcomes.items() if name.startswith(module))
        return ", ".join(f"{ends[end]} {end}" for end in sorted(ends)) or "no tests"


def run(arguments: list[str], results: Results) -> None:
    """Run the tests, and show each module when it is done."""
    with (
        tempfile.TemporaryDirectory(prefix="upshift-tests-") as shared,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear,
    ):
        ear.bind(f"{shared}/ear")
        Path(shared, "seconds.json").write_text(json.dumps(known("seconds.json", {})))
        sessions = dict(start(session, shared, arguments) for session in range(SESSIONS))
        doing: dict[int, str] = {}
        while sessions:
            ready, _, _ = select.select([ear, *sessions], [], [], SILENCE)
            if ear in ready:
                hear(json.loads(ear.recv(1 << 20)), results, doing)
            for exited in () if ear in ready else ready:
                process = sessions.pop(exited)
                os.close(exited)
                if process.wait() not in (0, 1, 5):  # all passed, some failed, there were none
                    results.broken.append(
                        f"a session ended with {process.returncode} after {doing.get(process.pid, 'no test')}"
                    )
            for process in () if ready else sessions.values():
                results.broken.append(f"{doing.get(process.pid, 'the collection of tests')} did not end")
                process.send_signal(signal.SIGABRT)  # its log says where it was


def start(number: int, shared: str, arguments: list[str]) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a session; returns what can be waited on, and the process."""
    with open(KEPT / f"session-{number}.log", "wb") as log:
        command = [sys.executable, "-m", "pytest", *places(number), f"--share={shared}", *arguments]
        # By its environment a session tells copies of itself from those of others: see leftovers.py.
        environment = {**os.environ, "UPSHIFT_TEST_SESSION": str(number)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of them compiles all modules
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    return os.pidfd_open(process.pid), process


def places(session: int) -> list[str]:
    """All folders of tests. Sessions look into them in other orders, so that each compiles some for all."""
    folders = [one for one in sorted(HERE.iterdir()) if one.name != ELSEWHERE]
    inside = (sorted(one.iterdir()) if one.name == "unit" and one.is_dir() else [one] for one in folders)
    found = [str(one) for several in inside for one in several if _has_tests(one)]
    first = session * len(found) // SESSIONS
    return [*found[first:], *found[:first]]


def _has_tests(place: Path) -> bool:
    return any(place.rglob("test_*.py")) if place.is_dir() else place.match("test_*.py")


def hear(told: dict[str, Any], results: Results, doing: dict[int, str]) -> None:
    """Take what a session tells."""
    if "begins" in told:
        doing[told["session"]] = told["begins"]
    elif "ended" in told:
        module = told["ended"]
        took = sum(seconds for name, seconds in results.seconds.items() if name.startswith(module + "::"))
        print(f"{module:<78} {results.counts(module + '::')}, {took:.1f} s", flush=True)
    elif "left" in told:
        results.broken += [f"left behind by the tests: {what}" for what in told["left"]]
    else:
        results.add(**told["test"])


def once_more(results: Results) -> None:
    """Run each test that failed again: if it passes now, it is unstable."""
    failed = [name for name in results.those("failed") if "::" in name]  # else a module cannot be read
    if len(failed) > MANY:
        print(f"\n{len(failed)} tests failed: too many to run each once more.")
        return
    for name in failed:
        print(f"\nOnce more, by itself: {name}", flush=True)
        if subprocess.run([sys.executable, "-m", "pytest", "-q", name], cwd=HERE.parent).returncode == 0:
            results.outcomes[name] = "unstable"


def conclude(results: Results, before: list[str], started: float) -> int:
    """Say what became of the tests, the worst last, and keep it; returns the exit code."""
    unstable = [f"{name}: {results.why[name]}" for name in results.those("unstable")]
    failed = [f"{name}: {results.why[name]}" for name in results.those("failed")] + results.broken
    (KEPT / "passed.json").write_text(json.dumps([*before, *results.those("passed")]))
    ran = {name: took for name, took in results.seconds.items() if results.outcomes[name] != "skipped"}
    (KEPT / "seconds.json").write_text(json.dumps(known("seconds.json", {}) | ran))
    for name, lines in (("unstable", unstable), ("failed", failed)):
        (KEPT / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    print()
    skipped = collections.Counter(results.why[name] for name in results.those("skipped"))
    for why, number in skipped.most_common():
        print(f"skipped {number}: {why.removeprefix('Skipped: ')}")
    for line in unstable:
        print(f"UNSTABLE, passed when it was run again: {line}")
    for line in failed:
        print(f"FAILED {line}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    print(f"{results.counts()} in {time.monotonic() - started:.0f} s, {cpu:.0f} s of CPU")
    return int(bool(failed) or not (results.outcomes or before))


def known(name: str, nothing: Any) -> Any:
    """What the last run has kept under this name."""
    kept = KEPT / name
    return json.loads(kept.read_bytes()) if kept.exists() else nothing


def main() -> int:
    started = time.monotonic()
    KEPT.mkdir(parents=True, exist_ok=True)
    # The same for all sessions, though one day may end between their starts.
    seed = os.environ.setdefault("UPSHIFT_TEST_SEED", str(1000 * datetime.date.today().toordinal()))
    print(f"What is left to chance: UPSHIFT_TEST_SEED={seed} does it again.")
    arguments, before = sys.argv[1:], []
    if "--rest" in arguments:
        arguments[arguments.index("--rest")] = f"--unless={KEPT / 'passed.json'}"
        before = known("passed.json", [])
    results = Results()
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell lets what is in the background ignore both
    # The sessions get it, too, and end by themselves.
    signal.signal(signal.SIGINT, lambda *_: results.broken.append("interrupted"))
    run(arguments, results)
    if "interrupted" not in results.broken:
        once_more(results)
    return conclude(results, before, started)


if __name__ == "__main__":
    sys.exit(main())
