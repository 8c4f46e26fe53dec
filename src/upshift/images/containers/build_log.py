"""All that a build says, which is kept where it fails: :class:`BuildLog`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from upshift.images.recipes.requirement_lines import variables_in
from upshift.images.uninstallable import LOGIN
from upshift.model.home import home
from upshift.runtime.masking import Mask


def folder() -> Path:
    """Where the logs of builds that failed are; gc removes old ones."""
    return home() / "logs" / "builds"


class BuildLog:
    """A file with what a build says, while it says it.

    Parameters
    ----------
    path
        Where it is, as long as nobody knows how the build ends.
    requirements
        Lines of the recipe: the values of the variables in them are secrets.
    """

    def __init__(self, path: Path, requirements: Iterable[str]) -> None:
        self._path = path
        self._file = path.open("w", encoding="utf-8")
        secrets = [os.environ.get(variable, "") for variable in variables_in(tuple(requirements))]
        self._mask = Mask(filter(None, secrets))

    def mask(self, line: str) -> str:
        """A line without secrets."""
        return LOGIN.sub("://***@", self._mask.text(line))

    def write(self, line: str) -> None:
        """Add a line that has none."""
        with contextlib.suppress(OSError):  # a full disk: the build says so itself
            self._file.write(f"{line}\n")

    def close(self) -> None:
        """No more is said."""
        with contextlib.suppress(OSError):
            self._file.close()

    def keep(self) -> str | None:
        """Keep it among the logs of builds that failed; gives its path, None: it cannot be written there."""
        self.close()
        try:
            folder().mkdir(parents=True, exist_ok=True)
            moment = time.strftime("%Y%m%d-%H%M%S-")
            file, kept = tempfile.mkstemp(prefix=moment, suffix=".log", dir=folder())
            os.close(file)
            shutil.copyfile(self._path, kept)
        except OSError:
            return None
        return kept
