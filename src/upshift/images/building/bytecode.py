"""Compiles Python files, the same bytes each time: a program of its own, which imports nothing of Upshift.

Reads lines ``FILE<tab>PATH IN THE IMAGE`` and puts the bytecode of each beside its file. Anything that
is not valid Python of this version is left out. The form is that of PEP 552 without a check: no time is
in it, and an import compares nothing. Format 2 of marshal, since later ones depend on what else is in
memory (https://github.com/python/cpython/issues/78274).
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys

_UNCHECKED = (1).to_bytes(4, "little")
_FORMAT = 2


def compiled_path(file: str) -> str:
    return importlib.util.cache_from_source(file, optimization="")


def compile_file(file: str, path: str) -> None:
    """Compile a file, which will be at this path."""
    with open(file, "rb") as opened:
        source = opened.read()
    try:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError):
        return
    data = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
    target = compiled_path(file)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as opened:
        opened.write(data + marshal.dumps(code, _FORMAT))


if __name__ == "__main__":
    for line in sys.stdin.buffer.read().decode("utf-8", "surrogateescape").splitlines():
        compile_file(*line.split("\t"))
