"""The step process: loads inputs, calls the step, saves outputs. Nothing else.

What it has to say goes to the supervisor through two pipes, as JSON: what it sees, and the outcome.
The supervisor waits for the second only; it is not woken for the first, but finds it there even if
the step is killed. So that is also where the step's stack goes when it is stopped or crashes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from upshift.config.sizes import format_size
from upshift.errors import (
    BlobDamaged,
    BlobMissing,
    NotSerializable,
    StoreUnavailable,
    UpshiftError,
)
from upshift.spec import Artifact, Code, Collected, Failure, TaskSpec, Value, to_json
from upshift.spec.calls import bind
from upshift.store import artifacts
from upshift.store.store import Store
from upshift.worker import cells, packaged, proc, promises, shadowing, stacks, usercode
from upshift.worker.cards import cards
from upshift.worker.cleanup import cleanup_memory
from upshift.worker.confine import Confinement, flush_c_streams, memory_limit
from upshift.worker.context import current
from upshift.worker.copies import Copies
from upshift.worker.messages import channel
from upshift.worker.randomness import Randomness
from upshift.worker.streams import tell
from upshift.worker.tracebacks import user_line, user_text


@attrs.frozen(kw_only=True)
class Seen:
    """The first message: what the process finds of CPUs and bytes of memory."""

    cpu_count: int
    memory: int


@attrs.frozen(kw_only=True)
class Outcome:
    """The last message: what became of the call.

    Parameters
    ----------
    outputs
        By name, if it returned.
    failure
        If it did not.
    peak
        Bytes of memory that this process has needed at most, above what it was forked with.
    cpu_seconds, read, written
        As in :class:`~upshift.worker.proc.Consumed`, since it was given its task.
    """

    outputs: Mapping[str, Artifact] = attrs.field(factory=dict)
    failure: Failure | None = None
    peak: int | None = None
    cpu_seconds: float = 0.0
    read: int = 0
    written: int = 0

    def __attrs_post_init__(self) -> None:
        for count in (self.peak or 0, self.cpu_seconds, self.read, self.written):
            if not 0 <= count < sys.maxsize:
                raise ValueError(count)

    @property
    def consumed(self) -> proc.Consumed:
        """What was consumed."""
        return proc.Consumed(self.cpu_seconds, self.read, self.written)


Call = Callable[[Callable[..., object], Sequence[Any], Mapping[str, Any]], object]


def _plainly(function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    return function(*args, **kwargs)


def run(
    spec: TaskSpec,
    store: Store,
    *,
    bounds: Confinement,
    host_memory: int,
    sightings: int,
    messages: int,
    randomness: Randomness,
) -> None:
    """Do the work of a step process that is confined already.

    What it sees goes to the descriptor ``sightings``, the outcome to ``messages``.
    """
    before, began = proc.own_memory(), proc.own_consumption()
    current.enter(spec)
    channel.open(messages)
    cards.open(store, [bounds.environment[name] for name in spec.secrets])
    seen = Seen(cpu_count=len(os.sched_getaffinity(0)), memory=memory_limit(bounds, host_memory))
    _send(sightings, seen)
    os.set_blocking(sightings, False)
    stacks.tell(sightings)
    held: list[object] = []  # mapped inputs stay so until the peak is known, which they do not count in

    def call(function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        held.append((args, kwargs))
        return function(*args, **kwargs)

    outputs, failure = perform(spec, store, randomness, check=lambda: _compare(seen, spec, bounds), call=call)
    _flush()
    after = proc.own_memory()
    peak = max(0, after.high - before.resident - max(0, after.mapped - before.mapped))
    consumed = proc.own_consumption().since(began)
    channel.send("outcome", Outcome(outputs=outputs, failure=failure, peak=peak, **consumed._asdict()))


def perform(
    spec: TaskSpec,
    store: Store,
    randomness: Randomness,
    *,
    check: Callable[[], None] = lambda: None,
    call: Call = _plainly,
    into: Store | None = None,
) -> tuple[Mapping[str, Artifact], Failure | None]:
    """Load the inputs, call the step, save the outputs.

    Parameters
    ----------
    spec, store, randomness
        The work, where its inputs are, and what its random numbers begin with.
    check
        Raises what there is to object to before anything else is done.
    call
        Calls the step's function with its arguments.
    into
        Where the outputs go; None: beside the inputs.

    Returns
    -------
    tuple
        Outputs by name, and why there are none.
    """
    try:
        check()
        with _watched(spec) as look_around:
            _enter_folder(spec, store)
            function = _find(spec, store)
            look_around(sys.modules.get(spec.entry.module))
            randomness.enter(spec.task)
            inputs = _load(spec.inputs, store)
            if spec.clear_cache:
                cleanup_memory()
            copies = Copies()
            value = call(function, *bind(function, inputs))
            tell(copies.remarks(str(spec.task), value))
            return _save(spec, function, value, into or store), None
    except BaseException as error:  # the supervisor is told of whatever ends the call
        return {}, _explain(error, spec, store)


def refuse(messages: int, error: OSError) -> None:
    """Tell the supervisor that this process could not be confined, so that the step was not called."""
    failure = Failure(reason="infrastructure", message=f"the step's process could not be set up: {error}")
    channel.open(messages)
    channel.send("outcome", Outcome(failure=failure))


class Halted(BaseException):
    """The step must not go on. No ``except Exception`` catches it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Shortage(UpshiftError):
    """The process sees less than was granted."""


