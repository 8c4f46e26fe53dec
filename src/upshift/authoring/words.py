"""Values in a few words, for who looks at a run later: made once, so that nothing is read back."""

from __future__ import annotations

import datetime
import enum
import re
import reprlib
from pathlib import PurePath
from typing import Any

_LONGEST = 60
"""Characters."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def in_words(value: object) -> str | None:
    """A value in a line: ``0.1``, ``Color.RED``, ``Path('train.csv')``, ``Config(lr=0.1)``.

    None: it says nothing in a line, as a table.
    """
    text = _ADDRESS.sub("", _Words().repr(value))
    if "\n" in text:
        return None
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class _Words(reprlib.Repr):
    """Looks at the beginning of large containers only."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LONGEST * 2
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 20

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, enum.Enum):
            return f"{type(x).__name__}.{x.name}" if x.name else repr(x)
        if isinstance(x, PurePath):
            return f"Path({str(x)!r})"
        if isinstance(x, (datetime.date, datetime.time)):
            return x.isoformat()
        if isinstance(x, type):
            return x.__qualname__
        return super().repr_instance(x, level)
