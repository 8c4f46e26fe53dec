"""What names a value: :class:`Artifact`, and :class:`Collected` for a container of them."""

from __future__ import annotations

from typing import Any, ClassVar, Union

import attrs

INLINE_LIMIT = 2048
"""Content of at most this many bytes travels inside the record that names it."""


@attrs.frozen(kw_only=True)
class Artifact:
    """A value that was saved: content-addressed, immutable.

    Parameters
    ----------
    digest
        ``algorithm:hex`` of the content.
    serializer
        Name of the serializer that wrote the content and reads it.
    type
        The value's type, for people: ``numpy.ndarray``.
    bytes
        Size of the content, including that of files it only names.
    inline
        Base64 of the content, where it is small; else the content is a blob in the store.
    items
        Length, of a list that was saved item by item.
    identity
        Digest of what the value is, where equal values have other bytes: a function that travels by value
        has its line numbers in it. It stands for the content in keys.
    code
        Classes and functions that the content names, ``module:qualname``. They count in the key of
        whoever gets the value; see :mod:`upshift.runtime.storage.serializers.contents`.
    plain
        What is in it, as :mod:`upshift.model.plain` has it, where the content itself is not valid JSON.
        For people: no key depends on it.
    """

    kind: ClassVar[str] = "artifact"

    digest: str
    serializer: str
    type: str
    bytes: int
    inline: str | None = None
    items: int | None = None
    code: tuple[str, ...] = ()
    plain: Any = attrs.field(default=None, eq=False)
    identity: str | None = None


@attrs.frozen(kw_only=True)
class Collected:
    """A list, tuple or dictionary whose items were saved each by itself.

    Parameters
    ----------
    form
        ``"list"``, ``"tuple"`` or ``"dict"``.
    items
        The items, in order.
    keys
        The keys of a dictionary, in order.
    """

    kind: ClassVar[str] = "collected"

    form: str = "list"
    items: tuple[Value, ...] = ()
    keys: tuple[str, ...] = ()


Value = Union[Artifact, Collected]
"""An input of a task."""
