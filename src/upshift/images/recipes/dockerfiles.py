"""A user's Dockerfile: the image that it builds on, and the files that it copies, each with its digest.

Only files that the Dockerfile copies are in the recipe, so that other edits in the folder cause no rebuild.
``.dockerignore`` is read as Docker does: patterns start at the top, and the last match decides.

Sources (November 2026): https://docs.docker.com/reference/dockerfile/,
https://docs.docker.com/build/concepts/context/#dockerignore-files, and ``patternmatcher`` of moby.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from upshift.code.packages import NEVER
from upshift.errors import SettingsError, location
from upshift.images.recipes.reading import digest_of, read_text
from upshift.model.settings.secrets import is_secret_file

_ESCAPE = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)
_DIRECTIVE = re.compile(r"#\s*[a-zA-Z]+\s*=.*")
_WORD = re.compile(r"(?:[^\s\"'\\]|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[\"'\\])+")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")  # a word of its own, as BuildKit has it
_QUOTES = re.compile(r"[\"']")
_FLAG = re.compile(r"--[a-z-]+(?:=(?:\"[^\"]*\"|\S*))?(?:\s+|$)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"})
_ELSEWHERE = re.compile(r"(?:https?|ftp|git|ssh)://|git@")

_MAGIC = frozenset("*?[\\")


@attrs.frozen
class Instruction:
    name: str  # in capitals: `COPY`
    value: str  # what follows, continued lines joined; without the text of here-documents
    line: int  # where it begins

    @property
    def copied(self) -> tuple[str, ...] | None:
        """The paths that it takes from the context; None: they depend on variables."""
        if self.name in ("COPY", "ADD"):
            sources = self._sources()
        elif self.name == "RUN":
            sources = self._mounted()
        else:
            return ()
        return None if any("$" in source for source in sources) else sources

    def _sources(self) -> tuple[str, ...]:
        flags, rest = self._split()
        if any(flag.startswith("--from=") for flag in flags):
            return ()
        words = [_QUOTES.sub("", word) for word in rest.split()]
        if rest.lstrip().startswith("["):
            with contextlib.suppress(ValueError):  # Docker takes what is not valid JSON for words as well
                words = [str(word) for word in json.loads(rest)]
        sources = [word for word in words[:-1] if not _HEREDOC.fullmatch(word)]
        return tuple(word for word in sources if self.name == "COPY" or not _ELSEWHERE.match(word))

    def _mounted(self) -> tuple[str, ...]:
        found = []
        for flag in self._split()[0]:
            if flag.startswith("--mount="):
                options = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
                if options.get("type", "bind") == "bind" and "from" not in options:
                    found.append(options.get("source") or options.get("src") or ".")
        return tuple(found)

    def _split(self) -> tuple[list[str], str]:
        """The flags, such as ``--from=build``, and the arguments."""
        flags, rest = [], self.value
        while (match := _FLAG.match(rest)) is not None:
            flags.append(match[0].strip())
            rest = rest[match.end() :]
        return flags, rest


def instructions(text: str) -> Iterator[Instruction]:
    escape, directives = "\\", True
    lines = enumerate(text.removeprefix("\ufeff").splitlines(), 1)
    pending, first = "", 0
    for number, line in lines:
        stripped = line.strip()
        if stripped.startswith("#") or not stripped:
            match = _ESCAPE.fullmatch(stripped) if directives else None
            escape = match[1] if match else escape
            directives = directives and _DIRECTIVE.fullmatch(stripped) is not None
            continue
        directives = False
        first = first if pending else number
        if stripped.endswith(escape):
            pending += stripped[:-1].rstrip() + " "
            continue
        name, *following = (pending + stripped).split(maxsplit=1)
        value = following[0] if following else ""
        pending = ""
        if name.upper() in ("RUN", "COPY", "ADD"):
            for heredoc in filter(None, map(_HEREDOC.fullmatch, _WORD.findall(value))):
                end = _QUOTES.sub("", heredoc[2])
                for _, inner in lines:
                    if (inner.lstrip("\t") if heredoc[1] else inner) == end:
                        break
        yield Instruction(name.upper(), value.strip(), first)


def declared_arguments(text: str) -> dict[str, int]:
    """The build arguments that a Dockerfile declares, each with its first line."""
    found: dict[str, int] = {}
    for one in instructions(text):
        if one.name == "ARG":
            for name in _arguments(one):
                found.setdefault(name, one.line)
    return found


def _arguments(one: Instruction) -> dict[str, str]:
    """What an ARG declares: names and their defaults."""
    words = (_QUOTES.sub("", word).partition("=") for word in _WORD.findall(one.value))
    return {name: default for name, _, default in words}


def is_predefined(argument: str) -> bool:
    """Whether engines accept a build argument that no Dockerfile declares: proxies, and their own."""
    return argument.upper() in _PROXIES or argument.startswith("BUILDKIT_") or argument == "SOURCE_DATE_EPOCH"


@attrs.frozen
class Base:
    # As Docker names images; None: none (`scratch`), or it is known only while building
    image: str | None = None
    unknown: str | None = None  # what its FROM says, where that is known only while building


def base_of(text: str, build_args: Mapping[str, str], platform: str) -> Base:
    """The image that the last stage of a Dockerfile builds on."""
    system, _, architecture = platform.partition("/")
    known = {"TARGETPLATFORM": platform, "TARGETOS": system, "TARGETARCH": architecture.partition("/")[0]}
    stages: dict[str, Base] = {}
    base = Base()
    for one in instructions(text):
        if one.name == "ARG" and not stages:
            for name, default in _arguments(one).items():
                value = build_args.get(name) if name in build_args else _replaced(default, known)
                if value:
                    known[name] = value
        elif one.name == "FROM":
            words = [word for word in one.value.split() if not word.startswith("--")] or [""]
            image = _replaced(words[0], known)
            base = Base(None if image == "scratch" else image, None if image else words[0])
            base = stages.get((image or "").lower(), base)
            alias = words[2] if len(words) > 2 and words[1].lower() == "as" else str(len(stages))
            stages[alias.lower()] = base
    return base


def _replaced(text: str, known: Mapping[str, str]) -> str | None:
    """A text with values in place of variables; None: one has no value."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        found = known.get(match[1] or match[2]) or match[3] or ""
        missing = missing or not found
        return found

    replaced = _VARIABLE.sub(value, _QUOTES.sub("", text))
    return None if missing or "$" in replaced else replaced


