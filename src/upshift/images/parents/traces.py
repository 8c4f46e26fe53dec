"""Which files of an image tell what is in it, and what they tell together: :func:`contents`.

A layer or a file system is reduced to :class:`Traces`: the paths that matter, a few short texts, and links.
Everything is derived from these, so that inspecting layers and a running container gives the same answer.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from upshift.images.base import Contents
from upshift.images.parents.known import GLIBC, cuda_of, cuda_of_runtime, minor, rocm_of
from upshift.images.recipes.reading import normalized
from upshift.runtime.accelerators.compatibility import parse

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of a container whose image says none."""

_DATABASE, _USERS = "var/lib/dpkg/status", "etc/passwd"
_LONGEST_TEXT, _LONGEST_DATABASE = 16 * 1024, 16 * 1024 * 1024
_TEXTS = re.compile(
    r"(?:.*/)?pyvenv\.cfg|(?:usr/lib|etc)/os-release|(?:.*/)?torch/version\.py"
    r"|usr/local/cuda(?:-[\d.]+)?/version\.(?:json|txt)|opt/rocm(?:-[\d.]+)?/\.info/version"
    r"|(?:.*/)?include/python3\.\d+/patchlevel\.h|etc/passwd"
)
_MARKS = re.compile(
    r"(?:.*/)?bin/python3?(?:\.\d+)?|(?:.*/)?lib(?:64)?/python3\.\d+/os\.pyc?"
    r"|(?:.*/)?(?:site|dist)-packages/[^/]+\.(?:dist|egg)-info|(?:.*/)?libcudart(?:-[0-9a-f]+)?\.so\.\d+\.[\d.]+"
    r"|usr/local/cuda-\d+\.\d+|opt/rocm-\d+\.\d+(?:\.\d+)?|(?:usr/)?lib/ld-musl-[^/]+"
)
_OWNER = re.compile(
    r"((?:.*/)?(?:site|dist)-packages/[^/]+\.(?:dist|egg)-info|usr/local/cuda-\d+\.\d+|opt/rocm-\d+\.\d+(?:\.\d+)?)/.*"
)
_COMPAT = re.compile(r"usr/local/cuda(?:-[\d.]+)?/compat/libcuda\.so[.\d]*")
_PACKAGE = re.compile(r"^Package: (libc6|python3\.\d+)\n(?:.*\n)*?Version: (?:\d+:)?([^\s-]+)", re.MULTILINE)
_MOST_LINKS = 40


def wants_text(path: str, size: int) -> bool:
    """Whether the text of a file of this size is needed."""
    if path == _DATABASE:
        return size <= _LONGEST_DATABASE
    return size <= _LONGEST_TEXT and _TEXTS.fullmatch(path) is not None


def said_by(path: str, text: str) -> str:
    """The needed part of a text: a few versions of the package database, the names of users."""
    if path == _USERS:
        return "\n".join(line.partition(":")[0] for line in text.splitlines())
    if path != _DATABASE:
        return text
    packages = (record for record in text.split("\n\n") if record.startswith("Package: "))
    found = (_PACKAGE.match(record + "\n") for record in packages)
    return "\n".join(f"{match[1]} {match[2]}" for match in found if match)


def marked(path: str) -> str | None:
    """The path to record for a file; None: it tells nothing."""
    if _COMPAT.fullmatch(path):
        return path
    owner = _OWNER.fullmatch(path)
    if owner:
        return owner[1]
    return path if _MARKS.fullmatch(path) else None


def wants_link(path: str) -> bool:
    """Whether it matters where a link leads: folders near the root, and interpreters."""
    return path.count("/") < 3 or marked(path) is not None


@attrs.frozen(kw_only=True)
class Traces:
    """The telling files of a layer or a file system; paths are relative to its root."""

    marks: tuple[str, ...] = ()  # paths that exist
    texts: Mapping[str, str] = attrs.field(factory=dict)  # what files say
    links: Mapping[str, str] = attrs.field(factory=dict)  # where links lead
    removed: tuple[str, ...] = ()  # paths of lower layers that are not there any more
    emptied: tuple[str, ...] = ()  # folders of which lower layers have nothing any more
    python: str | None = None  # the full version of the Python on the PATH, where it was asked itself


