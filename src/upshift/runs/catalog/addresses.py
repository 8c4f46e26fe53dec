"""What a catalog calls stores: one that machines share names buckets, not the folders that follow them."""

from __future__ import annotations

import functools
from pathlib import Path

from upshift.model.checks import in_bucket
from upshift.model.home import home
from upshift.runtime.storage.replica import replica_at, replica_of


class Addresses:
    """Translates the addresses of stores between this machine and its catalog, which may be shared."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared

    def there(self, store: str) -> str:
        """What the catalog calls a store of this machine."""
        return _named(store) if self.shared else store

    def here(self, address: str) -> str:
        """The folder on this machine of a store in the catalog."""
        return _folder(address, str(home())) if self.shared and in_bucket(address) else address


@functools.lru_cache(maxsize=64)
def _named(store: str) -> str:
    replica = replica_at(store)
    return store if replica is None else replica.address


@functools.lru_cache(maxsize=64)
def _folder(address: str, at: str) -> str:
    replica = replica_of(address)
    replica.mark()
    return str(Path(replica.root))
