"""Step processes that start as fresh interpreters."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from upshift.runtime.confine import Confinement
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor import starters
from upshift.runtime.supervisor.starters import FreshStarter


@pytest.mark.parametrize("pipes", range(4))
def test_where_no_more_files_may_be_open_none_is_left_open(
    project: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, pipes: int
) -> None:
    spec = project("def train():\n    pass\n").spec("train")
    monkeypatch.setattr(starters, "become_subreaper", lambda: None)  # it would be for the tests, too
    start = FreshStarter(Loop(), exited=lambda *_: None)
    made: list[int] = []  # inodes: other pipes of this process may be closed meanwhile, by the collector
    pipe = os.pipe

    def limited(*_: object) -> Any:
        if len(made) == pipes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        ends = pipe()
        made.append(os.fstat(ends[0]).st_ino)
        return ends

    monkeypatch.setattr(os, "pipe", limited)
    monkeypatch.setattr(os, "memfd_create", limited)
    with pytest.raises(OSError, match="Too many open files"):
        start(spec, Confinement())
    assert len(made) == pipes
    assert not {f"pipe:[{inode}]" for inode in made} & open_files()


def open_files() -> set[str]:
    """What the descriptors of this process are of."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found
