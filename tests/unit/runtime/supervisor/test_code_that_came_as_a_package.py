"""A step whose code came as a package is told of in paths of its project, and of what did not travel."""

from __future__ import annotations

import os

from upshift.model.spec import Code
from upshift.runtime.usercode.packaged import at_home, missing_variable

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


def test_a_variable_that_did_not_travel_is_told_how_to_bring() -> None:
    error = failing(lambda: os.environ["MY_DATA"])
    said = missing_variable(error, SHIPPED)
    assert said is not None and 'DockerSettings(runtime_environment={"MY_DATA": "…"})' in said
    assert missing_variable(error, HERE) is None
    assert missing_variable(failing(lambda: {}["MY_DATA"]), SHIPPED) is None
    assert missing_variable(failing(lambda: int("x")), SHIPPED) is None
