"""Where the names of a piece of source are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upshift.code.fingerprint.facts import Chain
from upshift.code.fingerprint.sources import Module
from upshift.code.fingerprint.values import is_module


class Scope:
    """Where the names of a unit are looked up.

    Parameters
    ----------
    module
        Its module.
    cells
        What its free variables are bound to.
    own
        Names that are not missed: a class body binds them.
    """

    __slots__ = ("cells", "module", "own")

    def __init__(
        self, module: Module, cells: Mapping[str, Any] | None = None, own: tuple[str, ...] = ()
    ) -> None:
        self.module = module
        self.cells = cells or {}
        self.own = own

    def look_up(self, chain: Chain) -> Any:
        """The live object that a chain leads to, through modules; None if there is none."""
        namespace = self.module.namespace or {}
        value = self.cells.get(chain[0], namespace.get(chain[0]))
        for name in chain[1:]:
            if not is_module(value):
                break
            value = vars(value).get(name)
        return value
