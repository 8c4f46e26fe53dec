"""What counts as the user's own code, and what of an exception is shown to them."""

from __future__ import annotations

import json
import os
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import is_user_file, location, user_location
from upshift.runtime.step.ranks import Misplaced
from upshift.runtime.tracebacks import user_line, user_text

STDLIB = os.path.dirname(os.__file__)
INSTALLED = sysconfig.get_paths()["purelib"]


def raised(call: Callable[[], Any]) -> BaseException:
    """What this call raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        call()
    return caught.value


def code_of(file: str, source: str, **names: Any) -> dict[str, Any]:
    """The names that this source defines, as code of this file."""
    namespace = {"__file__": file, **names}
    exec(compile(source, file, "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/train.py",
        "/tmp/ipykernel_7/123.py",
        "<stdin>",
        "<string>",
        "<ipython-input-1-abc>",
        "/home/site-packages.d/train.py",
    ],
)
def test_the_users_own(file: str) -> None:
    assert is_user_file(file)


@pytest.mark.parametrize(
    "file",
    [
        f"{STDLIB}/json/decoder.py",
        f"{INSTALLED}/attr/_make.py",
        f"{INSTALLED}/upshift/worker/inside/step.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "<frozen importlib._bootstrap>",
    ],
)
def test_what_is_somebody_elses(file: str) -> None:
    assert not is_user_file(file)
    assert not is_user_file(file, "/home/me")


def test_a_project_may_lie_in_site_packages_and_have_a_virtual_environment_of_its_own() -> None:
    project = "/opt/env/lib/python3.11/site-packages/pipelines"
    assert is_user_file(f"{project}/train.py", project)
    assert not is_user_file("/opt/env/lib/python3.11/site-packages/yaml/loader.py", project)
    assert not is_user_file("/home/me/project/.venv/lib/python3.11/site-packages/yaml.py", "/home/me/project")
    assert not is_user_file(f"{project}/.venv/lib/python3.11/site-packages/yaml.py", project)
    assert is_user_file(f"{STDLIB}/site-packages/pipelines/a.py", f"{STDLIB}/site-packages/pipelines")


def test_an_error_of_the_standard_library_is_shown_from_the_users_line_on() -> None:
    mine = code_of("/home/me/train.py", "def read(text):\n\n    return json.loads(text)\n", json=json)
    error = raised(lambda: mine["read"]("x"))
    assert user_line(error, relative_to="/home/me") == "train.py:3"
    text = user_text(error)
    assert '"/home/me/train.py", line 3, in read' in text
    assert "decoder.py" in text  # who raised it is named
    assert "json/__init__.py" not in text  # the way there is not
    assert "test_tracebacks.py" in text  # this file is not a package's either
    assert "JSONDecodeError" in text.splitlines()[-1]


def test_the_causes_of_an_error_are_cut_too() -> None:
    source = """
def read(text):
    try:
        json.loads(text)
    except ValueError as error:
        raise RuntimeError("unreadable") from error
