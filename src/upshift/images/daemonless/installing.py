"""Packages for another machine, installed into a folder with uv: nothing of that machine is needed.

What the image holds already is laid into the folder as metadata alone. uv takes it for installed: it
resolves with these versions, keeps them where they fit, and says which ones it had to replace.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from pathlib import Path, PurePosixPath

import attrs

from upshift.errors import ImageError, RecipeError
from upshift.images.base import Contents, Progress, Recipe, Tell
from upshift.images.daemonless.layout import SCRIPTS
from upshift.images.following import lines_of
from upshift.images.pep508 import normalized, packaging_of
from upshift.images.uninstallable import LOGIN, cause_of
from upshift.images.uv import find_uv

WITHOUT_UV = "an image is made by uv where there is no container engine"
"""What cannot be done without it."""

_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_GLIBC = (17, 28, *range(31, 41))  # what uv 0.8 and later know as manylinux_2_N
_USUAL_GLIBC = 28  # what all the images have that are supported still
_OF_THE_FOLDER = frozenset({"--system", "--break-system-packages"})  # mean nothing in a folder of its own
_FOR_THIS_MACHINE = frozenset({"direct_url.json", "uv_cache.json", "uv_build.json"})
_STAGES = {"Downloading": "install", "Prepared": "install", "Installed": "install", "Building": "install"}
_WOULD_INSTALL = re.compile(r"^ \+ ([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)
_DRAWING = re.compile(r"[×╰─▶│├]+")


@attrs.frozen(kw_only=True)
class Present:
    """A distribution that is in the image already.

    Parameters
    ----------
    name, version
        Of the distribution.
    metadata
        Its ``METADATA``; None: what it needs is not known, and taken to be there.
    """

    name: str
    version: str
    metadata: str | None = None

    @property
    def folder(self) -> str:
        """Of its metadata."""
        return f"{re.sub(r'[-_.]+', '_', self.name)}-{self.version}.dist-info"


@attrs.frozen(kw_only=True)
class Installed:
    """A distribution that was installed.

    Parameters
    ----------
    name, version
        Normalized.
    metadata
        Its ``METADATA``.
    files
        Its files, relative to the folder, sorted.
    bytes
        Their size, but for scripts and metadata.
    indexed
        Whether it is from an index, so that name and version say what it is.
    """

    name: str
    version: str
    metadata: str = attrs.field(repr=False)
    files: tuple[str, ...] = attrs.field(repr=False)
    bytes: int
    indexed: bool


def platform_of(platform: str, glibc: str | None) -> str | None:
    """What uv calls a platform; None: it knows none such.

    Parameters
    ----------
    platform
        ``linux/amd64``.
    glibc
        Version of the C library, as :class:`~upshift.images.base.Contents` has it.
    """
    machine = _MACHINES.get(platform)
    if machine is None:
        return None
    if glibc == "":
        return f"{machine}-unknown-linux-musl"
    minor = int(glibc.split(".")[1]) if glibc else _USUAL_GLIBC
    fitting = [known for known in _GLIBC if known <= minor]
    return f"{machine}-manylinux_2_{fitting[-1]}" if fitting else None


class Installer:
    """Installs what a recipe requires into a folder.

    Parameters
    ----------
    recipe
        The recipe.
    paths
        Where the files of the recipe are.
    contents
        What is in the image that it is for.
    folder
        An empty folder: requirements and their files go there, packages below it.
    where
        The user's line that requires it, for errors.

    Raises
    ------
    MissingExtra
        uv is not installed.
    """

    def __init__(
        self,
        recipe: Recipe,
        paths: Mapping[str, Path],
        contents: Contents,
        folder: Path,
        *,
        where: str | None = None,
    ) -> None:
        self._where = where
        self._uv = find_uv(WITHOUT_UV)
        self._folder = folder
        self.packages = folder / "packages"
        self.packages.mkdir()
        for name, path in paths.items():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        requirements = folder / "requirements.txt"
        requirements.write_text("".join(f"{line}\n" for line in recipe.requirements), encoding="utf-8")
        platform = platform_of(recipe.platform, contents.glibc)
        assert platform is not None and contents.python is not None
        args = [arg for arg in recipe.installer_args if arg not in _OF_THE_FOLDER]
        self._arguments = [
            *("--python", sys.executable, "--target", str(self.packages)),
            *("--python-version", contents.python, "--python-platform", platform),
            *("--requirements", str(requirements), *args),
        ]
        self._present: dict[str, Present] = {}
        for name, version in sorted((contents.packages or {}).items()):
            self.lay(Present(name=name, version=version))

    def lay(self, present: Present) -> None:
        """Have something taken for installed, and no other version of it."""
        if not _is_version(present.version):
            return
        for other in [folder for folder, laid in self._present.items() if laid.name == present.name]:
            shutil.rmtree(self.packages / other)
            del self._present[other]
        folder = self.packages / present.folder
        folder.mkdir(exist_ok=True)
        metadata = present.metadata
        if metadata is None:
            metadata = f"Metadata-Version: 2.1\nName: {present.name}\nVersion: {present.version}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8", errors="surrogateescape")
        (folder / "RECORD").write_text("", encoding="utf-8")
        self._present[present.folder] = present

    def forecast(self, tell: Tell) -> list[tuple[str, str]]:
        """Name and version of what would be installed from an index.

        Raises
        ------
        ImageError
            The requirements cannot be met.
        """
        said = self._run(["--dry-run"], tell)
        return [(normalized(name), version) for name, version in _WOULD_INSTALL.findall(said)]

    def install(self, tell: Tell) -> list[Installed]:
        """Install, and give what was installed, sorted by name.

        Raises
        ------
        ImageError
            The requirements cannot be met, or something of them was compiled for this machine.
        """
        self._run([], tell)
        found = []
        for folder in sorted(self.packages.glob("*.dist-info")):
            if folder.name not in self._present:
                found.append(self._installed(folder))
        return found

    def replaced(self) -> list[Present]:
        """What was taken for installed, and had to give way."""
        return [
            present
            for folder, present in self._present.items()
            if not (self.packages / folder / "METADATA").exists()
        ]

    def _run(self, args: Sequence[str], tell: Tell) -> str:
        """Run uv, and give what it said."""
        command = [self._uv, "pip", "install", *self._arguments, *args]
        environment = {**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        said = []
        told = [Progress(stage="resolve", text="requirements")]
        assert process.stderr is not None
        try:
            for line in lines_of(process.stderr, idle=lambda: tell(told[-1])):
                line = LOGIN.sub("://***@", line)
                said.append(line)
                stage = _STAGES.get(line.split(maxsplit=1)[0] if line.strip() else "")
                if stage is not None:
                    told.append(Progress(stage=stage, text=line.strip()))
                    tell(told[-1])
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stderr.close()
        text = "\n".join(said)
        if status != 0:
            raise _failed(text, self._where)
        return text

    def _installed(self, folder: Path) -> Installed:
        metadata = (folder / "METADATA").read_text(encoding="utf-8", errors="surrogateescape")
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        wheel = folder / "WHEEL"
        if wheel.is_file() and re.search(
            r"^Tag: .*-linux_\w+$", wheel.read_text(encoding="utf-8"), re.MULTILINE
        ):
            raise RecipeError(
                f"{normalized(name)} {version} has no wheel for the image",
                why="It was compiled on this machine, against what is installed here.",
                fix="Choose a version with wheels, name a wheel that was built for the image, or build with "
                'a container engine: builder = "engine".',
            )
        files = sorted(_files_of(folder, self.packages))
        return Installed(
            name=normalized(name),
            version=version,
            metadata=metadata,
            files=tuple(files),
            bytes=sum((self.packages / file).stat().st_size for file in files if _counts(file)),
            indexed=not (folder / "direct_url.json").exists(),
        )


def record_of(content: bytes, changed: Container[str], places: Mapping[str, str]) -> bytes:
    """A ``RECORD`` as it is in an image: sorted, and without what is about this machine.

    Parameters
    ----------
    content
        As it was written.
    changed
        Files that have other content now, and so no digest.
    places
        Files, and where they are, both relative to the folder of packages.
    """
    rows = [row for row in csv.reader(io.StringIO(content.decode())) if row]
    kept = {places[name]: ["", ""] if name in changed else rest for name, *rest in rows if name in places}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([name, *rest] for name, rest in sorted(kept.items()))
    return out.getvalue().encode()


def _counts(file: str) -> bool:
    """Whether a file is the same on every machine: scripts name an interpreter, and a RECORD its digests."""
    return not file.startswith(f"{SCRIPTS}/") and ".dist-info/" not in file


def _files_of(folder: Path, packages: Path) -> set[str]:
    """The files of a distribution, by its ``RECORD``."""
    with open(folder / "RECORD", encoding="utf-8", newline="") as record:
        names = {row[0] for row in csv.reader(record) if row}
    files = set()
    for name in names:
        # Checked when it is packed; what leads out of the folder stays as it is, and is refused there.
        path = os.path.normpath(name)
        if PurePosixPath(path).name not in _FOR_THIS_MACHINE and (packages / path).exists():
            files.add(path)
    return files


def _failed(said: str, where: str | None) -> ImageError:
    if "No space left on device" in said:
        return ImageError(
            "the requirements cannot be installed: the disk is full",
            why=_last_words(said),
            fix="Free some space where UPSHIFT_HOME and uv's cache are (uv cache prune).",
        )
    kind, what, fix = cause_of(said, in_engine=False)
    return kind(what, where=where, why=_last_words(said), fix=fix)


def _last_words(said: str) -> str:
    """What uv said was wrong, without its drawing."""
    lines = [_DRAWING.sub("", line).strip() for line in said.splitlines()]
    kept = [
        line for line in lines if line and not line.startswith(("Using CPython", "Resolved ", "warning:"))
    ]
    return "\n".join(kept) or "uv says nothing."


def _is_version(text: str) -> bool:
    module = packaging_of("version")
    try:
        module.Version(text)
    except module.InvalidVersion:
        return False
    return True
