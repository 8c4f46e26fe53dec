"""Where things are: ``UPSHIFT_HOME``, and the project that a file belongs to."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from upshift.errors import ConfigError
from upshift.model.checks import local_path, shown, unfit

PROJECT_MARKS = ("upshift.toml", "pyproject.toml", ".git")


def home() -> Path:
    """The folder with Upshift's state: ``UPSHIFT_HOME``, by default ``~/.upshift``. It may not exist yet."""
    configured = os.environ.get("UPSHIFT_HOME")
    try:
        return local_path(configured or "~/.upshift")
    except ValueError as error:
        said = f"UPSHIFT_HOME = {shown(configured)}" if configured else "the default, ~/.upshift,"
        fix = "Set UPSHIFT_HOME to a folder that can be written."
        raise ConfigError(f"{said} {error}", fix=fix) from None


def user_name() -> str:
    """Who asks: the name of the operating system's user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; ``UPSHIFT_HOME`` for its owner alone, whatever the umask.

    A home that is there already keeps its permissions: whoever made it wants to share it.
    """
    own = home()
    if not os.path.exists(own) and any(folder.is_relative_to(form) for form in (own, own.resolve())):
        own.parent.mkdir(parents=True, exist_ok=True)
        own.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def working_folder() -> Path:
    """The working folder.

    Raises
    ------
    ConfigError
        It has been removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working folder has been removed", fix="Change to another folder: cd") from None


def recordable(path: Path) -> str:
    """A path of the user's as records hold it.

    Raises
    ------
    ConfigError
        No record can hold it.
    """
    problem = unfit(str(path))
    if problem is None:
        return str(path)
    raise ConfigError(
        f"the path {shown(str(path))} {problem}",
        why="Upshift records paths as UTF-8 text.",
        fix="Rename it, or run this from another folder.",
    )


def project_root(file: Path) -> Path:
    """The nearest folder upwards with one of :data:`PROJECT_MARKS`, else the file's own folder."""
    folder = file.absolute().parent
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in PROJECT_MARKS):
            return candidate
    return folder
