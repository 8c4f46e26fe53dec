"""The graph of reached code: a node for each piece of code, expanded only when it is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upshift.authoring.fingerprint.walk import Walk

Expand = Callable[..., None]
"""Called as ``expand(walk, node, *given)``."""


class Node:
    """A piece of code: what it adds to a fingerprint, and what it reaches.

    Parameters
    ----------
    expand, walk, given
        What fills the node in, the first time that it is reached.
    module
        Whether it is the top level of a module, which runs as a whole when the module is imported.
    """

    __slots__ = (
        "_expand",
        "acts",
        "entries",
        "hides",
        "module",
        "next",
        "reads",
        "reads_source",
        "reflects",
        "seen",
        "subclasses",
    )

    def __init__(self, expand: Expand, walk: Walk, *given: Any, module: bool = False) -> None:
        self._expand: tuple[Expand, Walk, tuple[Any, ...]] | None = (expand, walk, given)
        self.entries: list[tuple[str, str, str]] = []
        """Name, digest, and the digest with docstrings if there are any."""
        self.next: list[Node] = []
        self.module = module
        self.reflects = False
        """Whether it reads docstrings or source."""
        self.reads_source = False
        """Whether it reads source text, comments and all."""
        self.subclasses = False
        """Whether it looks for subclasses."""
        self.acts = False
        """Whether calling it may change something that is not the project's own."""
        self.hides = False
        """Whether a value in it may hold data that cannot be seen."""
        self.reads = False
        """Whether it may read a file."""
        self.seen = False
        """Whether it is a value of which everything is seen, wherever it is from."""

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
            Of the code; empty if only the docstring is added.
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
        if node.expanded().seen and making:
            continue
        for successor in node.next:
            if successor not in seen and (modules or not successor.module):
                seen.add(successor)
                found.append(successor)
    return found
