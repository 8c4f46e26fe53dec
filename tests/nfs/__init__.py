"""A folder that two machines share by NFS, on one machine: ``client.c``, mounted twice.

Every process of this machine sees one client at :attr:`Shared.folder`, also those that a scheduler starts: it
is that of the nodes. A command with :meth:`Shared.login` before it is on another machine, the login node.
That machine has the other client at this place, and a host name, a boot id and a machine id of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

SOURCE = Path(__file__).with_name("client.c")
HEADERS = "/usr/include/fuse3"
KEPT = 60.0
"""Seconds for which a client believes what it knows: ``acregmax`` and ``acdirmax`` of nfs(5), by default."""
WRITTEN = 30.0
"""Seconds after which it sends what it has not been told to send: ``vm.dirty_expire_centisecs``."""
_LOGIN = """
mount --bind "$1/login" "$1/shared"
mount --bind "$1/boot" /proc/sys/kernel/random/boot_id
[ ! -e /etc/machine-id ] || mount --bind "$1/machine" /etc/machine-id
hostname login
cd "$2"
shift 2
exec "$@"
"""


@attrs.frozen
class Shared:
    """A folder with two clients."""

    place: Path

    @property
    def folder(self) -> Path:
        """Where every machine has it; for this process, and for nodes, by the first client."""
        return self.place / "shared"

    @property
    def other(self) -> Path:
        """The same by the second client, which the login node has there."""
        return self.place / "login"

    def login(self, folder: Path) -> tuple[str, ...]:
        """What comes before a command that runs on the login node, in this folder there."""
        return ("unshare", "--mount", "--uts", "sh", "-ec", _LOGIN, "sh", str(self.place), str(folder))


@pytest.fixture(scope="session")
def nfs_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, compiled."""
    if os.geteuid() or not all(map(os.path.exists, (HEADERS, "/dev/fuse"))):
        pytest.skip("NFS is a file system in user space here, which needs root and libfuse3: make engines")
    client = tmp_path_factory.mktemp("nfs") / "nfs_client"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-o", client, f"-I{HEADERS}", SOURCE, "-lfuse3"]
    subprocess.run(["cc", *options], check=True)
    return client


@pytest.fixture
def shared_folder(nfs_client: Path, tmp_path: Path) -> Iterator[Callable[..., Shared]]:
    """Makes a folder that is shared by NFS; ``locks=False``: each client keeps locks to itself."""
    with contextlib.ExitStack() as stack:

        def make(*, locks: bool = True) -> Shared:
            shared = Shared(tmp_path / "nfs")
            server = shared.place / "server"
            for point in (server, shared.folder, shared.other):
                point.mkdir(parents=True)
            (shared.place / "boot").write_text(f"{uuid.uuid4()}\n")
            (shared.place / "machine").write_text(f"{uuid.uuid4().hex}\n")
            for point in (shared.folder, shared.other):
                stack.enter_context(_mounted(nfs_client, server, point, locks=locks))
            return shared

        yield make


@contextlib.contextmanager
def _mounted(client: Path, server: Path, point: Path, *, locks: bool) -> Iterator[None]:
    words = [client, server, point, str(KEPT), str(WRITTEN), str(int(locks))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            # Lazily: what is still open there fails from now on, instead of keeping it.
            subprocess.run(["umount", "--lazy", point], check=True)
            process.terminate()
            process.wait(10)
