"""What a look into an image concludes from an engine that starts nothing."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from made_up_images import made_up_parent
from upshift.images.base import Contents
from upshift.images.containers.engine import ContainerEngine
from upshift.images.parents import inspecting
from upshift.images.parents.inspecting import inspect_running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))
    return tmp_path


@attrs.frozen
class Engine:
    """A program that answers to ``run`` as told, and notes what it is asked."""

    folder: Path

    def that(self, does: str) -> ContainerEngine:
        program = self.folder / "engine"
        note = f'echo "$1 $2 $3 $4" >> {self.folder}/asked'
        program.write_text(f'#!/bin/sh\n{note}\n[ "$1" != run ] || {{ {does}\n}}\n')
        program.chmod(0o755)
        return ContainerEngine(
            name="docker", command=(str(program),), version="20.10", platform="linux/amd64", buildkit=False
        )

    def asked(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "asked").read_text().splitlines()]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.mark.parametrize(
    ("does", "python"),
    [
        ("echo 'exec: \"python3\": executable file not found in $PATH' >&2; exit 127", ""),
        ("echo 'OCI runtime error: exec python3: No such file or directory' >&2; exit 126", ""),
        ("echo 'runc create failed: error setting rlimit: operation not permitted' >&2; exit 126", None),
        ("echo 'OCI permission denied' >&2; exit 126", None),
        ("echo 'no such image' >&2; exit 125", None),
        ("exit 1", None),
    ],
)
def test_only_a_missing_program_is_a_missing_python(engine: Engine, does: str, python: str | None) -> None:
    found = inspect_running(made_up_parent(), engine.that(does))
    assert (found.python if found is not None else None) == python
    again = inspect_running(made_up_parent(), engine.that("exit 1"))
    assert (again == found) if python == "" else again is None  # what says nothing is not kept


def test_a_look_that_takes_too_long_leaves_no_container_and_says_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "_PATIENCE", 0.2)
    told: list[str] = []
    found: Contents | None = inspect_running(made_up_parent(), engine.that("exec sleep 600"), told.append)
    assert found is None and "did not answer within 0.2 s" in told[0]
    run, remove = engine.asked()
    assert run[:3] == ["run", "--rm", "--name"] and remove == ["rm", "--force", run[3]]
