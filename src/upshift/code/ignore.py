"""Which files a code package never holds: what ``.gitignore`` names, and caches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from upshift.code.gitignore import IgnoreFile
from upshift.errors import UsageError

IGNORE_FILES = (".upshiftignore", ".gitignore")
"""In each folder; the first one decides where both say something."""

NEVER = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
        *(".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".eggs", "node_modules", ".DS_Store"),
    }
)
"""Names of files and folders that are no part of a project."""


class Rules:
    """What the ignore files of a folder, and of the folders above it, say."""

    def __init__(
        self,
        # path of the folder from the topmost one with rules, with ``/`` between names and at its end; empty
        # for the topmost itself
        base: str,
        outer: Rules | None,  # the rules of the folder above
        contents: Iterable[bytes],  # the folder's own ignore files, the one that decides first
    ) -> None:
        self._base = len(os.fsencode(base))
        self._outer = outer
        self._files = [IgnoreFile(content) for content in contents]

    def inner(self, base: str, contents: Sequence[bytes]) -> Rules:
        """The rules of a folder below."""
        return Rules(base, self, contents) if contents else self

    def ignored(
        self,
        path: str,  # from the topmost folder with rules, with ``/`` between names
        *,
        is_folder: bool,  # a symbolic link to a folder is none
    ) -> bool:
        """Whether an entry is left out.

        The folders above it are taken to be in: nothing in an ignored folder can be brought back.
        """
        encoded = os.fsencode(path)
        rules: Rules | None = self
        while rules is not None:
            for file in rules._files:
                said = file.says(encoded[rules._base :], is_folder=is_folder)
                if said is not None:
                    return said
            rules = rules._outer
        return False


def read(path: str) -> bytes | None:
    """An ignore file, or None where there is none.

    Raises
    ------
    UsageError
        It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> UsageError:
    """The error for a part of a project that cannot be read."""
    return UsageError(
        f"{path} cannot be read, so the code package would lack it",
        why=error.strerror or str(error),
        fix="Correct its permissions, or name it in .upshiftignore.",
    )


def rules_above(project: str) -> tuple[Rules, str, list[str]]:
    """The rules for a project from the git repository around it.

    Returns
    -------
    rules
        Those of the folders above the project, and of ``.git/info/exclude``; none where these
        ignore the project as a whole: who works there wants it all the same.
    base
        Path of the project from the top of the repository, ending with ``/``; empty at the top.
    files
        The ignore files that were looked for.
    """
    none = Rules("", None, ())
    folders = [project]
    while not os.path.exists(os.path.join(folders[-1], ".git")):
        parent = os.path.dirname(folders[-1])
        if parent == folders[-1]:
            return none, "", []
        folders.append(parent)
    top = folders[-1]
    files = [os.path.join(top, ".git", "info", "exclude")]
    rules = none.inner("", [content for content in [read(files[0])] if content])
    for folder in reversed(folders[1:]):
        candidates = [os.path.join(folder, name) for name in IGNORE_FILES]
        files += candidates
        rules = rules.inner(_base(folder, top), [content for content in map(read, candidates) if content])
    base = _base(project, top)
    if base and rules.ignored(base[:-1], is_folder=True):
        return none, "", files
    return rules, base, files


def _base(folder: str, top: str) -> str:
    return "" if folder == top else os.path.relpath(folder, top) + "/"
