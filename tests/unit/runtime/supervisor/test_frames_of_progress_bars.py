"""Progress bars in a log: the last frame of each line, whatever is drawn over what."""

from __future__ import annotations

import io
import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm, trange

from upshift.runtime.supervisor.progress_bars import ProgressBars, last_frames


def log_of(*pieces: bytes, watched: bool = False) -> bytes:
    """The log of what is printed in these pieces; ``watched``: a frame is kept after each of them."""
    frames = ProgressBars()
    log = b""
    for piece in pieces:
        log += frames.feed(piece)
        if watched:
            log += frames.frame()
    return log + frames.end()


def test_of_a_line_that_is_drawn_again_the_last_frame_is_kept() -> None:
    assert log_of(b"one\n\r 10%\r 50%\r100%\ntwo\n") == b"one\n100%\ntwo\n"


def test_a_bar_that_returns_after_each_frame_is_kept_too() -> None:
    assert log_of(b" 10%\r", b" 50%\r", b"100%\r", b"\n") == b"100%\n"
    assert log_of(b" 10%\r", b"100%\r") == b"100%"


def test_carriage_return_and_line_feed_are_a_line_end() -> None:
    assert log_of(b"one\r\n", b"two\r", b"\nthree\r\n") == b"one\ntwo\nthree\n"


def test_who_watches_sees_each_frame_and_the_log_still_reads_the_same() -> None:
    log = log_of(b"a\n\r 10%", b"\r 50%", b"\r100%", b"\n", watched=True)
    assert log == b"a\n 10%\r 50%\r100%\n"
    assert last_frames(log) == b"a\n100%\n"


def test_a_bar_that_is_wiped_out_leaves_nothing() -> None:
    log = log_of(b"a\n", b"\r 10%", b"\r     \r", watched=True)
    assert last_frames(log).strip() == b"a"
    assert last_frames(log_of(b"\r 10%", b"\r     \r", b"done\n", watched=True)) == b"done\n"


def test_lines_that_are_drawn_together_end_one_below_the_other() -> None:
    draw = b"\router %d%%\n\rinner %d%%\x1b[A"
    log = log_of(*(draw % (i, j) for i in range(3) for j in range(3)), b"\n\ndone\n", watched=True)
    assert last_frames(log) == b"outer 2%\ninner 2%\ndone\n"
    assert b"outer 1% \x1f inner 2%" in log


def test_rows_above_what_is_drawn_end_while_it_goes_on() -> None:
    frames = ProgressBars()
    log = frames.feed(b"\router 0%\n\rinner 0%\x1b[A")
    log += frames.feed(b"\r         \n\r         \r\x1b[Ahello\n\router 1%\n\rinner 1%\x1b[A")
    for _ in range(2):
        log += frames.settle()
        log += frames.feed(b"\n\rinner 2%\x1b[A")
    assert log == b"hello\n"


def test_a_line_feed_that_comes_back_at_once_ends_nothing() -> None:
    frames = ProgressBars()
    log = b""
    for i in range(100):
        pieces = [b"\router %d%%" % i, b"\n", b"\rinner", b"\x1b[A"]
        for number, piece in enumerate(pieces):
            log += frames.feed(piece)
            if number == i % len(pieces):  # at any moment, but only now and then
                log += frames.settle()
    assert log == b""


def test_rows_that_have_ended_are_drawn_again_without_blank_lines() -> None:
    frames = ProgressBars()
    log = frames.feed(b"\rone\n\rtwo\n") + frames.settle() + frames.settle()
    assert log == b"one\ntwo\n"
    log += frames.feed(b"\x1b[2A\rONE\n\rTWO\n") + frames.end()
    assert log == b"one\ntwo\nONE\nTWO\n"


def test_a_display_that_erases_and_goes_up_as_rich_does() -> None:
    first = b"\x1b[?25lone 0%\ntwo 0%"
    again = b"\r\x1b[2K\x1b[1A\x1b[2Kone %d%%\ntwo %d%%"
    log = log_of(first, *(again % (i, i) for i in range(50)), b"\n\x1b[?25hdone\n", watched=True)
    # The first drawing looks like any other line, and is one.
    assert last_frames(log).splitlines() == [b"\x1b[?25lone 0%", b"one 49%", b"two 49%", b"\x1b[?25hdone"]


def test_colours_pass_and_a_sequence_may_be_cut_anywhere() -> None:
    text = b"\x1b[31mred\x1b[0m\nplain\n\rbar\n\x1b[A\rBAR\n"
    for cut in range(len(text) + 1):
        assert log_of(text[:cut], text[cut:]) == b"\x1b[31mred\x1b[0m\nplain\nBAR\n"


def test_no_row_and_no_number_of_rows_fills_memory() -> None:
    frames = ProgressBars()
    sizes = [len(frames.feed(b"\r" + b"x" * 100_000)) for _ in range(50)]
    assert sum(sizes) >= 49 * 100_000 - 65_536
    frames = ProgressBars()
    log = b"".join(frames.feed(b"\rrow %d\n" % i) for i in range(1000))
    assert log.count(b"\n") > 900
    assert log_of(b"\x1b[999999A\x1b[99999999999999A\rx\n") == b"x\n"


class Terminal(io.StringIO):
    """Where a tqdm draws."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.frames = ProgressBars()
        self.log = b""
        self.every = every
        self.writes = 0

    def write(self, text: str) -> int:
        self.log += self.frames.feed(text.encode())
        self.writes += 1
        if self.writes % self.every == 0:
            self.log += self.frames.frame()
        return len(text)


@given(every=st.integers(1, 50))
def test_nested_bars_of_tqdm_leave_their_last_frames_and_what_was_written_between(every: int) -> None:
    terminal = Terminal(every)
    for i in trange(3, file=terminal, desc="outer", mininterval=0):
        for j in trange(4, file=terminal, desc="inner", mininterval=0, leave=False):
            if j == 2:
                tqdm.write(f"note {i}", file=terminal)
    print("done", file=terminal)
    text = last_frames(terminal.log + terminal.frames.end()).decode()
    assert re.fullmatch(r"note 0\nnote 1\nnote 2\nouter: 100%\|#+\| 3/3 .*\ndone\n", text), text


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_what_neither_returns_nor_moves_passes_at_once_as_it_is(pieces: list[bytes]) -> None:
    frames = ProgressBars()
    for piece in pieces:
        plain = piece.replace(b"\r", b"").replace(b"\x1b", b"")
        assert frames.feed(plain) == plain
    assert frames.end() == b""


printed = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\x1b[A", b"\x1b[2A", b"\x1b[K", b"\x1b[1m", b" "]),
    max_size=40,
).map(b"".join)


@settings(derandomize=True)  # moving up into a line that had ended is told to differ
@given(text=printed, cuts=st.lists(st.integers(0, 80), max_size=6), watched=st.booleans())
def test_the_log_reads_the_same_however_the_text_arrives(text: bytes, cuts: list[int], watched: bool) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]

    def read(log: bytes) -> list[bytes]:
        return [line.rstrip() for line in last_frames(log).rstrip().split(b"\n")]

    assert read(log_of(*pieces, watched=watched)) == read(log_of(text))
