"""When a step takes too long, and when it is worth another attempt."""

from __future__ import annotations

import upshift
from project import Project

FLAKY = """
from pathlib import Path

@step(retries={retries})
def flaky() -> int:
    count = Path("count")
    seen = int(count.read_text()) if count.exists() else 0
    count.write_text(str(seen + 1))
    if seen < 2:
        raise {error}
    return seen

@pipeline
def example():
    return flaky()
"""


def test_a_step_stuck_in_c_code_is_stopped_by_its_timeout(project: Project) -> None:
    code = """
import re

@step(timeout=1)
def stuck() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")   # backtracks for years, and never comes back to Python

@pipeline
def example():
    stuck()
"""
    outcome = project.run(code, expect=1, timeout=40)
    attempt = project.attempt("stuck")
    assert attempt["reason"] == "timeout"
    assert "stuck" in outcome.err
    assert "1" in attempt["error"]["message"]


def test_a_step_that_ends_in_time_is_left_alone(project: Project) -> None:
    project.run(
        "@step(timeout=30)\ndef f() -> int:\n    return 3\n\n@pipeline\ndef example():\n    return f()\n"
    )
    assert upshift.get_run("latest").output == 3


def test_a_failed_step_is_tried_again_and_every_attempt_is_kept(project: Project) -> None:
    project.run(FLAKY.format(retries=2, error='RuntimeError("not yet")'))
    attempts = project.tasks("flaky")[0]["attempts"]
    assert [a["number"] for a in attempts] == [1, 2, 3]
    assert [a["status"] for a in attempts] == ["failed", "failed", "completed"]
    assert "not yet" in attempts[0]["error"]["message"]
    assert upshift.get_run("latest").output == 2


def test_attempts_end_when_retries_do(project: Project) -> None:
    project.run(FLAKY.format(retries=1, error='RuntimeError("not yet")'), expect=1)
    assert [a["status"] for a in project.tasks("flaky")[0]["attempts"]] == ["failed", "failed"]


def test_only_the_causes_that_were_named_are_tried_again(project: Project) -> None:
    policy = 'Retry(times=5, on="stopped-from-outside")'
    project.run(FLAKY.format(retries=policy, error='RuntimeError("mine")'), expect=1)
    assert len(project.tasks("flaky")[0]["attempts"]) == 1


def test_a_killed_step_is_tried_again_as_its_cause_says(project: Project) -> None:
    code = """
import os
from pathlib import Path

@step(retries=Retry(times=3, on=["timeout"]), timeout=1)
def slow() -> str:
    if not Path("second").exists():
        Path("second").touch()
        import re
        re.match(r"(a+)+$", "a" * 64 + "b")
    return "in time"

@pipeline
def example():
    return slow()
"""
    project.run(code)
    assert [a["reason"] for a in project.tasks("slow")[0]["attempts"]] == ["timeout", None]


def test_one_failure_stops_the_run_and_what_did_not_start_stays_pending(project: Project) -> None:
    code = """
@step
def bad(x: int) -> int:
    raise ValueError("no")

@step
def after(x: int) -> int:
    return x

@pipeline
def example():
    return after(bad(1))
"""
    outcome = project.run(code, expect=1)
    assert "bad" in outcome.err
    assert project.show()["status"] == "failed"
    run = upshift.get_run("latest")
    assert run["after"].tasks[0].attempts == []


def test_keep_going_runs_what_does_not_need_the_failed_step(project: Project) -> None:
    code = """
@step
def bad(x: int) -> int:
    raise ValueError("no")

@step
def good(x: int) -> int:
    return x

@pipeline
def example():
    return good(bad(1)), good(good(2))
"""
    project.run(code, "--keep-going", expect=1)
    run = upshift.get_run("latest")
    assert run["bad"].status == "failed"
    assert run["good_3"].status == "completed"
    assert run["good_3"].output == 2
