"""``.dockerignore``, as Docker reads it: patterns start at the top, and the last one that fits counts.

Sources: https://docs.docker.com/build/concepts/context/#dockerignore-files, and ``patternmatcher`` of moby.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator


class DockerIgnore:
    """The patterns of one file.

    Parameters
    ----------
    text
        Its content; empty: nothing is left out.
    """

    def __init__(self, text: str) -> None:
        self._patterns = list(_patterns(text))

    @property
    def brings_back(self) -> bool:
        """Whether something is brought back, so that folders that are left out must be looked into."""
        return any(negated for negated, _ in self._patterns)

    def ignores(self, path: str) -> bool:
        """Whether a file or folder is left out.

        Parameters
        ----------
        path
            From the root of the context, with slashes.
        """
        return self._says(path) is True

    def names(self, path: str) -> bool:
        """Whether a pattern with ``!`` has the last word on it."""
        return self._says(path) is False

    def _says(self, path: str) -> bool | None:
        said = None
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        for negated, pattern in self._patterns:
            if any(pattern.fullmatch(one) for one in above):
                said = not negated
        return said


def _patterns(text: str) -> Iterator[tuple[bool, re.Pattern[str]]]:
    for line in text.removeprefix("\ufeff").splitlines():
        if line.startswith("#"):
            continue
        pattern = line.strip()
        negated = pattern.startswith("!")
        pattern = pattern[negated:].strip()
        if not pattern:
            continue
        cleaned = posixpath.normpath(pattern).lstrip("/")
        if cleaned not in ("", "."):
            yield negated, glob(cleaned)


def glob(pattern: str) -> re.Pattern[str]:
    """A pattern of Docker's (Go's ``filepath.Match``, and ``**``) for a whole path; nonsense fits nothing."""
    regex, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**", at):
            at += 2
            if pattern.startswith("/", at):
                regex, at = regex + "(?:.*/)?", at + 1
            else:
                regex += ".*"
            continue
        if char == "*":
            regex += "[^/]*"
        elif char == "?":
            regex += "[^/]"
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\")
            regex, at = regex + f"[{inside}]", end
        elif char == "\\" and at + 1 < len(pattern):
            at += 1
            regex += re.escape(pattern[at])
        else:
            regex += re.escape(char)
        at += 1
    try:
        return re.compile(regex, re.DOTALL)
    except re.error:
        return re.compile(r"(?!)")
