"""A flow as its author writes it: :class:`FlowSpec`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from upshift.authoring.flow.definition import OWN, Flow, artifacts_of
from upshift.errors import MisuseError, UsageError, suggestion, user_location
from upshift.model.checks import shown
from upshift.model.graph import FOREACH, GANG, SWITCH
from upshift.runtime.usercode import loading

if TYPE_CHECKING:
    from upshift.authoring.flow.definition import RunningStep
    from upshift.authoring.flow.pipeline import FlowPipeline, StepMethod
    from upshift.authoring.steps import Step


class FlowSpec(Flow):
    """A pipeline as a class: its methods are steps, and each ends by saying which one is next.

    ::

        class Training(FlowSpec):
            depths = Parameter("depths", default=[2, 4], type=JSONType)

            @step
            def start(self):
                self.next(self.train, foreach="depths")

            @step
            def train(self):
                self.score = fit(self.input)
                self.next(self.join)

            @step
            def join(self, inputs):
                self.best = max(one.score for one in inputs)
                self.next(self.end)

            @step
            def end(self):
                print(self.best)

        if __name__ == "__main__":
            Training()

    What a step sets on ``self`` is an artifact: saved once when the step ends, there in the steps that
    follow, loaded when one of them touches it. ``Training()`` in a script is its command line:
    ``python training.py run --depths "[2, 4, 8]"``; ``upshift run training.py`` does the same.
    """

    __upshift_pipeline__: ClassVar[FlowPipeline]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        from upshift.authoring.flow.pipeline import FlowPipeline

        cls.__upshift_pipeline__ = FlowPipeline(cls)

    @classmethod
    def __upshift_bind__(cls, step: Step[Any, Any], flow: FlowSpec | None) -> Any:
        """What ``self.train`` and ``Training.train`` are; ``super().train()`` calls that of a base."""
        method = cls.__upshift_pipeline__.method(step)
        return method if flow is None else MethodType(method, flow)

    def __init__(self, *args: Any, **named: Any) -> None:
        if not loading() and f"{OWN}running" not in self.__dict__:
            if args or named:
                given = [*map(shown, args), *(f"{name}={shown(value)}" for name, value in named.items())]
                options = " ".join(f"--{name.replace('_', '-')} …" for name in named)
                raise MisuseError(
                    f"{type(self).__name__}() is the command line of a flow, and gets {', '.join(given)}",
                    where=user_location(),
                    fix=f"Parameters are given on the command line: python flow.py run {options}".rstrip(),
                )
            if not hasattr(sys.modules["__main__"], "__file__"):
                raise MisuseError(
                    f"{type(self).__name__}() is the command line of a flow, and this is a notebook",
                    where=user_location(),
                    fix="Write the flow in a file, and run it: !python flow.py run",
                )
            # The command line is above this layer, and is looked for only where the flow is a script.
            import_module("upshift.cli.flow").main(type(self))

    def _upshift_initialize(self) -> None:
        if type(self).__init__ is not FlowSpec.__init__:
            self.__init__()  # type: ignore[misc]
            for name in [name for name in self.__dict__ if name in self._upshift_running.state]:
                del self.__dict__[name]
            self._upshift_running.initial = artifacts_of(self)

    def next(
        self,
        *steps: Any,
        foreach: str | None = None,
        condition: str | None = None,
        num_parallel: int | None = None,
    ) -> None:
        """Say which step is next; the last thing that a step does.

        Parameters
        ----------
        steps
            ``self.train``; several to split; a dictionary of cases with ``condition``.
        foreach
            Name of an attribute with a list: the step runs once for each item, which is its ``self.input``.
        condition
            Name of an attribute, whose value is the key of the case to go to.
        num_parallel
            On how many nodes at once the step runs, which has ``@parallel``.

        Raises
        ------
        UsageError
            There is no such attribute, it is not a list, or it names no case.
        """
        running = _running(self, "next")
        if running.step.kind == SWITCH:
            (cases,) = steps
            running.choice = _case(self, cases, condition)
        elif running.step.kind == FOREACH:
            running.items = _items(self, foreach)
        elif running.step.kind == GANG:
            running.nodes = num_parallel
        running.went = True

    @property
    def input(self) -> Any:
        """The item of the innermost foreach that this task works on; None outside of any."""
        running = _running(self, "input")
        return running.input(len(running.stack) - 1) if running.stack else None

    @property
    def index(self) -> int | None:
        """Its position in the list of the innermost foreach, from 0; None outside of any."""
        stack = _running(self, "index").stack
        return stack[-1].index if stack else None

    def foreach_stack(self) -> list[tuple[int, int | None, Any]]:
        """Index, number of items and item of each foreach around this task, from the outside in.

        Nodes of a step with ``@parallel`` are the innermost one, without a number.
        """
        running = _running(self, "foreach_stack")
        return [(level.index, level.count, running.input(depth)) for depth, level in enumerate(running.stack)]

    def merge_artifacts(
        self, inputs: Iterable[Any], exclude: Iterable[str] = (), include: Iterable[str] = ()
    ) -> None:
        """Take over the artifacts of the steps that are joined, as far as this step has not set them itself.

        Parameters
        ----------
        inputs
            What the step joins.
        exclude
            Names that are not taken over.
        include
            Names that are, and no others.

        Raises
        ------
        UsageError
            An artifact has several values, or one of ``include`` is nowhere.
        MisuseError
            The step is none that joins.
        """
        from upshift.authoring.flow.task import merged

        running = _running(self, "merge_artifacts")
        if not running.step.join:
            raise MisuseError(
                f"step {running.name!r} joins nothing, and so has nothing to merge",
                where=user_location(),
                fix=f"Call merge_artifacts in the step that joins: def {running.name}(self, inputs).",
            )
        initial, artifacts = running.initial, artifacts_of(self)
        own = {name for name, value in artifacts.items() if value is not initial.get(name, running)}
        taken = merged(list(inputs), own=own, exclude=set(exclude), include=set(include))
        for name in artifacts.keys() & taken:
            del self.__dict__[name]
        running.inherit(taken)

    def __setattr__(self, name: str, value: object) -> None:
        # What the class has by this name would hide it from the steps that follow.
        pipeline = type(self).__upshift_pipeline__
        if name in pipeline.steps:
            what = "a step"
        elif callable(getattr(FlowSpec, name, None)):
            what = "a method of every flow"
        elif name in pipeline.constants:
            what = "a constant of the class"
        elif name in pipeline.configs:
            what = "a configuration"
        else:
            super().__setattr__(name, value)
            return
        raise MisuseError(
            f"self.{name} is {what}, and cannot be an artifact, too",
            where=user_location(),
            fix="Give the artifact another name.",
        )

    def __getattr__(self, name: str) -> Any:
        running = self.__dict__.get(f"{OWN}running")
        if running is None or name.startswith("@") or name not in running.state:
            if name == "name":
                return type(self).__name__
            _missing(self, name, running)
        value = running.state[name]
        if name not in running.unchanging:
            self.__dict__[name] = value  # a change in place is saved with the step, as in any object
        return value

    def __repr__(self) -> str:
        running = self.__dict__.get(f"{OWN}running")
        return f"<flow {type(self).__name__}{'' if running is None else f' step {running.name}'}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MisuseError(
            "neither a flow nor the inputs of a join can be saved",
            why="self, or one of inputs, is part of an artifact.",
            fix="Save the values themselves, such as self.scores = [one.score for one in inputs].",
        )


def _running(flow: FlowSpec, what: str) -> RunningStep:
    running: RunningStep | None = flow.__dict__.get(f"{OWN}running")
    if running is None:
        raise MisuseError(
            f"{type(flow).__name__}.{what} means something only in a running step",
            where=user_location(),
        )
    return running


def _missing(flow: FlowSpec, name: str, running: RunningStep | None) -> NoReturn:
    known = [] if running is None else [n for n in running.state if not n.startswith("@")]
    hint = suggestion(name, known) if known and not name.startswith("__") else ""
    if running is not None and running.step.join and not name.startswith("__"):
        hint = "A step that joins takes over what it needs: self.merge_artifacts(inputs)."
    raise AttributeError(
        f"{type(flow).__name__!r} has no attribute {name!r}" + (f". {hint}" if hint else ""),
        name=name,
        obj=None,
    )


def _items(flow: FlowSpec, name: str | None) -> Sequence[Any]:
    value = getattr(flow, str(name))
    if not isinstance(value, Iterable):
        raise UsageError(
            f"foreach={name!r}: self.{name} is {shown(value)}, which is not a list",
            where=user_location(),
            fix="Let it be a list; the step that follows runs once for each item.",
        )
    return value if isinstance(value, (list, tuple)) else list(value)


def _case(flow: FlowSpec, cases: Mapping[Any, StepMethod], name: str | None) -> str:
    value = getattr(flow, str(name))
    chosen = cases.get(value)
    if chosen is None:
        raise UsageError(
            f"condition={name!r}: self.{name} is {shown(value)}, which is none of the cases",
            where=user_location(),
            fix=f"Cases: {', '.join(map(shown, cases))}.",
        )
    return chosen.name