@attrs.frozen(kw_only=True)
class BuildContext:
    """A Dockerfile and what it copies."""

    dockerfile: str  # its text
    root: Path | None = None  # the folder that it copies from; None: there is none
    # Path below the root, with slashes, to what is there: `sha256:…` of a file, `sha256:…:x` of one that
    # can be executed, `link:TARGET`, and `folder` of an empty folder
    files: Mapping[str, str] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()  # lines for the user


def read_context(dockerfile: Path, root: Path | None, *, where: str) -> BuildContext:
    text = read_text(dockerfile, where)
    copying = [(one, one.copied) for one in instructions(text) if one.copied != ()]
    if root is None:
        for instruction, _ in copying:
            raise SettingsError(
                f"{location(str(dockerfile), instruction.line)} copies files, and no build_context_root says "
                "from where",
                fix='Name the folder: build_context_root=".", which starts from the project.',
            )
        return BuildContext(dockerfile=text)
    if not os.path.isdir(root):
        raise SettingsError(f"build_context_root={str(root)!r} is not a folder", where=where)
    if not copying:
        return BuildContext(dockerfile=text, root=root)
    scan = _Scan(root.resolve(), _ignore_file(dockerfile, root, where), dockerfile)
    for instruction, sources in copying:
        scan.take(instruction, sources)
    return BuildContext(
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
        """A source behind a link, which Docker follows: all files below the root are taken."""
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
            raise SettingsError(
                f"{path!r} is not a valid file name in an image", where=where, fix="Rename it."
            )
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
    """The patterns of one ``.dockerignore``."""

    def __init__(self, text: str) -> None:
        self._patterns = list(_patterns(text))

    @property
    def brings_back(self) -> bool:
        """Whether a pattern brings files back, so that ignored folders have to be searched, too."""
        return any(negated for negated, _ in self._patterns)

    def ignores(self, path: str) -> bool:
        return self._says(path) is True

    def names(self, path: str) -> bool:
        """Whether the last pattern that matches begins with ``!``."""
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
    """A pattern of Docker (as ``filepath.Match`` of Go, and ``**``) for paths; invalid ones match nothing."""
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
