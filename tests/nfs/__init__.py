"""A folder that two machines share by NFS, on one machine: ``client.c``, mounted twice.

Every process of this machine sees one client at :attr:`Shared.folder`, also those that a scheduler starts: it
is that of the nodes. A command with :meth:`Shared.login` before it is on another machine, the login node.
That machine has the other client at this place, and a host name, a boot id and a machine id of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
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
    client: int  # the process of that of the nodes

    @property
    def folder(self) -> Path:
        """Where every machine has it; for this process, and for nodes, by the first client."""
        return self.place / "shared"

    @property
    def other(self) -> Path:
        """The same by the second client, which the login node has there."""
        return self.place / "login"

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """While the server does not answer the nodes: whoever asks for anything there waits."""
        os.kill(self.client, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.client, signal.SIGCONT)

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
            place = tmp_path / "nfs"
            for name in ("server", "shared", "login"):
                (place / name).mkdir(parents=True)
            (place / "boot").write_text(f"{uuid.uuid4()}\n")
            (place / "machine").write_text(f"{uuid.uuid4().hex}\n")
            clients = [
                stack.enter_context(_mounted(nfs_client, place / "server", place / name, locks=locks))
                for name in ("shared", "login")
            ]
            return Shared(place, clients[0])

        yield make


@contextlib.contextmanager
def _mounted(client: Path, server: Path, point: Path, *, locks: bool) -> Iterator[int]:
    words = [client, server, point, str(KEPT), str(WRITTEN), str(int(locks))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            # Lazily: what is still open there fails from now on, instead of keeping it.
            subprocess.run(["umount", "--lazy", point], check=True)
            process.terminate()
            process.wait(10)
