"""The files of a project that a code package holds, and what is left out with a word."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import attrs

from upshift.code.ignore import IGNORE_FILES, NEVER, Rules, read, rules_above, unreadable
from upshift.errors import UsageError
from upshift.model.settings.leaks import is_secret_file
from upshift.runtime.storage.memo import Signature, signature, signature_of

FILES_AT_MOST = 20_000
"""A project with more entries is some other folder, such as somebody's home."""


@attrs.frozen(kw_only=True)
class LeftOut:
    """Something that a code package does not hold, though no ignore file names it."""

    path: str  # relative to the project; a folder's ends with ``/``
    why: str  # the reason, in a few words


@attrs.frozen(kw_only=True)
class ProjectFile:
    """A file of a project."""

    name: str  # path in the package, with ``/`` between names
    source: str  # where its content is
    size: int  # bytes
    executable: bool  # whether its owner may execute it


class Scan:
    """One walk over a project.

    Attributes
    ----------
    files
        What a package holds, sorted by name.
    left_out
        What it does not, sorted by path.
    watched
        Everything that the answer depends on.

    Raises
    ------
    UsageError
        The folder is too large to be a project, or something in it cannot be read.
    """

    def __init__(
        self,
        project: Path,
        exclude: Iterable[Path],  # folders, and files with secrets, that are left out, wherever they are
    ) -> None:
        self.root = os.path.realpath(project)
        self.watched: dict[str, Signature | None] = {}
        self._excluded = {(s.st_dev, s.st_ino) for s in map(_status, exclude) if s is not None}
        self._files: dict[str, ProjectFile] = {}
        self._left_out: dict[str, str] = {}
        self._links: list[str] = []
        self._seen = 0
        self._seen_in: Counter[str] = Counter()
        above, self._base, looked_at = rules_above(self.root)
        self.watched.update({file: signature_of(file) for file in looked_at})
        self._folder("", above)
        self._follow_links()
        self.files = sorted(self._files.values(), key=lambda file: file.name)
        self.left_out = tuple(LeftOut(path=path, why=why) for path, why in sorted(self._left_out.items()))

    def _folder(self, folder: str, rules: Rules) -> None:
        """Walk over a folder; its path is relative to the project and ends with ``/``, or is empty."""
        path = os.path.join(self.root, folder)
        try:
            self.watched[path] = signature_of(path)
            with os.scandir(path) as entries:
                names = {entry.name: entry for entry in entries}
        except OSError as error:
            raise unreadable(path, error) from error
        if folder and _is_environment(names):
            self._left_out[folder] = "a virtual environment"
            return
        ignore_files = [os.path.join(path, name) for name in IGNORE_FILES if name in names]
        self.watched.update({file: signature_of(file) for file in ignore_files})
        contents = [content for content in map(read, ignore_files) if content]
        rules = rules.inner(self._base + folder, contents)
        for name, entry in names.items():
            if name not in NEVER:
                self._entry(folder + name, entry, rules)

    def _entry(self, name: str, entry: os.DirEntry[str], rules: Rules) -> None:
        self._count(name)
        is_folder = entry.is_dir(follow_symlinks=False)
        path = name + "/" if is_folder else name
        if rules.ignored(self._base + name, is_folder=is_folder):
            return
        if is_secret_file(path):
            self._left_out[path] = "looks like a secret"
            return
        if entry.is_symlink():
            self._links.append(name)
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            raise unreadable(entry.path, error) from error
        if is_folder:
            if (status.st_dev, status.st_ino) in self._excluded:
                self._left_out[path] = "Upshift's own state"
            else:
                self._folder(path, rules)
        elif (status.st_dev, status.st_ino) in self._excluded:
            self._left_out[path] = "the secret of a step"
        elif stat.S_ISREG(status.st_mode):
            self._add(name, entry.path, status)
        else:
            self._left_out[path] = "neither a file nor a folder"

    def _add(self, name: str, source: str, status: os.stat_result) -> None:
        self.watched[source] = signature(status)
        self._files[name] = ProjectFile(
            name=name, source=source, size=status.st_size, executable=bool(status.st_mode & stat.S_IXUSR)
        )

    def _follow_links(self) -> None:
        """A link stands for what it leads to, as far as that is in the package by itself."""
        found = dict(self._files)
        for link in self._links:
            target = os.path.realpath(os.path.join(self.root, link))
            inside = os.path.relpath(target, self.root)
            below = [name for name in found if name.startswith(inside + "/")]
            if inside == ".." or inside.startswith("../"):
                self._left_out[link] = f"a link to {target}, outside of the project"
            elif inside == "." or (link + "/").startswith(inside + "/"):
                self._left_out[link] = "a link to a folder that it is in"
            elif not os.path.lexists(target):
                self._left_out[link] = "a link to nothing"
            elif inside in found:
                self._files[link] = attrs.evolve(found[inside], name=link)
            elif below:
                for name in below:
                    copy = link + name[len(inside) :]
                    self._count(copy)
                    self._files[copy] = attrs.evolve(found[name], name=copy)
            else:
                self._left_out[link] = f"a link to {inside}, which is left out"

    def _count(self, name: str) -> None:
        self._seen += 1
        self._seen_in[name.partition("/")[0]] += 1
        if self._seen > FILES_AT_MOST:
            raise self._too_many()

    def _too_many(self) -> UsageError:
        most = ", ".join(f"{name} ({count:,})" for name, count in self._seen_in.most_common(5))
        return UsageError(
            f"{self.root} has more than {FILES_AT_MOST:,} files; a project that is shipped has fewer",
            why="It counts as the project because it is the nearest folder upwards with upshift.toml, "
            f"pyproject.toml or .git, or the file's own folder. So far most files were in {most}.",
            fix="Put an upshift.toml into the folder of your pipeline, or name folders with data in "
            ".upshiftignore, in the form of .gitignore.",
        )


def _is_environment(names: Iterable[str]) -> bool:
    return "pyvenv.cfg" in names or "conda-meta" in names


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
