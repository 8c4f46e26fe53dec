"""A pipeline while it is composed: calls of steps become nodes, values become sources.

One :class:`Composition` makes one graph, that of the outermost pipeline.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from upshift.authoring.composing.definitions import Definitions
from upshift.authoring.composing.placeholders import Inlined, Placeholder, Unmapped, a
from upshift.authoring.signatures import plainly_no_list
from upshift.code.fingerprint import identity_of
from upshift.errors import GraphError, NotSerializable, UsageError, location, user_frame, user_location
from upshift.model.graph import Collection, Constant, FromStep, Node, Source
from upshift.model.plain import MOST, is_opaque, opaque, short_type
from upshift.runtime.storage.artifacts import described, save
from upshift.runtime.storage.external import parts_of

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.options import PipelineOptions, StepOptions
    from upshift.model.spec.task import Artifact
    from upshift.runs.history.versions import ArtifactVersion
    from upshift.runtime.storage.store import Store

RETURNED = "return value"
"""What a pipeline's result is called where it is no argument."""

_SMALL = frozenset({type(None), bool, int, float, str})


class CalledStep(Protocol):
    """What a composition asks of a step that is called."""

    @property
    def name(self) -> str: ...

    callee: Callee
    options: StepOptions
    waits_for: tuple[Placeholder, ...]
    condition: Placeholder | None


