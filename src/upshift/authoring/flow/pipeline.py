"""A flow as a pipeline, which runs like one made of functions: :class:`FlowPipeline`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.callee import Callee
from upshift.authoring.flow.definition import FlowClass
from upshift.authoring.flow.parameters import parameters_of
from upshift.authoring.flow.shape import PARALLEL
from upshift.authoring.flow.task import run_step
from upshift.authoring.options import PipelineOptions
from upshift.authoring.pipelines import Pipeline
from upshift.authoring.steps import Step
from upshift.model.graph import CHOICE, FOREACH, ITEMS, STATES, SWITCH
from upshift.model.settings.step import StepSettings

if TYPE_CHECKING:
    from types import FrameType

    from upshift.authoring.flow.definition import Flow
    from upshift.engine import RunOptions
    from upshift.model.graph import Graph
    from upshift.report import Progress
    from upshift.runs.history.runs import Run
    from upshift.runtime.storage.store import Store

_PIPELINE = "__upshift_pipeline__"
_OUTPUTS = {FOREACH: ("output", ITEMS), SWITCH: ("output", CHOICE)}


class StepMethod(Callee):
    """A step of a flow, as the function that a task calls."""

    def __init__(self, flow: type[Flow], name: str, step: Step[Any, Any]) -> None:
        super().__init__(_task(flow, name, step), "step")
        self.name = name
        self.step = step
        self._flow = flow

    @property
    def __upshift_function__(self) -> Callable[..., Any]:
        return self.function

    @property
    def outputs(self) -> tuple[str, ...]:
        """The state that it leaves; beside it what the graph grows by."""
        if PARALLEL in self.step.options.flow:
            return ("output", STATES)
        kind = self._flow.__upshift_pipeline__.shape.steps[self.name].kind
        return _OUTPUTS.get(kind, ("output",))

    @property
    def location(self) -> str:
        """Its ``def``, as ``file:line``."""
        return self.step.callee.location

    @property
    def code(self) -> tuple[Callable[..., Any], ...]:
        """All methods, as each may call any other; nothing where no result is reused."""
        if not self.step.options.settings.cache:
            return ()
        return self._flow.__upshift_pipeline__.functions

    def __call__(self, flow: Flow, *inputs: Any) -> None:
        """Do what the step does within another one, as ``super().train()`` does."""
        self.step.callee.function(flow, *inputs)

    def __repr__(self) -> str:
        return f"<step {self._flow.__name__}.{self.name}>"


def _task(flow: type[Flow], name: str, step: Step[Any, Any]) -> Callable[..., Any]:
    def task(**given: Any) -> Any:
        shape = flow.__upshift_pipeline__.shape
        return run_step(flow, name, step.callee.function, shape.steps[name], given)

    task.__module__ = flow.__module__
    task.__name__ = name
    task.__qualname__ = f"{flow.__qualname__}.{name}"
    return task


class FlowPipeline(Pipeline[Any, Any], FlowClass):
    """A flow, with the parameters of its class as those of a function.

    Parameters
    ----------
    flow
        The class.
    """

    def __init__(self, flow: type[Flow]) -> None:
        self.flow = flow
        self._methods: dict[str, StepMethod] = {}
        bases = [vars(kind)[_PIPELINE] for kind in flow.__mro__[1:] if _PIPELINE in vars(kind)]
        self.marks: Mapping[str, Mapping[str, Any]] = {
            n: m for base in bases[::-1] for n, m in base.marks.items()
        }
        options = PipelineOptions(steps=StepSettings(cache=False))  # as in Metaflow: who wants it says so
        super().__init__(Callee(_as_function(flow), "pipeline"), bases[0].options if bases else options)

    @property
    def idle(self) -> Sequence[str]:
        """The decorators of the class that have no effect here."""
        return [f"@{name}" for name in ("schedule", "trigger", "trigger_on_finish") if name in self.marks]

    def run(
        self,
        arguments: Mapping[str, object] | None = None,
        *,
        options: RunOptions | None = None,
        progress: Progress | None = None,
        **named: object,
    ) -> Run[Any]:
        """Run it; see :meth:`Pipeline.run`."""
        if self.idle and progress is not None:
            one = "has" if len(self.idle) == 1 else "have"
            progress.notice(f"{' and '.join(self.idle)} {one} no effect: nothing but you starts a run")
        return super().run(arguments, options=options, progress=progress, **named)

    def decorate(
        self, name: str, said: Mapping[str, Any], *, tags: Sequence[str], steps: StepSettings | None
    ) -> None:
        """A decorator of the class: what it says, tags of its runs, and settings of its steps."""
        self.marks = {**self.marks, name: said}
        tags = tuple(dict.fromkeys((*self.options.tags, *tags)))
        settings = self.options.steps if steps is None else self.options.steps.replaced(steps)
        self.options = attrs.evolve(self.options, tags=tags, steps=settings)

    def method(self, step: Step[Any, Any]) -> StepMethod:
        """A step as a task's function; the same one each time."""
        name = step.callee.function.__name__
        known = self._methods.get(name)
        if known is None or known.step is not step:
            known = StepMethod(self.flow, name, step)
            if self.steps.get(name) is step:  # not one of a base, which super() means
                self._methods[name] = known
        return known

    def build(self, arguments: Mapping[str, object], store: Store) -> Graph:
        """The graph for these arguments; see :meth:`Pipeline.build`."""
        from upshift.authoring.flow.composing import compose

        return compose(self, self.method, arguments, store)

    def __reduce__(self) -> Any:
        return (getattr, (self.flow, "__upshift_pipeline__"))


def _as_function(flow: type[Flow]) -> Callable[..., Any]:
    """The function that a flow is to whoever asks for a pipeline's name, parameters and place."""

    def function(**arguments: Any) -> None:
        raise AssertionError("a flow is composed from its class")

    parameters = [parameter.in_signature for parameter in parameters_of(flow)]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, attribute, getattr(flow, attribute))
    file = getattr(sys.modules.get(flow.__module__), "__file__", None) or "<unknown>"
    first = next((v for v in vars(flow).values() if isinstance(v, Step)), None)
    if first is not None:
        file = first.callee.function.__code__.co_filename
    function.__code__ = function.__code__.replace(
        co_filename=file, co_firstlineno=_line_of(flow, file), co_name=flow.__name__
    )
    return function


def _line_of(flow: type[Flow], file: str) -> int:
    """The line of the class. While its body's frame is there, that is where it is being made."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return 1
