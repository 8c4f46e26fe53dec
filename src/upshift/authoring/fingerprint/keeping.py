"""Small files in ``UPSHIFT_HOME/fingerprints`` that only save time: replaced whole, never relied on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from upshift.config.home import home


def kept(name: str) -> Path:
    """Where the file of this name is."""
    return home() / "fingerprints" / name


def keep(file: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. A folder that cannot be written is no error."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
