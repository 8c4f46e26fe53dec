"""``upshift.S3``: what is expected here is what Metaflow 2.19.39 does, but for the words of errors."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import upshift
from buckets import BucketHere
from project import Project
from upshift import S3, NotFound, S3GetObject, S3PutObject, StoreError, StoreUnavailable, UsageError
from upshift.cli.other_tools import migrated


@pytest.fixture
def root(bucket: BucketHere) -> str:
    return f"{bucket.address}/team"


@pytest.fixture
def tree(root: str) -> str:
    """The address of some objects."""
    with S3(s3root=root) as s3:
        s3.put_many([("a/0.txt", "zero"), ("a/b/1.txt", b"one"), ("a/c/d/2.txt", "two"), ("f/3.txt", "")])
    return root


def test_a_value_is_read_as_it_was_written(root: str) -> None:
    with S3(s3root=root) as s3:
        assert (
            s3.put("/scores.txt", "é", content_type="text/plain", metadata={"k": [1]}) == f"{root}/scores.txt"
        )
        found = s3.get("scores.txt")
        assert (found.text, found.blob, found.size) == ("é", "é".encode(), 2)
        assert (found.key, found.url, found.prefix) == ("scores.txt", f"{root}/scores.txt", root)
        assert (found.content_type, found.metadata, found.exists) == ("text/plain", {"k": [1]}, True)
        assert found.range_info == (2, 0, 2)
        assert found.last_modified is not None
        path = Path(str(found.path))
        assert path.read_bytes() == found.blob
        assert not s3.get("scores.txt", return_info=False).has_info
    assert not path.exists()


def test_without_a_root_keys_are_addresses(tree: str) -> None:
    with S3() as s3:
        found = s3.get(f"{tree}/a/0.txt")
        assert (found.key, found.text) == (f"{tree}/a/0.txt", "zero")
        assert [one.key for one in s3.list_recursive([f"{tree}/a/b"])] == ["1.txt"]
        with pytest.raises(UsageError, match=r"'a/0\.txt' is not an address of S3"):
            s3.get("a/0.txt")
        with pytest.raises(UsageError, match="this S3 has no root"):
            s3.get_all()


def test_several_come_in_the_order_they_were_asked_for(tree: str) -> None:
    with S3(s3root=tree) as s3:
        assert [one.text for one in s3.get_many(["a/b/1.txt", "a/0.txt", "a/b/1.txt"])] == [
            "one",
            "zero",
            "one",
        ]
        assert s3.get_many([]) == []
        first, second = s3.get_many(["nothing", "a/0.txt"], return_missing=True)
        assert (first.exists, first.downloaded, first.text, second.text) == (False, False, None, "zero")


def test_a_part_of_an_object_is_read(root: str) -> None:
    with S3(s3root=root) as s3:
        s3.put("digits", "0123456789")
        parts = [(2, 3), (7, None), (0, -4), (8, 99)]
        found = s3.get_many([S3GetObject("digits", offset, length) for offset, length in parts])
        assert [one.text for one in found] == ["234", "789", "6789", "89"]
        assert [one.range_info for one in found] == [(10, 2, 3), (10, 7, 3), (10, 6, 4), (10, 8, 2)]
        with pytest.raises(StoreError, match="has no bytes 10-"):
            s3.get(S3GetObject("digits", 10, 1))


def test_all_below_a_prefix_is_read(tree: str) -> None:
    with S3(s3root=tree) as s3:
        everything = s3.get_all()
        assert [one.key for one in everything] == ["a/0.txt", "a/b/1.txt", "a/c/d/2.txt", "f/3.txt"]
        assert [one.text for one in everything] == ["zero", "one", "two", ""]
        assert [one.key for one in s3.get_recursive(["f", "a/c"])] == ["3.txt", "d/2.txt"]
        (described,) = s3.get_recursive(["a/c"], return_info=True)
        assert (described.key, described.content_type) == ("a/c/d/2.txt", "binary/octet-stream")


def test_one_level_is_listed_or_all(tree: str) -> None:
    with S3(s3root=tree) as s3:
        level = s3.list_paths(["a"])
        assert [(one.key, one.exists, one.size) for one in level] == [
            ("0.txt", True, 4),
            ("b", False, None),
            ("c", False, None),
        ]
        assert [one.url for one in level] == [f"{tree}/a/0.txt", f"{tree}/a/b/", f"{tree}/a/c/"]
        assert [one.key for one in s3.list_paths()] == ["a", "f"]
        assert [one.key for one in s3.list_recursive(["a", "f"])] == [
            "0.txt",
            "b/1.txt",
            "c/d/2.txt",
            "3.txt",
        ]
        assert s3.list_paths(["nothing"]) == s3.list_recursive(["a/0"]) == []


def test_what_is_known_of_an_object_is_told_without_reading_it(tree: str) -> None:
    with S3(s3root=tree) as s3:
        s3.put("kept", b"12", metadata={"a": 1})
        found, missing = s3.info_many(["kept", "nothing"], return_missing=True)
        assert (found.size, found.metadata, found.downloaded) == (2, {"a": 1}, False)
        assert (missing.exists, missing.key) == (False, "nothing")


def test_what_is_there_can_be_left_as_it_is(tree: str) -> None:
    with S3(s3root=tree) as s3:
        s3.put("a/0.txt", "other", overwrite=False)
        assert s3.put_many([("a/0.txt", "other"), ("new", "n")], overwrite=False) == [("new", f"{tree}/new")]
        assert s3.get("a/0.txt").text == "zero"


def test_files_and_open_files_are_written(root: str, tmp_path: Path) -> None:
    large, empty = tmp_path / "large", tmp_path / "empty"
    large.write_bytes(bytes(range(256)) * (70 << 10))  # several parts
    empty.touch()
    with S3(s3root=root) as s3:
        files = [
            ("large", str(large)),
            S3PutObject("empty", path=str(empty), content_type="text/x", metadata={"m": 1}),
        ]
        assert [key for key, _ in s3.put_files(files)] == ["large", "empty"]
        read = io.BytesIO(b"skipped? no")
        read.seek(3)
        s3.put("open", read)
        assert s3.get("large").blob == large.read_bytes()
        found = s3.get("empty")
        assert (found.blob, found.content_type, found.metadata) == (b"", "text/x", {"m": 1})
        assert s3.get("open").text == "skipped? no"


def test_objects_are_encrypted_where_that_is_asked_for(root: str, bucket: BucketHere) -> None:
    with S3(s3root=root, encryption="AES256") as s3:
        s3.put("secret", "x")
        assert s3.get("secret").encryption == "AES256"


def test_what_is_wrong_is_said_with_the_line(root: str, tmp_path: Path) -> None:
    with S3(s3root=root) as s3:
        with pytest.raises(NotFound, match=r"there is no object .*/nothing") as absent:
            s3.get_many(["nothing"])
        assert "test_s3_client.py:" in str(absent.value.where)
        with pytest.raises(UsageError, match="k: 4 is no text, no bytes"):
            s3.put("k", 4)
        with pytest.raises(NotFound, match="No such file"):
            s3.put_files([("k", str(tmp_path / "nothing"))])
        with pytest.raises(UsageError, match="is an address, and this S3 has the root"):
            s3.get(f"{root}/k")
    with S3() as s3, pytest.raises(StoreUnavailable, match="there is no bucket 'tests-nowhere'"):
        s3.get("s3://tests-nowhere/k")
    with pytest.raises(UsageError, match="S3 has no option 'role'"):
        S3(role="arn:aws:iam::1:role/x")
    with pytest.raises(UsageError, match="is not an address of S3"):
        S3(s3root="/tmp/here")


FLOW = """
from metaflow import FlowSpec, S3, step

