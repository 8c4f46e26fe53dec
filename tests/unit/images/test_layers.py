"""Layers: deterministic, and nothing in them that leads out of the image."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from upshift.errors import ImageError
from upshift.images.building.packing import TIME, Entry, write_layer


def _members(file: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(file) as archive:
        return {member.name: member for member in archive}


def test_the_same_files_give_the_same_bytes_whatever_their_times_owners_and_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for source, time, mode in ((one, 1, 0o600), (two, 2_000_000_000, 0o666)):
        source.write_text("x = 1\n")
        source.chmod(mode)
        os.utime(source, (time, time))
    first = write_layer(
        [Entry(path="opt/a.py", source=one), Entry(path="opt/b", source=b"b")], tmp_path / "first.tgz"
    )
    second = write_layer(
        [Entry(path="opt/b", source=b"b"), Entry(path="opt/a.py", source=two)], tmp_path / "second.tgz"
    )
    assert first == second
    assert (tmp_path / "first.tgz").read_bytes() == (tmp_path / "second.tgz").read_bytes()


def test_its_digests_are_those_of_what_is_stored_and_of_the_tar(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    layer = write_layer([Entry(path="big", source=content)], tmp_path / "l.tgz")
    stored = (tmp_path / "l.tgz").read_bytes()
    assert layer.bytes == len(stored)
    assert layer.digest == "sha256:" + hashlib.sha256(stored).hexdigest()
    plain = gzip.decompress(stored)
    assert layer.diff_id == "sha256:" + hashlib.sha256(plain).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        read = archive.extractfile("big")
        assert read is not None and read.read() == content


def test_every_folder_has_permissions_and_every_file_is_roots(tmp_path: Path) -> None:
    write_layer(
        [
            Entry(path="opt/bin/tool", source=b"#!/bin/sh\n", executable=True),
            Entry(path="opt/data", source=b""),
        ],
        tmp_path / "l.tgz",
    )
    members = _members(tmp_path / "l.tgz")
    assert {name: oct(member.mode) for name, member in members.items()} == {
        "opt": "0o755",
        "opt/bin": "0o755",
        "opt/bin/tool": "0o755",
        "opt/data": "0o644",
    }
    assert members["opt"].isdir() and members["opt/bin"].isdir()
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {(0, 0, "", "", TIME)}


def test_long_and_foreign_names_come_back(tmp_path: Path) -> None:
    name = "opt/" + "ü" * 60 + "/" + "x" * 200
    write_layer([Entry(path=name, source=b"1")], tmp_path / "l.tgz")
    assert name in _members(tmp_path / "l.tgz")


@pytest.mark.parametrize(
    "path",
    ["../etc/passwd", "/etc/passwd", "opt/../../etc", "opt//a", "./a", "opt/.wh.bash", ".wh..wh..opq/a",
     "a\nb", "", "a\\b"],
)  # fmt: skip
def test_a_path_that_leads_out_of_the_image_or_means_something_else_is_refused(
    path: str, tmp_path: Path
) -> None:
    with pytest.raises(ImageError, match="cannot be in a layer of an image"):
        write_layer([Entry(path=path, source=b"x")], tmp_path / "l.tgz")
    assert not (tmp_path / "l.tgz").exists()


def test_links_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(ImageError, match="cannot be in a layer"):
            write_layer([Entry(path="x", source=tmp_path / name)], tmp_path / f"{name}.tgz")
    with pytest.raises(ImageError, match="not a regular file"):
        write_layer([Entry(path="x", source=Path("/dev/null"))], tmp_path / "device.tgz")


def test_what_is_a_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="a file and a folder"):
        write_layer([Entry(path="a", source=b""), Entry(path="a/b", source=b"")], tmp_path / "l.tgz")
