"""Who has a device: one lock file for each, whatever user, ``UPSHIFT_HOME`` or engine asks.

The lock is a ``flock``, which belongs to an open file and not to a process. Whoever is handed the
descriptor has the device as well, and the kernel gives it back when the last of them has ended,
however it ended. A device that is cut into slices has a lock that its slices share, so that it is
handed out as a whole or in slices.

The folder is below ``/tmp``, where every user may write and what a logged-out user has left stays
(``/dev/shm`` is emptied then, see ``RemoveIPC`` in ``logind.conf(5)``). What is old there is removed, and
whoever then makes the lock anew has the device as well. So who holds a device shares a lock on the folder
itself: ``systemd-tmpfiles`` leaves a locked folder alone, with all that is in it (``tmpfiles.d(5)``). Other
cleaners heed no lock (``tmpreaper``, ``tmpwatch``, ``rm``). They have to be kept from the folder, or the
folder from ``/tmp``, by :data:`upshift.runtime.accelerators.files.LOCKS`.

Nothing is ever written to the files, and none is opened with ``O_CREAT`` where it exists: the kernel
refuses that for files of others (``fs.protected_regular``). Who may open a lock may also hold it for no
reason: the users of a machine trust each other that far. Engines in containers that share a device but no
``/tmp`` do not see each other's locks, unless that variable names a folder that they share.

Which processes have a device is known to the kernel, and asked to say who, and to end what was left behind.
Anyone may have made the folder of locks, and have put anything there. So locks are compared as files, not by
name, and only a process with the mark of a supervisor is ever ended: :mod:`upshift.runtime.marks`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from upshift.errors import BackendError
from upshift.model.spec.hardware import Device
from upshift.runtime import children, marks
from upshift.runtime.accelerators.files import LOCKS, lock_folder

HELD = "UPSHIFT_DEVICES_HELD"
"""Environment variable of what a step starts: the names of the locks that it holds. What a run that is
started there hands out of these devices has locks of its own, below them."""
TAKER = "UPSHIFT_DEVICES_TAKER"
"""Environment variable beside it: who took the locks, from
:func:`upshift.runtime.marks.identity`."""
_BELOW = ".1"
_SLICE = "+"
"""Between the names of a device and of its slice; in no name of either."""
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
LOOKS = 4
"""How often ``/proc/locks`` is read before a lock counts as nobody's: the kernel writes it page by page, and
between two pages it skips a lock if others were given back at that moment."""
_ACCESS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Hold:
    """Devices that are held, until :meth:`give_back` and the end of all that have the descriptors."""

    def __init__(self, devices: Sequence[Device], descriptors: Iterable[int]) -> None:
        self.devices = tuple(devices)
        self.descriptors = tuple(descriptors)
        self.names = ",".join(map(name_of, self.devices))
        children.private(self)

    def give_back(self) -> None:
        """Release the locks of this process."""
        descriptors, self.descriptors = self.descriptors, ()
        _close(descriptors)

    close = give_back


def hold(devices: Sequence[Device]) -> Hold | None:
    """Take all of these devices, or none."""
    taken: list[int] = []
    try:
        folder = _lock_folder()
        if folder is None:  # it is being cleaned
            return None
        taken.append(folder)
        # In an order that is the same everywhere: of two that want the same two devices one gets both.
        for device in sorted(devices, key=key):
            for name, how in _locks(device):
                descriptor = _lock(lock_folder() / name, how, _open)
                if descriptor is None:
                    _close(taken)
                    return None
                taken.append(descriptor)
        if not _is_current(folder, lock_folder()):  # another one is in its place since
            _close(taken)
            return None
    except BaseException:
        _close(taken)
        raise
    return Hold(devices, taken)


def free(device: Device) -> bool:
    """Whether nobody has the device, or a part of it, at this moment."""
    names = [name for name, _ in _locks(device)]
    slices = f"{names[-1]}{_SLICE}"
    names += [name for name in _made() if name.startswith(slices)]
    return not any(map(_is_taken, names))


def any_held() -> bool:
    """Whether anybody has any device; it takes no knowledge of what devices there are."""
    for name in _made():
        with contextlib.suppress(BackendError):  # what is no lock, nobody has
            if _is_taken(name):
                return True
    return False


def key(device: Device) -> str:
    """What identifies the device on this machine, fit for the name of a file."""
    own = _plain(device.uuid or f"{device.vendor or 'device'}-{device.index}")
    return own if device.parent is None else f"{_plain(device.parent)}{_SLICE}{own}"


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


def _made() -> list[str]:
    """The names of all locks that anybody has ever had."""
    try:
        return [name for name in os.listdir(lock_folder()) if not name.startswith(".")]  # drafts
    except OSError:  # there are none
        return []


def _is_taken(name: str) -> bool:
    """Whether somebody has the lock of this name. Looks share it: they do not take it from each other.

    Those who share it to keep a device as a whole from others hold another lock alone, their slice's.
    """
    path = lock_folder() / name
    try:
        descriptor = _open_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(str(path), error) from None
    return False


def _lock_folder() -> int | None:
    """A descriptor that keeps cleaners from the folder; None: one is at work."""
    return _lock(lock_folder(), fcntl.LOCK_SH, _open_folder)


def _lock(path: Path, how: int, opened: Callable[[Path], int]) -> int | None:
    """A descriptor of the lock at this place, which it holds now; None: it is taken."""
    while True:
        try:
            descriptor = opened(path)
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
                if _is_current(descriptor, path):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _unusable(str(path), error) from None
        os.close(descriptor)  # somebody cleaned up, between our open and our lock


def _open(path: Path) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):
            return _open_file(path)
        _make_folder(path.parent)
        _make_file(path)


def _open_file(path: Path) -> int:
    descriptor = os.open(path, _ACCESS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(0, "it is not a plain file")


def _open_folder(path: Path) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        _make_folder(path)


# Both get their mode, which the umask must not narrow, before others can see them. What they are called
# until then is by chance: containers that share the folder have processes of the same number.


def _make_folder(path: Path) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        draft = _draft(path)
        with contextlib.suppress(FileExistsError):
            draft.mkdir(mode=0o700)
            break
    try:
        draft.chmod(0o1777)  # everybody may make locks, and nobody remove those of others
        draft.rename(path)
    except OSError:
        draft.rmdir()
        if not path.is_dir():  # somebody else was faster
            raise


def _make_file(path: Path) -> None:
    while True:
        draft = _draft(path)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(draft, _ACCESS | os.O_CREAT | os.O_EXCL, 0o600)
            break
    try:
        os.fchmod(descriptor, 0o644)  # it takes no right to write to lock a file
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        found = os.lstat(path)
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


# -- who has one, and what was left behind --------------------------------------------------------


def holder(device: Device) -> int | None:
    """The process that took the device; None: nobody has it, or that process cannot be seen."""
    found = _inodes(device)
    for _ in range(LOOKS if found else 0):
        with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
            for line in file:
                taker = _taker(line, found)
                if taker:
                    return taker
    return None


def orphans(device: Device) -> list[int]:
    """Processes that a step has forked, and that have the device though the supervisor that took it has died.

    A supervisor takes its step processes with it when it dies, but not what these had started. Those of
    other users cannot be seen.
    """
    found = _inodes(device)
    return [pid for pid in marks.processes() if found and _is_orphan(pid, found)]


def end_orphans(device: Device) -> list[int]:
    """End the :func:`orphans`, and give them. The device comes back when they are gone."""
    found, left = _inodes(device), orphans(device)
    marks.kill(left, lambda pid: _is_orphan(pid, found), seconds=0)
    return left


def left_behind(devices: Iterable[Device]) -> list[int]:
    """Processes that a step has started which had one of these devices, and whose taker has died.

    Whoever asks holds the devices now. A child that was started with exec has no descriptor of its
    step's, but its environment. Where the taker lives, somebody has removed a lock that is in use: the
    step is left alone.
    """
    names = {name_of(device) for device in devices}
    return [pid for pid in marks.processes() if _is_left_behind(pid, names)]


def end_left_behind(devices: Iterable[Device]) -> list[int]:
    """End what is :func:`left_behind`, and give it."""
    devices = tuple(devices)
    names, left = {name_of(device) for device in devices}, left_behind(devices)
    marks.kill(left, lambda pid: _is_left_behind(pid, names), seconds=0)
    return left


def _is_orphan(pid: int, found: set[tuple[int, int]]) -> bool:
    taker = _dead_taker(pid, found)
    if taker is None:
        return False
    dead = [who for _, who in marks.marks(pid) if who is not None and not marks.lives(who)]
    return any(taker in (0, marks.number(who)) for who in dead)


def _dead_taker(pid: int, found: set[tuple[int, int]]) -> int | None:
    """Who took one of these locks that the process has, if it has died; 0: it cannot be seen."""
    for descriptor in _descriptors(pid):
        with contextlib.suppress(OSError):  # closed since
            # Who has just opened it, to see whether it is free, has no lock in there.
            for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text("ascii").splitlines():
                taker = _taker(line.removeprefix("lock:"), found) if line.startswith("lock:") else None
                if taker is not None and not os.path.exists(f"/proc/{taker}"):
                    opened = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    if (opened.st_dev, opened.st_ino) in found:
                        return taker
    return None


def _is_left_behind(pid: int, names: set[str]) -> bool:
    try:
        environment = marks.environment(pid)
    except OSError:
        return False
    if marks.VARIABLE not in environment or not names & set(environment.get(HELD, "").split(",")):
        return False
    taker = environment.get(TAKER)
    return taker is None or taker == marks.identity() or not marks.lives(taker)


def _descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from os.listdir(f"/proc/{pid}/fd")


def _inodes(device: Device) -> set[tuple[int, int]]:
    """The files that are locked to have the device: their file systems, and their numbers there."""
    found = set()
    for file in files(device):
        with contextlib.suppress(OSError):
            about = file.lstat()  # a link is no lock, wherever it leads
            found.add((about.st_dev, about.st_ino))
    return found


def _taker(line: str, found: set[tuple[int, int]]) -> int | None:
    """The process that took a lock on one of these files; 0: it cannot be seen; None: no such lock.

    A line of ``/proc/locks`` or of ``/proc/PID/fdinfo/N``, see ``proc_locks(5)``::

        1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
    """
    fields = line.split()
    if len(fields) < 6 or fields[1] != "FLOCK":
        return None  # or somebody who only waits: that has an arrow before FLOCK
    inode = int(fields[5].rpartition(":")[2])
    return max(int(fields[4]), 0) if any(inode == number for _, number in found) else None
