"""Streams of this process that show no secrets for a while."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable

from upshift.backends.inline import screened
from upshift.runtime.masking import Mask

SECRET = "hf_größe7Zr2Wp9Kd"


def written(body: Callable[[], None]) -> tuple[str, str]:
    """What a call writes to standard output and error while they are screened."""
    raw = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in raw)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with screened(Mask([SECRET])):
            body()
        assert (sys.stdout, sys.stderr) == (out, err)
    return raw[0].getvalue().decode(), "closed" if raw[1].closed else raw[1].getvalue().decode()


def test_secrets_are_masked_however_they_are_written() -> None:
    def body() -> None:
        print("plain", SECRET, "größe")
        for character in SECRET:
            sys.stdout.write(character)
            sys.stdout.flush()
        sys.stdout.writelines(["\n", f"<{SECRET}>\n"])
        sys.stdout.buffer.write(f"{SECRET!r}\n".encode())
        print(SECRET, file=sys.stderr, end="")
        print(sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.buffer.writable())

    out, err = written(body)
    assert out == "plain *** größe\n***\n<***>\n'***'\nutf-8 False True\n"
    assert err == "***"


def test_what_might_have_become_a_secret_comes_in_the_end() -> None:
    assert written(lambda: print("gr", SECRET[:4], end="")) == (f"gr {SECRET[:4]}", "")


def test_a_stream_that_the_step_closes_does_no_harm() -> None:
    def body() -> None:
        sys.stderr.close()
        print("still here")

    assert written(body) == ("still here\n", "closed")
