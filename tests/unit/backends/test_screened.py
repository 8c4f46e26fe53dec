"""Streams of this process that show no secrets for a while."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from upshift.backends.inline import _as_the_step, screened
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec
from upshift.runtime.masking import Mask
from upshift.runtime.storage.store import open_store

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


def test_what_handled_ctrl_c_below_python_is_not_handed_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, upshift_home: Path
) -> None:
    """Python has no handler to set again then."""
    spec = TaskSpec(
        task=TaskId(run="r", step="s"),
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=str(tmp_path / "store"),
    )
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_handler = signal.signal

    def from_c(number: int, handler: object) -> object:
        set_handler(number, handler)  # type: ignore[arg-type]
        return None

    try:
        with monkeypatch.context() as below:
            below.setattr(signal, "signal", from_c)
            with _as_the_step(spec, open_store(spec.store), {}):
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
