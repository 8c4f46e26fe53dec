"""After a machine has booted again, what it sealed before is looked at once more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from upshift.errors import BlobDamaged
from upshift.runtime.storage import blobs
from upshift.runtime.storage.store import Store, open_store


class Machine:
    """Opens the store as one machine in one boot."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._address = address
        self._monkeypatch = monkeypatch

    def open(self, machine: str | None, boot: str) -> Store:
        self.be(machine, boot)
        return open_store(self._address)

    def be(self, machine: str | None, boot: str) -> None:
        self._monkeypatch.setattr(blobs, "machine_id", lambda: machine or "unknown")
        self._monkeypatch.setattr(blobs, "boot_id", lambda: boot)


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(str(tmp_path / "store"), monkeypatch)


def damage_unseen(store: Store, digest: str) -> None:
    """What a power loss does: the size and the times are there, the content is not."""
    path = store.blob_path(digest)
    epoch = (path.stat().st_mtime_ns - blobs._BASE) // blobs._EPOCH
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    forged = blobs.Seal(str(store.root))
    forged._epoch, forged._recorded = epoch, True
    with path.open("rb") as file:
        forged.put(file.fileno())


def test_damage_by_a_power_loss_is_found_after_the_next_boot(on: Machine) -> None:
    store = on.open("m", "boot-1")
    digest, size = store.put(b"hello")
    damage_unseen(store, digest)
    on.open("m", "boot-1").check(digest, size)  # the same boot: the seal is believed
    with pytest.raises(BlobDamaged):
        on.open("m", "boot-2").check(digest, size)


def test_after_a_boot_the_digest_is_computed_once_only(on: Machine) -> None:
    store = on.open("m", "boot-1")
    digest, size = store.put(b"hello")
    before = store.blob_path(digest).stat().st_mtime_ns
    on.open("m", "boot-2").check(digest, size)
    after = store.blob_path(digest).stat().st_mtime_ns
    assert after > before
    damage_unseen(store, digest)
    on.open("m", "boot-2").check(digest, size)  # sealed anew in this boot


def test_another_machine_that_joins_breaks_no_seal(on: Machine) -> None:
    digest, size = on.open("m", "boot-1").put(b"hello")
    joined = on.open("n", "boot-9")
    damage_unseen(joined, digest)
    joined.check(digest, size)


def test_a_machine_without_a_name_counts_each_boot(on: Machine) -> None:
    digest, size = on.open(None, "boot-1").put(b"hello")
    store = on.open(None, "boot-2")
    damage_unseen(store, digest)
    with pytest.raises(BlobDamaged):
        store.check(digest, size)


def test_machines_do_not_break_each_others_seals_in_turn(on: Machine) -> None:
    early = on.open("m", "boot-1")
    digest, size = early.put(b"hello")
    on.open("n", "boot-1").put(b"other")
    late = on.open("n", "boot-2")  # raises the epoch while ``early`` is in use
    late.check(digest, size)
    sealed = late.blob_path(digest).stat().st_mtime_ns
    on.be("m", "boot-1")
    early.check(digest, size)
    assert late.blob_path(digest).stat().st_mtime_ns == sealed


@pytest.mark.parametrize("seconds", [0, 1, 946_684_799, 2_000_000_000])
def test_no_ordinary_time_is_a_seal(on: Machine, seconds: int) -> None:
    store = on.open("m", "boot-1")
    digest, _ = store.put(b"hello")
    damage_unseen(store, digest)
    os.utime(store.blob_path(digest), (seconds, seconds))
    with pytest.raises(BlobDamaged):
        store.check(digest)