class Keeping(FlowSpec):
    @step
    def start(self):
        with S3(run=self) as s3:
            self.url = s3.put("note", "from a step")
        self.next(self.end)

    @step
    def end(self):
        with S3(run=self) as s3:
            print(s3.get("note").text)
"""


def test_a_run_has_a_place_of_its_own(
    project: Project, bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, unmapped = migrated(FLOW, "flow.py")
    assert not unmapped
    project.write(source, "flow.py", header="")
    told = project.upshift("run", "flow.py", expect=1)
    assert "S3(run=…) has no bucket" in told.text
    assert "flow.py:7" in told.text
    project.write(f's3root = "{bucket.address}/data"\n', "upshift.toml", header="")
    assert "[end] from a step" in project.upshift("run", "flow.py").text
    run = upshift.Flow("Keeping").latest_run
    assert run is not None
    assert run.data.url == f"{bucket.address}/data/Keeping/{run.id}/note"
    monkeypatch.chdir(project.folder)
    with S3(run=run) as s3:
        assert s3.get("note").text == "from a step"
    with (
        S3(run=run, bucket="other", prefix="x/") as s3,
        pytest.raises(StoreUnavailable, match="bucket 'other'"),
    ):
        s3.get("note")
    with pytest.raises(UsageError, match="no step is running here"):
        S3(run=upshift.current)
    project.write(f'store = "{bucket.address}/runs-of-all"\n', "upshift.toml", header="")
    with S3(run=run) as s3:
        assert s3.put("k", "v") == f"{bucket.address}/runs-of-all/data/Keeping/{run.id}/k"
