"""The graph of reached code: a node for each piece of code, expanded only when it is reached."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

Expand = Callable[..., None]
"""Called as ``expand(walk, node, *given)``."""

MODULE = 1
"""The node is the top level of a module, which runs as a whole when the module is imported."""
ACTS = 2
"""Calling it may change something that is not the project's own."""
HIDES = 4
"""A value in it may hold data that cannot be seen."""
READS = 8
"""It may read a file."""
SEEN = 16
"""It is a value of which everything is seen, wherever it is from."""
REFLECTS = 32
"""It reads docstrings or source."""
READS_SOURCE = 64
"""It reads source text, comments and all."""
SUBCLASSES = 128
"""It looks for subclasses."""


class Node:
    """A piece of code: what it adds to a fingerprint, and what it reaches.

    Parameters
    ----------
    expand, walk, given
        What fills the node in, the first time that it is reached.
    marks
        What is special about it: some of the constants above.
    """

    __slots__ = ("_expand", "entries", "marks", "next")

    def __init__(self, expand: Expand, walk: Walk, *given: Any, marks: int = 0) -> None:
        self._expand: tuple[Expand, Walk, tuple[Any, ...]] | None = (expand, walk, given)
        self.entries: list[tuple[str, str, str]] = []
        """Name; digest, version, or what it is called; and the digest with docstrings if there are any."""
        self.next: list[Node] = []
        self.marks = marks

    def expanded(self) -> Node:
        """The node, filled in."""
        if self._expand is not None:
            (expand, walk, given), self._expand = self._expand, None
            expand(walk, self, *given)
        return self

    def add(self, name: str, digest: str, documented: str = "") -> None:
        """Add an entry to the fingerprint of everything that reaches this node.

        Parameters
        ----------
        name
            For people.
        digest
            Of the code, or whatever else tells it apart; empty if only the docstring is added.
        documented
            Of its docstrings as well, if it has any.
        """
        self.entries.append((name, digest, documented))


def reachable(start: Iterable[Node], *, modules: bool = True, making: bool = False) -> list[Node]:
    """The nodes that these reach, themselves included.

    Parameters
    ----------
    modules
        Whether top levels of modules are among them.
    making
        Whether only what makes a value is wanted: what others are made of that are seen is not.
    """
    found = list(dict.fromkeys(start))
    seen = set(found)
    for node in found:  # grows while it is walked
        if node.expanded().marks & SEEN and making:
            continue
        for successor in node.next:
            if successor not in seen and (modules or not successor.marks & MODULE):
                seen.add(successor)
                found.append(successor)
    return found


def marks_of(nodes: Iterable[Node]) -> int:
    """The marks that any of these nodes has."""
    return functools.reduce(operator.or_, map(operator.attrgetter("marks"), nodes), 0)
