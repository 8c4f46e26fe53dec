"""Where packages are in an image made without an engine, and how its Python finds them: :class:`Layout`.

They have a folder of their own, the same in every image; so a layer with torch does not depend on what is
below it. One line in the interpreter's own ``site-packages`` puts this folder before its other packages:
what the image holds in another version is hidden, whole, and none of it has to be removed. The interpreter
stays the image's own, so that the programs which the image brings see the packages too.
"""

from __future__ import annotations

import posixpath
import sys

import attrs

from upshift.images.base import Contents, Parent

SCRIPTS = "bin"
"""Folder of the scripts among what was installed."""

DATA = ("etc", "include", "share")
"""Folders among it that belong beside the interpreter's, not among the packages."""

_LINKED = ("bin", "lib", "lib64", "sbin")  # links into /usr on every distribution of today

# One line, as the module site wants it. It appends the folder and what its .pth files name, then moves all
# that before the first of the interpreter's own folders. In an image on top of another one those of the other
# are its own, too.
_LINE = (
    "import site, sys; _n = len(sys.path); site.addsitedir({site!r}); "
    "_own = {own!r} + site.getsitepackages(); "
    "_at = min(map(sys.path.index, filter(sys.path.__contains__, _own)), default=_n); "
    "sys.path[_at:] = sys.path[_n:] + sys.path[_at:_n]\n"
)


@attrs.frozen(kw_only=True)
class Layout:
    """Where things are in an image.

    Parameters
    ----------
    python
        Minor version of its Python.
    interpreter, site_packages
        Paths of that Python, and of its packages.
    below
        Images of Upshift that it is made from, one on top of the other; each has a folder of its own.
    """

    python: str
    interpreter: str
    site_packages: str
    below: int = 0

    @classmethod
    def on(cls, parent: Parent, contents: Contents) -> Layout:
        """On top of a parent whose Python is known."""
        assert contents.python and contents.interpreter and contents.site_packages
        folders = parent.environment.get("PATH", "").split(":")
        return cls(
            python=".".join(contents.python.split(".")[:2]),
            interpreter=contents.interpreter,
            site_packages=contents.site_packages,
            below=sum(f"{_prefix(level)}/{SCRIPTS}" in folders for level in range(len(folders))),
        )

    @property
    def scripts(self) -> str:
        """The folder of the scripts."""
        return f"{_prefix(self.below)}/{SCRIPTS}"

    @property
    def site(self) -> str:
        """The folder of the packages."""
        return self._site_of(self.below)

    @property
    def hook(self) -> tuple[str, str]:
        """What has the interpreter find the packages: a file, and its line."""
        name = f"_upshift{self.below + 1 if self.below else ''}.pth"
        # While a virtual environment is set up, getsitepackages() does not name it yet.
        own = [*(self._site_of(level) for level in range(self.below)), self.site_packages]
        return f"{self.site_packages}/{name}", _LINE.format(site=self.site, own=own)

    @property
    def compiles(self) -> bool:
        """Whether bytecode can be made here: by the same minor version of Python."""
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        return sys.implementation.name == "cpython" and self.python == here

    def place(self, file: str) -> str:
        """Where a file that was installed is."""
        top, _, rest = file.partition("/")
        if top == SCRIPTS:
            return f"{self.scripts}/{rest}"
        if top in DATA:  # what reads them looks below sys.prefix
            return f"{posixpath.dirname(posixpath.dirname(self.interpreter))}/{file}"
        return f"{self.site}/{file}"

    def _site_of(self, level: int) -> str:
        return f"{_prefix(level)}/lib/python{self.python}/site-packages"


def inside(path: str) -> str:
    """A path in a layer. Folders that are links are not named: a layer would put a folder in their place."""
    path = posixpath.normpath(path).strip("/")
    return f"usr/{path}" if path.partition("/")[0] in _LINKED else path


def _prefix(level: int) -> str:
    return "/opt/upshift" + (f"-{level + 1}" if level else "")
