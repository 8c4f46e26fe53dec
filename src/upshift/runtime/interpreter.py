"""How to start another interpreter with this very Upshift."""

from __future__ import annotations

import os
import sys

import upshift

_BOOT = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry] + {paths!r}
from upshift.runtime.__main__ import main
main()
"""


def command(*arguments: str) -> list[str]:
    """The command that runs :mod:`upshift.runtime` with this very interpreter and this very Upshift.

    Unlike ``python -m``, it does not let a file in the working folder shadow an installed module.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))
    if os.path.isfile(root) or os.path.isfile(os.path.join(root, "__main__.py")):  # the runtime
        return [sys.executable, root, *arguments]
    paths = [root, *(entry for entry in sys.path if entry.endswith("site-packages"))]
    return [sys.executable, "-c", _BOOT.format(paths=paths), *arguments]


def command_for_users(*arguments: str) -> list[str]:
    """The same for one that imports modules of the user's, which find in ``sys.argv`` what they do here."""
    return [*command(*arguments), "--", *sys.argv]


def take_arguments() -> list[str]:
    """The arguments of :func:`command`. What ``sys.argv`` has from now on is for modules of the user's."""
    own, users = sys.argv[1:], sys.argv[:1]
    if "--" in own:
        end = own.index("--")
        own, users = own[:end], own[end + 1 :]
    sys.argv[:] = users
    return own
