"""What every place for objects can do: a folder, and a bucket."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from buckets import BucketHere
from upshift.errors import ConfigError, StoreError
from upshift.runtime.storage.objects import Objects, azure, open_objects, s3, seconds
from upshift.runtime.storage.objects.azure import AzureContainer, AzureObjects
from upshift.runtime.storage.objects.google import GoogleBucket, GoogleObjects
from upshift.runtime.storage.objects.remote import Crc
from upshift.runtime.storage.objects.s3 import Bucket, S3Objects
from upshift.runtime.storage.objects.transport import Request

PART = 1 << 20
"""Small parts, so that a few MiB are several."""


@pytest.fixture(params=["folder", "s3", "gs", "az"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Objects]:
    """Below a prefix, in each kind of place."""
    if request.param == "folder":
        yield open_objects(str(tmp_path / "store"))
    elif request.param == "s3":
        here: BucketHere = request.getfixturevalue("bucket")
        yield S3Objects(Bucket(here.name), "team/store", part=PART)
    elif request.param == "gs":
        here = request.getfixturevalue("google_bucket")
        yield GoogleObjects(GoogleBucket(here.name), "team/store", part=PART)
    else:
        yield AzureObjects(AzureContainer(request.getfixturevalue("container")), "team/store", part=PART)


@pytest.fixture
def stored(bucket: BucketHere) -> S3Objects:
    return S3Objects(Bucket(bucket.name), "team", part=PART)


def keys(objects: Objects, prefix: str = "", after: str = "") -> list[str]:
    return [meta.key for meta in objects.list(prefix, after=after)]


def test_an_object_is_read_as_it_was_written(objects: Objects) -> None:
    version = objects.put("runs/one/run.json", b"content")
    found = objects.get("runs/one/run.json")
    assert found is not None
    assert (bytes(found.data), found.version) == (b"content", version)


def test_what_is_not_there_is_none(objects: Objects, tmp_path: Path) -> None:
    assert objects.get("nothing") is None
    assert objects.get("nothing", offset=3, size=4) is None
    assert objects.get("nothing", size=0) is None
    assert objects.download("nothing", tmp_path / "file") is None
    assert not (tmp_path / "file").exists()
    assert keys(objects) == []
    objects.delete(["nothing"])


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [
        (0, 4, b"0123"),
        (3, 2, b"34"),
        (8, None, b"89"),
        (8, 100, b"89"),
        (10, 5, b""),
        (99, None, b""),
        (2, 0, b""),
    ],
)
def test_a_range_is_read_as_far_as_there_is_one(
    objects: Objects, offset: int, size: int | None, expected: bytes
) -> None:
    version = objects.put("digits", b"0123456789")
    found = objects.get("digits", offset=offset, size=size)
    assert found is not None
    assert (bytes(found.data), found.version) == (expected, version)


def test_folders_are_what_comes_before_the_next_slash(objects: Objects) -> None:
    for key in ("runs/ä b/run.json", "runs/one/run.json", "runs/one/tasks/x/0.1.log", "runs/file", "format"):
        objects.put(key, b"content")
    assert list(objects.folders("runs/")) == ["one", "ä b"]
    assert list(objects.folders("runs/one/")) == ["tasks"]
    assert list(objects.folders("nothing/")) == []
    assert list(objects.folders("")) == ["runs"]


def test_an_empty_object_is_one(objects: Objects, tmp_path: Path) -> None:
    assert objects.put("empty", b"")
    found = objects.get("empty")
    assert found is not None and found.data.nbytes == 0
    assert objects.download("empty", tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


def test_the_last_object_counts_and_has_another_version(objects: Objects) -> None:
    first = objects.put("one", b"first")
    second = objects.put("one", b"second")
    found = objects.get("one")
    assert found is not None and bytes(found.data) == b"second"
    assert first != second == found.version


def test_an_object_is_as_old_as_the_clock_of_its_place_says(objects: Objects) -> None:
    objects.put("format", b"1")
    (meta,) = objects.list("")
    assert abs(objects.now() - meta.modified) < 60


def test_uploads_that_were_never_completed_are_found_and_dropped(objects: Objects) -> None:
    assert list(objects.unfinished_uploads()) == []
    objects.put("whole", b"x")
    if not isinstance(objects, S3Objects):
        return  # Azure drops the blocks of such an upload itself, after a week; a folder has drafts
    begin = Request(method="POST", key=f"{objects.prefix}cut/ä b", query=[("uploads", "")])
    token = objects.bucket.ask(begin).xml().findtext("UploadId", "")
    for number in (1, 2):
        part = objects._put(begin.key, [memoryview(bytes(PART))])
        part.query = [("partNumber", str(number)), ("uploadId", token)]
        objects.bucket.ask(part)
    (found,) = objects.unfinished_uploads()
    assert (found.key, found.size) == ("cut/ä b", 2 * PART)
    assert found.begun == seconds("2010-11-10T20:48:33.000Z")  # as moto says of each
    found.drop()
    assert list(objects.unfinished_uploads()) == []
    found.drop()
    assert keys(objects) == ["whole"]


def test_an_answer_that_does_not_say_how_old_an_object_is_is_refused() -> None:
    assert seconds("2026-11-24T20:00:00.123Z") == seconds("Tue, 24 Nov 2026 20:00:00 GMT") == 1795550400.0
    for stamp in ("", "yesterday", "2026-11-24"):
        with pytest.raises(StoreError, match="does not say how old"):
            seconds(stamp)


def test_of_many_that_create_an_object_one_wins(objects: Objects) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        if objects.put("claim", f"writer {number % 2}".encode(), absent=True):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = objects.get("claim")
    assert len(won) == 1 and found is not None and bytes(found.data) == f"writer {won[0] % 2}".encode()
    assert objects.put("claim", found.data, absent=True) is None  # the same content by somebody else


def test_an_object_is_replaced_if_it_is_the_one_that_was_read(objects: Objects) -> None:
    first = objects.put("lease", b"mine")
    second = objects.put("lease", b"mine, renewed", match=first)
    assert second is not None
    assert objects.put("lease", b"late", match=first) is None
    objects.delete(["lease"])
    assert objects.put("lease", b"again", match=second) is None
    assert objects.get("lease") is None


def test_of_many_that_replace_an_object_one_wins(objects: Objects) -> None:
    first = objects.put("lease", b"nobody's")
    won: list[int] = []

    def replace(number: int) -> None:
        if objects.put("lease", f"{number}'s".encode(), match=first):
            won.append(number)

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = objects.get("lease")
    assert len(won) == 1 and found is not None and bytes(found.data) == f"{won[0]}'s".encode()


ODD = ("a b", "a+b", "a.b", "a/b", "a/b c/ä", "a0", "a&<>'\"b", "a%20b", "a~b", "ä", "日本/ü.json", "a=b?c#d")


def test_a_listing_is_in_the_order_of_bytes_whatever_the_names_are(objects: Objects) -> None:
    for number, key in enumerate(ODD):
        objects.put(key, b"x" * number)
    assert keys(objects) == sorted(ODD, key=str.encode)
    assert {meta.key: meta.size for meta in objects.list("")} == {key: n for n, key in enumerate(ODD)}
    for key in ODD:
        found = objects.get(key)
        assert found is not None and found.version == next(iter(objects.list(key))).version
    assert keys(objects, "a/") == ["a/b", "a/b c/ä"]
    assert keys(objects, "a/b c") == ["a/b c/ä"]
    assert keys(objects, after="a/b") == [key for key in sorted(ODD, key=str.encode) if key > "a/b"]
    objects.delete(ODD)
    assert keys(objects) == []


def test_a_long_listing_has_all(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    for dialect in (s3, azure):
        monkeypatch.setattr(dialect, "_MOST_LISTED", 7)  # for a page, and for a request that deletes
    names = [f"many/{number:04}" for number in range(23)]
    for name in names:
        objects.put(name, b"")
    assert keys(objects, "many/") == names
    objects.delete(names)
    assert keys(objects) == []


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART + 1, 7 * PART + 12_345])
def test_an_object_of_any_size_goes_up_and_comes_down(objects: Objects, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    third = size // 3
    version = objects.upload("large", [content[:third], memoryview(content)[third:]])
    assert objects.download("large", tmp_path / "file") == version
    assert (tmp_path / "file").read_bytes() == content
    assert [(meta.size, meta.version) for meta in objects.list("")] == [(size, version)]
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("store", "home")] == ["file"]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\0b", "a\nb", "x" * 1025])
def test_a_key_that_is_no_path_is_refused(objects: Objects, key: str) -> None:
    with pytest.raises(ConfigError, match=r"the key .* (has a part|has 1,0|holds)"):
        objects.put(key, b"")


def test_a_forked_process_uses_the_same_objects(objects: Objects) -> None:
    objects.put("from the parent", b"1")
    child = os.fork()
    if not child:
        code = 1
        try:
            found = objects.get("from the parent")
            objects.put("from the child", b"" if found is None else found.data)
            code = 0
        finally:
            os._exit(code)
    objects.put("meanwhile", b"2")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert keys(objects) == ["from the child", "from the parent", "meanwhile"]


def test_boto3_reads_what_was_written(stored: S3Objects, bucket: BucketHere) -> None:
    content = os.urandom(3 * PART + 7)
    for key in ODD:
        stored.put(key, key.encode())
    version = stored.upload("large", [content])
    for key in ODD:
        assert bucket.boto3.get_object(Bucket=bucket.name, Key=f"team/{key}")["Body"].read() == key.encode()
    found = bucket.boto3.get_object(Bucket=bucket.name, Key="team/large", ChecksumMode="ENABLED")
    assert found["ETag"] == version
    assert hashlib.sha256(found["Body"].read()).digest() == hashlib.sha256(content).digest()


def test_what_boto3_wrote_is_read(stored: S3Objects, bucket: BucketHere, tmp_path: Path) -> None:
    from boto3.s3.transfer import TransferConfig

    content = os.urandom(11 * PART + 5)
    (tmp_path / "source").write_bytes(content)
    config = TransferConfig(multipart_threshold=PART, multipart_chunksize=5 * PART)
    bucket.boto3.upload_file(str(tmp_path / "source"), bucket.name, "team/large", Config=config)
    for key in ODD:
        bucket.boto3.put_object(Bucket=bucket.name, Key=f"team/{key}", Body=key.encode())
    assert keys(stored) == sorted([*ODD, "large"], key=str.encode)
    for key in ODD:
        found = stored.get(key)
        assert found is not None and bytes(found.data) == key.encode()
    stored.download("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_an_upload_that_fails_leaves_no_parts_behind(
    stored: S3Objects, bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = stored.bucket.ask

    def interrupted(request):  # type: ignore[no-untyped-def]
        if dict(request.query).get("partNumber") == "2":
            raise KeyboardInterrupt
        return sent(request)

    monkeypatch.setattr(stored.bucket, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stored.upload("large", [bytes(3 * PART)])
    assert "Uploads" not in bucket.boto3.list_multipart_uploads(Bucket=bucket.name)
    assert keys(stored) == []


def test_virtual_hosts_are_used_where_they_are_asked_for(
    bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.endpoint.replace("127.0.0.1", "localhost"))
    there = Bucket(bucket.name)
    assert there.endpoint == bucket.endpoint.replace("127.0.0.1", f"{bucket.name}.localhost")


@pytest.mark.parametrize(
    ("name", "region", "server"),
    [
        ("data", "eu-west-1", "https://data.s3.eu-west-1.amazonaws.com"),
        ("my.data", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
        ("data", "cn-north-1", "https://data.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_a_bucket_of_aws_is_asked_in_its_region(no_aws: None, name: str, region: str, server: str) -> None:
    assert Bucket(name, region=region).endpoint == server


def test_the_checksum_of_parts_makes_that_of_the_whole() -> None:
    content = os.urandom(1 << 20)
    for at in (0, 1, 5, 4096, 700_001, 1 << 20):
        first, second = memoryview(content)[:at], memoryview(content)[at:]
        whole = Crc().of([first]).then(Crc().of([second]))
        assert whole.same(Crc().of([memoryview(content)]))


@pytest.mark.parametrize("address", ["hdfs://bucket", "wasb://container", "ftp://x"])
def test_other_kinds_of_stores_are_refused_by_name(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is not supported[\s\S]*s3://BUCKET/PREFIX"):
        open_objects(address)


@pytest.mark.parametrize("address", ["s3://", "s3:///x", "s3://a b", "s3://a"])
def test_what_cannot_be_a_bucket_is_refused(no_aws: None, address: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a bucket"):
        open_objects(address)
