"""What steps are offered where they run, and what they get: hardware, and the image and processes with it.

::

    backend.offer ─► offered ─► Proposal ─┬─► refusal: one error for all that cannot run
                                          └─► GrantPlan
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from upshift.backends.base import Ask, Backend, Offer
from upshift.engine.reuse import Standard
from upshift.engine.schedule import Demand
from upshift.engine.targets import OpenTarget, chosen_by_step, of_step
from upshift.errors import MissingExtra, RequestRefused, UpshiftError
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Hardware, Launch, Shortfall


@attrs.frozen(kw_only=True)
class Proposal:
    """What a place offers to a step, before anybody has said yes."""

    step: str  # step, definition: the step
    definition: StepDefinition
    place: OpenTarget  # where it would run
    offer: Offer  # what it would get there
    strict: bool  # whether it gets all that it asks for, or does not run
    launch: Launch | None = None  # launch, remarks: as in :class:`GrantPlan`
    remarks: tuple[str, ...] = ()
    missing: MissingExtra | None = None
    """Why none of its tasks could start there: its launcher is not installed. What is reused needs none."""

    @property
    def refused(self) -> bool:
        """Whether the offer is refused: the step cannot run with it."""
        return self.offer.granted is None or (self.strict and bool(self.offer.shortfalls))

    @property
    def standard(self) -> Standard:
        """As :attr:`GrantPlan.standard`."""
        return Standard.of(self.strict, self.offer.granted, self.offer.shortfalls)


def proposals(
    graph: Graph, places: Mapping[str | None, OpenTarget], *, strict: bool | None, project: str | None = None
) -> dict[str, Proposal]:
    """What each step that is used is offered, by the name of its definition."""
    found: dict[str, Proposal] = {}
    for name in graph.used:
        definition = graph.steps[name]
        place = places[definition.settings.on]
        request = definition.settings.resources
        try:
            offer = place.backend.offer(ask(definition, place.backend, request))
        except UpshiftError as error:
            if definition.settings.on is None:  # it was not the step that chose the place
                raise
            raise of_step(error, name, definition) from None
        own = offered(offer, definition, place.backend, request=request, project=project)
        found[name] = Proposal(
            step=name,
            definition=definition,
            place=place,
            offer=own.offer,
            strict=place.backend.capabilities.strict if strict is None else strict,
            launch=own.launch,
            remarks=own.remarks,
            missing=missing_launcher(name, definition, place.backend, own.offer.granted),
        )
    return found


def ask(
    definition: StepDefinition,
    backend: Backend,
    request: ResourceSettings,
    avoid: frozenset[str] | None = None,
) -> Ask:
    """All that a step asks of a backend; of its request as much as is said."""
    settings = definition.settings
    return Ask(
        request=request,
        timeout=settings.timeout,
        launch=definition.launch,
        image=settings.docker,
        secrets=settings.secret_sources,
        settings=settings.backends.get(backend.name, {}),
        avoid=avoid,
    )


def refusal(offered: Iterable[Proposal], *, strict: bool | None) -> RequestRefused | None:
    """The error that names every step that is refused; None: all of them can run."""
    refused = [proposal for proposal in offered if proposal.refused]
    return _refusal(refused, strict) if refused else None


def _refusal(refused: list[Proposal], strict: bool | None) -> RequestRefused:
    definition, shortfalls = refused[0].definition, refused[0].offer.shortfalls
    where = definition.settings.origins.get(shortfalls[0].field if shortfalls else "") or definition.location
    lines = []
    fixes = []
    for proposal in refused:
        for shortfall in proposal.offer.shortfalls or (_NOTHING,):
            line = proposal.definition.settings.origins.get(shortfall.field) or proposal.definition.location
            at = f" ({line})" if line and line != where else ""
            lines.append(
                f"{proposal.step}{at}: asked {shortfall.asked}, gets {shortfall.got}: {shortfall.why}"
            )
            fixes.append(shortfall.fix or "Request less.")
    places = list(dict.fromkeys(repr(proposal.place.target.name) for proposal in refused))
    steps = [proposal.step for proposal in refused]
    if any(proposal.place.others for proposal in refused if proposal.definition.settings.on is None):
        fixes.append("Or choose another target with --on.")
    fixes += [
        chosen_by_step(one.step, one.definition) for one in refused if one.definition.settings.on is not None
    ]
    if all(proposal.offer.granted is not None for proposal in refused):
        with_less = "With --best-effort" if strict is None else "Without --strict"
        if any(proposal.place.backend.capabilities.strict for proposal in refused):
            with_less = "With --best-effort"
        fixes.append(f"{with_less}, the run continues with what is available.")
    return RequestRefused(
        f"target{'s' if len(places) > 1 else ''} {' and '.join(places)} cannot give "
        f"what {' and '.join(steps)} {'ask' if len(steps) > 1 else 'asks'} for",
        where=where,
        why="\n".join(lines),
        fix=" ".join(dict.fromkeys(fixes)),
    )


_NOTHING = Shortfall(field="", asked="what it needs", got="nothing", why="the backend cannot run it")


@attrs.frozen(kw_only=True)
class GrantPlan:
    """What a step gets."""

    place: OpenTarget  # where it runs
    granted: Hardware  # what it is granted there
    demand: Demand  # what it takes up there
    strict: bool  # whether it gets all that it asks for, or does not run
    shortfalls: tuple[Shortfall, ...] = ()  # what it does not get
    launch: Launch | None = None  # how many processes it has there, and how they are started; None: one
    remarks: tuple[str, ...] = ()  # what is worth a word though it gets what it asks for
    request: ResourceSettings | None = None  # what it asks for, where that is not what its definition says
    avoid: frozenset[str] | None = None  # nodes that were lost in earlier attempts; None: this is the first

    @property
    def degraded(self) -> bool:
        """Whether the step gets less than it asks for."""
        return bool(self.shortfalls)

    @property
    def standard(self) -> Standard:
        """By what its earlier results are judged."""
        return Standard.of(self.strict, self.granted, self.shortfalls)


def grant_plans(offered: Mapping[str, Proposal]) -> dict[str, GrantPlan]:
    """What each step that is used gets, by the name of its definition; none of them is refused."""
    return {
        name: GrantPlan(
            place=proposal.place,
            granted=proposal.offer.granted,
            demand=Demand.of(proposal.offer.granted, proposal.offer.alternatives, launch=proposal.launch),
            strict=proposal.strict,
            shortfalls=proposal.offer.shortfalls,
            launch=proposal.launch,
            remarks=proposal.remarks,
        )
        for name, proposal in offered.items()
        if proposal.offer.granted is not None  # always: nothing at all would have been refused
    }


@attrs.frozen(kw_only=True)
class Offered:
    """What one step is offered."""

    offer: Offer  # what its backend offers, with everything that the step does not get
    launch: Launch | None = None  # how many processes it has there, and how they are started; None: one
    remarks: tuple[str, ...] = ()  # what is worth a word though nothing is short


def offered(
    offer: Offer,
    definition: StepDefinition,
    backend: Backend,
    *,
    request: ResourceSettings,  # of the definition, or more of it
    project: str | None,  # None: what of an image this environment lacks is not said
) -> Offered:
    """What a step is offered, by what its backend offers for the request."""
    offer = _with_environment(_with_image(offer, definition, backend, project), definition, backend)
    launch = definition.launch
    if offer.granted is None:
        return Offered(offer=offer, launch=launch)
    if launch is None:
        return Offered(offer=_on_one_node(offer, offer.granted, request))
    capacity = backend.capacity()
    machine = None if capacity is None else capacity.hardware
    return _with_processes(offer, launch, request, offer.granted, machine)


def short_of_processes(launch: Launch | None) -> tuple[Shortfall, ...]:
    """What a step is short of that runs in this very process, and so is one."""
    if launch is None or launch.processes == 1:
        return ()
    why = "it runs in this very process"
    return (Shortfall(field="launch", asked=f"{launch.processes} processes", got="1", why=why),)


def missing_launcher(
    step: str, definition: StepDefinition, backend: Backend, granted: Hardware | None
) -> MissingExtra | None:
    """Why no process of a step could start in the environment of the run; None: nothing is missing there."""
    launch = definition.launch
    if launch is None or backend.capabilities.remote or backend.capabilities.images:
        return None
    for name, said, packages in needed_by(launch, on_devices=bool(granted is not None and granted.gpus)):
        if not any(is_installed(_MODULES.get(package, package)) for package in packages):
            none = "which is not installed here" if len(packages) == 1 else "none of which is installed here"
            return MissingExtra(
                f"step {step} {name}, {none}",
                where=definition.settings.origins.get("launch"),
                why=f"{said} says so, and backend {backend.name} runs steps in the environment of the run.",
                fix=f"pip install {packages[0]}; or run it in an image that has it: "
                f'DockerSettings(requirements=["{packages[0]}"]) and --on docker.',
            )
    return None


def needed_by(launch: Launch, *, on_devices: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What a launch needs beside PyTorch: in words, what says so, and packages any one of which will do."""
    if launch.launcher != "accelerate":
        return
    said, config = launch.arguments, json.loads(launch.files.get("config_file", "{}"))
    yield "runs with Accelerate", "@run_with_accelerate", ("accelerate",)
    # Accelerate leaves DeepSpeed and Megatron-LM out where there are no devices; FP8 it does not.
    for argument, (kind, name, package) in _TRAINERS.items():
        if on_devices and (said.get(argument) or config.get("distributed_type") == kind):
            yield f"trains with {name}", f"{argument}=True", (package,)
    if (said.get("mixed_precision") or config.get("mixed_precision")) == "fp8":
        backend = said.get("fp8_backend") or (config.get("fp8_config") or {}).get("backend") or ""
        packages = _FP8.get(str(backend).lower(), tuple(chain.from_iterable(_FP8.values())))
        names = f"{', '.join(packages[:-1])} or {packages[-1]}" if len(packages) > 1 else packages[0]
        yield f"trains in FP8 by {names}", 'mixed_precision="fp8"', packages


