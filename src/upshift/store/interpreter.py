"""How to start another interpreter with this very Upshift."""

from __future__ import annotations

import os
import sys

import upshift

_BOOT = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry] + {paths!r}
from upshift.worker.__main__ import main
main()
"""


def command(*arguments: str) -> list[str]:
    """The command that runs :mod:`upshift.worker` with this very interpreter and this very Upshift.

    Unlike ``python -m``, it does not let a file in the working folder shadow an installed module.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))
    if os.path.isfile(root):  # inside the runtime zip
        return [sys.executable, root, *arguments]
    paths = [root, *(entry for entry in sys.path if entry.endswith("site-packages"))]
    return [sys.executable, "-c", _BOOT.format(paths=paths), *arguments]
