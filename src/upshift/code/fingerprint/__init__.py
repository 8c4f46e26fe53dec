"""What code a step reaches, so that a cached result is never one of other code.

A fingerprint names every piece of reached code with a digest of it. It is made from the live objects of
this process, so that whatever rebinds, patches or decorates something is seen, and from their source,
so that comments, layout and docstrings do not matter:

* in the file that defines the step, the functions, classes and constants that it reaches, one by one;
* of any other module of the project that it reaches code of, the whole source, and what that reaches;
* constants by value, with what their classes hide from pickle; default values, closures, attributes;
* installed packages by version, with what they require; the standard library by the version of Python;
* what importing does beyond binding names (``effects``): the modules that this code is in, and those that
  the process began with, such as the file that was run, with all that they import;
* where code is reached in a way that cannot be told before it runs (``outside``), the whole project and
  the versions of all that is installed. What cannot be compared at all never counts as equal.

If in doubt, more is included. docs/how-to/caching.md says what is not seen. From bottom to top::

    pieces                                                   what a piece of code adds and reaches
    facts · references · statements · normalize · parsing    what the text of one file says
    sources · installed                                      files, modules, distributions
    values · live                                            digests, names and sources of live objects
    outside                                                  calls that reach more than their source names
    names · objects                                          from names and objects to pieces
    reached                                                  all that is reached
    effects                                                  what importing and composing do
    analysis                                                 fingerprints
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from upshift.code.fingerprint.analysis import Analysis

__all__ = ["Analysis", "fingerprint", "identity_of", "look_up"]


def fingerprint(
    function: Callable[..., object], project: Path, begun: Iterable[dict[str, Any]] = ()
) -> dict[str, str]:
    """Every piece of code that a function reaches: a title for people, to a digest, a version or a name.

    Equal if and only if the reached code is. For ``begun`` see :class:`Analysis`.
    """
    return Analysis(project, begun).function(function)


def look_up(project: Path, file: Path | None = None) -> Callable[[str], dict[str, str]]:
    """What finds the fingerprint of what a pickle names, where definitions of ``file`` count one by one.

    Most runs need none: the analysis begins with the first name.
    """
    analysis: Analysis | None = None

    def named(name: str) -> dict[str, str]:
        nonlocal analysis
        analysis = analysis or Analysis(project)
        return analysis.named(name, () if file is None else [str(file)])

    return named


def identity_of(value: object, project: Path) -> str | None:
    """The digest of a value whose pickle differs from process to process, or after an edit without effect.

    The pickle of a lambda or a local class holds line numbers, that of a set has no fixed order. Any other
    value has no identity beside its content: None.
    """
    return Analysis(project).identity(value)
