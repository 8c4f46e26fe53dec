"""Small packages, made for a test."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    tag: str = "py3-none-any",
    needs: Sequence[str] = (),
) -> Path:
    """Make one with these files, which needs other packages; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    described = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    described[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in [*described, f"{about}/RECORD"])
    made = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for file, text in described.items():
            archive.writestr(file, text)
    return made


_BACKEND = """
import os, sys, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    tag = "py3-none-linux_" + os.uname().machine if {compiled} else "py3-none-any"
    name, about = f"{name}-{version}-{{tag}}.whl", "{name}-{version}.dist-info"
    files = {{
        "{name}.py": f"PREFIX = {{sys.base_prefix!r}}\\nUSER = {{os.getuid()}}\\n",
        f"{{about}}/METADATA": "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        f"{{about}}/WHEEL": f"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {{tag}}\\n",
        f"{{about}}/RECORD": "",
    }}
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""


def sdist(folder: Path, name: str, version: str, *, compiled: bool = False) -> Path:
    """Sources of a package that needs nothing to be built, and says afterwards by which Python it was."""
    folder.mkdir(parents=True, exist_ok=True)
    top = f"{name}-{version}"
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        f"[project]\nname = '{name}'\nversion = '{version}'\n",
        "backend.py": _BACKEND.format(name=name, version=version, compiled=compiled),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    made = folder / f"{top}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return made