def stacked(layers: Iterable[Traces]) -> Traces:
    """The traces of a stack of layers, the lowest first."""
    marks: dict[str, None] = {}
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    for layer in layers:
        removed, emptied = set(layer.removed), set(layer.emptied)
        for known in (marks, texts, links) if removed or emptied else ():
            for path in [path for path in known if _hidden(path, removed, emptied)]:
                del known[path]
        for path in layer.links:
            marks.pop(path, None)
        for path in layer.marks:
            links.pop(path, None)
        marks |= dict.fromkeys(layer.marks)
        texts |= layer.texts
        links |= layer.links
    return Traces(marks=tuple(marks), texts=texts, links=links)


def _hidden(path: str, removed: set[str], emptied: set[str]) -> bool:
    """Whether a layer with these takes a path of a lower one away."""
    if path in removed:
        return True
    while path:
        path = posixpath.dirname(path)
        if path in removed or path in emptied:
            return True
    return False


def contents(traces: Traces, environment: Mapping[str, str], source: str) -> Contents:
    found = _interpreter(traces, environment.get("PATH") or PATH)
    python: str | None = ""
    interpreter = site = None
    packages: Mapping[str, str] = {}
    if found is not None:
        interpreter, home, version = found
        folders = _site_folders(traces, home, version)
        python = _full(traces, home, version, environment)
        site = "/" + folders[0]
        packages = _packages(traces, folders)
    return Contents(
        python=python,
        interpreter=interpreter,
        site_packages=site,
        cuda=_cuda(traces, packages),
        compat=any(map(_COMPAT.fullmatch, (*traces.marks, *traces.links))),
        stacks={"amd": _rocm(traces, packages), "neuron": packages.get("neuronx-cc", "")},
        packages=packages,
        users=frozenset(traces.texts[_USERS].split()) if _USERS in traces.texts else None,
        glibc=_glibc(traces),
        source=source,
    )


def _interpreter(traces: Traces, path: str) -> tuple[str, str, str] | None:
    """The Python on the PATH: how it is called, the folder that it lives in, its minor version."""
    exists = set(traces.marks)
    for name in ("python3", "python"):
        for folder in path.split(":"):
            called = posixpath.join(folder, name).strip("/")
            found = posixpath.join(_resolved(traces, folder.strip("/")), name)
            if found not in exists and found not in traces.links:
                continue
            real = _resolved(traces, found)
            version = _minor(traces, real)
            if version is None:
                continue
            own = posixpath.dirname(posixpath.dirname(called))
            venv = f"{own}/pyvenv.cfg".lstrip("/") in traces.texts
            return "/" + called, own if venv else posixpath.dirname(posixpath.dirname(real)), version
    return None


def _minor(traces: Traces, real: str) -> str | None:
    named = re.search(r"python(3\.\d+)$", real)
    if named:
        return named[1] if real in traces.marks else None
    home = posixpath.dirname(posixpath.dirname(real))
    for mark in traces.marks:
        library = re.fullmatch(re.escape(home) + r"/lib(?:64)?/python(3\.\d+)/os\.pyc?", mark)
        if library and real in traces.marks:
            return library[1]
    return None


def _resolved(traces: Traces, path: str) -> str:
    """Where a path leads, links followed at each of its parts."""
    parts, done = path.split("/"), ""
    for _ in range(_MOST_LINKS):
        for number, part in enumerate(parts):
            step = posixpath.normpath(posixpath.join(done, part)).lstrip("/") if part else done
            target = traces.links.get(step)
            if target is None:
                done = step
                continue
            base = "" if target.startswith("/") else posixpath.dirname(step)
            rest = parts[number + 1 :]
            parts, done = [*posixpath.normpath(posixpath.join("/", base, target)).split("/")[1:], *rest], ""
            break
        else:
            return done
    return path


def _site_folders(traces: Traces, home: str, version: str) -> list[str]:
    """Where its packages are; the first is where installers put more."""
    own = f"{home}/lib/python{version}/site-packages".lstrip("/")
    if home == "usr" and (_DATABASE in traces.texts or any("/dist-packages/" in m for m in traces.marks)):
        return [f"usr/local/lib/python{version}/dist-packages", "usr/lib/python3/dist-packages"]
    if home == "usr":
        return [
            own,
            f"usr/lib64/python{version}/site-packages",
            f"usr/local/lib/python{version}/site-packages",
        ]
    return [own]