"""
    mine = code_of("/home/me/train.py", source, json=json)
    error = raised(lambda: mine["read"]("x"))
    assert user_line(error) == "/home/me/train.py:6"
    text = user_text(error)
    assert "direct cause" in text
    assert "json/__init__.py" not in text
    assert "line 4, in read" in text


def test_a_callback_of_the_users_is_theirs_and_what_called_it_is_not() -> None:
    mine = code_of(
        "/home/me/train.py",
        "def key(item):\n    return item.missing\n\ndef use():\n    return heapq.nsmallest(1, [1, 2], key)\n",
        heapq=__import__("heapq"),
    )
    error = raised(mine["use"])
    assert user_line(error) == "/home/me/train.py:2"
    assert "heapq.py" not in user_text(error)


@pytest.mark.parametrize("name", ["<string>", "<eval_with_key>.0", ""])
def test_code_that_is_in_no_file_is_shown_and_the_nearest_line_in_a_file_is_named(name: str) -> None:
    source = "def use():\n    exec(compile('1\\n1 / 0', name, 'exec'), {})\n"
    mine = code_of("/home/me/train.py", source, name=name)
    error = raised(mine["use"])
    assert user_line(error) == "/home/me/train.py:2"
    assert f'File "{name}", line 2' in user_text(error)


def test_where_no_code_is_in_a_file_that_which_is_in_none_is_named() -> None:
    error = raised(lambda: exec(compile("1\n1 / 0", "<string>", "exec"), {}))
    assert error.__traceback__ is not None
    while error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    assert user_line(error) == "<string>:2"


def test_what_code_in_no_file_asks_for_is_asked_where_that_code_is_run() -> None:
    mine = code_of(
        "/home/me/train.py", "def use():\n    return eval('here()', {'here': here})\n", here=user_location
    )
    assert mine["use"]() == "/home/me/train.py:2"


def test_code_in_no_file_that_nothing_in_a_file_runs_asks_in_its_own_name() -> None:
    """As that of ``python -c``; here a thread of a package's runs it."""
    names = {"here": user_location, "told": []}
    theirs = code_of(f"{INSTALLED}/numbers/core.py", "def run():\n    exec('told.append(here())')\n", **names)
    thread = threading.Thread(target=theirs["run"])
    thread.start()
    thread.join()
    assert names["told"] == ["<string>:1"]


def test_code_that_a_package_has_generated_is_not_the_users() -> None:
    package = f"{INSTALLED}/numbers/core.py"
    theirs = code_of(package, "")
    exec(compile("def divide(x):\n    return 1 / x\n", "<generated>", "exec"), theirs)
    mine = code_of("/home/me/train.py", "def use():\n    return divide(0)\n", divide=theirs["divide"])
    assert user_line(raised(mine["use"])) == "/home/me/train.py:2"


def test_compiled_code_names_its_source_by_a_relative_path_and_is_the_packages() -> None:
    theirs = code_of(f"{INSTALLED}/frames/index.so", "")
    exec(compile("def find(x):\n    raise KeyError(x)\n", "frames/index.pyx", "exec"), theirs)
    mine = code_of("/home/me/train.py", "def use():\n    return find('a')\n", find=theirs["find"])
    assert user_line(raised(mine["use"])) == "/home/me/train.py:2"


def test_an_error_in_which_the_user_has_no_part_names_no_line() -> None:
    theirs = code_of(f"{INSTALLED}/numbers/core.py", "def fail():\n    raise ValueError('no')\n")
    error = raised(theirs["fail"])
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert user_line(error) is None
    assert "ValueError: no" in user_text(error)


def test_an_error_whose_text_cannot_be_had_is_still_shown() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def fail() -> None:
        raise Mute

    assert "in fail" in user_text(raised(fail))


def test_errors_that_are_causes_of_each_other_come_to_an_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "second" in user_text(first)


def test_a_long_recursion_is_shown_from_both_ends() -> None:
    def there(n: int) -> int:
        return back(n + 1)

    def back(n: int) -> int:
        return there(n + 1)

    lines = user_text(raised(lambda: there(0))).splitlines()
    assert len(lines) == 121
    assert "lines …]" in lines[40]
    assert lines[-1].startswith("RecursionError: ")


def test_a_path_is_relative_to_the_folder_that_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir("/")
    assert location(f"{tmp_path}/a/train.py", 3, str(tmp_path)) == "a/train.py:3"
    assert location("/elsewhere/train.py", 3, str(tmp_path)) == "/elsewhere/train.py:3"


def test_an_error_of_ours_has_its_plain_name() -> None:
    mine = code_of(
        "/home/me/train.py", "def train():\n    raise Misplaced('no device')\n", Misplaced=Misplaced
    )
    assert user_text(raised(mine["train"])).splitlines()[-1] == "Misplaced: no device"
