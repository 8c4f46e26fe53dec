"""Which source may read a file, as far as names tell.

A value that cannot be seen is as its source says, unless the source takes it from a file.
"""

from __future__ import annotations

import ast

_READERS = frozenset(
    {
        "open", "input", "read", "readline", "readlines", "load", "loadtxt", "genfromtxt", "fromfile",
        "memmap", "get_data",
    }
)  # fmt: skip
"""Names of what reads files, with those that begin with ``read_``."""


def is_reader(name: str) -> bool:
    """Whether what has this name may read a file."""
    return name in _READERS or name.startswith("read_")


def mentions_reading(node: ast.AST) -> bool:
    """Whether a name in an expression or statement is that of what reads files."""
    for part in ast.walk(node):
        name = part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
        if is_reader(name):
            return True
    return False


def made_reading(node: ast.AST) -> bool:
    """Whether a definition may read a file when it runs: the bodies of functions do not."""
    if isinstance(node, ast.ClassDef):
        return any(map(made_reading, (*node.decorator_list, *node.bases, *node.keywords, *node.body)))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = (default for default in node.args.kw_defaults if default is not None)
        return any(map(mentions_reading, (*node.decorator_list, *node.args.defaults, *defaults)))
    return mentions_reading(node)
