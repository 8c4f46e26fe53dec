"""A user by number who cannot write the store is named before the container starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from upshift.images.checks import without_access
from upshift.images.containers.facts import has_our_users

ME, MINE = os.getuid(), os.getgid()


@pytest.mark.parametrize(
    ("mode", "user", "may"),
    [
        (0o755, f"{ME + 1}", False),
        (0o755, f"{ME + 1}:{MINE}", False),
        (0o755, f"{ME}", True),
        (0o775, f"{ME + 1}:{MINE}", True),
        (0o775, f"{ME + 1}", True),
        (0o775, f"{ME + 1}:{MINE + 1}", True),
        (0o777, f"{ME + 1}:{MINE + 1}", True),
        (0o755, "0", True),
        (0o755, "nobody", True),
        (0o755, None, True),
    ],
)
def test_owner_and_mode_tell(tmp_path: Path, mode: int, user: str | None, may: bool) -> None:
    tmp_path.chmod(mode)
    found = without_access(user, str(tmp_path))
    if not may:
        assert found is not None
        assert f"user={user} cannot write the store" in found.what
        assert f"mode {mode:o}" in (found.evidence or "")
        assert "Leave user out" in (found.fix or "")
    else:
        assert found is None


@pytest.mark.parametrize(("umask", "may"), [(0o022, False), (0o000, True)])
def test_a_store_that_is_not_there_yet_will_be_mine(tmp_path: Path, umask: int, may: bool) -> None:
    before = os.umask(umask)
    try:
        found = without_access(f"{ME + 1}:{MINE + 1}", str(tmp_path / "store"))
    finally:
        os.umask(before)
    assert (found is None) == may


@pytest.mark.parametrize(
    ("facts", "ours"),
    [
        ({"SecurityOptions": ["name=seccomp,profile=default"]}, True),
        ({"SecurityOptions": ["name=userns"]}, False),
        ({"SecurityOptions": ["name=rootless"]}, False),
        ({"host": {"security": {"rootless": True}}}, False),
        ({"host": {"security": {"rootless": False}}}, True),
    ],
)
def test_only_some_engines_have_the_same_users(facts: dict[str, Any], ours: bool) -> None:
    assert has_our_users(facts) is ours
