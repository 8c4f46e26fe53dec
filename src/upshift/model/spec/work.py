"""Whether two keys are of the same work. What a key is made of is the engine's affair."""

from __future__ import annotations

ONCE = "once:"
"""Prefix of the key of a task that is never reused by another run, only kept when its own is resumed."""

DEBUGGED = "debugged:"
"""After :data:`ONCE`, of a task that a person steps through."""

UNCACHED = "cache=False"
"""Why a task runs that is never reused."""

CODE = "+"
"""Before the digest of the code that the inputs name; nothing follows where that code is not at hand."""


def same_work(one: str | None, other: str | None) -> bool:
    """Whether two keys are of the same work, whether or not other runs may reuse it."""
    if one is None or other is None:
        return False
    one, other = one.removeprefix(ONCE), other.removeprefix(ONCE)
    if one.endswith(CODE) or other.endswith(CODE):  # the code is that of the record: it is the same
        return same_inputs(one, other)
    return one == other


def same_inputs(one: str, other: str) -> bool:
    """Whether all but the code that the inputs name is the same."""
    first, second = (key.removeprefix(ONCE).partition(CODE)[0] for key in (one, other))
    return first == second
