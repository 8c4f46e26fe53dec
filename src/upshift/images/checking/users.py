"""Whether the user that a container runs as can write the store, as far as that can be told from here."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upshift.images.base import WARNING, Finding
from upshift.images.containers.facts import is_rootless


def without_access(user: str | None, store: str) -> Finding | None:
    """What speaks against a user, where the engine has the same numbers of users as this machine."""
    match = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", user or "")
    if match is None or match[1] == "0" or "://" in store:
        return None
    there = "it belongs to"
    try:
        found = os.stat(store)
        owner, group, mode = found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)
        if "system.posix_acl_access" in os.listxattr(store):
            return None  # which may name this user
    except FileNotFoundError:
        there = "it will belong to"
        owner, group, mode = os.getuid(), os.getgid(), 0o777 & ~_umask()
    except OSError:
        return None
    # A container is given the group of a store that its group may write.
    if mode & (stat.S_IWUSR if int(match[1]) == owner else stat.S_IWGRP | stat.S_IWOTH):
        return None
    return Finding(
        severity=WARNING,
        field="user",
        what=f"user={user} cannot write the store, {store}",
        evidence=f"{there} {owner}:{group}, mode {mode:o}",
        fix="Leave user out: the container then runs as you. Or start Upshift as that user. Or share the "
        "store with a group, which the container then gets: mode 2770, and umask 007.",
    )


def has_our_users(facts: Mapping[str, Any]) -> bool:
    """Whether the number of a user means the same in a container as here, by what its engine says."""
    remapped = any("userns" in option for option in facts.get("SecurityOptions") or ())
    return not remapped and not is_rootless(facts)


def _umask() -> int:
    """That of this process, which can be asked for without setting it."""
    match = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1], 8) if match else 0o022
