"""Escaping of text for the page: control characters are made visible here, markup is Jinja2's."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import attrs
from markupsafe import Markup

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
"""What a browser drops, replaces, or takes as an order to turn the text around."""


def visible(value: object) -> str:
    r"""Plain text in which what would not be seen is: ``\x1b``, ``\u202e``, ``\udc80``."""
    return _INVISIBLE.sub(lambda match: _spelled(ord(match[0])), str(value))


def finalized(value: object) -> object:
    """What a template puts in, before Jinja2 escapes it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def as_data(value: object) -> Markup:
    """Plain data for a script element, in which only ``<`` means something: ``</script``, ``<!--``."""
    dumped = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(dumped.replace("<", "\\u003c"))


def digest(script: str) -> str:
    """What a content security policy names a script by."""
    hashed = hashlib.sha256(script.encode("utf-8", "replace")).digest()
    return f"'sha256-{base64.b64encode(hashed).decode('ascii')}'"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    return _plain(attrs.asdict(value, recurse=False)) if attrs.has(type(value)) else value


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
