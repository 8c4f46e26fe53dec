"""Small files in ``UPSHIFT_HOME/fingerprints`` that only save time: replaced whole, never relied on."""

from __future__ import annotations

import contextlib
from pathlib import Path

from upshift.model.home import home
from upshift.runtime.storage.files import replacing


def kept(name: str) -> Path:
    """Where the file of this name is."""
    return home() / "fingerprints" / name


def keep(file: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. A folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as draft:
            draft.write_bytes(content)