class LostInputs(UpshiftError):
    """Inputs that the store does not have any more, or not intact."""

    def __init__(self, digests: tuple[str, ...], why: str) -> None:
        super().__init__(f"{len(digests)} of the task's inputs cannot be read", why=why)
        self.digests = digests


@contextlib.contextmanager
def _watched(spec: TaskSpec) -> Iterator[Callable[[ModuleType | None], None]]:
    """Where devices were granted, look at what frameworks see of them: each as soon as it is imported.

    Yields what looks at those that are imported already.
    """
    if spec.granted is None or not spec.granted.gpus:
        yield lambda _: None
        return
    from upshift.worker.sighting import Sighting  # what no other step needs is not imported

    sighting = Sighting(spec)
    with sighting.watching():
        yield sighting.look_around


def _compare(seen: Seen, spec: TaskSpec, bounds: Confinement) -> None:
    granted = spec.granted
    if granted is None:
        return
    # A limit may be seen rounded down to whole pages.
    for name, slack in (("cpu_count", 0), ("memory", proc.PAGE)):
        want, have = getattr(granted, name), getattr(seen, name)
        if want is not None and have + slack < want:
            raise Shortage(
                f"{spec.task} was granted {name}={want:g} and its process sees {have:g}",
                why=f"CPUs {sorted(os.sched_getaffinity(0))}, cgroup {bounds.group or 'of the supervisor'}.",
                fix="Ask for less, or look at the limits of the shell or container that this runs in.",
            )


def _find(spec: TaskSpec, store: Store) -> Callable[..., object]:
    entry = spec.entry
    if entry.payload is not None:
        running = "{}.{}".format(*sys.version_info[:2])
        if entry.python != running:
            raise NotSerializable(
                f"step {spec.task.step} travels by value and needs Python {entry.python}; this is {running}",
                fix="Move the function into a module, or use the same minor version of Python on both sides.",
            )
        usercode.add_paths([_project(spec, store) / path for path in spec.code.paths])
        cells.restore(entry.cells, store)
        return artifacts.load(entry.payload, store)  # type: ignore[return-value]
    module = sys.modules.get(entry.module)
    if module is None:
        module = import_entry(attrs.evolve(spec.code, project=str(_project(spec, store))), entry.module)
    return usercode.resolve(module, entry.qualname)


def import_entry(code: Code, name: str) -> ModuleType:
    """Import the module of the user's that has the steps.

    Raises
    ------
    Exception
        Whatever the module raises.
    """
    project = Path(code.project)
    usercode.add_paths([project / path for path in code.paths])
    file = project / code.file if code.file else None
    if file is not None and usercode.module_name(file)[0] != name:
        file = None
    return usercode.import_module(name, file)


def _project(spec: TaskSpec, store: Store) -> Path:
    """The folder of the user's project, at hand or unpacked."""
    if spec.code.package is None:
        return Path(spec.code.project)
    from upshift.store.unpacking import unpacked

    return unpacked(spec.code.package, store)


def _enter_folder(spec: TaskSpec, store: Store) -> None:
    folder = spec.cwd or _project(spec, store)
    try:
        os.chdir(folder)
    except OSError as error:
        raise UpshiftError(f"the working folder of the step is gone: {folder}", why=error.strerror) from None


def _load(inputs: Mapping[str, Value], store: Store) -> dict[str, object]:
    lost: list[str] = []
    why = ""

    def load(value: Value) -> object:
        nonlocal why
        if isinstance(value, Collected):
            items = [load(item) for item in value.items]
            if value.form == "dict":
                return dict(zip(value.keys, items, strict=True))
            return tuple(items) if value.form == "tuple" else items
        try:
            return artifacts.load(value, store)
        except (BlobMissing, BlobDamaged) as error:
            lost.append(value.digest)
            why = why or error.what
            return None

    loaded = {name: load(value) for name, value in inputs.items()}
    if lost:
        raise LostInputs(tuple(lost), why)
    return loaded


