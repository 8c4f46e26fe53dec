"""Where uv is, which installs without an engine and reads its own locks."""

from __future__ import annotations

import shutil

from upshift.errors import MissingExtra


def find_uv(purpose: str) -> str:
    """The path of uv: that of the package ``uv``, or else the one on the ``PATH``.

    Parameters
    ----------
    purpose
        What cannot be done without it: ``"uv.lock cannot be read"``.

    Raises
    ------
    MissingExtra
        It is not installed.
    """
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MissingExtra(f"{purpose}: uv is not installed", fix="pip install 'upshift[images]'")
    return found
