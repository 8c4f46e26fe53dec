"""``.gitignore`` patterns, as git itself reads them.

Git decides entry by entry: a folder first, then, unless it is ignored, what is in it, and in each case
the last pattern that fits *that entry* wins. The usual libraries fit a pattern to everything below a
folder, too, so that ``!/*`` brings back what ``build/`` has left out; and they read characters where
git reads bytes. Hence this small matcher; its tests compare it with git. Sources: gitignore(5), and
``dir.c`` and ``wildmatch.c`` of git for what the manual leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ANY = b"[^/]"
_NEVER = b"(?!)"
_CLASSES = {
    b"alnum": rb"[0-9A-Za-z]",
    b"alpha": rb"[A-Za-z]",
    b"blank": rb"[ \t]",
    b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]",
    b"graph": rb"[\x21-\x7e]",
    b"lower": rb"[a-z]",
    b"print": rb"[\x20-\x7e]",
    b"punct": rb"[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]",
    b"space": rb"[ \t\n\r\f\v]",
    b"upper": rb"[A-Z]",
    b"xdigit": rb"[0-9A-Fa-f]",
}


class Pattern:
    """One line of an ignore file.

    Attributes
    ----------
    negated
        Whether what fits is brought back, instead of left out.
    """

    def __init__(self, line: bytes) -> None:  # the line, neither empty nor a comment
        self.negated = line.startswith(b"!")
        line = line[self.negated :]
        self._folders_only = line.endswith(b"/")
        if self._folders_only:
            line = line[:-1]
        self._by_name = b"/" not in line
        self._regex = re.compile(_translated(line.removeprefix(b"/")), re.DOTALL)

    def fits(
        self,
        path: bytes,  # from the folder of the ignore file, with ``/`` between names
        name: bytes,  # the last of them
        is_folder: bool,  # a symbolic link to a folder is none
    ) -> bool:
        """Whether the pattern matches this entry itself."""
        if self._folders_only and not is_folder:
            return False
        return self._regex.fullmatch(name if self._by_name else path) is not None


class IgnoreFile:
    """The patterns of one ignore file."""

    def __init__(self, content: bytes) -> None:
        self._patterns = [Pattern(line) for line in _lines(content)][::-1]

    def says(
        self,
        path: bytes,  # from the folder of the ignore file, with ``/`` between names
        *,
        is_folder: bool,
    ) -> bool | None:
        """Whether an entry is ignored; None where no pattern fits."""
        name = path.rpartition(b"/")[2]
        for pattern in self._patterns:
            if pattern.fits(path, name, is_folder):
                return not pattern.negated
        return None


def _lines(content: bytes) -> Iterator[bytes]:
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = _without_trailing_spaces(line.removesuffix(b"\r"))
        if line and not line.startswith(b"#"):
            yield line


def _without_trailing_spaces(line: bytes) -> bytes:
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return kept + b" " if backslashes % 2 and len(kept) < len(line) else kept


def _translated(glob: bytes) -> bytes:
    """The regular expression, for a full match, of a glob with ``**``."""
    regex = b""
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"*":
            piece, at = _stars(glob, at)
        elif char == b"[":
            piece, at = _character_class(glob, at + 1)
        elif char == b"?":
            piece, at = _ANY, at + 1
        elif char == b"\\":
            at += 1
            piece = re.escape(glob[at : at + 1]) if at < len(glob) else _NEVER
            at += 1
        else:
            piece, at = re.escape(char), at + 1
        regex += piece
    return regex


def _stars(glob: bytes, start: int) -> tuple[bytes, int]:
    end = start
    while glob[end : end + 1] == b"*":
        end += 1
    whole_name = glob[start - 1 : start] in (b"", b"/") and glob[end : end + 1] in (b"", b"/")
    if end - start == 1 or not whole_name:
        return _ANY + b"*", end
    if end == len(glob):
        return b".*", end
    return b"(?:.*/)?", end + 1


def _character_class(glob: bytes, at: int) -> tuple[bytes, int]:
    """A ``[…]`` whose inside begins at ``at``; not closed, or with an unknown class, it fits nothing."""
    nothing = (_NEVER, len(glob))
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    before: int | None = None
    first = True
    while first or glob[at : at + 1] != b"]":
        first = False
        if at >= len(glob):
            return nothing
        if before is not None and glob[at : at + 1] == b"-" and glob[at + 1 : at + 2] not in (b"", b"]"):
            last, at = _literal(glob, at + 1)
            if last is None:
                return nothing
            members.update(range(before, last + 1))
            before = None
        elif glob.startswith(b"[:", at) and (named := _named_class(glob, at)) is not None:
            name, at = named
            if name not in _CLASSES:
                return nothing
            members.update(byte for byte in range(256) if re.match(_CLASSES[name], bytes([byte])))
            before = None
        else:
            before, at = _literal(glob, at)
            if before is None:
                return nothing
            members.add(before)
    chosen = (set(range(256)) - members if negated else members) - {ord("/")}
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(chosen)) + b"]" if chosen else _NEVER, at + 1


def _literal(glob: bytes, at: int) -> tuple[int | None, int]:
    """The byte at ``at``, behind a backslash or not, and where it ends; None where there is none."""
    at += glob[at : at + 1] == b"\\"
    return (glob[at], at + 1) if at < len(glob) else (None, at)


def _named_class(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """The name of a ``[:name:]`` and where it ends; None where a plain ``[`` is meant."""
    end = glob.find(b"]", at + 2)
    if end < 0:
        return b"", len(glob)
    return (glob[at + 2 : end - 1], end + 1) if end - at > 2 and glob[end - 1 : end] == b":" else None
