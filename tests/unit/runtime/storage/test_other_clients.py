"""What Upshift writes, other clients of Google Cloud and Azure read, and the other way round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from buckets import ACCOUNT, KEY
from upshift.runtime.storage.objects import open_objects
from upshift.runtime.storage.objects.azure import AzureContainer, AzureObjects
from upshift.runtime.storage.objects.google import GoogleBucket, GoogleObjects
from upshift.runtime.storage.objects.remote import RemoteObjects

PART = 1 << 20
OBSTORE = """
import hashlib, json, sys
import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import AzureStore, GCSStore

asked = json.load(sys.stdin)
options = {"allow_http": True}
if asked["kind"] == "gs":
    account = {"gcs_base_url": asked["endpoint"], "disable_oauth": True, "client_email": ""}
    account |= {"private_key": "", "private_key_id": ""}
    store = GCSStore(asked["name"], service_account_key=json.dumps(account), client_options=options)
else:
    store = AzureStore(asked["name"], account_name=asked["account"], account_key=asked["key"],
                       endpoint=asked["endpoint"], client_options=options)

def tried(mode):
    try:
        return obstore.put(store, "team/claim", b"theirs", mode=mode)
    except (AlreadyExistsError, PreconditionError):
        return None

listed = {meta["path"]: meta for page in obstore.list(store, "team") for meta in page}
read = {path: hashlib.sha256(bytes(obstore.get(store, path).bytes())).hexdigest() for path in listed}
claim = listed["team/claim"]
same = {"e_tag": claim["e_tag"], "version": obstore.head(store, "team/claim")["version"]}
same = {name: value for name, value in same.items() if value}
told = {
    "read": read,
    "created_again": tried("create") is not None,
    "updated": tried(same) is not None,
    "updated_again": tried(same) is not None,
}
content = bytes(range(256)) * 24_000
obstore.put(store, "theirs/large", content, use_multipart=True, chunk_size=5 << 20)
obstore.put(store, "theirs/ä b+c.bin", b"small")
print(json.dumps(told))
"""
"""In a process of its own: once it has asked something, no process may fork."""
NAMES = ("claim", "a b+c/ä.json", "日本/ü~.bin", "a&<>'b")


@pytest.fixture(params=["gs", "az"])
def stored(request: pytest.FixtureRequest) -> RemoteObjects:
    if request.param == "gs":
        return GoogleObjects(GoogleBucket(request.getfixturevalue("google_bucket").name), "team", part=PART)
    return AzureObjects(AzureContainer(request.getfixturevalue("container")), "team", part=PART)


def reference(stored: RemoteObjects) -> dict[str, Any]:
    """What obstore has to say of it, which leaves something behind."""
    asked = {
        "kind": stored.bucket.scheme,
        "name": stored.bucket.name,
        "endpoint": stored.bucket.endpoint,
        "account": ACCOUNT,
        "key": KEY,
    }
    done = subprocess.run(
        [sys.executable, "-c", OBSTORE], input=json.dumps(asked), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_obstore_and_upshift_read_what_the_other_wrote(stored: RemoteObjects, tmp_path: Path) -> None:
    contents = {name: name.encode() for name in NAMES} | {"large": os.urandom(3 * PART + 7)}
    version = None
    for name, content in contents.items():
        if name == "large":
            stored.upload(name, [content])
        elif name == "claim":
            version = stored.put(name, content, absent=True)
        else:
            stored.put(name, content)
    told = reference(stored)
    assert told["read"] == {f"team/{name}": sha256(content).hexdigest() for name, content in contents.items()}
    # Both take the same for the condition of a write.
    assert (told["created_again"], told["updated"], told["updated_again"]) == (False, True, False)
    assert stored.put("claim", b"ours", match=version) is None
    found = stored.get("claim")
    assert found is not None and bytes(found.data) == b"theirs"
    assert stored.put("claim", b"ours", match=found.version)
    theirs = open_objects(f"{stored.bucket.scheme}://{stored.bucket.name}/theirs")
    assert [meta.key for meta in theirs.list("")] == ["large", "ä b+c.bin"]
    assert theirs.download("large", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == bytes(range(256)) * 24_000
    small = theirs.get("ä b+c.bin")
    assert small is not None and bytes(small.data) == b"small"
