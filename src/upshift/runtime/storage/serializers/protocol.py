"""The serializer protocol: all that the store asks of a kind of value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from upshift.runtime.storage.digest import Bytes

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store


class Buffers(list[Bytes]):
    """Buffers of a serializer that knows better than the value's type which code the value names.

    Attributes
    ----------
    code
        As :func:`~upshift.runtime.storage.serializers.contents.code_names` gives it.
    """

    code: tuple[str, ...] = ()


class Serializer(Protocol):
    """Turns values of one kind to bytes and back.

    A third party subclasses it and registers the class under the entry point group
    ``upshift.serializers``. The entry point's name is the full name of the type that it is for, or
    of a module or package that defines such types::

        [project.entry-points."upshift.serializers"]
        polars = "upshift_polars:PolarsSerializer"

    It is imported only when a value of such a type is saved or read, and is asked before the
    serializers that come with Upshift. Equal values should give equal bytes: whether a later step
    has to run again is decided by them.
    """

    name: str
    """What an artifact names it by. That of a third party is taken from its entry point."""
    names_blobs: bool = False
    """Whether its content names further blobs: then it has :meth:`references`."""

    def accepts(self, value: object) -> bool:
        """Whether it is for this value; told by the type, soon."""

    def dump(self, value: object, store: Store) -> Sequence[Bytes] | None:
        """The value as contiguous buffers, which are written one after the other.

        Give views of the value's own memory where there is much of it. None: this very value cannot
        be represented without loss, and the next serializer is asked.
        """

    def load(self, content: memoryview, store: Store) -> object:
        """The value. ``content`` is private memory that may be kept, and written to.

        It is aligned to 64 bytes where it is large.
        """

    def references(self, content: memoryview) -> Iterable[tuple[str, int]]:
        """Digest and size of the blobs that the content names, put into the store by ``dump``."""
        return ()
