"""Secret variables of a job whose environment others see: sealed in the store, the key in the environment.

::

    engine ── content, sealed ──► store ─────────────────┐
           ── key, and where that is ──► environment ──► supervisor: the variables

Who may describe the job has the key and not the content, and who may read the store the content and not the
key. In a folder each node has a file of its own, which is gone once it is read. In a bucket all nodes read
one object, which the engine removes when the attempt has ended.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from upshift.errors import ConfigError
from upshift.runtime.storage.objects import open_objects

ORDER_FILE = "UPSHIFT_ORDER_FILE"
"""Environment variable: the key of the sealed variables, and their path, or address in a bucket."""


def sealed(variables: Mapping[str, str]) -> tuple[str, bytes]:
    """A new key, and what it opens."""
    key = os.urandom(32)
    return key.hex(), _sealed(json.dumps(dict(variables)).encode(), key)


def leave(paths: Sequence[Path], content: bytes) -> None:
    """Write sealed variables to files that only this user may read."""
    for path in paths:
        written = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        os.replace(written, path)


def take_order(environment: MutableMapping[str, str]) -> None:
    """Take the sealed variables that an environment names into it.

    Raises
    ------
    ConfigError
        They cannot be read.
    StoreUnavailable
        The bucket does not answer.
    """
    key, _, path = environment.pop(ORDER_FILE, "").partition(" ")
    if not path:
        return
    try:
        content = _in_bucket(path) if "://" in path else _in_file(path)
        environment.update(json.loads(_unsealed(content, bytes.fromhex(key))))
    except FileNotFoundError:
        raise ConfigError(
            f"what this attempt is to know is not there: {path}",
            why="It has been read before: an attempt is started once; or this node does not see the store.",
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"what this attempt is to know cannot be read: {path}: {error}",
            why="Secrets, and the token of several nodes, are handed over through the store, to whoever may "
            "read there what the user may who runs Upshift.",
            fix="Have the cluster run jobs as this user, or with a role that may read the store.",
        ) from None


def _in_file(path: str) -> bytes:
    content = Path(path).read_bytes()
    os.unlink(path)
    return content


def _in_bucket(address: str) -> bytes:
    folder, _, name = address.rpartition("/")
    found = open_objects(folder).get(name)
    if found is None:
        raise FileNotFoundError(address)
    return bytes(found.data)


def _sealed(content: bytes, key: bytes) -> bytes:
    """The content under a key that is used once: a stream cipher of SHAKE-256, and a MAC before it."""
    stream = hashlib.shake_256(b"upshift order" + key).digest(len(content))
    hidden = bytes(a ^ b for a, b in zip(content, stream, strict=True))
    return hmac.digest(key, hidden, "sha256") + hidden


def _unsealed(content: bytes, key: bytes) -> bytes:
    mac, hidden = content[:32], content[32:]
    if not hmac.compare_digest(mac, hmac.digest(key, hidden, "sha256")):
        raise ValueError("it is damaged")
    return _sealed(hidden, key)[32:]
