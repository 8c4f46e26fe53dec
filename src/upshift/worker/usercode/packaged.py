"""What the user's project has and its code package has not, where a step runs from the package."""

from __future__ import annotations

import os
from collections.abc import Iterator

from upshift.spec import Code
from upshift.store.ignore import looks_secret


def advice(error: BaseException, code: Code, folder: str) -> str | None:
    """Which file the package lacks, if a step failed because of that; None: it did not.

    Parameters
    ----------
    error
        What was raised.
    code
        The step's code.
    folder
        Where its package is unpacked; the project itself where it has none.
    """
    for file in _missed(error, code, folder):
        if os.path.exists(os.path.join(code.project, file)) and not os.path.exists(
            os.path.join(folder, file)
        ):
            if looks_secret(os.path.basename(file)):
                why, also = "its name looks like a secret", "rename it"
            else:
                why, also = ".gitignore or .upshiftignore names it", f"put !{file} into .upshiftignore"
            return (
                f"{file} is in the project, but not in its code package: {why}. Use the project as it is now "
                f"(replay with --current-code, resume without --same-code); for later runs, {also}."
            )
    return None


def _missed(error: BaseException, code: Code, folder: str) -> Iterator[str]:
    """What an exception says is not there, as paths relative to the project."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.replace(".", os.sep)
        for path in code.paths or ("",):
            for form in (f"{name}.py", os.path.join(name, "__init__.py"), name):
                yield os.path.normpath(os.path.join(path, form))
    elif isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        file = os.path.relpath(error.filename, folder)
        if not file.startswith(os.pardir):
            yield file
