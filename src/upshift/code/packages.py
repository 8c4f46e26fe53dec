"""Code packages: a project's files as one blob, the same bytes for the same content.

Files that ``.gitignore`` names are left out, and environments, caches and secrets in any case. The form is an
uncompressed tar, since a compressor's output differs between its versions, and the same project would get
another digest on another machine. Names are sorted; times, owners and all permissions but "executable" are
left out.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift._version import __version__
from upshift.code.gitignore import IgnoreFile
from upshift.code.memo import Memo
from upshift.errors import UsageError
from upshift.model.configuration import home
from upshift.model.settings.secrets import is_secret_file
from upshift.model.settings.sizes import format_size
from upshift.model.spec.codec import decode, encode
from upshift.runtime.storage.files import Signature, signature, signature_of

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store

LIMIT = 100 * 10**6
"""Bytes. A package goes to every node of every task; what is larger is data."""

FILES_AT_MOST = 20_000
"""A folder with more entries is no project, but somebody's home or the like."""
_BLOCK = 512


@attrs.frozen(kw_only=True)
class LeftOut:
    """Something that is left out of a code package without an ignore file."""

    path: str  # relative to the project; a folder's ends with ``/``
    why: str  # the reason, in a few words


@attrs.frozen(kw_only=True)
class Package:
    """A code package."""

    digest: str  # of the blob in the store
    bytes: int  # size of the blob
    files: tuple[str, ...]  # names of the files, sorted
    left_out: tuple[LeftOut, ...] = ()  # what it does not hold though no ignore file names it


@attrs.frozen(kw_only=True)
class PackagePart:
    """The part of a code package below one file or folder at the top of the project."""

    name: str  # its name; a folder's ends with a slash
    # files, bytes: how many files it is, and their size together
    files: int
    bytes: int


@attrs.frozen(kw_only=True)
class Preview:
    """What a code package would hold."""

    bytes: int  # of the files together
    # files, left_out: as in :class:`Package`
    files: tuple[str, ...]
    parts: tuple[PackagePart, ...] = ()  # what is at the top of the project, the largest first
    left_out: tuple[LeftOut, ...] = ()


def make_package(
    project: Path,
    store: Store,  # where the package goes
    *,
    exclude: Iterable[Path] = (),  # further folders, and files with secrets, that are left out
) -> Package:
    """Put a project's files into the store.

    ``.gitignore`` and ``.upshiftignore`` are honoured as git does, in every folder and in the
    repository around the project. ``UPSHIFT_HOME``, the store, virtual environments, caches and what
    looks like a secret are never in it. Symbolic links are followed within the project only.

    Raises
    ------
    UsageError
        The project is too large, or a file of it cannot be read.
    StoreUnavailable
        The store cannot be written.
    """
    kept_out = sorted({str(path) for path in (home(), store.root, *exclude)})
    memo = Memo("code package", __version__, os.path.realpath(project), *kept_out)
    known = memo.recall()
    if known is not None and store.find(known["digest"]):
        return decode(Package, known)
    scan = Scan(project, map(Path, kept_out))
    _refuse_too_large(scan.root, scan.files)
    digest, size = store.put(_archive(scan.files))
    names = tuple(entry.name for entry in scan.files)
    package = Package(digest=digest, bytes=size, files=names, left_out=scan.left_out)
    memo.remember(encode(package), scan.watched)
    return package


def preview_package(project: Path, store: Store, *, exclude: Iterable[Path] = ()) -> Preview:
    """What :func:`make_package` would put into the store; the parameters are the same.

    Raises
    ------
    UsageError
        The project is too large, or a file of it cannot be read.
    """
    scan = Scan(project, (home(), store.root, *exclude))
    _refuse_too_large(scan.root, scan.files)
    return Preview(
        bytes=sum(entry.size for entry in scan.files),
        files=tuple(entry.name for entry in scan.files),
        parts=_parts(scan.files),
        left_out=scan.left_out,
    )


def _parts(files: Sequence[ProjectFile]) -> tuple[PackagePart, ...]:
    found: dict[str, PackagePart] = {}
    for entry in files:
        top, slash, _ = entry.name.partition("/")
        known = found.get(top + slash, PackagePart(name=top + slash, files=0, bytes=0))
        found[known.name] = attrs.evolve(known, files=known.files + 1, bytes=known.bytes + entry.size)
    return tuple(sorted(found.values(), key=lambda part: (-part.bytes, part.name)))


def _refuse_too_large(root: str, files: Sequence[ProjectFile]) -> None:
    total = sum(entry.size for entry in files)
    if total <= LIMIT:
        return
    largest = sorted(files, key=lambda entry: -entry.size)[:5]
    raise UsageError(
        f"the project {root} is too large for a code package: "
        f"{format_size(total)}, and {format_size(LIMIT)} is the limit",
        why="The largest files are:\n"
        + "\n".join(f"{format_size(entry.size):>8}  {entry.name}" for entry in largest),
        fix="Name what steps do not import in .upshiftignore, in the form of .gitignore, for example the "
        f"largest file, of {format_size(largest[0].size)}:\n/{largest[0].name}",
    )


def _archive(files: Sequence[ProjectFile]) -> bytearray:
    archive = bytearray()
    for entry in files:
        try:
            with open(entry.source, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise unreadable(entry.source, error) from error
        archive += _header(entry, len(content))
        archive += content
        archive += bytes(-len(content) % _BLOCK)
    archive += bytes(2 * _BLOCK)
    return archive


def _header(entry: ProjectFile, size: int) -> bytes:
    info = tarfile.TarInfo(entry.name)
    info.size = size
    info.mode = 0o755 if entry.executable else 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


# -- the files of a project ------------------------------------------------------------------------


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
        """Replace links by the files that they lead to, if these are in the package."""
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


IGNORE_FILES = (".upshiftignore", ".gitignore")
"""Ignore files in each folder; the first one takes precedence."""

NEVER = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
        *(".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".eggs", "node_modules", ".DS_Store"),
    }
)
"""Names of files and folders that never belong to a project."""


class Rules:
    """The rules of the ignore files of a folder and of the folders above it."""

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
