"""A bucket whose server is slow, busy, cut off or mistaken: real requests, and a server that does harm."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

from buckets import ACCOUNT, BucketHere
from google_dialect import TOKEN
from server_before import Harm, Server, before
from upshift.errors import BlobDamaged, StoreUnavailable
from upshift.runtime.storage.objects.aws_credentials import AwsWallet, Credentials
from upshift.runtime.storage.objects.azure import AzureContainer, AzureObjects
from upshift.runtime.storage.objects.azure_credentials import AzureWallet, SharedKey, configured
from upshift.runtime.storage.objects.connections import Connections
from upshift.runtime.storage.objects.google import GoogleBucket, GoogleObjects, GoogleWallet
from upshift.runtime.storage.objects.remote import RemoteObjects
from upshift.runtime.storage.objects.s3 import Bucket, S3Objects
from upshift.runtime.storage.objects.transport import Transport
from upshift.runtime.storage.objects.wallet import Token

PART = 1 << 20


@pytest.fixture
def server(bucket: BucketHere) -> Iterator[Server]:
    with before(bucket.endpoint) as rig:
        yield rig


@pytest.fixture(params=["gs", "az"])
def other(request: pytest.FixtureRequest, waits: list[float]) -> Iterator[tuple[Server, RemoteObjects]]:
    """The same before another cloud, and objects there."""
    connections = Connections(silence=20)
    there: Transport[Any]
    if request.param == "gs":
        here: BucketHere = request.getfixturevalue("google_bucket")
        with before(here.endpoint) as rig:
            there = GoogleBucket(here.name, endpoint=rig.address, sleep=waits.append, connections=connections)
            yield rig, GoogleObjects(there, part=PART)
    else:
        name: str = request.getfixturevalue("container")
        with before(request.getfixturevalue("azure_store")) as rig:
            address = f"{rig.address}/{ACCOUNT}"
            there = AzureContainer(name, endpoint=address, sleep=waits.append, connections=connections)
            yield rig, AzureObjects(there, part=PART)
    connections.close()


@pytest.fixture
def waits() -> list[float]:
    """Seconds that were to be waited for; nobody waits here."""
    return []


@pytest.fixture
def objects(server: Server, bucket: BucketHere, waits: list[float]) -> Iterator[S3Objects]:
    connections = Connections(silence=20)
    there = Bucket(bucket.name, endpoint=server.address, sleep=waits.append, connections=connections)
    yield S3Objects(there, part=PART)
    connections.close()


def content_of(objects: RemoteObjects, key: str) -> bytes | None:
    found = objects.get(key)
    return None if found is None else bytes(found.data)


BUSY = Harm(
    status=503, body=b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
)


def test_a_busy_server_is_asked_again_after_the_time_that_it_says(
    server: Server, objects: S3Objects, waits: list[float]
) -> None:
    server.harms = [attrs.evolve(BUSY, headers={"Retry-After": "7"}), Harm(status=500), Harm(status=429)]
    assert objects.put("one", b"content")
    assert waits[0] == 7.0 and all(0 < wait < 1 for wait in waits[1:]) and len(waits) == 3
    assert content_of(objects, "one") == b"content"


def test_a_server_that_stays_busy_is_named(server: Server, objects: S3Objects, waits: list[float]) -> None:
    server.always = BUSY
    with pytest.raises(StoreUnavailable) as raised:
        objects.get("one")
    text = str(raised.value)
    assert "the object store is not available: s3://tests-" in text
    assert f"{server.address} says SlowDown: Please reduce your rate (8 tries)" in text
    assert sum(waits) > 5 and waits[-1] > waits[0]


def test_a_busy_server_that_does_not_read_what_is_sent_is_asked_again(
    bucket: BucketHere, objects: S3Objects, server: Server
) -> None:
    refusing = socket.create_server(("127.0.0.1", 0))

    def answer_without_reading() -> None:
        with refusing, refusing.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=answer_without_reading)
    thread.start()
    endpoints = [f"http://127.0.0.1:{refusing.getsockname()[1]}", server.address]
    place = objects.bucket._place
    objects.bucket._place = lambda key: (urlsplit(endpoints[0]), place(key)[1])  # type: ignore[method-assign]
    objects.bucket._sleep = lambda _: endpoints.pop(0)  # type: ignore[assignment,return-value]
    assert objects.put("large", bytes(PART))
    thread.join()
    assert content_of(objects, "large") == bytes(PART)


def test_an_answer_that_is_cut_is_asked_for_again(
    server: Server, objects: S3Objects, waits: list[float]
) -> None:
    objects.put("one", b"0123456789")
    server.harms = [Harm(cut=3), Harm(cut=0)]
    assert content_of(objects, "one") == b"0123456789"
    assert len(waits) == 2


def test_a_download_goes_on_where_it_was_cut(server: Server, objects: S3Objects, tmp_path: Path) -> None:
    content = os.urandom(PART // 2)
    version = objects.put("one", content)
    server.seen.clear()
    server.harms = [Harm(cut=1000), Harm(cut=10)]
    assert objects.download("one", tmp_path / "file") == version
    assert (tmp_path / "file").read_bytes() == content
    last = len(content) - 1
    assert server.ranges() == [None, f"bytes=1000-{last}", f"bytes=1010-{last}"]


def test_parts_of_a_download_go_on_where_they_were_cut(
    server: Server, objects: S3Objects, tmp_path: Path
) -> None:
    content = os.urandom(5 * PART + 1)
    objects.upload("large", [content])
    server.harms = [Harm(), *[Harm(cut=number * 1000) for number in range(5)]]
    objects.download("large", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_an_answer_with_other_bytes_is_asked_for_again(
    server: Server, objects: S3Objects, tmp_path: Path
) -> None:
    content = os.urandom(4 * PART)
    objects.put("small", b"content")
    objects.upload("large", [content])
    server.harms = [Harm(flipped=True)]
    assert content_of(objects, "small") == b"content"
    server.harms = [Harm(), Harm(flipped=True)]
    objects.download("large", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_download_that_never_comes_right_is_no_file(
    server: Server, objects: S3Objects, tmp_path: Path
) -> None:
    objects.put("one", b"content")
    server.always = Harm(flipped=True)
    with pytest.raises(BlobDamaged, match=r"one cannot be read whole\n.*another checksum"):
        objects.download("one", tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_an_object_that_is_replaced_while_it_comes_down_is_whole(
    server: Server, objects: S3Objects, bucket: BucketHere, tmp_path: Path
) -> None:
    new = os.urandom(4 * PART)
    objects.upload("large", [bytes(5 * PART)])
    replace = Harm(before=lambda: bucket.boto3.put_object(Bucket=bucket.name, Key="large", Body=new))
    server.harms = [Harm(), replace]
    assert objects.download("large", tmp_path / "file") == next(objects.list("large")).version
    assert (tmp_path / "file").read_bytes() == new


def test_a_silent_server_is_asked_again(server: Server, bucket: BucketHere, waits: list[float]) -> None:
    patient = Connections(silence=1.5)
    there = Bucket(bucket.name, endpoint=server.address, sleep=waits.append, connections=patient)
    server.harms = [Harm(silent=True)]
    assert S3Objects(there).put("one", b"content")
    assert waits
    patient.close()


def test_a_connection_that_the_server_has_closed_is_no_fault(
    server: Server, objects: S3Objects, waits: list[float]
) -> None:
    server.harms = [Harm(closed=True), Harm(closed=True)]
    for number in range(3):
        assert objects.put("one", str(number).encode())
    assert content_of(objects, "one") == b"2" and waits == []


@pytest.mark.parametrize(
    "harm",
    [Harm(lost=True), Harm(cut=0), Harm(lost=True, before=lambda: None)],
    ids=["no answer", "half an answer", "no answer, again"],
)
def test_a_write_whose_answer_was_lost_knows_that_it_won(
    server: Server, objects: S3Objects, harm: Harm
) -> None:
    server.harms = [harm, *([BUSY, harm] if harm.before is not Harm().before else [])]
    created = objects.put("claim", b"mine", absent=True)
    assert created == next(objects.list("claim")).version
    server.harms = [Harm(lost=True)]
    renewed = objects.put("claim", b"renewed", match=created)
    assert renewed == next(objects.list("claim")).version != created


def test_a_write_that_another_one_won_knows_that_it_lost(server: Server, objects: S3Objects) -> None:
    assert objects.put("claim", b"the same", absent=True)
    server.harms = [BUSY]
    assert objects.put("claim", b"the same", absent=True) is None


CONFLICT = Harm(status=409, body=b"<Error><Code>ConditionalRequestConflict</Code></Error>")


def test_a_conflict_is_not_taken_for_an_object_that_is_there(server: Server, objects: S3Objects) -> None:
    server.harms = [CONFLICT]
    assert objects.put("claim", b"mine", absent=True)
    server.harms = [CONFLICT]
    assert objects.put("claim", b"another's", absent=True) is None
    there = next(objects.list("claim")).version
    server.harms = [CONFLICT]
    assert objects.put("claim", b"renewed", match=there)
    assert content_of(objects, "claim") == b"renewed"


def test_an_upload_whose_last_answer_was_lost_is_complete(server: Server, objects: S3Objects) -> None:
    # One request begins it, three carry its parts, one completes it.
    server.harms = [Harm(), Harm(), Harm(), Harm(), Harm(lost=True)]
    version = objects.upload("large", [bytes(3 * PART)])
    assert version == next(objects.list("large")).version


def test_credentials_that_end_in_the_middle_are_asked_for_again(
    server: Server, bucket: BucketHere, waits: list[float]
) -> None:
    given = iter(["AKIAFIRST", "AKIASECOND"])
    wallet = AwsWallet("us-east-1", (lambda: Credentials(access_key=next(given), secret_key="s"),))
    objects = S3Objects(Bucket(bucket.name, endpoint=server.address, wallet=wallet, sleep=waits.append))
    server.harms = [Harm(), Harm(status=400, body=b"<Error><Code>ExpiredToken</Code></Error>")]
    assert objects.put("one", b"1") and objects.put("two", b"2")
    users = [headers["authorization"].split("=")[1].split("/")[0] for _, _, headers in server.seen]
    assert users == ["AKIAFIRST", "AKIAFIRST", "AKIASECOND"] and waits == []
    objects.bucket._connections.close()


SKEWED = Harm(
    status=403,
    headers={"Date": "Sat, 01 Jan 2050 00:00:00 GMT"},
    body=b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>",
)


def test_a_clock_that_is_wrong_is_made_up_for(server: Server, objects: S3Objects) -> None:
    server.harms = [SKEWED]
    assert objects.put("one", b"content")
    assert server.seen[-1][2]["x-amz-date"].startswith("20500101T0000")


def test_a_clock_that_cannot_be_made_up_for_is_explained(server: Server, objects: S3Objects) -> None:
    server.always = SKEWED
    with pytest.raises(StoreUnavailable, match=r"clock differs[\s\S]*[0-9,]+ s ahead; [\s\S]*timedatectl"):
        objects.put("one", b"content")


ELSEWHERE = Harm(
    status=301,
    headers={"x-amz-bucket-region": "eu-west-3"},
    body=b"<Error><Code>PermanentRedirect</Code><Message>Use the right endpoint.</Message></Error>",
)


def test_a_bucket_in_another_region_is_found_there(
    server: Server, bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    there = Bucket(bucket.name)
    assert there.endpoint == f"https://{bucket.name}.s3.us-east-1.amazonaws.com"
    there._place = lambda key: (urlsplit(server.address), f"/{bucket.name}/{key}")  # type: ignore[method-assign]
    server.harms = [ELSEWHERE]
    assert S3Objects(there).put("one", b"content")
    assert "/eu-west-3/s3/" in server.seen[-1][2]["authorization"]
    del there._place  # type: ignore[method-assign]
    assert there.endpoint == f"https://{bucket.name}.s3.eu-west-3.amazonaws.com"
    there._connections.close()


def _says(status: int, code: str) -> Harm:
    return Harm(status=status, body=f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode())


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (ELSEWHERE, r"is in another region, eu-west-3[\s\S]*AWS_REGION=eu-west-3"),
        (_says(403, "AccessDenied"), r"access to s3://tests-\w+/one is denied[\s\S]*key AKIATESTS, from AWS"),
        (_says(403, "AccessDenied"), r"fix:   Allow it s3:GetObject"),
        (_says(404, "NoSuchBucket"), r"there is no bucket 'tests-\w+' at http[\s\S]*aws s3 mb s3://tests-"),
        (_says(403, "InvalidAccessKeyId"), r"does not know the access key AKIATESTS[\s\S]*from AWS"),
        (_says(403, "SignatureDoesNotMatch"), r"secret key does not belong to the access key AKIATESTS"),
        (_says(403, "ExpiredToken"), r"credentials have expired[\s\S]*aws sso login"),
        (_says(418, "Teapot"), r"the object store failed at s3://[\s\S]*says Teapot: No\."),
        (Harm(status=502, body=b"<html>Bad gateway</html>"), r"not available[\s\S]*HTTP 502: <html>Bad"),
    ],
)  # fmt: skip
def test_what_the_server_refuses_is_said_in_words(
    server: Server, objects: S3Objects, harm: Harm, words: str
) -> None:
    server.always = harm
    with pytest.raises(StoreUnavailable, match=words):
        objects.get("one")


def test_a_missing_bucket_is_told_from_a_missing_object(
    bucket: BucketHere, waits: list[float], tmp_path: Path
) -> None:
    nowhere = S3Objects(Bucket("no-such-bucket-here", sleep=waits.append))
    for ask in (
        lambda: nowhere.get("a"),
        lambda: nowhere.put("a", b""),
        lambda: nowhere.put("a", b"", absent=True),
        lambda: list(nowhere.list("")),
    ):
        with pytest.raises(StoreUnavailable, match="there is no bucket 'no-such-bucket-here'"):
            ask()
    with pytest.raises(StoreUnavailable, match="there is no bucket 'no-such-bucket-here'"):
        nowhere.download("a", Path("/nowhere/file").parent / "file") if False else nowhere.put(
            "a", b"", absent=True
        )
    nowhere.bucket._connections.close()


def test_nobody_who_listens_is_named(no_aws: None, bucket: BucketHere, waits: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    there = Bucket(bucket.name, endpoint=f"http://127.0.0.1:{port}", sleep=waits.append)
    with pytest.raises(
        StoreUnavailable, match=rf"cannot be reached[\s\S]*{port}: nobody listens there \(8 tries\)"
    ):
        S3Objects(there).get("one")


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "http://", "http://a:b", "http://a?b=c"])
def test_an_endpoint_that_is_none_is_refused(no_aws: None, endpoint: str) -> None:
    from upshift.errors import ConfigError

    with pytest.raises(
        ConfigError, match=r"address of the object store is invalid[\s\S]*AWS_ENDPOINT_URL_S3"
    ):
        Bucket("bucket", endpoint=endpoint)


# Other clouds


def test_other_clouds_are_asked_again(other: tuple[Server, RemoteObjects], waits: list[float]) -> None:
    server, objects = other
    server.harms = [Harm(status=503, headers={"Retry-After": "7"}), Harm(status=500), Harm(lost=True)]
    assert objects.put("one", b"content")
    assert waits[0] == 7.0 and len(waits) == 2
    server.harms = [Harm(cut=3), Harm(flipped=True)]
    assert content_of(objects, "one") == b"content"
    assert len(waits) == 4


def test_asking_again_takes_no_number_from_a_step_that_has_seeded(
    other: tuple[Server, RemoteObjects], waits: list[float]
) -> None:
    server, objects = other
    server.harms = [Harm(status=503), Harm(status=503)]
    before = random.getstate()
    assert objects.put("one", b"content")
    assert len(waits) == 2 and random.getstate() == before


def test_a_lost_answer_of_another_cloud_is_looked_for(other: tuple[Server, RemoteObjects]) -> None:
    server, objects = other
    server.harms = [Harm(lost=True)]
    created = objects.put("claim", b"mine", absent=True)
    assert created == next(objects.list("claim")).version
    server.harms = [Harm(lost=True)]
    renewed = objects.put("claim", b"renewed", match=created)
    assert renewed == next(objects.list("claim")).version != created
    server.harms = [BUSY]
    assert objects.put("claim", b"renewed", absent=True) is None
    server.harms = [BUSY]
    assert objects.put("claim", b"late", match=created) is None


def test_large_objects_of_another_cloud_survive_faults(
    other: tuple[Server, RemoteObjects], tmp_path: Path
) -> None:
    server, objects = other
    content = os.urandom(5 * PART + 1)
    begins = isinstance(objects, GoogleObjects)
    server.harms = [Harm(), Harm(lost=True), *[Harm()] * (5 + begins), Harm(lost=True)]
    version = objects.upload("large", [content])
    assert server.harms == [] and version == next(objects.list("large")).version
    server.harms = [Harm(), *[Harm(cut=number * 1000) for number in range(5)]]
    assert objects.download("large", tmp_path / "file") == version
    assert (tmp_path / "file").read_bytes() == content
    new = os.urandom(3 * PART)
    server.harms = [Harm(), Harm(before=lambda: objects.put("large", new))]
    objects.download("large", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == new


def test_two_that_put_the_same_up_at_once_both_succeed(
    container: str, azure_store: str, waits: list[float]
) -> None:
    content = os.urandom(3 * PART)
    theirs = AzureObjects(AzureContainer(container), part=PART)
    with before(azure_store) as server:
        there = AzureContainer(container, endpoint=f"{server.address}/{ACCOUNT}", sleep=waits.append)
        ours = AzureObjects(there, part=PART)
        # Theirs is complete when ours is about to be; then another content is, and ours begins again.
        server.harms = [Harm(), Harm(), Harm(), Harm(before=lambda: theirs.upload("large", [content]))]
        ours.upload("large", [content])
        other = Harm(before=lambda: theirs.upload("large", [bytes(3 * PART)]))
        server.harms = [Harm(), Harm(), Harm(), other]
        version = ours.upload("large", [content])
        assert version == next(theirs.list("large")).version
        for objects in (ours, theirs):
            objects.bucket._connections.close()


def test_a_token_of_google_that_has_ended_is_asked_for_again(
    google_bucket: BucketHere, waits: list[float]
) -> None:
    given = iter(["ya29.old", TOKEN])
    wallet = GoogleWallet([lambda: Token(value=next(given))])
    objects = GoogleObjects(GoogleBucket(google_bucket.name, wallet=wallet, sleep=waits.append))
    assert objects.put("one", b"1") and waits == []
    wallet = GoogleWallet([lambda: Token(value="ya29.old", source="the machine's service account")])
    refused = GoogleObjects(GoogleBucket(google_bucket.name, wallet=wallet, sleep=waits.append))
    with pytest.raises(
        StoreUnavailable, match=r"does not accept the credentials[\s\S]*from the machine's serv"
    ):
        refused.put("one", b"1")
    for one in (objects, refused):
        one.bucket._connections.close()


def test_what_other_clouds_refuse_is_said_in_words(other: tuple[Server, RemoteObjects]) -> None:
    server, objects = other
    server.always = _says(403, "AuthorizationPermissionMismatch")
    with pytest.raises(StoreUnavailable, match=r"access to \w\w://tests-\w+/one is denied[\s\S]*Grant it"):
        objects.get("one")


def test_a_container_that_is_not_there_is_named(container: str, waits: list[float], tmp_path: Path) -> None:
    nowhere = AzureObjects(AzureContainer("no-such-container", sleep=waits.append))
    for ask in (
        lambda: nowhere.get("a"),
        lambda: nowhere.put("a", b""),
        lambda: nowhere.put("a", b"", absent=True),
        lambda: nowhere.download("a", tmp_path / "file"),
        lambda: nowhere.delete(["a"]),
        lambda: list(nowhere.list("")),
    ):
        with pytest.raises(
            StoreUnavailable, match=r"no container 'no-such-container'[\s\S]*az storage contai"
        ):
            ask()
    nowhere.bucket._connections.close()


def test_a_bucket_of_google_that_is_not_there_is_named(google_bucket: BucketHere, waits: list[float]) -> None:
    nowhere = GoogleObjects(GoogleBucket("no-such-bucket-here", sleep=waits.append))
    for ask in (lambda: nowhere.get("a"), lambda: nowhere.put("a", b""), lambda: list(nowhere.list(""))):
        with pytest.raises(
            StoreUnavailable, match=r"no bucket 'no-such-bucket-here'[\s\S]*gcloud storage buc"
        ):
            ask()
    nowhere.bucket._connections.close()


def test_a_wrong_key_of_an_account_is_told_from_a_wrong_clock(container: str, waits: list[float]) -> None:
    wrong = SharedKey(account=ACCOUNT, key=b"wrong", source="AZURE_STORAGE_KEY")
    there = AzureContainer(
        container, sleep=waits.append, wallet=AzureWallet(configured("az://c"), [lambda: wrong])
    )
    with pytest.raises(
        StoreUnavailable, match=r"does not accept[\s\S]*AZURE_STORAGE_KEY[\s\S]*key of the acc"
    ):
        AzureObjects(there).get("one")
    there._connections.close()


def test_a_clock_that_azure_refuses_is_made_up_for(
    container: str, azure_store: str, waits: list[float]
) -> None:
    late = Harm(
        status=403,
        headers={"Date": "Sat, 01 Jan 2050 00:00:00 GMT"},
        body=b"<Error><Code>AuthenticationFailed</Code><Message>Too old.</Message></Error>",
    )
    with before(azure_store) as server:
        there = AzureContainer(container, endpoint=f"{server.address}/{ACCOUNT}", sleep=waits.append)
        server.harms = [late]
        with contextlib.suppress(StoreUnavailable):  # the emulator's own clock is another one
            AzureObjects(there).get("one")
        assert server.seen[-1][2]["x-ms-date"].startswith("Sat, 01 Jan 2050 00:0")
        server.always = late
        with pytest.raises(StoreUnavailable, match="clock differs"):
            AzureObjects(there).get("one")
        there._connections.close()