def _save(
    spec: TaskSpec, function: Callable[..., object], value: object, store: Store
) -> dict[str, Artifact]:
    outputs = spec.outputs
    if len(outputs) == 1:
        values: tuple[object, ...] = (value,)
    elif isinstance(value, tuple) and len(value) == len(outputs):
        values = value
    else:
        got = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
        raise NotSerializable(
            f"step {spec.task.step} declares {len(outputs)} outputs and returned {got}",
            fix=f"Return a tuple of {len(outputs)}, or change the annotation of what it returns.",
        )
    tell(promises.remarks(function, str(spec.task), values))
    tell(_remarks_on_secrets(spec, values))
    saved = {
        output.name: artifacts.save(item, store, by_item=output.by_item, name=_called(output.name))
        for output, item in zip(outputs, values, strict=True)
    }
    cards.show_returned(spec.task.step, list(saved), values)
    return saved


def _remarks_on_secrets(spec: TaskSpec, values: tuple[object, ...]) -> Iterator[str]:
    """What to say where a text that the step returns holds a secret."""
    for output, item in zip(spec.outputs, values, strict=True):
        for name in spec.secrets:
            if isinstance(item, str) and (secret := os.environ.get(name)) and secret in item:
                yield f"the output {output.name!r} holds the secret {name}; it is stored as it is"


def _called(output: str) -> str:
    return output if output.startswith("output") else f"output {output}"


def _explain(error: BaseException, spec: TaskSpec, store: Store) -> Failure:
    """The failure that an exception means, with the user's own frames."""
    if isinstance(error, LostInputs):
        return Failure(reason="infrastructure", message=str(error), lost=error.digests)
    if isinstance(error, StoreUnavailable):
        return Failure(reason="infrastructure", message=error.in_short, where=error.where, fix=error.fix)
    if isinstance(error, Shortage):
        return Failure(reason="hardware", message=error.what, fix=error.fix)
    if isinstance(error, Halted):
        return error.failure
    folder = spec.code.project
    if spec.code.package is not None:
        with contextlib.suppress(UpshiftError):  # that may be what is to be explained
            folder = str(_project(spec, store))
    where = user_line(error, folder, relative_to=spec.cwd if spec.code.package is None else folder)
    if isinstance(error, UpshiftError) and where is None:
        return Failure(reason="user-error", message=error.in_short, where=error.where, fix=error.fix)
    try:
        text = f"{type(error).__qualname__}: {error}"
    except Exception:  # the user's __str__ raises
        text = f"{type(error).__qualname__} (its text cannot be shown)"
    if isinstance(error, SystemExit):
        text = f"the step called sys.exit({error.code!r})"
    failure = _ran_out_of_memory(error, text, spec) or Failure(
        reason="user-error",
        message=text.rstrip(": "),
        fix=_without_terminal(error, spec)
        or packaged.advice(error, spec.code, folder)
        or shadowing.advice(error, folder),
    )
    return attrs.evolve(failure, where=where, traceback=user_text(error, folder))


def _ran_out_of_memory(error: BaseException, text: str, spec: TaskSpec) -> Failure | None:
    """The failure, if memory ran out: the host's, or that of a device."""
    from upshift.accelerators.exhaustion import exhaustion  # nothing but a failure needs it

    shortage = exhaustion(error, (spec.granted.gpus if spec.granted else None) or ())
    if shortage is not None and not shortage.host:
        return Failure(reason="out-of-memory", message=shortage.sentence, fix=shortage.remedy)
    if shortage is None and not isinstance(error, MemoryError):
        return None
    reached = proc.own_memory().high
    return Failure(
        reason="out-of-memory",
        message=text.rstrip(": ") if shortage is None else shortage.sentence,
        memory=reached,
        fix=_more_memory(reached, spec),
    )


def _more_memory(reached: int, spec: TaskSpec) -> str:
    """What to do where host memory ran out."""
    limit = spec.granted.memory if spec.granted is not None else None
    of = f" of the {format_size(limit)} that it was granted" if limit is not None else ""
    return (
        f"Its process had {format_size(reached)}{of}. Let it need less at once, or ask for more (memory=…)."
    )


def _without_terminal(error: BaseException, spec: TaskSpec) -> str | None:
    """What to do instead of ``breakpoint()`` and ``input()``, if the step ended because of one."""
    asked = isinstance(error, EOFError) and error.args == ("EOF when reading a line",)
    if not asked and type(error).__name__ != "BdbQuit":
        return None
    return (
        "A step has no terminal. To run it in yours, with breakpoint() and input(): "
        f"upshift run FILE --debug {shlex.quote(str(spec.task.step))}"
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the step closed or replaced it
            stream.flush()
    flush_c_streams()


def _send(descriptor: int, message: Seen) -> None:
    data = to_json(message) + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
