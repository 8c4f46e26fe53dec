"""A small image with the running Python, pip, a shell, and apt: nothing can be pulled where tests run.

It is one layer, laid out as the official ``python`` images are, made once and kept in ``build/engines``.
"""

from __future__ import annotations

import compileall
import fcntl
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

KEPT = Path(__file__).parents[2] / "build" / "engines"
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

_PROGRAMS = (
    "sh bash env cat chmod chown cp cut date dirname basename echo egrep false find getent grep gzip head id "
    "kill ldconfig ls ln mkdir mktemp mv nproc ps readlink realpath rm rmdir sed seq sleep sort stat stty "
    "tail tar tee test timeout touch tr true uname wc which xargs "
    "apt-get apt-config apt-key cmp diff dpkg dpkg-deb dpkg-query dpkg-split gpgv start-stop-daemon "
    "update-alternatives"
)
_TREES = ("/usr/lib/apt/methods", "/etc/apt", "/usr/share/keyrings", "/usr/share/dpkg", "/etc/dpkg")
_FOLDERS = (
    "dev proc sys run home root var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers "
    "var/lib/apt/lists/partial var/cache/apt/archives/partial var/log/apt"
)
_UNUSED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "__pycache__"}
_UNUSED |= {"site-packages", "dist-packages", f"config-{MINOR}-{sys.implementation._multiarch}"}
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n_apt:x:100:65534::/nonexistent:/bin/false\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nstaff:x:50:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/os-release": Path("/etc/os-release").read_text(),
}
_LIBRARIES = "libstdc++.so.6 libgcc_s.so.1 librt.so.1 libpthread.so.0 libdl.so.2 libutil.so.1 libresolv.so.2"
"""What programs and libraries from wheels count on, and uv among them."""
_PIP = """#!/usr/bin/env python{minor}
import sys
from pip._internal.cli.main import main
sys.exit(main())
"""
_IS_DEBIANS = sys.base_prefix == "/usr"
"""Debian's own Python finds its packages in the places that Debian has for them only."""

LIBRARY = f"usr/{'' if _IS_DEBIANS else 'local/'}lib/python{MINOR}"
"""Of Python, in the image."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PYTHON_VERSION": sys.version.split()[0],
    # What stands between a machine and the index has certificates of its own.
    "SSL_CERT_FILE": CERTIFICATES,
    "PIP_CERT": CERTIFICATES,
}
"""Of the image, as the official ones have it; and the certificates of this machine."""


def layer() -> Path:
    """The layer, as a ``.tar.gz``; made where it is not there yet, and then kept."""
    source = Path(__file__).read_bytes() + sys.version.encode() + sys.base_prefix.encode()
    kept = KEPT / f"base-{hashlib.sha256(source).hexdigest()[:16]}.tar.gz"
    KEPT.mkdir(parents=True, exist_ok=True)
    with open(KEPT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another session may be about it
        if not kept.exists():
            _make(kept)
    return kept


def _make(kept: Path) -> None:
    root, made = KEPT / "root", KEPT / "layer.tar.gz"
    shutil.rmtree(root, ignore_errors=True)
    _fill(root)
    with tarfile.open(made, "w:gz", compresslevel=1) as archive:
        archive.add(root, arcname=".", filter=_roots)
    made.rename(kept)
    shutil.rmtree(root)


def _roots(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _fill(root: Path) -> None:
    for folder in _FOLDERS.split():
        (root / folder).mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for folder in ("bin", "sbin", "lib", "lib64"):  # as Debian has them
        (root / "usr" / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).symlink_to(f"usr/{folder}")
    programs = [
        path
        for name in _PROGRAMS.split()
        if (path := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"))
    ]
    trees = [tree for tree in _TREES if os.path.isdir(tree)]
    for program in programs:
        _copy(Path(program), root / "usr/bin" / Path(program).name)
    for tree in trees:
        shutil.copytree(tree, root / tree[1:], symlinks=True, dirs_exist_ok=True)
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    _copy(Path(CERTIFICATES), root / CERTIFICATES[1:])
    # So that apt takes what is there already for installed, and brings what is missing.
    if os.path.exists("/var/lib/dpkg/status"):
        _copy(Path("/var/lib/dpkg/status"), root / "var/lib/dpkg/status")
    library = _python(root)
    binaries = [*programs, *(str(path) for tree in trees for path in Path(tree).rglob("*") if path.is_file())]
    always = [path for name in _LIBRARIES.split() for path in glob.glob(f"/usr/lib/*-linux-gnu/{name}")]
    binaries += [*always, *_binaries(library), os.path.realpath(sys.executable)]
    for needed in (*always, *_libraries(binaries)):
        systems = needed.startswith(("/lib", "/usr/lib"))  # else the loader has to be told where it is
        at = "usr" + needed.removeprefix("/usr") if systems else f"usr/lib/{Path(needed).name}"
        _copy(Path(needed), root / at)


def _python(root: Path) -> Path:
    """The interpreter and its library, below ``/usr/local``; pip among its packages."""
    prefix = root / ("usr" if _IS_DEBIANS else "usr/local")
    library = root / LIBRARY
    shutil.copytree(
        sysconfig.get_path("stdlib"), library, symlinks=True, ignore=lambda _, names: _UNUSED & {*names}
    )
    programs = prefix / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    _copy(Path(os.path.realpath(sys.executable)), programs / f"python{MINOR}")
    for name in ("python3", "python"):
        (programs / name).symlink_to(f"python{MINOR}")
    packages = prefix / "lib/python3/dist-packages" if _IS_DEBIANS else library / "site-packages"
    packages.mkdir(parents=True)
    import pip

    source = Path(pip.__file__).parent
    shutil.copytree(source, packages / "pip", ignore=lambda _, names: _UNUSED & {*names})
    for described in source.parent.glob("pip-*.dist-info"):
        shutil.copytree(described, packages / described.name)
    for name in ("pip", "pip3"):
        (programs / name).write_text(_PIP.format(minor=MINOR))
        (programs / name).chmod(0o755)
    compileall.compile_dir(prefix / "lib", quiet=2, stripdir=str(root), prependdir="/", workers=0)
    return library


def _binaries(folder: Path) -> Iterator[str]:
    yield from (str(path) for path in folder.rglob("*.so*") if path.is_file())


def _libraries(binaries: Iterable[str]) -> list[str]:
    """Every shared library that these programs and libraries load, and the loader."""
    said = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return sorted(
        {found for line in said.splitlines() for found in re.findall(r"(?:=> |^\t)(/\S+) \(", line)}
    )


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, to)
