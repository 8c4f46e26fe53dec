"""One digest of several texts."""

from __future__ import annotations

from collections.abc import Iterable

from upshift.runtime.storage.digest import digest_of


def combined(parts: Iterable[str]) -> str:
    """The digest of texts, in order; none of them may be two lines that could be two texts."""
    return digest_of("\n".join(parts).encode("utf-8", "surrogatepass"))