class Composition:
    """A graph in the making.

    Parameters
    ----------
    store
        Where plain values go.
    project, begun
        The project that the pipeline belongs to, and the modules that this process began with, as for
        :class:`~upshift.code.fingerprint.Analysis`.
    """

    def __init__(self, store: Store, project: Path, begun: Iterable[dict[str, Any]]) -> None:
        self._store = store
        self._project = project
        self.definitions = Definitions(store, project, begun)
        self._nodes: list[Node] = []
        self._uses: dict[str, int] = {}
        self._taken: set[str] = set()
        self._callees: dict[str, Callee] = {}
        self._by_item: dict[str, list[str]] = {}
        self._constants: dict[tuple[type, object], Constant] = {}
        self._defaults: dict[tuple[int, str], Source] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self.open = True

    @property
    def size(self) -> int:
        """The number of nodes so far."""
        return len(self._nodes)

    def names_since(self, size: int) -> list[str]:
        """The names of the nodes that came after the first ``size``, in order."""
        return [node.name for node in self._nodes[size:]]

    def close(self) -> tuple[Node, ...]:
        """The nodes, complete. From now on the placeholders of this composition mean nothing."""
        self.open = False
        if not self._by_item:
            return tuple(self._nodes)
        return tuple(
            attrs.evolve(node, by_item=tuple(self._by_item[node.name]))
            if node.name in self._by_item
            else node
            for node in self._nodes
        )

    def params(
        self, values: Mapping[str, Any], defaults: Mapping[str, Any], where: str
    ) -> dict[str, Artifact]:
        """The pipeline's parameters, saved; of ``defaults`` those that can be.

        Raises
        ------
        NotSerializable
            One of ``values`` cannot be saved.
        """
        saved = {name: self._constant(value, name, where).artifact for name, value in values.items()}
        for name, value in defaults.items():
            if not any(parts_of(value)):  # no file is read only to be recorded
                with contextlib.suppress(NotSerializable):
                    saved[name] = self._constant(value, name, where).artifact
        return saved

    def add(self, step: CalledStep, bound: Mapping[str, Any], outer: PipelineOptions) -> Any:
        """A node for a call; its placeholder, or a tuple of them.

        Parameters
        ----------
        step
            What is called.
        bound
            The arguments by input name.
        outer
            The options of the pipeline that calls.
        """
        where = self._here()
        inputs = {name: self.source(value, name, where) for name, value in bound.items()}
        return self._node(step, inputs, (), outer, where)

    def add_mapped(
        self,
        step: CalledStep,
        mapped: Mapping[str, Any],
        whole: Mapping[str, Any],
        outer: PipelineOptions,
    ) -> Any:
        """A node for a mapped call; a placeholder for each output, which stands for a list.

        Parameters
        ----------
        mapped
            Placeholders, or lists of items, by input name.
        whole
            The other arguments.
        """
        where = self._here()
        inputs: dict[str, Source] = {}
        for name, items in mapped.items():
            if type(items) is Placeholder:
                inputs[name] = self._over(items, step.name, name, where)
            else:
                sources = tuple([self.source(item, f"{name}[{i}]", where) for i, item in enumerate(items)])
                inputs[name] = Collection(form="list", items=sources)
        for name, value in whole.items():
            inputs[name] = self.source(value, name, where)
        return self._node(step, inputs, tuple(mapped), outer, where)

    def source(self, value: Any, name: str, where: str | None) -> Source:
        """What a value is in the graph.

        Parameters
        ----------
        value
            Whatever the user passed.
        name
            What to call it in an error.
        where
            The user's line.
        """
        kind = type(value)
        if kind is Placeholder:
            self.check_own(value)
            return value._source  # type: ignore[no-any-return]
        if kind in _SMALL:
            # A float by its text: 0.0 and -0.0 are equal, and nan does not equal itself.
            key = (kind, repr(value) if kind is float else value)
            known = self._constants.get(key)
            if known is None:
                known = self._constants[key] = self._constant(value, name, where)
            return known
        if kind is Unmapped or kind is Inlined:
            return self.source(value.value if kind is Unmapped else value.output, name, where)
        if kind in (list, tuple, dict) and holds_placeholder(value):
            return self._collection(value, name, where)
        if getattr(kind, "__upshift_artifact__", False):
            return self._version(value, name, where)
        self._refuse_uncalled(value, name, where)
        return self._constant(value, name, where)

    def check_own(self, placeholder: Placeholder) -> None:
        """Refuse the result of a step in another pipeline, or in one that is complete."""
        if placeholder._owner is not self:
            raise GraphError(
                f"the result of step {placeholder._source.node!r} belongs to another run of a pipeline",
                where=user_location(),
                why="A placeholder means something only while the pipeline that made it is composed.",
                fix="Call the step in this pipeline, or pass its value as a parameter.",
            )

    def _node(
        self,
        step: CalledStep,
        inputs: dict[str, Source],
        over: tuple[str, ...],
        outer: PipelineOptions,
        where: str | None,
    ) -> Any:
        callee = step.callee
        for name, value in callee.signature.recorded.items():
            if name not in inputs:
                inputs[name] = self._default(callee, name, value, where)
        _refuse_flows(step, where)
        definition = self.definitions.name_of(callee, step.options, outer)
        name = self._unique(step.name)
        for placeholder in step.waits_for:
            self.check_own(placeholder)
        if step.condition is not None:
            self.check_own(step.condition)
        node = Node(
            name=name,
            step=definition,
            inputs=inputs,
            over=over,
            after=tuple(dict.fromkeys(p._source.node for p in step.waits_for)),
            when=None if step.condition is None else step.condition._source,
            location=where,
        )
        self._nodes.append(node)
        mapped = bool(over)
        self._callees[name] = callee
        results = [Placeholder(FromStep(node=name, output=o), self, mapped) for o in callee.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _over(self, placeholder: Placeholder, step: str, name: str, where: str | None) -> FromStep:
        self.check_own(placeholder)
        source = placeholder._source
        if not placeholder._mapped:
            callee = self._callees[source.node]
            kind = plainly_no_list(callee.function, callee.outputs.index(source.output))
            if kind is not None:
                raise _no_list(source.node, kind, step, name, where)
            outputs = self._by_item.setdefault(source.node, [])
            if source.output not in outputs:
                outputs.append(source.output)
        return source

    def _collection(self, value: Any, name: str, where: str | None) -> Collection:
        kind = type(value)
        if kind is not dict:
            items = tuple([self.source(item, f"{name}[{i}]", where) for i, item in enumerate(value)])
            return Collection(form=kind.__name__, items=items)
        for key in value:
            if type(key) is not str:
                raise GraphError(
                    f"{name}: a dictionary that holds step results has the key {key!r}",
                    where=where,
                    fix="Use strings as keys, or put the results in a list.",
                )
        items = tuple([self.source(item, f"{name}[{key!r}]", where) for key, item in value.items()])
        return Collection(form="dict", items=items, keys=tuple(value))

    def _constant(self, value: Any, name: str, where: str | None) -> Constant:
        try:
            artifact = save(value, self._store, name=f"argument {name}", told=MOST)
            if isinstance(value, PurePath):
                artifact = attrs.evolve(artifact, plain=str(value))
            if artifact.serializer == "pickle":
                artifact = attrs.evolve(artifact, identity=identity_of(value, self._project))
            return Constant(artifact=artifact)
        except NotSerializable as error:
            for place, part in parts_of(value, name):
                if isinstance(part, Path) and not os.path.exists(part):
                    raise _nothing_there(place, part, where) from None
            error.where = error.where or where
            error.exit_code = UsageError.exit_code  # nothing has run
            raise

    def _version(self, version: ArtifactVersion, name: str, where: str | None) -> Constant:
        """What a step of an earlier run made, as it is in this store; from another one it is copied."""
        if version.store.address != self._store.address:
            return self._constant(version.value, name, where)
        artifact = version.artifact
        if is_opaque(described(artifact)):
            text = f"<{version.name}@{version.version}: {short_type(artifact.type)}>"
            artifact = attrs.evolve(artifact, plain=opaque(artifact.type, text))
        return Constant(artifact=artifact)

    def _default(self, callee: Any, name: str, value: Any, where: str | None) -> Source:
        key = (id(callee), name)
        known = self._defaults.get(key)
        if known is None:
            known = self._defaults[key] = self.source(value, f"{name}, by default", where)
        return known

    def _refuse_uncalled(self, value: Any, name: str, where: str | None) -> None:
        kind = getattr(type(value), "__upshift_kind__", None)
        if kind is not None:
            raise GraphError(
                f"the {name if name == RETURNED else f'argument {name!r}'} is the {kind} {value.name!r} "
                "itself, not its result",
                where=where,
                fix=f"Call it: {value.name}({'…' if value.callee.signature.names else ''}).",
            )
        if isinstance(value, (set, frozenset)) and any(type(item) is Placeholder for item in value):
            raise GraphError(
                f"the argument {name!r} is a set that holds step results",
                where=where,
                fix="Use a list, a tuple or a dictionary.",
            )

    def _unique(self, base: str) -> str:
        count = self._uses.get(base, 0) + 1
        name = base if count == 1 else f"{base}_{count}"
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._uses[base] = count
        self._taken.add(name)
        return name

    def _here(self) -> str | None:
        """The user's line, as :func:`upshift.errors.user_location` gives it; each is worked out once."""
        frame = user_frame(sys._getframe(2))
        if frame is None:
            return None
        key = (frame.f_code, frame.f_lineno)
        known = self._lines.get(key)
        if known is None:
            known = self._lines[key] = location(frame.f_code.co_filename, frame.f_lineno)
        return known


def _no_list(producer: str, kind: type, step: str, name: str, where: str | None) -> GraphError:
    keyword = "" if name.startswith("*") else f"{name}="
    return GraphError(
        f"{step}.map: {name!r} is the result of step {producer!r}, which gives {a(kind)}, no list",
        where=where,
        why="A step result that is passed to .map is mapped over, one task for each of its items.",
        fix=f"To pass it whole to each task: {keyword}unmapped({producer}()).\n"
        f"To map over it, {producer!r} has to return a list, and be annotated so.",
    )


def _nothing_there(place: str, path: Path, where: str | None) -> UsageError:
    return UsageError(
        f"{place}: there is no file or folder {str(path)!r}",
        where=where,
        why=f"A Path is passed on by content, which is stored before the run starts; {os.path.abspath(path)} "
        "is not there.",
        fix="Correct the path. A path that need not exist, such as a folder for results, is a str: annotate "
        "the parameter as str, or pass str(…).",
    )


def holds_placeholder(value: Iterable[Any]) -> bool:
    """Whether a list, tuple or dictionary holds a step's result, at any depth."""
    seen: set[int] = set()
    pending: list[Any] = [value]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for item in current.values() if type(current) is dict else current:
            kind = type(item)
            if kind is Placeholder or kind is Inlined:
                return True
            if kind is list or kind is tuple or kind is dict:
                pending.append(item)
    return False


def _refuse_flows(step: CalledStep, where: str | None) -> None:
    """Refuse what only steps of flows can obey."""
    otherwise, said = "", "@parallel"
    if step.options.settings.catch:
        said, why = (
            "@catch",
            "It controls the next step of a flow; a pipeline function does that itself.",
        )
    elif "parallel" in step.options.flow:
        why = "Only the transition of a flow says on how many nodes: num_parallel=2."
        otherwise = "@run_with_torchrun(nproc_per_node=2) runs it in several processes. "
    elif "checkpoint" in step.options.flow:
        said, why = "@checkpoint", "Every step has upshift.current.checkpoint, without a decorator."
    elif ends := step.options.flow.keys() & {"start", "end"}:
        said, why = f"{min(ends)}=True", "A pipeline begins with what its function calls first."
    else:
        return
    raise GraphError(
        f"step {step.name!r} has {said}, and is not a step of a flow",
        where=where,
        why=why,
        fix=f"{otherwise}Leave it out, or write the pipeline as a class: from upshift import FlowSpec.",
    )
