"""The parameters of a run as plain data and as text, from its records alone: nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upshift.model.plain import TEXT, flat, is_opaque, opaque, words
from upshift.model.spec.artifact import Artifact
from upshift.runtime.storage.artifacts import described


def plain_params(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Each parameter in plain form; ``texts`` is as in :class:`~upshift.model.graph.Graph`."""
    found = {name: described(artifact) for name, artifact in saved.items()}
    for name, text in texts.items():
        if name not in found or is_opaque(found[name]):
            kind = saved[name].type if name in saved else "object"
            found[name] = opaque(kind, text) if isinstance(text, str) else text
    return found


def flat_params(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Each value in plain form, by the name that ``--param`` takes: ``{"config.lr": 0.1, "n": [64]}``."""
    plain = plain_params(saved, texts)
    return {key: value for name, param in plain.items() for key, value in flat(param, name).items()}


def param_items(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> list[str]:
    """The parameters in words: ``["config.lr=0.1", "n=[64]"]``."""
    return [f"{name}={words(value)}" for name, value in flat_params(saved, texts).items()]


def params_as_json(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters for ``--json``: a value without a JSON form as its type, size and digest."""
    return {
        name: _artifact(saved.get(name), param.get(TEXT)) if is_opaque(param) else param
        for name, param in plain_params(saved, texts).items()
    }


def _artifact(artifact: Artifact | None, text: str | None) -> dict[str, Any]:
    known = {field: getattr(artifact, field, None) for field in ("type", "digest", "bytes")}
    return {**known, "text": text}
