"""Digests of files are those of their content, also where they are remembered."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from upshift.images.recipes.reading import digest_of


@pytest.mark.parametrize("size", [0, 10, 3 << 20])
def test_a_digest_follows_the_content(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    for byte in (b"a", b"b"):
        path.write_bytes(byte * size)
        os.utime(path, (1, 1))
        expected = "sha256:" + hashlib.sha256(byte * size).hexdigest()
        assert digest_of(path) == expected
        assert digest_of(path) == expected


def test_a_large_file_that_has_been_as_it_is_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * (3 << 20))
    monkeypatch.setattr("upshift.code.memo.time.time_ns", lambda: path.stat().st_ctime_ns + 10**10)
    digest = digest_of(path)
    monkeypatch.setattr("upshift.images.recipes.reading._hashed", lambda path: "sha256:of another file")
    assert digest_of(path) == digest
    path.write_bytes(b"b" * (3 << 20))
    assert digest_of(path) == "sha256:of another file"
