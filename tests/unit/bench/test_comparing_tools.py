"""Tools are measured in turns; what they lack, and where they fail, is reported and holds up nobody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest

from benchmarks.harness import Effort
from benchmarks.install import NotInstalled
from benchmarks.peers import measures, places
from benchmarks.peers.measures import MEASURES, Figure, Measure, compare
from benchmarks.peers.places import PROGRAMS, Place
from benchmarks.peers.processes import Failed, last_line
from benchmarks.peers.tools import METAFLOW, RAY, TOOLS, UPSHIFT, Tool

ROOT = Path(__file__).parents[3]


class Clock:
    """Stands in for the module ``time``."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def measure(take: Callable[[str], Mapping[str, float]], *names: str) -> Measure:
    figures = [Figure(name=name, title=name, short=name, unit="s") for name in names]
    return Measure(
        name="m",
        title="M",
        how="somehow",
        figures=figures,
        rounds=3,
        take=lambda place, effort: take(place.tool.name),
    )


def found_by(
    take: Callable[[str], Mapping[str, float]],
    *names: str,
    tools: tuple[Tool, ...] = (UPSHIFT, METAFLOW, RAY),
    rounds: int = 3,
) -> measures.Comparison:
    at = [Place(tool, Path("nowhere")) for tool in tools]
    return compare(measure(take, *names), at, Effort(), rounds, lambda text: None)


def test_tools_take_turns() -> None:
    asked: list[str] = []

    def take(name: str) -> Mapping[str, float]:
        asked.append(name)
        return {"step": len(asked)}

    found = found_by(take, "step", rounds=2)
    assert asked == ["upshift", "metaflow", "ray"] * 2
    assert found["step"]["metaflow"].values == [2, 5]
    assert found["step"]["metaflow"].median == 3.5


def test_a_tool_that_fails_is_reported_and_the_others_go_on() -> None:
    def take(name: str) -> Mapping[str, float]:
        if name == "metaflow":
            raise Failed("TypeError: no such thing")
        return {"step": 1.0}

    found = found_by(take, "step")["step"]
    assert found["metaflow"].failed
    assert found["metaflow"].absent == "TypeError: no such thing"
    assert found["metaflow"].median is None
    assert found["ray"].values == [1, 1, 1]


def test_what_a_tool_lacks_is_not_measured() -> None:
    asked = []

    def take(name: str) -> Mapping[str, float]:
        asked.append(name)
        return {"hit": 1.0}

    found = found_by(take, "hit", rounds=1)["hit"]
    assert asked == ["upshift"]
    assert found["ray"].absent == "none"
    assert not found["ray"].failed


def test_a_tool_that_lacks_one_figure_is_measured_for_the_other() -> None:
    found = found_by(
        lambda name: {"step": 1.0, "hit": 2.0} if name == "upshift" else {"step": 3.0}, "step", "hit"
    )
    assert found["step"]["ray"].values == [3, 3, 3]
    assert found["hit"]["ray"].values == ()
    assert found["hit"]["upshift"].values == [2, 2, 2]


def test_a_slow_tool_gets_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(measures, "time", clock)

    def take(name: str) -> Mapping[str, float]:
        clock.now += measures.PATIENCE * (0.6 if name == "metaflow" else 0.1)
        return {"step": clock.now}

    found = found_by(take, "step")["step"]
    assert len(found["upshift"].values) == 3
    assert len(found["metaflow"].values) == 2


def test_a_tool_that_does_not_install_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(folder: Path, *requirements: str) -> tuple[dict[str, str], int]:
        raise NotInstalled("ERROR: No matching distribution found for ray==2.60.0")

    monkeypatch.setattr(places, "install", refuse)
    monkeypatch.setattr(places, "ENVIRONMENTS", tmp_path)
    place = Place(RAY, tmp_path)
    place.prepare()
    assert place.packages == {}
    for name in MEASURES:
        found = compare(MEASURES[name], [place], Effort(), 1, lambda text: None)
        for figures in found.values():
            assert figures["ray"].values == ()
            if figures["ray"].absent != "none":
                assert figures["ray"].absent == (
                    "does not install: ERROR: No matching distribution found for ray==2.60.0"
                )


def test_a_tool_that_does_not_run_is_installed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def install(folder: Path, *requirements: str) -> tuple[dict[str, str], int]:
        folder.mkdir(parents=True, exist_ok=True)
        return {"ray": "2.60.0"}, 1000

    def fail(*args: object, **kwargs: object) -> None:
        raise Failed("ImportError: libray.so")

    monkeypatch.setattr(places, "install", install)
    monkeypatch.setattr(places, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(places, "run", fail)
    place = Place(RAY, tmp_path)
    place.prepare()
    trivial = compare(MEASURES["trivial"], [place], Effort(), 1, lambda text: None)
    assert trivial["trivial"]["ray"].absent == "does not run: ImportError: libray.so"
    brought = compare(MEASURES["install"], [place], Effort(), 1, lambda text: None)
    assert brought["packages"]["ray"].values == [1]
    assert brought["size"]["ray"].values == [1000]


def test_the_last_line_of_an_error_is_plain() -> None:
    assert last_line("Traceback\n\x1b[31mTypeError: \x1b[0mno\n╰──────╯\n\n") == "TypeError: no"
    assert last_line("") == ""


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_tool_has_its_files_and_lacks_figures_that_there_are(tool: Tool) -> None:
    assert (PROGRAMS / tool.program).is_file()
    files = [Path(word.replace("{programs}", str(PROGRAMS))) for word in tool.trivial if word.endswith(".py")]
    assert files
    assert all(file.is_file() for file in files)
    assert tool.lacks.keys() <= {figure.name for m in MEASURES.values() for figure in m.figures}
    assert attrs.evolve(tool) == tool


def outcome(code: str) -> str:
    """What a fresh interpreter prints; it may end every process that it has started."""
    done = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.peers.processes import *\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


LEAVE_A_DAEMON = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print(child.pid)
"""


def test_nothing_is_left_running() -> None:
    said = outcome(
        "import sys\n"
        f"ended = run([sys.executable, '-c', {LEAVE_A_DAEMON!r}], env={{}}, cwd=Path('.'))\n"
        "print(psutil.pid_exists(int(ended.output)))"
    )
    assert said == "False"


def test_memory_is_that_of_all_processes() -> None:
    hold = "x = bytearray(50_000_000); print('held', flush=True); import sys; sys.stdin.read()"
    said = outcome(
        "import sys\n"
        "pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}\n"
        f"both = [subprocess.Popen([sys.executable, '-c', {hold!r}], **pipes) for _ in (1, 2)]\n"
        "assert [process.stdout.readline() for process in both] == [b'held\\n'] * 2\n"
        "print(held())\n"
    )
    assert 100_000_000 < int(said) < 200_000_000


def test_a_command_that_fails_or_does_not_end_says_so() -> None:
    said = outcome(
        "import sys\n"
        "for code, limit in (('import nothing_like_this', 60), ('import signal; signal.pause()', 0.2)):\n"
        "    try:\n"
        "        run([sys.executable, '-c', code], env={}, cwd=Path('.'), limit=limit)\n"
        "    except Failed as failure:\n"
        "        print(failure)\n"
    )
    assert said.splitlines() == [
        "ModuleNotFoundError: No module named 'nothing_like_this'",
        "no end after 0 s",
    ]
