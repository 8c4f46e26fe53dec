"""What the reference needs to know beyond the source that it is made from.

Docstrings are reStructuredText in their roles and literal blocks, pages are Markdown; and griffe, which reads
source only, cannot see the ``__init__`` that attrs gives a class.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import attrs
import griffe

import upshift

_ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):`(~?)([\w.]+)`")
_LITERAL = re.compile(r"^(.*?)(\s?)::$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings, and adds ``__init__`` to attrs classes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring:
            text = _ROLE.sub(_link, obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(lambda m: f"{m[1]}:" if m[1].strip() else "", text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for each class that was read, after its members."""
        if not any(str(decorator.value).startswith("attrs.") for decorator in cls.decorators):
            return
        real = getattr(importlib.import_module(cls.module.path), cls.name)
        parameters = [_parameter(cls, field) for field in attrs.fields(real) if field.name in cls.attributes]
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))


def _link(role: re.Match[str]) -> str:
    """A public name leads to its place in the reference; any other is shown as code."""
    short = role[2].rpartition(".")[2]
    text = short if role[1] else role[2]
    return f"[`{text}`][upshift.{short}]" if short in upshift.__all__ else f"`{text}`"


def _parameter(cls: griffe.Class, field: attrs.Attribute[Any]) -> griffe.Parameter:
    default: str | None = repr(field.default)
    if field.default is attrs.NOTHING:
        default = None
    elif isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        default = f"{field.default.factory.__name__}()"
    kinds = griffe.ParameterKind
    return griffe.Parameter(
        field.name,
        annotation=cls.attributes[field.name].annotation,
        kind=kinds.keyword_only if field.kw_only else kinds.positional_or_keyword,
        default=default,
    )
