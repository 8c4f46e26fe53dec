"""What the file that was run does when it is imported counts for steps of other modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fingerprint_projects import Project, fresh_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    yield from fresh_project(tmp_path, monkeypatch)


STEPS = """
import contextvars, threading
from abc import ABC
from upshift import step
CV = contextvars.ContextVar("CV")
T = threading.local()
class B(ABC): pass
@step
def s(): return 1
@step
def other(): return 2
"""

# What stands in main.py before the pipeline: the statement, the text that is edited in it, the replacement.
EFFECTS = {
    "an attribute of another object": ("import decimal\ndecimal.getcontext().prec = 28", "28", "27"),
    "an environment variable": ("import os\nos.environ['MODEL'] = 'small'", "small", "large"),
    "an environment variable by a method": ("import os\nos.environ.setdefault('M', 'small')", "small", "big"),
    "a call of a library": ("import numpy\nnumpy.set_printoptions(precision=8)", "8", "7"),
    "a constant in a call": ("import numpy\nP = 8\nnumpy.set_printoptions(precision=P)", "P = 8", "P = 7"),
    "a level of a logger": ("import logging\nlogging.getLogger('q').setLevel(10)", "10", "20"),
    "a setting of Python": ("import sys\nsys.setrecursionlimit(3000)", "3000", "3001"),
    "an attribute of a module": ("import sys\nsys.upshift_test = 1", "= 1", "= 2"),
    "a class that is registered": ("steps.B.register(int)", "int", "str"),
    "a context variable": ("steps.CV.set(1)", "1", "2"),
    "an attribute of a thread": ("steps.T.v = 1", "1", "2"),
    "seeds": ("import random\nrandom.seed(0)", "0", "1"),
    "seeds of a library": ("import numpy as np\nnp.random.seed(0)", "0", "1"),
    "a loop": ("import os\nfor k in ('AA', 'BB'):\n    os.environ[k] = '1'", "'1'", "'2'"),
    "a function that acts": ("import os\ndef f(): os.environ['X'] = '1'\nf()", "'1'", "'2'"),
    "a function that gives a value": ("import os\ndef f(): os.environ['X'] = '1'\nY = f()", "'1'", "'2'"),
    "a pickler": ("import copyreg\nclass C: pass\ncopyreg.pickle(C, lambda c: (C, (1,)))", "1", "2"),
    "an encoder": ("import json\njson.test_encoder = json.JSONEncoder(indent=1)", "1", "2"),
    "a handler at the end": ("import atexit\n@atexit.register\ndef f(): return 1", "1", "2"),
    "an accessor": (
        "import pandas\n@pandas.api.extensions.register_dataframe_accessor('up')\n"
        "class A:\n    def __init__(self, d): pass\n    def f(self): return 1",
        "1",
        "2",
    ),
}  # fmt: skip


def main_of(effect: str) -> str:
    return (
        f"import steps\nfrom upshift import pipeline\n{effect}\n@pipeline\ndef p():\n    return steps.s()\n"
    )


@pytest.mark.filterwarnings("ignore:registration of accessor")
@pytest.mark.parametrize("effect", EFFECTS)
def test_what_the_entry_does_counts_for_a_step_of_another_module(project: Project, effect: str) -> None:
    text, old, new = EFFECTS[effect]
    assert old in text
    first = project.fingerprint({"steps.py": STEPS, "main.py": main_of(text)}, "steps.s", entry="main")
    edited = main_of(text.replace(old, new))
    second = project.fingerprint({"steps.py": STEPS, "main.py": edited}, "steps.s", entry="main")

    assert {name for name in second if second[name] != first.get(name)} & {
        *("top level of main (main.py)", "main.f (main.py)", "main.A (main.py)", "constant main.P (main.py)"),
    }


@pytest.mark.filterwarnings("ignore:registration of accessor")
@pytest.mark.parametrize("effect", EFFECTS)
def test_so_does_what_a_module_does_that_only_the_entry_imports(project: Project, effect: str) -> None:
    text, old, new = EFFECTS[effect]
    main = main_of("import world")
    before = {"steps.py": STEPS, "main.py": main, "world.py": f"import steps\n{text}\n"}
    after = {**before, "world.py": f"import steps\n{text.replace(old, new)}\n"}

    first = project.fingerprint(before, "steps.s", entry="main")
    assert project.fingerprint(after, "steps.s", entry="main") != first


ENTRY = '''
"""The entry."""
import os
import steps
from upshift import pipeline, step

os.environ["MODEL"] = "small"
SCALE = 2


def helper():
    """Helps."""
    return SCALE


@step
def own(x: int) -> int:
    return x * 3


@pipeline
def p(x: int = 1):
    return own(steps.s() + x)


if False:
    print(p(x=5).output)


if __name__ == "__main__":
    p(x=7)
'''


def test_an_entry_without_an_effect_changes_no_fingerprint(project: Project) -> None:
    entry = ENTRY.replace('os.environ["MODEL"] = "small"\n', "")
    entry = entry.replace("if False:\n    print(p(x=5).output)\n", "")
    files = {"steps.py": STEPS, "main.py": entry}

    assert project.fingerprint(files, "steps.s", entry="main") == project.fingerprint(files, "steps.s")


def test_a_step_of_the_entry_has_the_fingerprint_that_it_has_alone(project: Project) -> None:
    files = {"steps.py": STEPS, "main.py": ENTRY}

    assert project.fingerprint(files, "main.own", entry="main") == project.fingerprint(files, "main.own")
