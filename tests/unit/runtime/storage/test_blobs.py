"""Content goes in once, stays what it was, and what is wrong with it is noticed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import stat
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from upshift.errors import BlobDamaged, BlobMissing
from upshift.runtime.storage import blobs
from upshift.runtime.storage import digest as digests
from upshift.runtime.storage.blobs import Blobs, Seal
from upshift.runtime.storage.store import Store, open_store

LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB: written in pieces, hashed meanwhile


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def change(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def leftovers(store: Store) -> list[str]:
    return os.listdir(store.root / "tmp")


def test_opening_a_store_writes_nothing(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content", [b"", b"small", bytes(300_000), LARGE], ids=["empty", "small", "mapped", "large"]
)
def test_what_was_put_is_read_back(store: Store, content: bytes) -> None:
    digest, size = store.put(content)
    assert size == len(content)
    assert digest == digests.digest_of(content)
    store.check(digest, size)
    assert bytes(store.read(digest, size)) == content
    assert leftovers(store) == []


def test_several_buffers_are_one_blob(store: Store) -> None:
    assert store.put(b"he", memoryview(b"ll"), bytearray(b"o")) == store.put(b"hello")
    assert store.put(LARGE[:7], LARGE[7:]) == store.put(LARGE)


def test_a_file_and_its_content_are_the_same_blob(store: Store, tmp_path: Path) -> None:
    for content in (b"", b"hello", LARGE):
        file = tmp_path / "file"
        file.write_bytes(content)
        assert store.put_file(file) == store.put(content)
    assert leftovers(store) == []


def test_a_blob_lies_under_its_digest_and_is_read_only(store: Store) -> None:
    digest, _ = store.put(b"hello")
    algorithm, hexadecimal = digest.split(":")
    path = store.blob_path(digest)
    assert path == store.root / "blobs" / algorithm / hexadecimal[:2] / hexadecimal[2:]
    assert stat.S_IMODE(path.stat().st_mode) & 0o222 == 0


def test_equal_content_is_stored_once(store: Store) -> None:
    digest, _ = store.put(LARGE)
    before = store.blob_path(digest).stat().st_ino
    store.put(LARGE)
    assert store.blob_path(digest).stat().st_ino == before


def test_content_read_is_private(store: Store) -> None:
    for content in (b"hello", LARGE):
        digest, _ = store.put(content)
        store.read(digest)[:3] = b"BAD"
        assert bytes(store.read(digest)) == content
        store.compare(digest)


def test_a_missing_blob_is_named(store: Store) -> None:
    digest = digests.digest_of(b"never stored")
    with pytest.raises(BlobMissing, match="not in the store") as caught:
        store.check(digest)
    assert digest in str(caught.value)
    assert "runs again" in str(caught.value)


def test_a_blob_of_another_size_is_damaged(store: Store) -> None:
    digest, size = store.put(b"hello")
    change(store.blob_path(digest), b"hell")
    with pytest.raises(BlobDamaged, match="has 4 bytes instead of 5"):
        store.check(digest, size)


def test_a_blob_that_was_changed_keeping_its_size_is_damaged(store: Store) -> None:
    digest, size = store.put(b"hello")
    change(store.blob_path(digest), b"jello")
    with pytest.raises(BlobDamaged, match="its content has the digest"):
        store.check(digest, size)
    with pytest.raises(BlobDamaged):
        store.read(digest, size)


def test_a_damaged_blob_is_replaced_when_its_content_is_put_again(store: Store, tmp_path: Path) -> None:
    for content, other in ((b"hello", b"jello"), (LARGE, LARGE[::-1])):
        file = tmp_path / "file"
        file.write_bytes(content)
        for put in (lambda content=content: store.put(content), lambda file=file: store.put_file(file)):
            digest, size = put()
            change(store.blob_path(digest), other)
            put()
            store.compare(digest)
            store.check(digest, size)


def test_damage_behind_an_intact_seal_is_found_by_comparing_and_then_replaced(store: Store) -> None:
    digest, size = store.put(b"hello")
    path = store.blob_path(digest)
    change(path, b"jello")
    with path.open("rb") as file:
        Seal(str(store.root)).put(file.fileno())
    store.check(digest, size)  # this is what a stamp cannot see
    with pytest.raises(BlobDamaged):
        store.compare(digest)
    store.put(b"hello")
    store.compare(digest)


def test_a_broken_seal_over_right_content_is_mended(store: Store) -> None:
    digest, size = store.put(b"hello")
    path, blobs = store.blob_path(digest), Seal(str(store.root))
    os.utime(path)
    assert not blobs.holds(path.stat())
    store.check(digest, size)
    assert blobs.holds(path.stat())


def test_without_blake3_sha256_is_used_and_blake3_blobs_are_still_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    strong, size = store.put(b"hello")
    monkeypatch.setattr(digests, "_blake3", lambda: None)
    digest, _ = store.put(b"hello")
    assert digest == "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert bytes(store.read(digest)) == b"hello"
    os.utime(store.blob_path(strong))  # cannot be compared here: size and name have to do
    assert bytes(store.read(strong, size)) == b"hello"


def test_a_digest_is_told_from_other_text() -> None:
    for text in ("", "blake3:", "md5:" + "0" * 64, "sha256:" + "0" * 63, "blake3:../../../etc/passwd"):
        with pytest.raises(ValueError, match="is not a digest"):
            digests.split(text)


def test_durability_power_stores_the_same(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), durability="power")
    for content in (b"hello", LARGE):
        digest, size = store.put(content)
        store.check(digest, size)


def _put_many(address: str) -> None:
    store = open_store(address)
    for number in range(100):
        store.put(b"%d" % number)


def test_many_processes_may_put_the_same_content_at_once(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_many, args=(store.address,)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    for number in range(100):
        store.compare(digests.digest_of(b"%d" % number))
    assert leftovers(store) == []


def test_a_mapping_too_many_for_the_limit_on_open_files_works(store: Store) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    digest, _ = store.put(bytes(300_000))
    wanted = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        assert len({len(store.read(digest)) for _ in [store.read(digest) for _ in range(40)]}) == 1
        kept = [store.read(digest) for _ in range(60)]
        assert all(len(content) == 300_000 for content in kept)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _put_until_killed(address: str, done: Connection) -> None:
    store = open_store(address)
    while True:
        done.send(store.put(os.urandom(len(LARGE)))[0])


def test_a_writer_that_is_killed_leaves_no_half_written_blob(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    for puts in (1, 2, 3):
        receive, send = context.Pipe(duplex=False)
        writer = context.Process(target=_put_until_killed, args=(store.address, send))
        writer.start()
        send.close()
        recorded = [receive.recv() for _ in range(puts)]
        writer.kill()
        writer.join()
        for digest in recorded:
            store.check(digest, len(LARGE))
    for blob in (store.root / "blobs").glob("*/*/*"):
        store.compare(f"{blob.parent.parent.name}:{blob.parent.name}{blob.name}")


def flip(store: Store, digest: str) -> None:
    """Change a byte of a blob, and set its times back, as bit rot would leave them."""
    path = store.blob_path(digest)
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(0o444)
    while blobs._changed(path.stat()) == blobs._changed(before):  # the clock has not gone on yet
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("size", [10, 1 << 20, 8 << 20])
def test_a_byte_that_changes_is_found_though_all_times_are_kept(store: Store, size: int) -> None:
    digest, _ = store.put(bytes(size))
    flip(store, digest)
    with pytest.raises(BlobDamaged):
        store.check(digest, size)
    with pytest.raises(BlobDamaged):
        store.read(digest)
    assert store.put(bytes(size)) == (digest, size)
    assert bytes(store.read(digest)) == bytes(size)


def test_what_is_new_is_not_read_again_to_compare_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing over a large value costs one digest, not two."""
    digest, size = store.put(bytes(8 << 20))
    monkeypatch.setattr(Blobs, "compare", lambda *_: pytest.fail("it was compared"))
    assert store.read(digest, size).nbytes == size
    assert open_store(store.address).read(digest, size).nbytes == size


def test_a_store_can_be_opened_to_compare_always(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, _ = store.put(bytes(8 << 20))
    monkeypatch.setattr(Seal, "holds", lambda *_: True)  # a disk that returns other bytes than were written
    flip(store, digest)
    store.check(digest)
    always = open_store(store.address, verify="always")
    with pytest.raises(BlobDamaged):
        always.check(digest)
    with pytest.raises(BlobDamaged):
        always.read(digest)


def test_a_small_value_is_compared_whenever_it_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, _ = store.put(b"hello")
    monkeypatch.setattr(Seal, "holds", lambda *_: True)
    flip(store, digest)
    with pytest.raises(BlobDamaged):
        store.read(digest)


def test_where_a_file_system_has_no_time_of_change_blobs_are_sealed_without(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0, 10**9)
    monkeypatch.setattr(blobs, "_changed", lambda _: next(times))
    digest, _ = store.put(bytes(8 << 20))
    monkeypatch.setattr(Blobs, "compare", lambda *_: pytest.fail("it was compared"))
    store.check(digest)