def _packages(traces: Traces, folders: list[str]) -> Mapping[str, str]:
    packages: dict[str, str] = {}
    for folder in folders:
        real = _resolved(traces, folder)
        for mark in traces.marks:
            if posixpath.dirname(mark) in (folder, real):
                name, version = distribution(posixpath.basename(mark))
                if version:
                    packages.setdefault(name, version)
    places = (f"{place}/torch/version.py" for one in folders for place in (one, _resolved(traces, one)))
    torch = next((traces.texts[place] for place in places if place in traces.texts), "")
    build = re.search(r"__version__ = '([^']+)'", torch)
    cuda = re.search(r"cuda\b[^=\n]*= '([\d.]+)'", torch)
    if "torch" in packages and "+" not in packages["torch"] and build:
        local = "" if "+" in build[1] or not cuda else "+cu" + minor(cuda[1]).replace(".", "")
        packages["torch"] = build[1] + local
    return packages


def distribution(folder: str) -> tuple[str, str]:
    """Name and version of a ``….dist-info`` or ``….egg-info``; the version is empty where there is none."""
    stem = folder.rpartition(".")[0]
    name, _, rest = stem.partition("-")
    version = re.sub(r"-py\d(?:\.\d+)?(?:-.*)?$", "", rest)
    return normalized(name), version


def _full(traces: Traces, home: str, version: str, environment: Mapping[str, str]) -> str:
    """The version with its last number, where anything says it."""
    said = [traces.python or "", environment.get("PYTHON_VERSION", "")]
    config = traces.texts.get(f"{home}/pyvenv.cfg", "")
    said += re.findall(r"^version(?:_info)?\s*=\s*([\d.]+)", config, re.MULTILINE)
    header = traces.texts.get(f"{home}/include/python{version}/patchlevel.h", "")
    said += re.findall(r'#define PY_VERSION\s+"([\d.]+)', header)
    if home == "usr":
        said += re.findall(rf"^python{re.escape(version)} ([\d.]+)", traces.texts.get(_DATABASE, ""), re.M)
    return next((s for s in said if minor(s) == version and len(parse(s)) > 2), version)


def _cuda(traces: Traces, packages: Mapping[str, str]) -> str:
    torch = cuda_of(packages.get("torch", ""))
    if torch:
        return torch
    for path, text in traces.texts.items():
        if path.endswith("/version.json") and "cuda" in path:
            found = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', text)
            if found:
                return minor(found[1])
        elif path.endswith("/version.txt") and (found := re.search(r"CUDA Version ([\d.]+)", text)):
            return minor(found[1])
    if runtime := cuda_of_runtime(packages):
        return runtime
    versions = [found[1] for mark in traces.marks if (found := re.search(r"cuda-(\d+\.\d+)$", mark))]
    versions += [
        found[1]
        for mark in traces.marks
        if (found := re.search(r"libcudart(?:-[0-9a-f]+)?\.so\.(\d+\.\d+)", mark))
    ]
    return max(versions, key=parse, default="")


def _rocm(traces: Traces, packages: Mapping[str, str]) -> str:
    torch = rocm_of(packages.get("torch", ""))
    if torch:
        return torch
    for path, text in traces.texts.items():
        if path.startswith("opt/rocm") and (found := re.match(r"[\d.]+", text)):
            return found[0].rstrip(".")
    versions = [found[1] for mark in traces.marks if (found := re.fullmatch(r"opt/rocm-([\d.]+)", mark))]
    return max(versions, key=parse, default="")


def _glibc(traces: Traces) -> str | None:
    database = re.search(r"^libc6 (\d+\.\d+)", traces.texts.get(_DATABASE, ""), re.MULTILINE)
    if database:
        return database[1]
    release = traces.texts.get("usr/lib/os-release") or traces.texts.get("etc/os-release", "")
    said = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]+)"?$', release, re.MULTILINE))
    if any("ld-musl-" in mark for mark in traces.marks):
        return ""
    name = {"rocky": "rhel", "almalinux": "rhel", "centos": "rhel"}.get(
        said.get("ID", ""), said.get("ID", "")
    )
    number = said.get("VERSION_ID", "")
    return GLIBC.get(f"{name} {number}") or GLIBC.get(f"{name} {number.partition('.')[0]}")


def as_json(traces: Traces) -> str:
    return json.dumps(attrs.asdict(traces), sort_keys=True)


def from_json(text: str) -> Traces:
    """The inverse of :func:`as_json`; raises ValueError or TypeError for another text."""
    said: dict[str, Any] = json.loads(text)
    if said.keys() != attrs.fields_dict(Traces).keys():
        raise ValueError("no traces")
    said |= {name: tuple(said[name]) for name in ("marks", "removed", "emptied")}
    return Traces(**said)
