"""What code a step reaches, so that a cached result is never one of other code.

A fingerprint names every piece of reached code with a digest of it. It is made from the live objects of
this process, so that whatever rebinds, patches or decorates something is seen, and from their source,
so that comments, layout and docstrings do not matter:

* functions, with their decorators, computed default values and closures, and classes with all that
  is in them and their bases, by normalized source; by bytecode where there is no source;
* constants by value, with what their classes hide from pickle; by the statements that assign them where
  a part cannot be compared; never as the same where such a statement reads a file (``readers``);
* installed packages by version, the standard library by the version of Python;
* what the top level of the modules does beyond binding names (``toplevel``): those that the code is in
  and those that the process began with, such as the file that was run, with all that they import;
* the whole module, or the whole project, where code is reached in a way that cannot be told before it
  runs (``widening``). If in doubt, more counts.

A new function, a plain new constant, a comment, a docstring that nobody reads, the arguments of
Upshift's own decorators and what calls a pipeline do not count.

The classes of pickled inputs, whose methods no source of the step names, are looked up by the names
that the pickles hold: :meth:`Analysis.named`.

It cannot see: files, clocks, environment variables and services that a function reads by itself; what the
cells of a notebook and the lines at a prompt do beyond binding names; what a
script does to libraries under ``if __name__ == "__main__"`` (its effect on the project's own names is
seen); what a function of the project that is called at the top level does to ``numpy``, ``pandas`` or
``pyarrow`` by assigning to their attributes; a package that is changed in place without a new version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from upshift.code.fingerprint.analysis import Analysis

__all__ = ["Analysis", "fingerprint", "look_up"]


def fingerprint(
    function: Callable[..., object], project: Path, begun: Iterable[dict[str, Any]] = ()
) -> dict[str, str]:
    """Every piece of code that a function reaches.

    Parameters
    ----------
    function
        A function, method, step, or anything else that can be called.
    project
        Folder of the project; how files are named depends on it.
    begun
        As for :class:`Analysis`.

    Returns
    -------
    dict
        Name, for people, to digest, version, or the name of what is imported. Equal if and only if the
        reached code is.
    """
    return Analysis(project, begun).function(function)


def look_up(project: Path) -> Callable[[str], dict[str, str]]:
    """What finds the fingerprint of a class or function by the name that a pickle has for it.

    Most runs need none: the analysis begins with the first name.
    """
    analysis: Analysis | None = None

    def named(name: str) -> dict[str, str]:
        nonlocal analysis
        analysis = analysis or Analysis(project)
        return analysis.named(name)

    return named
