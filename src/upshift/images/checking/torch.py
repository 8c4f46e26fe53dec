"""Whether requirements leave an image the PyTorch that it has: :func:`findings`.

Nothing is asked: what each package needs is in the tables of
:mod:`upshift.images.checking.torch_releases`, and an installer leaves what is there already as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from upshift.images.base import ERROR, WARNING, Contents, Finding
from upshift.images.checking.torch_releases import (
    COMPANIONS,
    PYTHONS,
    READ,
    TORCH,
    Built,
    admits,
    fitting,
    minor,
    newest,
    newest_torch,
)
from upshift.images.checking.wanted import Wanted
from upshift.runtime.accelerators.compatibility import parse

_SOURCE = f"metadata on the Python Package Index, read on {READ}"


def findings(wanted: Wanted, contents: Contents) -> Iterator[Finding]:
    """What the requirements do to PyTorch.

    Parameters
    ----------
    wanted
        What is to be installed.
    contents
        What the image has.
    """
    have = (contents.packages or {}).get("torch")
    direct = wanted.requirements.get("torch")
    if have is not None and direct is not None and wanted.installs("torch", contents):
        yield _replaced(have, str(direct), wanted)
    if wanted.follows:
        yield from _pulled(wanted, contents, have)
    if have is None and direct is not None and contents.python:
        yield from _without_wheel(str(direct.specifier), contents)


def _replaced(have: str, direct: str, wanted: Wanted) -> Finding:
    why = "an upgrade was asked for" if wanted.upgrades else f"requirements say {direct!r}"
    return Finding(
        severity=WARNING,
        field="requirements",
        what=f"The image's PyTorch {have} is replaced by another build.",
        evidence=why,
        fix=f"Leave torch out of the requirements, or ask for what is there: torch=={_public(have)}.",
    )


def _pulled(wanted: Wanted, contents: Contents, have: str | None) -> Iterator[Finding]:
    """Packages that need another PyTorch than the one that the image has, or is to get."""
    said = [str(wanted.requirements["torch"].specifier)] if "torch" in wanted.requirements else []
    said += [wanted.constraints["torch"]] if "torch" in wanted.constraints else []
    stays = have is not None and not ("torch" in wanted.requirements and wanted.installs("torch", contents))
    torch = _public(have) if stays and have else newest_torch(filter(None, said)) if any(said) else None
    if torch is None:
        return
    pins = [specifier for specifier in wanted.torch_pins(contents) if "==" in specifier]
    # Then older releases are tried, until one goes with it.
    held = not stays or any(admits(specifier, have or torch) for specifier in pins)
    for name in sorted(wanted.brings()):
        built = _chosen(name, torch, wanted, contents, held=held)
        if built is not None and built.torch and not admits(built.torch, torch):
            yield _pulls(name, built, torch, have if stays else None, wanted)


def _chosen(name: str, torch: str, wanted: Wanted, contents: Contents, *, held: bool) -> Built | None:
    """The release of a package that an installer takes; None: not known, or none."""
    if name not in COMPANIONS or name == "torch":
        return None
    if name in wanted.requirements:
        if not wanted.installs(name, contents) or wanted.requirements[name].url:
            return None
        specifier = str(wanted.requirements[name].specifier)
    elif name in (contents.packages or {}):
        return None
    else:
        specifier = ""
    specifier = ",".join(filter(None, (specifier, wanted.constraints.get(name, ""))))
    if held:
        fits = fitting(name, torch, specifier)
        if fits is not None:
            return fits
        if len(COMPANIONS[name]) == 1 or not specifier:
            return None  # an older release may fit, of which nothing was read
    return newest(name, specifier)


def _pulls(name: str, built: Built, torch: str, have: str | None, wanted: Wanted) -> Finding:
    asked = wanted.requirements.get(name)
    pinned = asked is not None and bool(str(asked.specifier))
    better = fitting(name, torch)
    fix = f"Say {name}=={better.version}, which works with torch {torch}." if better else None
    if have is None:
        return Finding(
            severity=ERROR,
            field="requirements",
            what=f"{name} {built.version} needs torch{built.torch}, and requirements ask for torch {torch}.",
            evidence=str(asked) if asked else f"{name} comes with other requirements",
            fix=fix or f"Choose a torch that it takes: torch{built.torch}.",
            source=_SOURCE,
        )
    pulled = newest_torch([built.torch])
    said = f"{name} {built.version}" if pinned else f"{name} without a pin"
    return Finding(
        severity=ERROR,
        field="requirements",
        what=f"{said} pulls torch {pulled or built.torch} over the image's {have}.",
        evidence=f"{name} {built.version} needs torch{built.torch}",
        fix=fix or f"Add torch=={torch} to the requirements, so that a {name} for it is looked for.",
        source=_SOURCE,
    )


def _without_wheel(specifier: str, contents: Contents) -> Iterator[Finding]:
    """A PyTorch that has no wheel for the image's Python: none of the releases that are allowed."""
    allowed = [version for version in TORCH if admits(specifier, version)]
    ranges = [PYTHONS.get(minor(version)) for version in allowed]
    if not contents.python or not allowed or not all(ranges):
        return
    python = minor(contents.python)
    if any(_between(first, python, last) for first, last in filter(None, ranges)):
        return
    first, last = PYTHONS[minor(allowed[0])]
    yield Finding(
        severity=ERROR,
        field="requirements",
        what=f"PyTorch {allowed[0]} has no wheel for the image's Python {python}.",
        evidence=f"requirements say torch{specifier}; its wheels are for Python {first} to {last}",
        fix=f"Take an image with Python {first} to {last}, or another release of torch.",
        source=f"pytorch/pytorch RELEASE.md, read on {READ}",
    )


def _between(first: str, version: str, last: str) -> bool:
    return parse(first) <= parse(version) <= parse(last)


def _public(version: str) -> str:
    return version.partition("+")[0]
