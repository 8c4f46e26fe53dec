"""Calls a pipeline's function to compose it: into a graph of its own, or into another pipeline's."""

from __future__ import annotations

import datetime
import enum
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.composing.composition import RETURNED, Composition
from upshift.authoring.composing.definitions import begun_with, project_of
from upshift.authoring.composing.placeholders import Inlined, Placeholder
from upshift.authoring.composing.scope import PipelineScope
from upshift.model.graph import FromStep, Graph
from upshift.model.plain import UNKNOWN, has_parts, is_opaque, plain_of, type_name
from upshift.model.settings.sizes import format_size
from upshift.model.spec.calls import bind
from upshift.runtime.storage.artifacts import described
from upshift.runtime.storage.store import open_store

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.options import PipelineOptions
    from upshift.authoring.signatures import CallSignature
    from upshift.model.spec.task import Artifact
    from upshift.runtime.storage.store import Store

_LONGEST = 60
"""Characters of a value that is written down in words."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def compose(
    name: str, callee: Callee, options: PipelineOptions, arguments: Mapping[str, object], store: Store
) -> Graph:
    """The graph of a pipeline for these arguments; see :meth:`Pipeline.build`."""
    callee.signature.check(arguments)
    composition = Composition(store, project_of(callee.function), begun_with(callee.function))
    # The outermost pipeline's place to run is the run's own, not that of each of its steps.
    options = attrs.evolve(options, steps=attrs.evolve(options.steps, on=None))
    try:
        with PipelineScope(composition, options, (name,)):
            params = parameters_saved(composition, callee, arguments)
            composition.definitions.composes(callee.function, {**callee.signature.defaults, **arguments})
            args, kwargs = bind(callee.function, arguments)
            returned = callee.function(*args, **kwargs)
            output = None if returned is None else composition.source(returned, RETURNED, callee.location)
        composition.definitions.complete()
    finally:
        nodes = composition.close()
    return Graph(
        pipeline=name,
        steps=dict(composition.definitions.by_name),
        nodes=nodes,
        output=output,
        params=params,
        texts=texts_of(callee.signature, arguments, params),
        sources=composition.definitions.sources,
    )


def sketch(callee: Callee, build: Callable[[Mapping[str, object], Store], Graph]) -> Graph | None:
    """The graph that a pipeline's defaults make, to look at; None: it takes arguments, or cannot be made."""
    if callee.signature.required:
        return None
    with TemporaryDirectory() as folder:
        store = open_store(folder)
        try:
            with store.claims.held():
                return build({}, store)
        except Exception:  # of the pipeline's own function, which is told where it is run
            return None


def parameters_saved(
    composition: Composition, callee: Callee, arguments: Mapping[str, object]
) -> dict[str, Artifact]:
    """Every parameter that says something in a record, in the order of the signature.

    A default that is no plain data, as a configuration object, is recorded for whoever looks later.
    """
    signature = callee.signature
    values = {**signature.recorded, **arguments}
    others = {name: value for name, value in signature.defaults.items() if name not in values}
    others = {name: value for name, value in others.items() if has_parts(value)}
    saved = composition.params(values, others, callee.location)
    return {name: saved[name] for name in dict.fromkeys((*signature.names, *saved)) if name in saved}


def texts_of(
    signature: CallSignature, arguments: Mapping[str, object], params: Mapping[str, Artifact]
) -> dict[str, Any]:
    """What the parameters are whose records do not say it: in plain form, else in words."""
    texts: dict[str, Any] = {}
    for name, value in {**signature.defaults, **arguments}.items():
        saved = params.get(name)
        if saved is None or is_opaque(described(saved)):
            size = "" if saved is None else f", {format_size(saved.bytes)}"
            plain = plain_of(value) if has_parts(value) else UNKNOWN
            texts[name] = plain if plain is not UNKNOWN else in_words(value) or f"<{type_name(value)}{size}>"
    return texts


def inline(
    name: str,
    callee: Callee,
    options: PipelineOptions,
    scope: PipelineScope,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Inlined:
    """The steps of a pipeline as part of the one that calls it.

    Parameters
    ----------
    scope
        The pipeline that calls.
    args, kwargs
        The arguments of the call: plain values, or results of steps.
    """
    bound = callee.signature.bind(args, kwargs)
    composition = scope.composition
    before = composition.size
    with PipelineScope(composition, options.over(scope.options), (*scope.path, name)):
        composition.definitions.composes(callee.function, {**callee.signature.defaults, **bound})
        positional, keywords = bind(callee.function, bound)
        output = callee.function(*positional, **keywords)
    nodes = composition.names_since(before)
    results = tuple(Placeholder(FromStep(node=node), composition, False) for node in nodes)
    return Inlined(name, output.output if type(output) is Inlined else output, results)


def in_words(value: object) -> str | None:
    """A value in a line: ``0.1``, ``Color.RED``, ``Path('train.csv')``, ``Config(lr=0.1)``.

    None: it says nothing in a line, as a table.
    """
    text = _ADDRESS.sub("", _Words().repr(value))
    if "\n" in text:
        return None
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class _Words(reprlib.Repr):
    """Looks at the beginning of large containers only."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LONGEST * 2
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 20

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, enum.Enum):
            return f"{type(x).__name__}.{x.name}" if x.name else repr(x)
        if isinstance(x, PurePath):
            return f"Path({str(x)!r})"
        if isinstance(x, (datetime.date, datetime.time)):
            return x.isoformat()
        if isinstance(x, type):
            return x.__qualname__
        return super().repr_instance(x, level)
