"""The graph of reached code: a node for each piece of code, expanded only when it is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Expand = Callable[["Node"], None]


class Node:
    """A piece of code: what it adds to a fingerprint, and what it reaches.

    Parameters
    ----------
    expand
        Fills the node in, the first time that it is reached.
    module
        Whether it is the top level of a module, which runs as a whole when the module is imported.
    """

    __slots__ = ("_expand", "acts", "entries", "module", "next", "reads_source", "reflects", "subclasses")

    def __init__(self, expand: Expand | None = None, *, module: bool = False) -> None:
        self._expand = expand
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

    def expanded(self) -> Node:
        """The node, filled in."""
        expand, self._expand = self._expand, None
        if expand is not None:
            expand(self)
        return self

    def add(self, name: str, digest: str, documented: str = "") -> None:
        """Add an entry to the fingerprint of everything that reaches this node.

        Parameters
        ----------
        name
            For people.
        digest
            Of the code.
        documented
            Of its docstrings as well, if it has any.
        """
        self.entries.append((name, digest, documented))


def reachable(start: Iterable[Node], *, modules: bool = True) -> list[Node]:
    """The nodes that these reach, themselves included; without top levels of modules on request."""
    found = list(dict.fromkeys(start))
    seen = set(found)
    for node in found:  # grows while it is walked
        if node._expand is not None:
            node.expanded()
        for successor in node.next:
            if successor not in seen and (modules or not successor.module):
                seen.add(successor)
                found.append(successor)
    return found
