"""What a Dockerfile of the user's copies: the files that count, each with the digest of its content.

Only what the Dockerfile names is in the recipe, so that an edit elsewhere in the folder builds nothing.
``.dockerignore`` counts as Docker reads it: patterns start at the top, and the last one that fits decides.

Sources: https://docs.docker.com/build/concepts/context/#dockerignore-files, and ``patternmatcher`` of moby.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from upshift.code.ignore import NEVER
from upshift.errors import SettingsError, location
from upshift.images.recipes.dockerfiles import Instruction, instructions
from upshift.images.recipes.reading import digest_of, read_text
from upshift.model.settings.leaks import is_secret_file

_MAGIC = frozenset("*?[\\")


@attrs.frozen(kw_only=True)
class Context:
    """A Dockerfile and what it copies."""

    dockerfile: str  # its text
    root: Path | None = None  # the folder that it copies from; None: there is none
    # Path below the root, with slashes, to what is there: `sha256:…` of a file, `sha256:…:x` of one that
    # can be executed, `link:TARGET`, and `folder` of an empty folder
    files: Mapping[str, str] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()  # lines for the user


def read_context(dockerfile: Path, root: Path | None, *, where: str) -> Context:
    """Read a Dockerfile, and the files that it copies.

    Raises SettingsError: it cannot be read, copies what is not there, or what should be in no image.
    """
    text = read_text(dockerfile, where)
    copying = [(one, one.copied) for one in instructions(text) if one.copied != ()]
    if root is None:
        for instruction, _ in copying:
            raise SettingsError(
                f"{location(str(dockerfile), instruction.line)} copies files, and no build_context_root says "
                "from where",
                fix='Name the folder: build_context_root=".", which starts from the project.',
            )
        return Context(dockerfile=text)
    if not os.path.isdir(root):
        raise SettingsError(f"build_context_root={str(root)!r} is no folder", where=where)
    if not copying:
        return Context(dockerfile=text, root=root)
    scan = _Scan(root.resolve(), _ignore_file(dockerfile, root, where), dockerfile)
    for instruction, sources in copying:
        scan.take(instruction, sources)
    return Context(
        dockerfile=text, root=root, files=dict(sorted(scan.files.items())), notes=tuple(scan.notes)
    )


def _ignore_file(dockerfile: Path, root: Path, where: str) -> DockerIgnore:
    for path in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), root / ".dockerignore"):
        if path.is_file():
            return DockerIgnore(read_text(path, where))
    return DockerIgnore("")


class _Scan:
    def __init__(self, root: Path, ignore: DockerIgnore, dockerfile: Path) -> None:
        self.files: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self._root = root
        self._ignore = ignore
        self._dockerfile = dockerfile

    def take(self, instruction: Instruction, sources: tuple[str, ...] | None) -> None:
        for source in ("",) if sources is None else sources:
            where = location(str(self._dockerfile), instruction.line)
            path = posixpath.normpath("/" + source).lstrip("/")  # what leads out of it stays in it
            if _MAGIC & set(path):
                self._matching(path, where)
            elif os.path.realpath(self._root / path) != str(self._root / path):
                self._linked(path, where)
            else:
                self._literal(path, where)

    def _literal(self, path: str, where: str) -> None:
        if path and is_secret_file(path) and not self._ignore.names(path):
            raise SettingsError(
                f"{where} copies {path}, which looks like a secret",
                why="Who can pull an image can read all that is in it.",
                fix=f"Give it to the step: @step(secrets=…). If it is none: !{path} in .dockerignore.",
            )
        there = (self._root / path).exists()
        if there:
            self._walk(path, where)
        if path and not any(name == path or name.startswith(f"{path}/") for name in self.files):
            raise SettingsError(
                f"{where} copies {path}, which is not there",
                why=".dockerignore leaves it out" if there else f"{self._root} has no such file",
                fix="Paths start from build_context_root.",
            )

    def _matching(self, pattern: str, where: str) -> None:
        fits, found = glob(pattern), len(self.files)
        depth = pattern.count("/") + 1
        for path in list(self._below("", depth)):
            if path.count("/") + 1 == depth and fits.fullmatch(path):
                self._walk(path, where)
        if len(self.files) == found and not any(map(fits.fullmatch, self._parents())):
            raise SettingsError(f"{where} copies {pattern}, and nothing there has such a name")

    def _parents(self) -> set[str]:
        return {
            "/".join(path.split("/")[:count])
            for path in self.files
            for count in range(1, path.count("/") + 2)
        }

    def _linked(self, path: str, where: str) -> None:
        """A source behind a link: Docker follows it, so that anything below the root may be meant."""
        target = Path(os.path.realpath(self._root / path))
        if not target.is_relative_to(self._root):
            raise _leads_out(path, str(target), where)
        self._walk("", where)

    def _below(self, folder: str, depth: int) -> Iterator[str]:
        for entry in self._entries(folder, ""):
            path = f"{folder}{entry.name}"
            yield path
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from self._below(f"{path}/", depth - 1)

    def _walk(self, path: str, where: str) -> None:
        full = self._root / path
        if (path and not full.is_dir()) or full.is_symlink():
            if not self._ignore.ignores(path):
                self._add(path, where)
            return
        pending = [f"{path}/" if path else ""]
        while pending:
            folder = pending.pop()
            kept = 0
            for entry in self._entries(folder, where):
                inner = f"{folder}{entry.name}"
                named = self._ignore.names(inner)
                if self._ignore.ignores(inner) and not (self._ignore.brings_back and entry.is_dir()):
                    continue
                if entry.name in NEVER and not named:
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_secret_file(f"{inner}/" if is_folder else inner) and not named:
                    self.notes[
                        f"{inner} looks like a secret: {self._dockerfile.name} does not copy it; "
                        f"if it is none, write !{inner} into .dockerignore"
                    ] = None
                    continue
                kept += 1
                if is_folder:
                    pending.append(f"{inner}/")
                else:
                    self._add(inner, where)
            if not kept and folder and not self._ignore.ignores(folder[:-1]):
                self.files[folder] = "folder"

    def _entries(self, folder: str, where: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(folder or ".", error, where) from None

    def _add(self, path: str, where: str) -> None:
        full = self._root / path
        if not path.isprintable():
            raise SettingsError(f"{path!r} is no name for a file of an image", where=where, fix="Rename it.")
        try:
            status = full.lstat()
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(full)
                inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
                if target.startswith("/") or inside == ".." or inside.startswith("../"):
                    raise _leads_out(path, target, where)
                self.files[path] = f"link:{target}"
            elif stat.S_ISREG(status.st_mode):
                self.files[path] = digest_of(full, where) + (":x" if status.st_mode & stat.S_IXUSR else "")
            else:
                raise SettingsError(
                    f"{path} is neither a file, a folder nor a link",
                    where=where,
                    fix="Remove it, or name it in .dockerignore.",
                )
        except OSError as error:
            raise _unreadable(path, error, where) from None


def _leads_out(path: str, target: str, where: str) -> SettingsError:
    return SettingsError(
        f"{path} leads to {target}, outside of build_context_root",
        where=where,
        why="What is copied would be another file in the image than here, or none.",
        fix="Put the file itself there, or name the link in .dockerignore.",
    )


def _unreadable(path: str, error: OSError, where: str) -> SettingsError:
    return SettingsError(
        f"{path} cannot be read: {error.strerror or error}",
        where=where,
        fix="Correct its permissions, or name it in .dockerignore.",
    )


class DockerIgnore:
    """The patterns of one file."""

    def __init__(self, text: str) -> None:
        self._patterns = list(_patterns(text))

    @property
    def brings_back(self) -> bool:
        """Whether something is brought back, so that folders that are left out must be looked into."""
        return any(negated for negated, _ in self._patterns)

    def ignores(self, path: str) -> bool:
        """Whether a file or folder is left out."""
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
