"""Who has a device: one lock file for each, whatever user, ``UPSHIFT_HOME`` or engine asks.

The lock is a ``flock``, which belongs to an open file and not to a process. Whoever is handed the
descriptor has the device as well, and the kernel gives it back when the last of them has ended,
however it ended. A device that is cut into slices has a lock that its slices share, so that it is
handed out as a whole or in slices.

The folder is below ``/tmp``, where every user may write and what a logged-out user has left stays
(``/dev/shm`` is emptied then, see ``RemoveIPC`` in ``logind.conf(5)``). Nothing is ever written to the
files, and none is opened with ``O_CREAT`` where it exists: the kernel refuses that for files of others
(``fs.protected_regular``). Who may open a lock may also hold it for no reason: the users of a machine
trust each other that far. Engines in containers that share a device but no ``/tmp`` do not see each
other's locks, unless :data:`upshift.accelerators.root.LOCKS` names a folder that they share.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from upshift.accelerators.root import LOCKS, lock_folder
from upshift.errors import BackendError
from upshift.spec.hardware import Device

HELD = "UPSHIFT_DEVICES_HELD"
"""Environment variable of what a step starts: the names of the locks that it holds. What a run that is
started there hands out of these devices has locks of its own, below them."""
_BELOW = ".1"
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_ACCESS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

_held: weakref.WeakSet[Hold] = weakref.WeakSet()


class Hold:
    """Devices that are held, until :meth:`give_back` and the end of all that have the descriptors.

    Parameters
    ----------
    devices
        The devices.
    descriptors
        What a process has to keep open to hold them too. They are closed on exec, and in children that
        this process forks.

    Attributes
    ----------
    names
        The value of :data:`HELD` for what works with these devices.
    """

    def __init__(self, devices: Sequence[Device], descriptors: Iterable[int]) -> None:
        self.devices = tuple(devices)
        self.descriptors = tuple(descriptors)
        self.names = ",".join(map(name_of, self.devices))
        _held.add(self)

    def give_back(self) -> None:
        """This process does not hold them any more."""
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)


def hold(devices: Sequence[Device]) -> Hold | None:
    """Take all of these devices, or none.

    Returns
    -------
    Hold or None
        None: somebody has one of them.

    Raises
    ------
    BackendError
        The folder of locks cannot be used.
    """
    taken: list[int] = []
    try:
        # In an order that is the same everywhere: of two that want the same two devices one gets both.
        for device in sorted(devices, key=key):
            for name, how in _locks(device):
                descriptor = _lock(name, how)
                if descriptor is None:
                    _close(taken)
                    return None
                taken.append(descriptor)
    except BaseException:
        _close(taken)
        raise
    return Hold(devices, taken)


def free(device: Device) -> bool:
    """Whether nobody has the device, or a part of it, at this moment.

    Raises
    ------
    BackendError
        The folder of locks cannot be used.
    """
    taken = hold((device,))
    if taken is not None:
        taken.give_back()
    return taken is not None


def any_held() -> bool:
    """Whether anybody has any device; it takes no knowledge of what devices there are."""
    try:
        names = os.listdir(lock_folder())
    except OSError:  # nobody has ever had one
        return False
    for name in names:
        with contextlib.suppress(BackendError):  # what is no lock, nobody has
            descriptor = _lock(name, fcntl.LOCK_SH)
            if descriptor is None:
                return True
            os.close(descriptor)
    return False


def key(device: Device) -> str:
    """What identifies the device on this machine, fit for the name of a file."""
    return _plain(device.uuid or f"{device.vendor or 'device'}-{device.index}")


def name_of(device: Device) -> str:
    """The name of its lock."""
    name = key(device)
    for held in os.environ.get(HELD, "").split(","):
        if held == name or held.startswith(name + _BELOW):
            return held + _BELOW
    return name


def files(device: Device) -> list[Path]:
    """The files that are locked to have it."""
    return [lock_folder() / name for name, _ in _locks(device)]


def _locks(device: Device) -> list[tuple[str, int]]:
    own = (name_of(device), fcntl.LOCK_EX)
    return [own] if device.parent is None else [(_plain(device.parent), fcntl.LOCK_SH), own]


def _plain(text: str) -> str:
    return _ODD.sub("_", text).lstrip(".") or "_"


def _lock(name: str, how: int) -> int | None:
    """A descriptor of the lock of this name, which it holds now; None: it is taken."""
    while True:
        try:
            descriptor = _open(name)
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
                if _is_current(descriptor, name):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _unusable(str(lock_folder() / name), error) from None
        os.close(descriptor)  # somebody cleaned up, between our open and our lock


def _open(name: str) -> int:
    path = lock_folder() / name
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, _ACCESS)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            raise OSError(0, "it is not a plain file")
        _make_folder(path.parent)
        _make_file(path)


# Both get their mode, which the umask must not narrow, before others can see them.


def _make_folder(path: Path) -> None:
    if path.exists():
        return
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.mkdir(mode=0o700)
    try:
        draft.chmod(0o1777)  # everybody may make locks, and nobody remove those of others
        draft.rename(path)
    except OSError:
        draft.rmdir()
        if not path.is_dir():  # somebody else was faster
            raise


def _make_file(path: Path) -> None:
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    descriptor = os.open(draft, _ACCESS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(descriptor, 0o644)  # it takes no right to write to lock a file
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink()


def _is_current(descriptor: int, name: str) -> bool:
    try:
        found = os.stat(lock_folder() / name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def _unusable(path: str, error: OSError) -> BackendError:
    return BackendError(
        "devices cannot be handed out: their locks cannot be used",
        where=path,
        why=error.strerror or str(error),
        fix=f"Let every user of this machine write to {lock_folder()} (mode 1777), "
        f"or set {LOCKS} to a folder where they can.",
    )


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _close_in_child() -> None:
    """A child that is forked for another purpose must not keep a device from being given back."""
    for held in list(_held):
        with contextlib.suppress(OSError):
            held.give_back()
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
