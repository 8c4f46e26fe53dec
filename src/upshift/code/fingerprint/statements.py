"""What the statements of a function follow from, and whether what it keeps makes a difference.

The body of a pipeline runs before any step does. What it does beside calling steps may show in what they
compute, ``np.random.seed(seed)``, and then counts with the values of the arguments that it follows from.

A dictionary in which one function keeps what it has computed before makes no difference, whatever is in it::

    TOKENIZERS = {}

    def tokenizer(name):
        if name not in TOKENIZERS:
            TOKENIZERS[name] = load(name)
        return TOKENIZERS[name]

A pipeline that calls the function while it is composed fills the dictionary; another process has it empty.
Such a dictionary is empty in the source; no other code of its module names it; what is kept follows from its
key alone; and whatever the function gives is what it has kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]

_ELSEWHERE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
"""What these do is done where they are called, or at once."""
_HEADS = ("test", "iter", "subject")


class Statement(NamedTuple):
    """A simple statement; ``others`` make what it reads, or are the conditions and loops that it is in."""

    node: ast.stmt
    others: list[ast.AST]
    own: set[str]
    arguments: tuple[str, ...]
    changes: bool


def statements(function: Function) -> Iterator[Statement]:
    """The simple statements of a function, in order."""
    made_by: dict[str, list[ast.AST]] = {}
    found: list[tuple[ast.stmt, list[ast.AST]]] = []
    _look_into(function.body, [], made_by, found)
    names = [part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)]
    own = {*names, *made_by}
    for node, heads in found:
        parts: list[ast.AST] = list(dict.fromkeys([node, *heads]))
        read: set[str] = set()
        for part in parts:  # grows while it is walked
            for name in sorted(_names(part, ast.Load) - read):
                read.add(name)
                parts += [maker for maker in made_by.get(name, ()) if maker not in parts]
        arguments = tuple(name for name in names if name in read)
        yield Statement(node, parts[1:], own, arguments, not own.issuperset(_changed(node)))


def _look_into(
    body: list[ast.stmt],
    heads: list[ast.AST],
    made_by: dict[str, list[ast.AST]],
    found: list[tuple[ast.stmt, list[ast.AST]]],
) -> None:
    """Note the simple statements, with the conditions and loops around them, and what makes each name."""
    for node in body:
        blocks = [getattr(node, field, None) or [] for field in ("body", "orelse", "finalbody")]
        blocks += [part.body for field in ("handlers", "cases") for part in getattr(node, field, ())]
        if isinstance(node, _ELSEWHERE):
            makers: list[ast.AST] = []
        elif any(blocks):
            makers = [head for field in _HEADS if (head := getattr(node, field, None)) is not None]
            makers += [item.context_expr for item in getattr(node, "items", ())]
            for block in blocks:
                _look_into(block, [*heads, *makers], made_by, found)
        else:
            found.append((node, heads))
            makers = [node]
        for name in _names(node, ast.Store) if makers else ():
            made_by.setdefault(name, []).extend(makers)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, context)
    }


def _changed(node: ast.AST) -> Iterator[str]:
    """The names of what a statement changes a part of; an empty one for what has no name."""
    for part in ast.walk(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
            owner: ast.expr = part
            while isinstance(owner, (ast.Attribute, ast.Subscript)):
                owner = owner.value
            yield owner.id if isinstance(owner, ast.Name) else ""


# dictionaries that only keep what was computed


def memos(tree: ast.Module) -> dict[str, str]:
    """The names of such dictionaries at the top level of a module, and those of their functions."""
    empty = [target.id for node in tree.body for target in _empty_dictionaries(node)]
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = {}
    for name in empty:
        users = [node for node in tree.body if _mentions(node, name)]
        owners = [function for function in functions if function in users]
        if len(users) == 2 and len(owners) == 1 and _only_keeps(owners[0], name):
            found[name] = owners[0].name
    return found


def _empty_dictionaries(node: ast.stmt) -> list[ast.Name]:
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return []
    empty = isinstance(value, ast.Dict) and not value.keys
    return [target for target in targets if empty and isinstance(target, ast.Name)]


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def _only_keeps(function: Function, memo: str) -> bool:
    stores = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_item(node.targets[0], memo)
    ]
    if len(stores) != 1:
        return False
    target, value = stores[0].targets[0], stores[0].value
    assert isinstance(target, ast.Subscript)
    kept = {ast.dump(value), f"{memo}[{ast.dump(target.slice)}]"}
    uses = sum(isinstance(node, ast.Name) and node.id == memo for node in ast.walk(function))
    known = [node for node in ast.walk(function) if _is_lookup(node, memo, ast.dump(target.slice))]
    return (
        len(known) == uses
        and all(_given(node, memo) in kept for node in ast.walk(function) if isinstance(node, ast.Return))
        and _arguments_of(function, value) <= _arguments_of(function, target.slice)
        and not any(isinstance(node, (ast.Yield, ast.YieldFrom, ast.Global)) for node in ast.walk(function))
    )


def _is_item(node: ast.AST, memo: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == memo


def _is_lookup(node: ast.AST, memo: str, key: str) -> bool:
    """Whether it is ``KEY in MEMO``, or ``MEMO[KEY]``, read or kept."""
    if isinstance(node, ast.Subscript):
        return _is_item(node, memo) and ast.dump(node.slice) == key
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    within = isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(node.comparators[0], ast.Name)
    return within and _mentions(node.comparators[0], memo) and ast.dump(node.left) == key


def _given(node: ast.Return, memo: str) -> str:
    if node.value is not None and _is_item(node.value, memo):
        assert isinstance(node.value, ast.Subscript)
        return f"{memo}[{ast.dump(node.value.slice)}]"
    return "" if node.value is None else ast.dump(node.value)


def _arguments_of(function: Function, node: ast.AST) -> set[str]:
    """The arguments of a function that an expression follows from, by way of its other variables."""
    arguments = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    read = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    growing = True
    while growing:
        growing = False
        for part in ast.walk(function):
            if isinstance(part, ast.Assign) and read & _stored(part):
                more = {name.id for name in ast.walk(part.value) if isinstance(name, ast.Name)} - read
                read |= more
                growing = growing or bool(more)
    return read & arguments


def _stored(node: ast.Assign) -> set[str]:
    return {
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
