"""The Kubernetes that KUBECONFIG names, for tests; where it names none, an API server that is scripted."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubernetes_scripted import Scripted, scripted
from stand_in_registry import StandInRegistry

SHARED, IMAGE = "TEST_KUBERNETES_FOLDER", "TEST_KUBERNETES_IMAGE"
"""Variables for a real one: a folder that this machine and all nodes have, and an image with a Python."""


@contextmanager
def cluster(home: Path) -> Iterator[tuple[Path, str, Scripted | None]]:
    """A folder that pods see under the same path, the image that they run in, and the server if scripted.

    Then ``home`` is the folder of its node.
    """
    if os.environ.get("KUBECONFIG"):
        if SHARED not in os.environ or IMAGE not in os.environ:
            pytest.fail(f"KUBECONFIG is set: set {SHARED} and {IMAGE} for its cluster, too, or unset it")
        with tempfile.TemporaryDirectory(dir=os.environ[SHARED]) as folder:
            os.chmod(folder, 0o777)
            yield Path(folder), os.environ[IMAGE], None
        return
    with scripted(home) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(server.kubeconfig))
        server.room = 8
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder), "python:3.11", server


@contextmanager
def registry_with_python() -> Iterator[StandInRegistry]:
    """A registry with ``python:3.11``, as far as it is looked at before pods run in it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in ("usr/local/bin/python3", "usr/local/lib/python3.11/os.py"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with StandInRegistry() as made:
        made.add("python", "3.11", layers=(content.getvalue(),))
        yield made
