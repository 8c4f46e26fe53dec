"""YAML of nested tables, as people read it.

What is neither a table nor several lines of text is JSON, which is a part of YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_OTHERWISE = ("yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML 1.1 takes for something else than text."""
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON has as it is, and YAML has not, or takes for the end of a line."""


def yaml_of(table: Mapping[str, Any]) -> str:
    """The text of a table."""
    return "".join(_lines(table, ""))


def _lines(table: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in table.items():
        plain = re.fullmatch(r"[A-Za-z_][\w-]*", key) and key.lower() not in _OTHERWISE
        name = key if plain else _json(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:\n"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, str) and value.endswith("\n"):
            yield f"{indent}{name}: |\n"
            yield from (f"{indent}  {line}\n" for line in value[:-1].split("\n"))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{indent}{name}: {_json(list(value))}\n"
        else:
            yield f"{indent}{name}: {_json(value)}\n"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
