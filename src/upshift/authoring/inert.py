"""What calling a pipeline gives while the user's module is being imported: :class:`Inert`."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class Inert:
    """Stands for a run that did not take place; whatever is done with it does nothing.

    A worker imports the user's module. A pipeline that the module calls at its top level does not
    run there, and what the module then does with the run (``print(run.output)``) must not fail.
    """

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # Python looks for optional protocols this way
        return self

    def __getitem__(self, key: object) -> Inert:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Inert:
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return float("nan")

    def __repr__(self) -> str:
        return "(not run)"

    def __format__(self, specification: str) -> str:
        return "(not run)"


def _same(self: Inert, *others: object) -> Inert:
    return self


def _never(self: Inert, other: object) -> bool:
    return False


def _define(names: str, method: Callable[..., object]) -> None:
    for name in names.split():
        setattr(Inert, f"__{name}__", method)


_OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow"
_define(_OPERATORS, _same)
_define(" ".join(f"r{name}" for name in _OPERATORS.split()), _same)
_define("neg pos abs round", _same)
_define("lt le gt ge", _never)
