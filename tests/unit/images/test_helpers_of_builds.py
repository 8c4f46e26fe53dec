"""Threads that work on one image."""

from __future__ import annotations

from concurrent.futures import wait

import pytest

from upshift.errors import ImageError
from upshift.images.base import Progress
from upshift.images.daemonless.pushing import Helpers


def test_what_fails_meanwhile_ends_the_build_at_its_next_word() -> None:
    told: list[Progress] = []
    word = Progress(stage="install", text="requirements")

    def refused() -> None:
        raise ImageError("the registry does not take it")

    with Helpers() as helpers:
        tell = helpers.watched(told.append)
        tell(word)
        wait([helpers.start(refused)])
        with pytest.raises(ImageError, match="does not take it"):
            tell(word)
    assert told == [word]
