"""Events as lines of JSON, for a backend that reads them, or does not."""

from __future__ import annotations

import json
import os

from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.protocol import Reporter


def read(descriptor: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(descriptor, 1 << 20).splitlines()]


def test_each_event_is_a_line() -> None:
    reader, writer = os.pipe()
    reporter = Reporter(Loop(), writer)
    reporter.say("started")
    reporter.say("log", droppable=True, size=7)
    reporter.end("the disk is full")
    assert read(reader) == [
        {"event": "started"},
        {"event": "log", "size": 7},
        {"event": "ended", "problem": "the disk is full", "completed": False},
    ]
    os.close(reader)
    os.close(writer)


def test_nobody_waits_for_a_reader_and_what_counts_is_said_when_it_reads() -> None:
    reader, writer = os.pipe()
    loop = Loop()
    reporter = Reporter(loop, writer)
    os.write(writer, b" " * (1 << 16))  # the pipe is full
    reporter.say("started")
    reporter.say("log", droppable=True, size=1)
    assert os.read(reader, 1 << 16).strip() == b""
    loop.turn()
    assert read(reader) == [{"event": "started"}]
    reporter.say("log", droppable=True, size=2)
    assert read(reader) == [{"event": "log", "size": 2}]
    os.close(reader)
    os.close(writer)


def test_a_reader_that_has_gone_stops_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    reporter = Reporter(Loop(), writer)
    reporter.say("started")
    reporter.end(None, completed=True)
    os.close(writer)