_TRAINERS: Final = {
    "use_deepspeed": ("DEEPSPEED", "DeepSpeed", "deepspeed"),
    "use_megatron_lm": ("MEGATRON_LM", "Megatron-LM", "megatron-core"),
}
_FP8: Final = {"ao": ("torchao",), "te": ("transformer-engine",), "msamp": ("ms-amp",)}
"""As Accelerate 1.15 chooses among them where nothing is said (``Accelerator.__init__``)."""
_MODULES: Final = {
    "megatron-core": "megatron",
    "transformer-engine": "transformer_engine",
    "ms-amp": "msamp",
}
"""What packages are imported as, where that is not their own name."""


def is_installed(module: str) -> bool:
    """Whether a module is in this environment; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # what is imported under this name is not a package
        return False


def _with_image(offer: Offer, definition: StepDefinition, backend: Backend, project: str | None) -> Offer:
    """The offer of a backend, with a word on the image where it runs none."""
    docker = definition.settings.docker
    if docker is None or backend.capabilities.images:
        return offer
    from upshift.images.recipes.recipe import image_asked, lacking

    here = project is not None and not backend.capabilities.remote
    missing = lacking(docker, project=Path(project)) if here and project is not None else ()
    asked = image_asked(docker, adding=not here or bool(missing))
    if asked is None:
        return offer
    lacks = f", which lacks {_enumerated(missing)}" if missing else ""
    shortfall = Shortfall(
        field="image",
        asked=asked,
        got="this environment",
        why=f"backend {backend.name} runs steps in the environment of the run{lacks}",
        fix="Run it in its image: "
        + ("--on docker, " if definition.settings.on is None else "")
        + '@step(on="docker"), or another target that runs images.',
    )
    return attrs.evolve(offer, shortfalls=(*offer.shortfalls, shortfall))


def _with_environment(offer: Offer, definition: StepDefinition, backend: Backend) -> Offer:
    """The offer, with a word on the Python environment where steps do not get one."""
    environment, capabilities = definition.settings.python_environment, backend.capabilities
    if environment is None or capabilities.environments:
        return offer
    if capabilities.images:
        got, where = "its image", "in images"
        fix = "Set the packages of its image: DockerSettings(requirements=[…], pyproject_path=…)."
    elif capabilities.remote:
        got, where = "a Python of its node", "where nodes see no folder of this machine"
        fix = (
            "Name a Python of the nodes that has what the step needs, as the target's option python; or a "
            "store in a folder that they share."
        )
    else:
        got, where = "this environment", "in the environment of the run"
        fix = "Run it where nodes see this machine's folders, as on Slurm; or install it here."
    shortfall = Shortfall(
        field="environment",
        asked=str(environment),
        got=got,
        why=f"backend {backend.name} runs steps {where}",
        fix=fix,
    )
    return attrs.evolve(offer, shortfalls=(*offer.shortfalls, shortfall))


def _with_processes(
    offer: Offer, launch: Launch, request: ResourceSettings, granted: Hardware, machine: Hardware | None
) -> Offered:
    """The offer, and as many processes as its hardware allows."""
    from upshift.runtime.launch.ranks import evenly, placed, remarks, why_fewer, world_size

    granted = evenly(launch, granted)
    launch = placed(launch, request, granted)
    size = world_size(launch, granted)
    shortfalls = offer.shortfalls
    # Of a range of nodes, any number brings its own.
    nodes = granted.nodes or 1
    fewer = request.most_nodes - nodes if request.is_elastic and nodes >= request.least_nodes else 0
    if size < launch.processes - fewer * (launch.processes // request.most_nodes):
        less = Shortfall(
            field="launch",
            asked=f"{launch.processes} processes",
            got=f"{size} on CPUs" if launch.devices and not granted.gpus else str(size),
            why=why_fewer(launch, granted),
            fix="Processes without a GPU each: cpu=True, or no multi_gpu and no gpu_count."
            if launch.devices
            else None,
        )
        shortfalls = (*shortfalls, less)
    offer = attrs.evolve(offer, granted=attrs.evolve(granted, processes=size), shortfalls=shortfalls)
    return Offered(offer=offer, launch=launch, remarks=tuple(remarks(launch, granted, machine)))


def _on_one_node(offer: Offer, granted: Hardware, request: ResourceSettings) -> Offer:
    """What is offered to a step that is one process: nobody would use what there is on further nodes."""
    if (granted.nodes or 1) == 1:
        return offer
    if request.is_elastic and request.least_nodes == 1:
        return attrs.evolve(offer, granted=attrs.evolve(granted, nodes=1))
    less = Shortfall(
        field="num_nodes",
        asked=f"{granted.nodes} nodes",
        got="1",
        why="the step is one process",
        fix="@run_with_accelerate and @run_with_torchrun start processes on all nodes.",
    )
    return attrs.evolve(offer, granted=attrs.evolve(granted, nodes=1), shortfalls=(*offer.shortfalls, less))


_LACKING_SHOWN = 6


def _enumerated(things: tuple[str, ...]) -> str:
    shown, more = things[:_LACKING_SHOWN], len(things) - _LACKING_SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
