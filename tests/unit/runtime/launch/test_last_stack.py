"""The stack that a dying process leaves behind."""

from __future__ import annotations

import os

from upshift.runtime.launch.stacks import user_line, user_stack

STDLIB = os.path.dirname(os.__file__)
WRITTEN = f"""\
Fatal Python error: Aborted

Stack (most recent call first):
  File "/home/me/other.py", line 99 in child

Stack (most recent call first):
  File "{STDLIB}/threading.py", line 324 in wait
  File "/home/j\\xfcrgen/\\u4e2d/train.py", line 12 in step
  File "/home/me/train.py", line 30 in outer

Extension modules: numpy.core._multiarray_umath (total: 1)
"""


def test_the_innermost_line_of_the_users_in_the_last_stack_counts() -> None:
    assert user_line(WRITTEN, None, relative_to="/home/jürgen") == "中/train.py:12"


def test_a_line_in_a_file_counts_before_one_in_none() -> None:
    frames = '  File "<expr>", line 1 in <module>\n  File "/home/me/train.py", line 30 in step\n'
    text = f"Stack (most recent call first):\n{frames}"
    assert user_line(text, None, relative_to="/home/me") == "train.py:30"


def test_a_stack_without_any_line_of_the_users_says_nothing() -> None:
    assert user_line("", None, relative_to=None) is None
    theirs = f'Stack (most recent call first):\n  File "{STDLIB}/threading.py", line 324 in wait\n'
    assert user_line(theirs, None, relative_to=None) is None


def test_code_without_a_file_such_as_what_starts_a_process_is_not_the_users() -> None:
    start = 'Stack (most recent call first):\n  File "<string>", line 4 in <module>\n'
    assert user_line(start, None, relative_to=None) is None
    assert user_stack(start, None) is None


def test_the_stack_is_shown_as_a_traceback_without_what_lies_between() -> None:
    shown = user_stack(WRITTEN.replace("step\n", f'step\n  File "{STDLIB}/json.py", line 3 in load\n'), None)
    assert shown is not None
    lines = [line for line in shown.splitlines() if not line.startswith("    ")]  # what the files hold now
    assert lines == [
        "Stack of the Python code (most recent call last):",
        '  File "/home/me/train.py", line 30, in outer',
        '  File "/home/jürgen/中/train.py", line 12, in step',
        f'  File "{STDLIB}/threading.py", line 324, in wait',
    ]
    assert user_stack("", None) is None
    theirs = f'Stack (most recent call first):\n  File "{STDLIB}/threading.py", line 324 in wait\n'
    assert user_stack(theirs, None) is None


def test_a_stack_that_was_cut_short_does_not_mislead() -> None:
    cut = 'Stack (most recent call first):\n  File "/home/me/train.py", li'
    assert user_line(cut, None, relative_to=None) is None
