"""The shape of a flow, read from the source of its steps and checked before anything runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from upshift.errors import GraphError, location, suggestion
from upshift.model.checks import MOST_NODES, shown
from upshift.model.graph import END, FOREACH, GANG, LINEAR, SPLIT, SWITCH, FlowShape, FlowStep

if TYPE_CHECKING:
    from upshift.authoring.steps import Step

FIRST, LAST = "start", "end"
PARALLEL = "parallel"
"""What the options of a step have of ``@parallel``."""
_OPTIONS = ("foreach", "condition", "num_parallel")
_TAKES = "def {name}(self), or def {name}(self, inputs) where it joins what was split"


def shape_of(
    flow: str,
    steps: Mapping[str, Step[Any, Any]],
    methods: Mapping[str, str],
    where: str,
    *,
    taken: Callable[[str], bool],
) -> FlowShape:
    """The shape of a flow.

    Parameters
    ----------
    flow
        Its name.
    steps
        Its steps, by the names of their methods.
    methods
        Its methods that are no steps, and where they are.
    where
        Where the class is.
    taken
        Whether every flow has an attribute of this name, so that no step can be called so.

    Raises
    ------
    GraphError
        It cannot run as it is written: what is wrong, and in which line.
    """
    first, last = ends = _ends(flow, steps, methods, where)
    for name in steps:
        if taken(name):
            raise GraphError(
                f"a step cannot be called {name!r}, as self.{name} is what every flow has",
                where=steps[name].callee.location,
                fix="Give it another name.",
            )
    order = dict.fromkeys([first, *(name for name in steps if name != last), last])
    shape = FlowShape(steps={name: StepReader(name, steps, methods, ends).read() for name in order})
    _check_parallel(shape, steps)
    _check(flow, shape)
    return shape


def _ends(
    flow: str, steps: Mapping[str, Step[Any, Any]], methods: Mapping[str, str], where: str
) -> tuple[str, str]:
    """The first and the last step: those that say so, else ``start`` and ``end``; of one step that one."""
    found = []
    for name in (FIRST, LAST):
        said = [one for one, step in steps.items() if name in step.options.flow]
        if len(said) > 1 or (said and name in steps and said != [name]):
            other = said[1] if len(said) > 1 else name
            raise GraphError(
                f"flow {flow} has two steps to {name} with: {said[0]!r} and {other!r}",
                where=steps[other].callee.location,
                fix=f"Write @step({name}=True) above one of them"
                + ("." if len(said) > 1 else f", and give the other another name than {name!r}."),
            )
        alone = list(steps) if len(steps) == 1 else []
        if not said and name not in steps and not alone:
            fix = f"Write @step above it: {methods[name]}." if name in methods else None
            raise GraphError(
                f"flow {flow} has no step {name!r}",
                where=where,
                why=f"A flow begins with {FIRST!r} and ends with {LAST!r}.",
                fix=fix or f"Add it: @step, def {name}(self); or write @step({name}=True) above another one.",
            )
        found.append((said or alone or [name])[0])
    return found[0], found[1]


class StepReader:
    """Reads from the source of a step where it goes."""

    def __init__(
        self,
        name: str,
        steps: Mapping[str, Step[Any, Any]],
        methods: Mapping[str, str],
        ends: tuple[str, str] = (FIRST, LAST),
    ) -> None:
        self._name = name
        self._first, self._last = ends
        self._steps = steps
        self._methods = methods
        self._function: Callable[..., Any] = inspect.unwrap(steps[name].callee.function)
        self._line = self._function.__code__.co_firstlineno

    def read(self) -> FlowStep:
        taken = list(inspect.signature(self._function).parameters)
        if len(taken) not in (1, 2):
            raise self._error(
                f"step {self._name!r} takes {', '.join(taken) or 'nothing'}",
                fix=f"Write {_TAKES.format(name=self._name)}.",
            )
        join = len(taken) == 2
        if join and self._name == self._first:
            raise self._error(
                f"step {self._name!r} has nothing to join", fix=f"Write def {self._name}(self)."
            )
        body = self._body()
        calls = [call for statement in body for call in _calls_of_next(statement, taken[0])]
        if self._name == self._last:
            if calls:
                raise self._error("the last step goes nowhere", calls[0], fix="Leave self.next out.")
            return FlowStep(kind=END, join=join, location=self.where())
        if not calls:
            raise self._error(
                f"step {self._name!r} does not name the next step",
                fix=f"End it with self.next(self.{self._last}), or another step.",
            )
        last = body[-1]
        if len(calls) > 1 or not isinstance(last, ast.Expr) or last.value is not calls[0]:
            raise self._error(
                f"step {self._name!r} calls self.next elsewhere than once in its last line",
                calls[0],
                why="The graph is known before anything runs.",
                fix="To choose between steps while running: "
                'self.next({"one": self.a, "other": self.b}, condition="ATTRIBUTE").',
            )
        kind, then = self._transition(calls[0])
        if kind in (FOREACH, SWITCH) and self._steps[self._name].options.settings.catch is not None:
            raise self._error(
                f"step {self._name!r} has @catch, and also chooses the next step",
                calls[0],
                why="If the step fails, the next step is unknown.",
                fix="Put the code that may fail into its own step, and choose in the step after it.",
            )
        return FlowStep(kind=kind, then=then, join=join, location=self.where())

    def size(self) -> tuple[ast.expr, str]:
        """The expression that the step passes as ``num_parallel``, and its line."""
        (call,) = (call for statement in self._body() for call in _calls_of_next(statement, self._own))
        (said,) = (keyword.value for keyword in call.keywords if keyword.arg == "num_parallel")
        return said, self.where(call)

    def _transition(self, call: ast.Call) -> tuple[str, tuple[str, ...]]:
        said = {keyword.arg: keyword.value for keyword in call.keywords}
        for option, value in said.items():
            if option not in _OPTIONS:
                raise self._error(
                    f"self.next has no option {option!r}", call, fix=f"Options: {', '.join(_OPTIONS)}."
                )
            if len(said) > 1:
                raise self._error(
                    f"self.next has {' and '.join(map(str, said))}; only one of them is allowed",
                    call,
                    fix="Let the step that follows do the other.",
                )
            if option == "num_parallel":
                if isinstance(value, ast.Constant):
                    checked_size(value.value, self.where(call))
            elif not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                raise self._error(
                    f"{option} is the name of an attribute, as a text", call, fix=f'Write {option}="NAME".'
                )
        if "condition" in said:
            return SWITCH, self._cases(call)
        then = tuple(self._target(argument, call) for argument in call.args)
        if not then:
            raise self._error("self.next names no step", call, fix=f"Write self.next(self.{self._last}).")
        for name in then:
            if then.count(name) > 1:
                raise self._error(f"self.next goes to {name!r} twice", call, fix="Name it once.")
        for option, kind in (("foreach", FOREACH), ("num_parallel", GANG)):
            if option not in said:
                continue
            if len(then) > 1:
                raise self._error(
                    f"a {option} goes to one step, and this to {', '.join(then)}",
                    call,
                    fix="Let that step split." if kind == FOREACH else "Split before, or after the join.",
                )
            return kind, then
        return (LINEAR if len(then) == 1 else SPLIT), then

    def _cases(self, call: ast.Call) -> tuple[str, ...]:
        if len(call.args) != 1 or not isinstance(call.args[0], ast.Dict):
            raise self._error(
                "with condition, self.next takes a dictionary of cases",
                call,
                fix='Write self.next({"one": self.a, "other": self.b}, condition="ATTRIBUTE").',
            )
        cases = call.args[0]
        if not cases.values:
            raise self._error("self.next has no case", call)
        return tuple(dict.fromkeys(self._target(value, call) for value in cases.values))

    def _target(self, node: ast.expr, call: ast.Call) -> str:
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            raise self._error(
                f"self.next({ast.unparse(node)}) names no step",
                call,
                fix="Name steps as self.NAME.",
            )
        name = node.attr
        if name in self._steps:
            if name == self._first:
                raise self._error(f"a step goes back to {name!r}", call, fix="Go back to a later step.")
            return name
        if name in self._methods:
            fix: str | None = f"Write @step above it: {self._methods[name]}."
        else:
            fix = suggestion(name, self._steps)
        raise self._error(f"step {self._name!r} goes to {name!r}, which is not a step", call, fix=fix)

    def _body(self) -> list[ast.stmt]:
        try:
            source = textwrap.dedent(inspect.getsource(self._function))
            (definition,) = ast.parse(source).body
        except (OSError, SyntaxError, ValueError) as error:
            raise self._error(
                f"the source of step {self._name!r} cannot be read",
                why=f"{type(error).__name__}: {error}",
                fix="Write the flow in a file, or in a cell of a notebook.",
            ) from None
        assert isinstance(definition, ast.FunctionDef)
        # Decorators come first in the source, and so in its count of lines.
        return definition.body

    @property
    def _own(self) -> str:
        """The name that the method gives its first parameter: ``self``, as a rule."""
        return next(iter(inspect.signature(self._function).parameters))

    def where(self, node: ast.AST | None = None) -> str:
        line = self._line + (getattr(node, "lineno", 1) - 1 if node is not None else 0)
        return location(self._function.__code__.co_filename, line)

    def _error(
        self, what: str, node: ast.AST | None = None, *, why: str | None = None, fix: str | None = None
    ) -> GraphError:
        return GraphError(what, where=self.where(node), why=why, fix=fix)


def checked_size(value: object, where: str) -> int:
    """A number of nodes, checked."""
    if type(value) is not int or not 1 <= value <= MOST_NODES:
        raise GraphError(
            f"num_parallel={shown(value)} is invalid",
            where=where,
            fix=f"Give a whole number from 1 to {MOST_NODES:,}: num_parallel=2.",
        )
    return value


def _calls_of_next(statement: ast.stmt, own: str) -> Iterator[ast.Call]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{own}.next":
            yield node


def _check(flow: str, shape: FlowShape) -> None:
    """Refuse steps that nothing comes to, splits that nothing joins, and circles without a way out."""
    _refuse_circles(shape)
    steps = shape.steps
    names = list(steps)
    first, last = names[0], names[-1]
    splits: dict[str, tuple[str, ...]] = {}
    came: dict[str, str] = {}
    pending: list[tuple[str, tuple[str, ...], str | None]] = [(first, (), None)]
    while pending:
        name, within, before = pending.pop()
        step = steps[name]
        if step.join:
            if not within:
                raise GraphError(
                    f"step {name!r} has inputs to join, and nothing was split before it",
                    where=step.location,
                    fix=f"Write def {name}(self).",
                )
            if before is not None and before == within[-1]:
                raise GraphError(
                    f"step {before!r} splits, and goes to the join at once",
                    where=step.location,
                    fix="Write a step between the two.",
                )
            within = within[:-1]
        if name in splits:
            if splits[name] != within:
                raise _crossed(name, shape, splits[name], within)
            if not step.join and within and steps[within[-1]].kind == SPLIT and came[name] != before:
                _refuse_second_arrival(name, shape, came[name], before)
            continue
        splits[name], came[name] = within, before or ""
        if step.kind in (SPLIT, FOREACH, GANG):
            within = (*within, name)
        pending.extend((following, within, name) for following in reversed(step.then))
    for name, step in steps.items():
        if name not in splits:
            raise GraphError(
                f"nothing goes to step {name!r} of flow {flow}",
                where=step.location,
                fix=f"Name it in another step: self.next(self.{name}).",
            )
    if splits[last]:
        raise GraphError(
            f"what step {splits[last][-1]!r} splits is never joined",
            where=steps[splits[last][-1]].location,
            fix="Before the end, write a step that joins it: def join(self, inputs).",
        )


def _check_parallel(shape: FlowShape, steps: Mapping[str, Step[Any, Any]]) -> None:
    """Refuse ``num_parallel`` without ``@parallel``, the other way round, and what no join follows."""
    parallel = {name for name in shape.steps if PARALLEL in steps[name].options.flow}
    for name, step in shape.steps.items():
        for following in step.then:
            if step.kind == GANG and following not in parallel:
                raise GraphError(
                    f"step {name!r} goes to {following!r} with num_parallel, "
                    f"and {following!r} has no @parallel",
                    where=shape.steps[following].location,
                    fix=f"Write @parallel above step {following!r}, or @torchrun.",
                )
            if step.kind != GANG and following in parallel:
                raise GraphError(
                    f"step {following!r} has @parallel, and {name!r} goes to it without num_parallel",
                    where=step.location,
                    fix=f"Set the number of nodes: self.next(self.{following}, num_parallel=2).",
                )
        if name not in parallel:
            continue
        launch = steps[name].options.launch
        if launch is not None:
            raise GraphError(
                f"step {name!r} has @parallel, and {launch.said}",
                where=launch.where,
                why="Both set the number of processes.",
                fix="Leave one of them out. To start a script in several processes on each node: @torchrun, "
                "and current.torch.run(…) in the step.",
            )
        if step.join or step.kind != LINEAR or not shape.steps[step.then[0]].join:
            joins = f"def {step.then[0]}(self, inputs)" if step.kind == LINEAR and not step.join else None
            raise GraphError(
                f"step {name!r} has @parallel, and joins others itself"
                if step.join
                else f"step {name!r} has @parallel, and the step that follows does not join its nodes",
                where=step.location,
                why="Each node has its own artifacts.",
                fix=f"Write {joins}."
                if joins
                else "Let it go to one step, which joins: def join(self, inputs).",
            )


def _crossed(name: str, shape: FlowShape, one: tuple[str, ...], other: tuple[str, ...]) -> GraphError:
    within = [
        f"after the split of {names[-1]!r}" if names else "outside of any split" for names in (one, other)
    ]
    step = shape.steps[name]
    return GraphError(
        f"two ways lead to step {name!r}: {within[0]}, and {within[1]}",
        where=step.location,
        fix="Join first what was split: " + f"def {name}(self, inputs)."
        if not step.join
        else "Join the inner split in a separate step.",
    )


def _refuse_second_arrival(name: str, shape: FlowShape, one: str, other: str | None) -> None:
    """A step that two branches of a split come to has to join them, unless a switch chooses one."""
    step = shape.steps[name]
    if _chosen(shape, one, other):
        return
    raise GraphError(
        f"steps {one!r} and {other!r} both go to {name!r}, which does not join them",
        where=step.location,
        fix=f"Write def {name}(self, inputs).",
    )


def _chosen(shape: FlowShape, one: str, other: str | None) -> bool:
    """Whether a switch lies above one of two steps within their split."""
    behind: set[str] = set()
    pending = [name for name, step in shape.steps.items() if step.kind == SWITCH]
    while pending:
        name = pending.pop()
        if name not in behind:
            behind.add(name)
            pending.extend(n for n in shape.steps[name].then if not shape.steps[n].join)
    return one in behind or other in behind


def _refuse_circles(shape: FlowShape) -> None:
    """Refuse a way that leads back without a switch that could leave it."""
    state: dict[str, bool] = {}
    for first in shape.steps:
        stack = [(first, iter(_always(shape, first)))] if first not in state else []
        state.setdefault(first, True)
        while stack:
            name, following = stack[-1]
            after = next(following, None)
            if after is None:
                state[name] = False
                stack.pop()
            elif state.get(after):
                ring = [n for n, _ in stack]
                ring = [*ring[ring.index(after) :], after]
                raise GraphError(
                    f"steps go round in a circle: {' → '.join(ring)}",
                    where=shape.steps[name].location,
                    fix="Leave it by a condition: "
                    'self.next({"again": self.a, "done": self.b}, condition="ATTRIBUTE").',
                )
            elif after not in state:
                state[after] = True
                stack.append((after, iter(_always(shape, after))))


def _always(shape: FlowShape, name: str) -> tuple[str, ...]:
    step = shape.steps[name]
    return () if step.kind == SWITCH else step.then
