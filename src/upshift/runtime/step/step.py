"""The step process: loads inputs, calls the step, saves outputs. Nothing else.

What it has to say goes to the supervisor through two pipes, as JSON: what it sees, and the outcome.
The supervisor waits for the second only; it is not woken for the first, but finds it there even if
the step is killed. So that is also where the step's stack goes when it is stopped or crashes.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from os import _exit  # a step may put something else in its place
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import attrs

from upshift.errors import (
    BlobDamaged,
    BlobMissing,
    NotSerializable,
    UpshiftError,
)
from upshift.model.spec import Artifact, Code, Collected, Failure, Rank, TaskSpec, Value, to_json
from upshift.model.spec.calls import bind
from upshift.model.spec.hardware import CGROUP, SCHEDULER
from upshift.runtime import confine, proc, tracebacks, usercode
from upshift.runtime.confine import Confinement, flush_c_streams, memory_limit
from upshift.runtime.launch import stacks
from upshift.runtime.launch.ranks import listed_cpus, own_device
from upshift.runtime.messages import Outcome, Seen, channel, tell
from upshift.runtime.step import randomness, ranks, remarks
from upshift.runtime.step.cards import cards
from upshift.runtime.step.checkpoint import checkpoint
from upshift.runtime.step.cleanup import cleanup_memory
from upshift.runtime.step.context import current
from upshift.runtime.step.explaining import Halted, LostInputs, Shortage, explain
from upshift.runtime.step.stopping import insist, settle, stopping, tell_stack
from upshift.runtime.storage import artifacts, home_folders
from upshift.runtime.storage.store import Store

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
) -> None:
    """Do the work of a step process that is confined already.

    What it sees goes to the descriptor ``sightings``, the outcome to ``messages``.
    """
    before, began = proc.own_memory(), proc.own_consumption()
    current.enter(spec, bounds.rank, store)
    channel.open(messages, bounds.ears)
    cards.open(store, [bounds.environment[name] for name in spec.settings.secret_sources])
    checkpoint.open(spec, store, rank=bounds.rank)
    stopping.begin()
    seen = Seen(
        cpu_count=_cpus(spec),
        memory=memory_limit(bounds, host_memory),
        **_placed(spec, bounds.rank),
    )
    _send(sightings, seen)
    os.set_blocking(sightings, False)
    tell_stack(sightings)
    if bounds.rank is not None:
        stacks.listen(sightings)
    held: list[object] = []  # mapped inputs stay so until the peak is known, which they do not count in
    returned: str | None = None
    exit_code: int | None = None

    def call(function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        nonlocal returned, exit_code
        held.append((args, kwargs))
        if bounds.rank is not None and spec.entry.payload is not None:
            ranks.look_at(function, spec.location)
        try:
            value = function(*args, **kwargs)
        except SystemExit as error:
            exit_code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
            raise
        finally:
            settle()
            with contextlib.suppress(OSError):
                cards.settle()
        if (told := stopping.verdict()) is not None:  # it may not be all that it would have returned
            raise Halted(told)
        if bounds.rank is not None:
            ranks.confirm_world(bounds.rank)
            returned = None if value is None else type(value).__name__
        return value

    main = bounds.rank is None or bounds.rank.rank == 0

    def check() -> None:
        _compare(seen, spec, bounds)
        if bounds.rank is not None and spec.launch is not None:
            ranks.enter(spec, spec.launch, bounds.rank)

    try:
        outputs, failure = perform(spec, store, check=check, call=call, main=main, settled=settle)
        if bounds.rank is not None and failure is None:
            tell(chain(ranks.remarks(bounds.rank), ranks.strayed(spec, bounds.rank)))
        _flush()
        outcome = Outcome(
            outputs=outputs,
            failure=failure,
            exit_code=exit_code,
            returned=returned,
            group=None if bounds.rank is None else ranks.group_size(),
            joined=bounds.rank is not None and ranks.joined(),
            **_used(before, began),
        )
    except BaseException as error:  # a signal handler of the user's, just before it was taken away
        settle()
        failure = explain(error.__context__ or error, spec, partial(_project, spec, store))
        outcome = Outcome(failure=failure, exit_code=exit_code)
    _say(outcome)
    if bounds.rank is not None and failure is None:
        with contextlib.suppress(Exception):
            ranks.linger(bounds.rank)


def _used(before: proc.OwnMemory, began: proc.Consumed) -> dict[str, Any]:
    """What the step has needed; nothing, where the step has left its process without /proc or descriptors."""
    with contextlib.suppress(Exception):
        after = proc.own_memory()
        peak = max(0, after.high - before.resident - max(0, after.mapped - before.mapped))
        return {"peak": peak, **proc.own_consumption().since(began)._asdict()}
    return {}


def _say(outcome: Outcome) -> None:
    try:
        channel.send("outcome", outcome)
    except OSError:  # nobody hears it
        raise
    except Exception as error:
        failure = outcome.failure or tracebacks.mistake(error, "say what the step has returned")
        channel.send("outcome", Outcome(failure=failure))


def _placed(spec: TaskSpec, rank: Rank | None) -> dict[str, Any]:
    """What one of several processes finds of its place among them."""
    if rank is None or spec.launch is None:
        return {}
    device = own_device(spec, rank)
    return {
        "world_size": ranks.world_size(spec.launch, rank),
        "device": None if device is None else device.uuid,
        "cpus": listed_cpus(os.sched_getaffinity(0)),
    }


def _cpus(spec: TaskSpec) -> int:
    """How many CPUs this process may use: of a container, that is what its quota comes to."""
    cpus = len(os.sched_getaffinity(0))
    if spec.granted is not None and spec.granted.enforced_by("cpu") in (CGROUP, SCHEDULER):
        cpus = min(cpus, math.ceil(confine.own_cpus() or cpus))
    return cpus


def perform(
    spec: TaskSpec,
    store: Store,
    *,
    check: Callable[[], None] = lambda: None,
    call: Call = _plainly,
    into: Store | None = None,
    main: bool = True,
    settled: Callable[[], None] = lambda: None,
) -> tuple[Mapping[str, Artifact], Failure | None]:
    """Load the inputs, call the step, save the outputs."""
    try:
        check()
        with _watched(spec) as look_around:
            _enter_folder(spec, store)
            function = _find(spec, store)
            look_around(sys.modules.get(spec.entry.module))
            randomness.enter(spec.draws, spec.stream or str(spec.task))
            with home_folders.shared() if spec.launch is not None else contextlib.nullcontext():
                inputs = _load(spec.inputs, store)
            if spec.settings.clear_cache:
                cleanup_memory()
            copies = remarks.Copies(inputs)
            value = call(function, *bind(function, inputs))
            if not main:
                return {}, None
            tell(copies.remarks(str(spec.task), value))
            return _save(spec, function, value, into or store), None
    except BaseException as error:  # the supervisor is told of whatever ends the call
        settled()
        return {}, explain(error, spec, partial(_project, spec, store))


def live(work: Callable[[], None], messages: int) -> NoReturn:
    """Do this, and end the process with it.

    Threads and ``atexit`` handlers of the user's must not keep a finished task alive: it ends without them.
    """
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        insist(_refuse, messages, error)
    finally:
        _exit(code)


def _refuse(messages: int, error: BaseException) -> None:
    """Tell the supervisor that this process could not be confined, so that the step was not called."""
    if not channel:
        channel.open(messages)
    what = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    failure = Failure(reason="infrastructure", message=f"the step's process could not be set up: {what}")
    channel.send("outcome", Outcome(failure=failure))


@contextlib.contextmanager
def _watched(spec: TaskSpec) -> Iterator[Callable[[ModuleType | None], None]]:
    """Where devices were granted, look at what frameworks see of them: each as soon as it is imported.

    Yields what looks at those that are imported already.
    """
    if spec.granted is None or not spec.granted.gpus:
        yield lambda _: None
        return
    from upshift.runtime.step.sighting import Sighting  # what no other step needs is not imported

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
        if name == "cpu_count" and want is not None and bounds.rank is not None and bounds.cpus is not None:
            want = min(want, len(bounds.cpus))  # those near its device
        if want is not None and have + slack < want:
            raise Shortage(
                f"{spec.task} was granted {name}={want:g} and its process sees {have:g}",
                why=f"CPUs {sorted(os.sched_getaffinity(0))}, cgroup {bounds.group or 'of the supervisor'}.",
                fix="Ask for less, or look at the limits of the shell or container that this runs in.",
            )


def _find(spec: TaskSpec, store: Store) -> Callable[..., object]:
    entry = spec.entry
    if not sys.modules.keys() >= entry.after.keys():
        code = attrs.evolve(spec.code, project=str(_project(spec, store)))
        import_before(code, entry.after, in_image=spec.image is not None)
    if entry.payload is not None:
        running = "{}.{}".format(*sys.version_info[:2])
        if entry.python != running:
            raise NotSerializable(
                f"step {spec.task.step} travels by value and needs Python {entry.python}; this is {running}",
                fix="Move the function into a module, or use the same minor version of Python on both sides.",
            )
        usercode.add_paths([_project(spec, store) / path for path in spec.code.paths])
        tracebacks.restore_cells(entry.cells, store)
        return artifacts.load(entry.payload, store)  # type: ignore[return-value]
    module = sys.modules.get(entry.module)
    if module is None:
        module = import_entry(attrs.evolve(spec.code, project=str(_project(spec, store))), entry.module)
    return usercode.resolve(module, entry.qualname)


def import_before(code: Code, modules: Mapping[str, str], *, in_image: bool) -> None:
    """Import what the user's process had imported before the steps' own modules: names to files."""
    project = Path(code.project)
    usercode.add_paths([project / path for path in code.paths])
    for name, file in modules.items():
        try:
            usercode.import_module(name, project / file)
        except ModuleNotFoundError as error:
            if not in_image:
                raise
            tell([f"{file} cannot be imported in this image, so what it does then is not done: {error}"])


def import_entry(code: Code, name: str) -> ModuleType:
    """Import the module of the user's that has the steps."""
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
    from upshift.runtime.storage.home_folders import unpacked

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
    tell(remarks.on_types(function, str(spec.task), values))
    tell(remarks.on_secrets(spec, values))
    saved = {
        output.name: artifacts.save(item, store, by_item=output.by_item, name=_called(output.name))
        for output, item in zip(outputs, values, strict=True)
    }
    cards.show_returned(spec.task.step, list(saved), values)
    return saved


def _called(output: str) -> str:
    return output if output.startswith("output") else f"output {output}"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the step closed or replaced it
            stream.flush()
    flush_c_streams()


def _send(descriptor: int, message: Seen) -> None:
    data = to_json(message) + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
