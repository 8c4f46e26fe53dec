"""A step whose code came as a package is told of in paths of its project, and of what did not travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from upshift.model.spec import Code
from upshift.runtime.step.explaining import missing_variable
from upshift.runtime.tracebacks import Places, at_home

PACKAGE = "sha256:" + "ab" * 32
SHIPPED = Code(project="/home/me/project", paths=(".",), package=PACKAGE)
HERE = Code(project="/home/me/project", paths=(".",))


def failing(read: object) -> BaseException:
    try:
        read()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


def test_places_are_those_of_the_project() -> None:
    stack = f'  File "/upshift/code/{"ab" * 32}/flow.py", line 3 in f'
    assert at_home(stack, SHIPPED) == '  File "/home/me/project/flow.py", line 3 in f'
    assert at_home(stack, HERE) == stack


@pytest.mark.parametrize("size", [1, 7, 90, 10_000])
def test_what_a_step_prints_names_the_project_in_tracebacks_and_nowhere_else(size: int) -> None:
    folder = f"/upshift/code/{'ab' * 32}"
    printed = (
        f'  File "{folder}/flow.py", line 3 in f\nwrote {folder}/out.csv\n  File "{folder[:-1]}c/x.py"\n'
        f'  File "/usr/lib/json.py", line 1\n  File "{folder}/a/b.py", line 9\nFile "{folder}'
    ).encode()
    places = Places(SHIPPED, Path("/upshift/code"))
    found = b"".join(places.feed(printed[at : at + size]) for at in range(0, len(printed), size))
    found += places.end()
    expected = printed.decode()
    for file in ("flow.py", "a/b.py"):
        expected = expected.replace(f'File "{folder}/{file}', f'File "/home/me/project/{file}')
    assert found.decode() == expected
    assert places.feed(b"a line\n") == b"a line\n"  # nothing is held back that cannot be one


def test_a_variable_that_did_not_travel_is_told_how_to_bring() -> None:
    error = failing(lambda: os.environ["MY_DATA"])
    said = missing_variable(error, SHIPPED)
    assert said is not None and 'DockerSettings(runtime_environment={"MY_DATA": "…"})' in said
    assert missing_variable(error, HERE) is None
    assert missing_variable(failing(lambda: {}["MY_DATA"]), SHIPPED) is None
    assert missing_variable(failing(lambda: int("x")), SHIPPED) is None
