"""One argument of a launcher: :class:`Argument`."""

from __future__ import annotations

from typing import Any

import attrs

INT, FLOAT, TEXT, LIST = "int", "float", "text", "list"
FLAG = "flag"
"""True or False; on a command line it stands by itself."""
SWITCH = "switch"
"""True or False; on a command line it takes the text ``true`` or ``false``."""
WORD = "word"
"""True, False or a text; on a command line a text in any case."""


@attrs.frozen
class Argument:
    """What a launcher's parser says of one of its arguments."""

    kind: str  # "int", "float", "text", "list", "flag", "switch" or "word"
    default: Any = None  # what it is where it is not given
    choices: tuple[str, ...] = ()  # the only values that it takes; empty: any of its kind
