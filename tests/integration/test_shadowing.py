"""A file of the user's that has the name of a module of Python's or of a package is named as the culprit."""

from __future__ import annotations

import pytest

from project import Project

pytestmark = pytest.mark.processes  # one that has imported Upshift already stumbles over nothing

PIPELINE = """
import numpy as np

@step
def act():
    return np.zeros(3)

@pipeline
def example():
    return act()

if __name__ == "__main__":
    example()
"""


def test_a_step_that_meets_such_a_file_is_told(project: Project) -> None:
    file = project.write("X = 1\n", "numpy.py", header="")
    project.run(PIPELINE, expect=1)
    error = project.attempt("act")["error"]
    assert error["fix"] == f"{file} hides the installed package numpy: rename it."
    assert error["where"] == "pipeline.py:7"


def test_an_import_that_meets_such_a_file_is_told(project: Project) -> None:
    file = project.write("X = 1\n", "statistics.py", header="")
    outcome = project.run("from statistics import mean\n" + PIPELINE, expect=2)
    assert f"{file} hides Python's own module statistics: rename it." in outcome.err
    outcome = project.run("import numpy.linalg, statistics\nprint(statistics.mean)\n" + PIPELINE, expect=2)
    assert f"{file} hides Python's own module statistics: rename it." in outcome.err


@pytest.mark.parametrize("name", ["secrets", "random"])
def test_a_file_that_upshift_itself_stumbles_over_is_no_bug(project: Project, name: str) -> None:
    file = project.write("X = 1\n", f"{name}.py", header="")
    outcome = project.run(PIPELINE.replace("import numpy as np", "import math as np"), expect=None)
    assert outcome.code == 2
    assert f"{file} hides Python's own module {name}: rename it." in outcome.err
    assert "bug" not in outcome.err
    assert "Traceback" not in outcome.err
    outcome = project.python("pipeline.py", expect=1)
    assert f"{file} hides Python's own module {name}: rename it." in outcome.err


@pytest.mark.parametrize("name", ["dataclasses", "logging"])
def test_a_file_that_what_starts_steps_stumbles_over_does_no_harm(project: Project, name: str) -> None:
    project.write("X = 1\n", f"{name}.py", header="")
    project.run(PIPELINE.replace("import numpy as np", "import math as np").replace("zeros", "sqrt"))


@pytest.mark.parametrize("name", ["typing", "inspect", "enum", "attr", "json"])
def test_a_file_that_the_import_of_upshift_stumbles_over_is_named(project: Project, name: str) -> None:
    file = project.write("X = 1\n", f"{name}.py", header="")
    project.write(PIPELINE.replace("import numpy as np", "import math as np"))
    shown = project.python("pipeline.py", expect=1).err
    owner = "the installed package" if name == "attr" else "Python's own module"
    assert f"{file} hides {owner} {name}: rename it." in shown
    frames = [line for line in shown.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1
    assert f'"{project.folder}/pipeline.py"' in frames[0]


def test_a_file_whose_name_nobody_else_has_is_not_blamed(project: Project) -> None:
    project.write("X = 1\n", "features.py", header="")
    outcome = project.run("import features\nprint(features.missing)\n" + PIPELINE, expect=2)
    assert "no attribute 'missing'" in outcome.err
    assert "hides" not in outcome.err
    outcome = project.run("import math\nprint(math.missing)\n" + PIPELINE, expect=2)
    assert "hides" not in outcome.err
