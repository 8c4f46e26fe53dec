"""What is said of an exception before the debugger takes over the terminal."""

from __future__ import annotations

import pdb

import pytest

from upshift.backends import inline


def test_the_text_of_an_exception_gives_the_terminal_no_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("\x1b]52;c;aGk=\x07é\n\tsecond line\x9b2J")

    monkeypatch.setattr(inline, "at_a_terminal", lambda: True)
    monkeypatch.setattr(pdb, "post_mortem", lambda frames: None)
    with pytest.raises(ValueError, match="second line"):
        inline.debugged(fail, (), {}, stop=False)
    assert "ValueError: \\x1b]52;c;aGk=\\x07é\n\tsecond line\\x9b2J\n" in capsys.readouterr().out
