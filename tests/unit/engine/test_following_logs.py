"""What a task prints reaches whoever watches, line by line, in little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from upshift.engine.targets import LogReader


def test_only_whole_lines_are_shown_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    shown: list[str] = []
    reader = LogReader(path)
    reader.read(shown.append)
    path.write_bytes(b"one\ntw")
    reader.read(shown.append, size=6)
    with path.open("ab") as file:
        file.write(b"o\nthree")
    reader.read(shown.append, size=12)
    assert shown == ["one\n", "two\n"]
    reader.read(shown.append, end=True)
    assert shown == ["one\n", "two\n", "three\n"]


def test_of_a_line_that_is_drawn_again_the_last_frame_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    shown: list[str] = []
    reader = LogReader(path)
    for piece, unfinished in (
        (b"one\r\n 10%", "10%"),
        (b"\r 50%", "50%"),
        (b"\r100%\nouter 1% \x1f inner 2%", "outer 1%\ninner 2%"),
        (b"\r ", ""),
    ):
        with path.open("ab") as file:
            file.write(piece)
        reader.read(shown.append)
        assert reader.unfinished == unfinished
    reader.read(shown.append, end=True)
    assert shown == ["one\n", "100%\n"]
    assert reader.unfinished == ""


def test_of_several_processes_it_is_seen_what_the_first_one_draws(tmp_path: Path) -> None:
    path, main = tmp_path / "log", tmp_path / "rank0.log"
    shown: list[str] = []
    reader = LogReader(path, main=main)
    reader.read(shown.append)
    assert reader.unfinished == ""
    path.write_bytes(b"[rank 1] one\n")
    main.write_bytes(b"begin\n" + b"x" * 9000 + b"\r 10%\r 50% \x1f inner 2%")
    reader.read(shown.append, size=13)
    assert (shown, reader.unfinished) == (["[rank 1] one\n"], "[rank 0] 50%\n[rank 0] inner 2%")
    main.write_bytes(b"begin\n\r100%\n")
    reader.read(shown.append, size=13)
    assert reader.unfinished == ""
    main.write_bytes(b"begin\n\r100%\nnext")
    reader.read(shown.append, size=13)
    assert reader.unfinished == "[rank 0] next"
    reader.read(shown.append, end=True)
    assert reader.unfinished == ""


def test_a_bar_that_is_drawn_a_million_times_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"".join(b"\r%4d of a million" % i for i in range(10_000)))
    tracemalloc.start()
    reader = LogReader(path)
    shown: list[str] = []
    reader.read(shown.append)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (shown, reader.unfinished) == ([], "9999 of a million")
    assert peak < 2**20


def test_a_character_that_is_cut_by_a_block_arrives_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = "é" * 50_000 + "\n"
    path.write_bytes(text.encode())
    shown: list[str] = []
    LogReader(path).read(shown.append, end=True)
    assert "".join(shown) == text


def test_what_was_shown_by_an_earlier_engine_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    reader = LogReader(path, skip=True)
    with path.open("ab") as file:
        file.write(b"new\n")
    shown: list[str] = []
    reader.read(shown.append, end=True)
    assert shown == ["new\n"]


def test_fifty_megabytes_pass_through_little_memory_even_without_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        for _ in range(25):
            file.write(b"x" * 10**6 + b"\n" * 10)
            file.write(b"y" * 10**6)
    size = [0]

    def count(text: str) -> None:
        size[0] += len(text)

    tracemalloc.start()
    LogReader(path).read(count, end=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size[0] >= 50 * 10**6
    assert peak < 10 * 2**20
