"""A look into an image that the container engine has: its own Python says what is there. :func:`look`."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING

from upshift.errors import ImageError
from upshift.images.base import Announce, Contents, Parent
from upshift.images.parents import layers, traces
from upshift.images.parents.traces import Traces

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine

SOURCE = "a look into the image"
_PATIENCE = 60.0  # seconds for a container to start and to list some folders
_TO_REMOVE = 30.0
_NO_SUCH_PROGRAM, _NOT_STARTED = 127, 126  # 126: for any reason that the engine's runtime had
_NOT_THERE = ("not found", "no such file")

# For any Python from 3.4 on. It lists names; what they mean is decided here.
_SCRIPT = r"""
import glob, json, os, sys, sysconfig
marks, texts = [], {}
def text(path, most=16384):
    try:
        with open(path, errors="replace") as file:
            said = file.read(most + 1)
    except OSError:
        return
    if len(said) <= most:
        texts[path] = said
called, real, library = sys.executable, os.path.realpath(sys.executable), sysconfig.get_path("stdlib")
links = {called: real} if called != real else {}
text(os.path.join(sys.prefix, "pyvenv.cfg"))
folders = [path for path in sys.path if path.endswith("-packages")] + [sysconfig.get_path("purelib")]
for folder in sorted(set(folders)):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith((".dist-info", ".egg-info")):
            marks.append(os.path.join(folder, name))
    text(os.path.join(folder, "torch", "version.py"))
for path in (real, os.path.join(library, "os.py")):
    if os.path.exists(path):
        marks.append(path)
for path in ("/usr/local/cuda-*", "/opt/rocm-*", "/lib/ld-musl-*", "/usr/local/cuda/lib64/libcudart.so.*",
             "/usr/local/cuda*/compat/libcuda.so*"):
    marks.extend(sorted(glob.glob(path)))
for path in ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt", "/opt/rocm/.info/version"):
    text(path)
text("/usr/lib/os-release")
text("/etc/os-release")
text("/etc/passwd")
text("/var/lib/dpkg/status", 16777216)
python = ".".join(map(str, sys.version_info[:3]))
print(json.dumps({"python": python, "marks": marks, "texts": texts, "links": links}))
"""


def look(parent: Parent, engine: ContainerEngine, announce: Announce | None = None) -> Contents | None:
    """What is in an image that the engine has; None: it cannot be started, which says nothing.

    The image's ``python3`` runs for a moment, without a network, and lists what there is. What it said is
    kept by the image's digest. ``announce`` is told where the engine did not answer in time.
    """
    seen = layers.kept(parent.digest)
    if seen is None:
        try:
            seen = _seen(parent, engine)
        except ImageError as error:
            if announce is not None:
                announce(f"{parent.reference}: it could not be looked into: {error.what}")
        if seen is None:
            return None
        layers.keep(parent.digest, seen)
    return traces.contents(seen, parent.environment, SOURCE)


def _seen(parent: Parent, engine: ContainerEngine) -> Traces | None:
    container = f"upshift-look-{uuid.uuid4().hex[:12]}"
    command = ["run", "--rm", "--name", container, "--pull", "never", "--network", "none"]
    command += ["--entrypoint", "python3", parent.reference.full, "-I", "-c", _SCRIPT]
    try:
        answer = engine.run(command, check=False, timeout=_PATIENCE)
    except BaseException:  # only the command has ended
        with contextlib.suppress(ImageError):
            engine.run(["rm", "--force", container], check=False, timeout=_TO_REMOVE)
        raise
    if _lacks_python(answer.returncode, answer.stderr):
        return Traces()
    try:
        said = json.loads(answer.stdout.splitlines()[-1])
        named = {path.lstrip("/"): text for path, text in said["texts"].items()}
        return Traces(
            marks=tuple(path.lstrip("/") for path in said["marks"]),
            texts={path: traces.said_by(path, text) for path, text in named.items()},
            links={path.lstrip("/"): target for path, target in said["links"].items()},
            python=said["python"],
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _lacks_python(status: int, said: str) -> bool:
    """An engine that can start nothing says nothing of the image."""
    missing = any(words in said.lower() for words in _NOT_THERE)
    return status == _NO_SUCH_PROGRAM or (status == _NOT_STARTED and missing)
