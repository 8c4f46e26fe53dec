"""What a program writes is followed line by line; one that is silent can be given up."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

import pytest

from upshift.images.containers.engine import ContainerEngine
from upshift.images.output import lines_of


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0)


def nothing() -> None:
    """Goes on waiting."""


def followed(*written: bytes, idle: Callable[[], None] = nothing) -> list[str]:
    reading, writing = pipe()
    with reading:
        with writing:
            for block in written:
                writing.write(block)
        return list(lines_of(reading, idle=idle))


def test_lines_are_whole_however_they_were_written() -> None:
    assert followed(b"one\ntw", b"o\r\n\n", "drei ä\n".encode()) == ["one", "two", "", "drei ä"]


def test_the_last_line_needs_no_end() -> None:
    assert followed(b"one\ntwo") == ["one", "two"]
    assert followed(b"") == []


def test_what_is_no_text_is_a_line_all_the_same() -> None:
    assert followed(b"\xff\xfe\n") == ["��"]


def test_a_line_comes_before_the_next_one_is_written() -> None:
    reading, writing = pipe()
    with reading, writing:
        writing.write(b"one\n")
        lines = lines_of(reading, idle=nothing)
        assert next(lines) == "one"
        writing.write(b"two\n")
        assert next(lines) == "two"


def test_who_waits_for_a_silent_program_may_stop() -> None:
    class Enough(Exception):
        pass

    asked = []

    def idle() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise Enough

    reading, writing = pipe()
    with reading, writing, pytest.raises(Enough):
        list(lines_of(reading, idle=idle))
    assert len(asked) == 2


def test_a_silent_command_of_an_engine_is_ended_with_the_wait_for_it() -> None:
    class Enough(Exception):
        pass

    def idle() -> None:
        raise Enough

    shell = ContainerEngine(
        command=("sh",), name="docker", version="0", platform="linux/amd64", buildkit=False
    )
    told: list[str] = []
    with pytest.raises(Enough):
        shell.stream(["-c", "echo $$; exec tail -f /dev/null"], told.append, idle=idle)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told[0]), 0)
