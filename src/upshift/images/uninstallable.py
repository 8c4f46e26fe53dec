"""Why requirements could not be installed, by what uv or pip wrote, and what to do: :func:`cause_of`."""

from __future__ import annotations

import re

from upshift.errors import ImageError, RecipeError

LOGIN = re.compile(r"://[^/\s@'\"]+@")
"""Of an index or a repository, in an address."""

_OTHER_BUILDER = 'build with a container engine: builder = "engine".'
_WITH_COMPILER = 'name what they need in apt_packages, such as "build-essential".'
_UNREACHABLE = "the index or repository of the requirements cannot be reached"
_CAUSES = (  # the first that is seen: what follows from one of them may look like a later one
    (
        re.compile(r"unexpected argument '|no such option:|invalid value '.*' for '"),
        "the installer refuses one of its options",
        "Correct python_package_installer_args, or the option in requirements; uv and pip know other ones.",
    ),
    (
        re.compile(r"Hash mismatch|DO NOT MATCH THE HASHES|HashMismatch"),
        "a file of the requirements has another hash than the one that is written down",
        "Lock anew, if the index has other files than it had; else find out where this one comes from.",
    ),
    (
        re.compile(r"--require-hashes|hashes are required|Hashes are required", re.IGNORECASE),
        "some of the requirements have hashes, and others have none",
        "Give all of them a version and a hash (uv pip compile --generate-hashes), or none.",
    ),
    (
        re.compile(r"401 Unauthorized|403 Forbidden|Authentication failed|could not read Username|401 Error"),
        "the index or repository wants a login",
        "Give a login: in the address by a variable (https://me:${TOKEN}@…), in ~/.netrc, or as git has it.",
    ),
    (
        re.compile(
            r"Failed to fetch|error sending request|Could not resolve host|unable to access|dns error"
            r"|NewConnectionError|Max retries exceeded|ConnectTimeoutError|CERTIFICATE_VERIFY_FAILED"
            r"|Temporary failure in name resolution"
        ),
        _UNREACHABLE,
        "See that the index or repository can be reached from this machine: its address, network, proxy.",
    ),
    (
        re.compile(r"was not found in the|\(from versions: none\)"),
        "no index has one of the requirements",
        "Correct its name, or name the index that has it: --extra-index-url https://…",
    ),
    (
        re.compile(r"no versions? of|Could not find a version that satisfies|No matching distribution found"),
        "there is no such version of one of the requirements",
        "Correct the version, or name the index that has it: --extra-index-url https://…",
    ),
    (
        re.compile(r"No solution found|ResolutionImpossible|[Cc]onflict"),
        "the requirements contradict each other",
        "Change requirements so that one set of versions fits the image's Python and platform.",
    ),
    (
        re.compile(r"Failed to build|build backend|Failed building wheel|subprocess-exited-with-error"),
        "one of the requirements cannot be compiled",
        "Choose a version with wheels, or {}",
    ),
)


def cause_of(said: str, *, in_engine: bool) -> tuple[type[ImageError], str, str]:
    """Whose fault it is, as a kind of error; what is wrong, in a sentence; and what to do about it.

    Parameters
    ----------
    said
        What the installer wrote.
    in_engine
        Whether it ran in a container, where what compilers need can be installed.
    """
    for sign, what, fix in _CAUSES:
        if sign.search(said):
            kind = ImageError if what == _UNREACHABLE else RecipeError
            if "{}" in fix:
                fix = fix.format(_WITH_COMPILER if in_engine else _OTHER_BUILDER)
            return kind, what, fix
    what, fix = "the requirements cannot be installed", "Correct requirements, or the installer's options."
    return RecipeError, what, fix
