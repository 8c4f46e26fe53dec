"""The list of an array: which of its elements has the task of which spec.

::

    runs/RUN/tasks/STEP/NAME.array      seconds, file names of specs by element; in a bucket the specs, too

In a folder each spec is a file. In a bucket each would be a request to put it and another one to read it. So
there the list has the specs of tasks that are tried for the first time, compressed, as they are much alike.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import NamedTuple

ENDING = ".array"


class ArrayList(NamedTuple):
    """What a list says."""

    share: float  # seconds in which an element takes further tasks
    names: Mapping[int, str]  # file names of specs, by element
    specs: Mapping[str, str] = {}  # the texts of those that are nowhere else, by file name


def pack(listed: ArrayList) -> bytes:
    """The content of a list."""
    said = {"share": listed.share, "specs": listed.names}
    if not listed.specs:
        return json.dumps(said).encode()
    return zlib.compress(json.dumps({**said, "texts": listed.specs}).encode())


def unpack(content: bytes) -> ArrayList:
    """What the content of a list says. Raises ``ValueError`` where it is none."""
    try:
        said = json.loads(content if content.startswith(b"{") else zlib.decompress(content))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    names = {int(number): name for number, name in said["specs"].items()}
    return ArrayList(float(said["share"]), names, said.get("texts", {}))
