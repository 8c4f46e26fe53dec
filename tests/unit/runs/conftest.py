"""Machines with a store in the same bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from machines import Bucket, Machine

from upshift.runtime.storage.store import open_store


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Machine]:
    """Machines by name; all have the same bucket."""
    bucket = Bucket(tmp_path / "bucket")

    def make(name: str) -> Machine:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        (root / "bucket").write_text(f"{bucket.root}\n")
        store = open_store(str(root))
        assert store.replica is not None
        store.replica.objects = bucket
        store.replica.prepare()
        return Machine(store, bucket)

    return make
