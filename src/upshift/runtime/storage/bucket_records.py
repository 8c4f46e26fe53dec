"""Records of attempts whose nodes share a bucket and nothing else: what is there counts, and is kept here."""

from __future__ import annotations

from upshift.runtime.storage.records import Records
from upshift.runtime.storage.replica import Replica


class BucketRecords(Records):
    """The records of one store: in its bucket, and what was read of them in the folder that follows it."""

    def __init__(self, root: str, replica: Replica, *, power: bool) -> None:
        super().__init__(root, power=power)
        self._replica = replica

    def write(self, relative: str, content: bytes) -> None:
        self._replica.objects.put(relative, content)
        self.keep(relative, content)

    def create(self, relative: str, content: bytes) -> bool:
        created = self._replica.objects.put(relative, content, absent=True) is not None
        if created:
            self.keep(relative, content)
        return created

    def read(self, relative: str) -> bytes | None:
        here = super().read(relative)
        if here is not None:
            return here
        found = self._replica.objects.get(relative)
        if found is None:
            return None
        content = bytes(found.data)
        self.keep(relative, content)
        return content

    def remove(self, relative: str) -> None:
        if super().read(relative) is not None:  # who has not written it, nor read it, need not remove it
            self._replica.objects.delete([relative])
        super().remove(relative)

    def names(self, relative: str) -> list[str]:
        listed = self._replica.objects.list(f"{relative}/")
        return sorted({meta.key[len(relative) + 1 :].partition("/")[0] for meta in listed})

    def keep(self, relative: str, content: bytes) -> None:
        """Have a record here that the bucket has."""
        super().write(relative, content)
