"""Projects whose steps run in containers of this machine, and a look at what these leave behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from containers import EngineWithImage
from project import Project


def project_on(made: EngineWithImage, folder: Path, home: Path, more: str = "") -> Project:
    project = Project(folder, home)
    (folder / "upshift.toml").write_text(
        f'[targets.box]\nbackend = "{made.engine.name}"\n{more}\n'
        f'[targets.box.options]\nimage = "{made.image}"\n'
    )
    return project


def own_folders(home: Path) -> list[Path]:
    """The folders of containers that have ended."""
    return sorted((home / "containers").glob("*"))


def containers(made: EngineWithImage) -> list[str]:
    """The names of those that run."""
    listed = ["ps", "--filter", f"label={made.label}", "--format", "{{.Names}}"]
    return made.engine.run(listed).stdout.split()


WAITING = """
import os

@step(retries=0)
def wait(path: str) -> str:
    with open(path + "/started", "w") as pipe:
        pipe.write("here")
    with open(path + "/go") as pipe:
        return pipe.read()

@pipeline
def example(path: str):
    return wait(path)
"""


class Waiting:
    """A run whose step has started, in a container, and waits for :meth:`go`."""

    def __init__(
        self,
        project: Project,
        made: EngineWithImage,
        code: str = WAITING,
        *options: str,
        prefix: Callable[[Project], list[str]] | None = None,
    ) -> None:
        self.folder = project.folder / "pipes"
        self.folder.mkdir()
        for name in ("started", "go"):
            os.mkfifo(self.folder / name)
        toml = project.folder / "upshift.toml"
        toml.write_text(toml.read_text() + f'[targets.box.mounts]\n"/pipes" = "{self.folder}"\n')
        project.write(code)
        on = options or ("--on", "box")
        before = prefix(project) if prefix is not None else []
        self.engine = project.start("run", "pipeline.py", *on, "--param", "path=/pipes", prefix=before)
        assert (self.folder / "started").read_text() == "here"
        (self.container,) = containers(made)

    def go(self, word: str = "done") -> None:
        (self.folder / "go").write_text(word)

    def kill_engine(self) -> None:
        os.killpg(self.engine.pid, signal.SIGKILL)
        self.engine.communicate()
