"""Python environments of steps: found by content, made once, and refused in words."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from upshift.errors import ImageError, MissingExtra, RecipeError, SettingsError
from upshift.images.base import Progress
from upshift.images.environments import PreparedEnvironment, prepare
from upshift.model.settings.environment import PythonEnvironment
from wheels import wheel

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def own_home(upshift_home: Path) -> None: ...


def program(path: Path, code: str) -> Path:
    """A program that runs this code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -IS\nimport os, sys\n{code}")
    path.chmod(0o755)
    return path


def claiming(path: Path, version: str) -> Path:
    """An interpreter that says that it is this Python."""
    return program(path, f'print(\'["{version}", ["numpy==2.0"]]\')')


def made(known: PreparedEnvironment) -> list[Progress]:
    told: list[Progress] = []
    image = known.make(told.append)
    assert image.interpreter == known.interpreter and image.reference == ""
    return told


@pytest.mark.parametrize("said", [{}, {"lock": "uv.lock", "python": "/usr/bin/python3"}])
def test_exactly_one_source_is_said(said: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r'Set one of lock="uv\.lock"'):
        PythonEnvironment(**said)


def test_an_environment_is_made_once_from_what_its_requirements_bring(tmp_path: Path) -> None:
    made_of = wheel(tmp_path, "tiny", "1.0", {"tiny.py": "x = 1"})
    asked = PythonEnvironment(requirements=[f"./{made_of.name}"])
    known = prepare(asked, project=tmp_path)
    assert not known.is_there
    makers = [threading.Thread(target=made, args=(known,)) for _ in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert '"tiny==1.0"' in known.folder.with_suffix(".json").read_text()
    again = prepare(asked, project=tmp_path)
    assert again.is_there and again.digest == known.digest and made(again) == []
    wheel(tmp_path, "tiny", "1.0", {"tiny.py": "x = 2"})
    assert prepare(asked, project=tmp_path).digest != known.digest


def test_one_that_was_left_half_made_is_made_anew(tmp_path: Path) -> None:
    made_of = wheel(tmp_path, "tiny", "1.0", {"tiny.py": "x = 1"})
    known = prepare(PythonEnvironment(requirements=[f"./{made_of.name}"]), project=tmp_path)
    (known.folder / "bin").mkdir(parents=True)
    (known.folder / "bin" / "python").touch()
    made(known)
    assert known.is_there and os.access(known.interpreter, os.X_OK)


def test_results_follow_the_packages_of_an_interpreter_that_is_named(tmp_path: Path) -> None:
    here = prepare(PythonEnvironment(python=sys.executable), project=tmp_path, minor=HERE)
    assert here.is_there and made(here) == []
    other = claiming(tmp_path / "venv" / "bin" / "python", "3.12.1")
    assert prepare(PythonEnvironment(python="venv/bin/python"), project=tmp_path).python == str(other)
    assert prepare(PythonEnvironment(python=other), project=tmp_path).digest != here.digest


@pytest.mark.parametrize(
    ("version", "minor", "words"),
    [
        ("3.9.18", None, "Steps need Python 3.10 or newer"),
        ("3.12.1", "3.11", "travels by value"),
        (None, None, "No such file"),
    ],
)
def test_a_python_that_steps_cannot_run_with_is_refused(
    version: str | None, minor: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "python"
    if version is not None:
        claiming(path, version)
    with pytest.raises(ImageError) as refused:
        prepare(PythonEnvironment(python=path), project=tmp_path, minor=minor, where="flow.py:3")
    assert words in str(refused.value) and str(path) in str(refused.value)
    assert refused.value.where == "flow.py:3"


def test_conda_makes_one_from_its_file_and_its_last_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env.yml").write_text("dependencies: [python=3.11, numpy]\n")
    known = prepare(PythonEnvironment(conda="env.yml"), project=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MissingExtra, match="micromamba, mamba, conda"):
        made(known)
    told = tmp_path / "told"
    program(
        tmp_path / "bin" / "mamba",
        f"""
open({str(told)!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if open({str(told)!r}).read().count("\\n") == 1:
    sys.exit("PackagesNotFoundError: numpyy")
python = os.path.join(sys.argv[sys.argv.index("--prefix") + 1], "bin", "python")
os.makedirs(os.path.dirname(python))
os.symlink({sys.executable!r}, python)
""",
    )
    with pytest.raises(RecipeError, match=r"mamba cannot make the environment of env\.yml") as failed:
        made(known)
    assert "PackagesNotFoundError" in str(failed.value) and not known.is_there
    made(known)
    assert f"env create --prefix {known.folder} --file {tmp_path}/env.yml" in told.read_text()
    assert known.is_there
