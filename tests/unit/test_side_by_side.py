"""``make test``: several sessions that share the tests, and what is said of those that fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from share import share_of

TESTS = Path(__file__).parents[1]
PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    assert 1 == 2\n"
FAILS_ONCE = """
import pathlib

def test_it():
    here = pathlib.Path(__file__).with_name("was_here")
    there = here.exists()
    here.touch()
    assert there, "the first time"
"""
CANNOT_BE_READ = "def test_it(:\n"
CRASHES = "import os\n\ndef test_it():\n    os._exit(7)\n"
IS_SKIPPED = "import pytest\n\n@pytest.mark.skip(reason='no such engine')\ndef test_it():\n    pass\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Makes a project with these modules of tests, one a folder, and runs its tests, in two sessions."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds
    monkeypatch.delenv("UPSHIFT_TEST_NO_SKIPS", raising=False)
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text("pytest_plugins = ['share']\n")
    for file in ("side_by_side.py", "share.py"):
        shutil.copy(TESTS / file, tests)

    def ran(*arguments: str, **modules: str) -> subprocess.CompletedProcess[str]:
        for name, content in modules.items():
            (tests / name).mkdir(exist_ok=True)
            (tests / name / f"test_{name}.py").write_text(content)
        one_cpu = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        command = [*one_cpu, sys.executable, "tests/side_by_side.py", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return ran


def kept(tmp_path: Path, name: str) -> str:
    return (tmp_path / "build" / "tests" / name).read_text()


def test_all_tests_pass(run: Run) -> None:
    done = run(unit=PASSES, chaos=PASSES, browser=PASSES)
    assert done.returncode == 0, done.stdout
    for name in ("unit", "chaos", "browser"):
        assert done.stdout.count(f"tests/{name}/test_{name}.py ") == 1
    assert "\n3 passed in " in done.stdout


def test_one_that_fails_is_run_again_by_itself_and_named_at_the_end(run: Run, tmp_path: Path) -> None:
    done = run(unit=PASSES, chaos=FAILS)
    assert done.returncode == 1
    assert "Once more, by itself: tests/chaos/test_chaos.py::test_it\n" in done.stdout
    line = "tests/chaos/test_chaos.py::test_it: assert 1 == 2 (test_chaos.py:2)"
    *_, named, counts = done.stdout.splitlines()
    assert named == f"FAILED {line}"
    assert counts.startswith("1 failed, 1 passed in ")
    assert kept(tmp_path, "failed.txt") == f"{line}\n"


def test_one_that_passes_then_is_unstable_and_the_tests_have_passed(run: Run, tmp_path: Path) -> None:
    done = run(unit=PASSES, chaos=FAILS_ONCE)
    assert done.returncode == 0, done.stdout
    line = "tests/chaos/test_chaos.py::test_it: AssertionError: the first time (test_chaos.py:8)"
    *_, named, counts = done.stdout.splitlines()
    assert named == f"UNSTABLE, passed when it was run again: {line}"
    assert counts.startswith("1 passed, 1 unstable in ")
    assert kept(tmp_path, "unstable.txt") == f"{line}\n"


def test_a_module_that_cannot_be_read_is_named(run: Run) -> None:
    done = run(unit=PASSES, chaos=CANNOT_BE_READ)
    assert done.returncode == 1
    assert "FAILED tests/chaos/test_chaos.py: E   SyntaxError: invalid syntax\n" in done.stdout


def test_a_session_that_dies_is_named_with_the_test_that_it_was_at(run: Run) -> None:
    done = run(unit=PASSES, chaos=CRASHES)
    assert done.returncode == 1
    assert "FAILED a session ended with 7 after tests/chaos/test_chaos.py::test_it\n" in done.stdout


def test_no_tests_are_no_success(run: Run) -> None:
    assert run().returncode == 1


def test_modules_about_one_cluster_go_together_and_a_suite_is_taken_apart_by_backends() -> None:
    names = ("docker_backend", "aws_batch", "slurm", "slurm_arrays", "detached_on_slurm", "ray")
    modules = {name: f"tests/engines/test_{name}.py" for name in names}
    assert {name: share_of(module) for name, module in modules.items()} == {
        "docker_backend": modules["docker_backend"],
        "aws_batch": modules["aws_batch"],
        "ray": "engines ray",
        **dict.fromkeys(("slurm", "slurm_arrays", "detached_on_slurm"), "engines slurm"),
    }
    assert share_of("tests/unit/backends/test_slurm_scripts.py").startswith("tests/unit/")
    suite = "tests/contract/test_backend_contract.py"
    assert len({share_of(suite, "local"), share_of(suite, "docker"), share_of(suite)}) == 3


def test_a_test_that_was_skipped_may_take_long_the_next_time(run: Run, tmp_path: Path) -> None:
    run(unit=PASSES, engines=IS_SKIPPED)
    assert list(json.loads(kept(tmp_path, "seconds.json"))) == ["tests/unit/test_unit.py::test_it"]


def test_the_rest_is_what_has_not_passed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(unit=PASSES, chaos=IS_SKIPPED, browser=FAILS)
    assert "skipped 1: no such engine\n" in done.stdout
    done = run("--rest", chaos=PASSES, browser=PASSES)
    assert "\n2 passed in " in done.stdout
    assert "unit" not in done.stdout
    assert "no tests in" in run("--rest").stdout
