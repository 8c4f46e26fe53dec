"""Options of pip and uv that no image can honour: what to install, and where, is said by the settings.

Sources: ``pip install --help`` (25.3) and ``uv pip install --help`` (0.13).
"""

from __future__ import annotations

_PLACE = ("says where to install, or for what", "Leave it out: the image says that.")
_WHAT = ("says what to install", "Leave it out: requirements= says that.")
_FILE = ("names a file, which the image does not have", "Leave it out.")

_REFUSED = {
    ("target", "t", "prefix", "root", "user", "python", "p"): _PLACE,
    ("python-version", "python-platform", "platform", "abi", "implementation", "directory"): _PLACE,
    ("dry-run", "check", "help", "h", "version", "V"): ("would install nothing", "Leave it out."),
    ("requirement", "requirements", "r", "requirements-from-script", "group"): _WHAT,
    ("editable", "e", "extra", "all-extras", "upgrade-group"): _WHAT,
    ("constraint", "constraints", "c"): (_FILE[0], 'Write requirements=["-c FILE", …].'),
    ("override", "overrides", "exclude", "excludes"): _FILE,
    ("build-constraint", "build-constraints", "b"): _FILE,
}


def refused(option: str) -> tuple[str, str] | None:
    """Why an option, without its dashes, cannot be honoured, and what to do; None: it can be."""
    return next((said for names, said in _REFUSED.items() if option in names), None)
