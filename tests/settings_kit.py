"""Step settings among other fields, so that a test can write ``timeout=3`` where a spec has settings."""

from __future__ import annotations

from typing import Any

import attrs

from upshift.model.settings.step import StepSettings

_NAMES = {field.name for field in attrs.fields(StepSettings)}


def with_settings(fields: dict[str, Any], *, resources: str | None = None) -> dict[str, Any]:
    """The fields of a definition or a spec, those of settings joined; ``resources`` is called so there."""
    said = {name: value for name, value in fields.items() if name in _NAMES and name != "resources"}
    rest = {name: value for name, value in fields.items() if name not in said}
    if resources is not None and resources in rest:
        said["resources"] = rest.pop(resources)
    return {**rest, "settings": StepSettings(**said)} if said else rest
