"""uv, which resolves and installs requirements: finding it, running it, and what its failures mean."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from upshift.errors import ImageError, MissingExtra, RecipeError
from upshift.images.base import Progress, Tell
from upshift.images.output import follow

_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_GLIBC = (17, 28, *range(31, 41))  # what uv 0.8 and later know as manylinux_2_N
_USUAL_GLIBC = 28  # what all the images have that are supported still
_STAGES = {"Downloading": "install", "Prepared": "install", "Installed": "install", "Building": "install"}
_DRAWING = re.compile(r"[×╰─▶│├]+")
_SAID_ANYWAY = ("Using CPython", "Resolved ", "warning:")
_NOT_OURS = frozenset(
    f"UV_{name}"
    for name in (
        *("PYTHON", "SYSTEM_PYTHON", "BREAK_SYSTEM_PACKAGES", "MANAGED_PYTHON", "NO_MANAGED_PYTHON"),
        *("COMPILE_BYTECODE", "CUSTOM_COMPILE_COMMAND", "PROJECT", "WORKING_DIRECTORY", "UNIVERSAL"),
    )
)
"""Variables that say where and for what uv installs; the image decides that."""


class Unmet(RecipeError):
    """No set of available packages meets the requirements."""


# Kind of error, what uv says, what to tell, what to do. The first match may be the cause of later ones.
_FAILURES: tuple[tuple[type[ImageError], str, str, str], ...] = (
    (
        ImageError,
        r"No space left on device",
        "the requirements cannot be installed: the disk is full",
        "Free some space where UPSHIFT_HOME and uv's cache are (uv cache prune).",
    ),
    (
        RecipeError,
        r"Hash mismatch|HashMismatch",
        "a file of the requirements has another hash than the one that is written down",
        "Lock again if the index has other files now; else find out where this one comes from.",
    ),
    (
        RecipeError,
        r"401 Unauthorized|403 Forbidden|Authentication failed|could not read Username",
        "the index or repository wants a login",
        "Give one: in the address by a variable (https://me:${TOKEN}@…), in ~/.netrc, or as git has it.",
    ),
    (
        RecipeError,
        r"invalid peer certificate|UnknownIssuer|certificate verify failed|SSL certificate problem",
        "the certificate of the index is not trusted here",
        "Name the file of its authority in SSL_CERT_FILE.",
    ),
    (
        ImageError,
        r"Failed to fetch|error sending request|Could not resolve host|unable to access|dns error",
        "the index or repository of the requirements cannot be reached",
        "See that it can be reached from this machine: its address, the network, the proxy.",
    ),
    (
        Unmet,
        r"filtered by `exclude-newer|exclude newer time",
        "one of the requirements is newer than exclude-newer allows",
        "Use a later date, or ask for an older version. The date is in UV_EXCLUDE_NEWER, in uv.toml, or in "
        "python_package_installer_args.",
    ),
    (
        Unmet,
        r"was not found in the",
        "no index has one of the requirements",
        "Correct its name, or name the index that has it: --extra-index-url https://…",
    ),
    (
        Unmet,
        r"no wheels? with a matching|has no wheels|no matching Python (?:ABI|version|platform)",
        "one of the requirements has no wheel for the image's Python and platform",
        "Choose a version that has one, or another parent_image.",
    ),
    (
        Unmet,
        r"there is no version of|there are no versions of|No matching distribution",
        "there is no such version of one of the requirements",
        "Correct the version, or name the index that has it: --extra-index-url https://…",
    ),
    (
        Unmet,
        r"Failed to build|build backend|Build backend|metadata-generation-failed",
        "one of the requirements cannot be compiled",
        "Choose a version with wheels, or install it in a Dockerfile, with the compiler that it needs.",
    ),
    (
        Unmet,
        r"No solution found|[Cc]onflict",
        "the requirements contradict each other",
        "Change requirements so that one set of versions fits the image's Python and platform.",
    ),
    (
        RecipeError,
        "",
        "the requirements cannot be installed",
        "Correct requirements, or the options in python_package_installer_args.",
    ),
)


def find_uv(purpose: str) -> str:
    """The path of uv: that of the package ``uv``, or else the one on the ``PATH``.

    ``purpose`` says what cannot be done without it, for the MissingExtra: ``"uv.lock cannot be read"``.
    """
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MissingExtra(f"{purpose}: uv is not installed", fix="pip install 'upshift[images]'")
    return found


def platform_of(platform: str, glibc: str | None) -> str | None:
    """What uv calls ``linux/amd64`` with a C library; None: it knows no such platform."""
    machine = _MACHINES.get(platform)
    if machine is None:
        return None
    if glibc == "":
        return f"{machine}-unknown-linux-musl"
    minor = int(glibc.split(".")[1]) if glibc else _USUAL_GLIBC
    fitting = [known for known in _GLIBC if known <= minor]
    return f"{machine}-manylinux_2_{fitting[-1]}" if fitting else None


def environment_of(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that uv runs with: the user's, without those that say where it installs."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_OURS}
    authority = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if authority:  # as for registries
        kept.setdefault("SSL_CERT_FILE" if os.path.isfile(authority) else "SSL_CERT_DIR", authority)
    return {**kept, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}


def run_uv(
    command: Sequence[str], *, folder: Path, tell: Tell, first: Progress, where: str | None, locked: bool
) -> None:
    """Run uv in a folder, and report its progress.

    With ``locked`` the versions are chosen already, and UV_EXCLUDE_NEWER does not apply.
    """
    tell(first)
    environment = environment_of()
    if locked:
        environment.pop("UV_EXCLUDE_NEWER", None)
    said: list[str] = []
    shown = first

    def on_line(line: str) -> None:
        nonlocal shown
        said.append(line)
        stage = _STAGES.get(line.split(maxsplit=1)[0] if line.strip() else "")
        if stage is not None:
            shown = Progress(stage=stage, text=line.strip())
            tell(shown)

    if follow(command, on_line, idle=lambda: tell(shown), folder=folder, environment=environment):
        raise failure(said, where)


def failure(said: Sequence[str], where: str | None) -> ImageError:
    """The error for what uv said when it failed; ``where`` is the user's line that requires it."""
    text, why = "\n".join(said), "\n".join(_last_words(said)) or "uv says nothing."
    kind, _, what, fix = next(one for one in _FAILURES if re.search(one[1], text))
    return kind(what, where=where, why=why, fix=fix)


def _last_words(said: Sequence[str]) -> Iterator[str]:
    """What uv said was wrong, without its frame."""
    for line in said:
        line = _DRAWING.sub("", line).strip()
        if line and not line.startswith(_SAID_ANYWAY):
            yield line
