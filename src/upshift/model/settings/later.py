"""What users of other tools look for and this version does not have: what to do meanwhile."""

from __future__ import annotations

_HERE = "Steps run on this machine: leave it out, and ask with @resources or ResourceSettings."
_NAMES = {
    "batch": _HERE,
    "kubernetes": _HERE,
    "parallel": "STEP.map(items) runs one task for each item.",
    "slurm": _HERE,
}

NOT_YET = "is not in this version of Upshift."
_OTHERS = ("metaflow", "zenml")

BACKENDS = ("aws-batch", "kubernetes", "ray", "slurm")
"""Backends that are not there yet."""


def name_to_come(name: str) -> str | None:
    """Why there is no ``upshift.NAME`` and what to do meanwhile; None: nor will there be one."""
    advice = _NAMES.get(name)
    return None if advice is None else f"{name} {NOT_YET} {advice}"


def module_of_another_tool(name: str) -> str | None:
    """What to import in place of another tool's module; None: it is no such module."""
    if name not in _OTHERS:
        return None
    return (
        "In Upshift: from upshift import step, pipeline. The page coming-from of the documentation has "
        "the other names."
    )
