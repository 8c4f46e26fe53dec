"""A terminal that a step writes to itself, with ``***`` in place of secrets."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from upshift.runtime.masking import Mask, Masking


@contextlib.contextmanager
def screened(mask: Mask) -> Iterator[None]:
    """For a while let ``sys.stdout`` and ``sys.stderr`` show no secrets.

    What other programs print, or this process itself below Python, does not go through them.
    """
    before = sys.stdout, sys.stderr
    out, err = _Screen(sys.stdout, mask), _Screen(sys.stderr, mask)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for screen in (out, err):
            with contextlib.suppress(Exception):  # the step has closed it
                screen.end()


class _Screen:
    """A text stream that is another one but for what is written."""

    def __init__(self, stream: Any, mask: Mask) -> None:
        self._stream = stream
        self._masking = Masking(mask)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, text: str) -> int:
        self._put(self._masking.feed(text.encode("utf-8", "surrogatepass")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _Bytes:
        return _Bytes(self)

    def end(self) -> None:
        """Write what was held back because it might have become a secret."""
        self._put(self._masking.end())
        self._stream.flush()

    def _put(self, data: bytes) -> None:
        self._stream.write(self._decoder.decode(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Bytes:
    """The binary stream below a text stream, for those that write to it."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen

    def write(self, data: Any) -> int:
        self._screen._put(self._screen._masking.feed(bytes(data)))
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen._stream.buffer, name)
