"""What a step is offered: hardware by its backend, and the image and processes that go with it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from upshift.backends.base import Backend, Offer
from upshift.errors import MissingExtra
from upshift.model.graph import StepDefinition
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Hardware, Shortfall
from upshift.model.spec.launch import Launch

_LACKING_SHOWN = 6


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
    shortfall = Shortfall(
        field="environment",
        asked=str(environment),
        got="its image" if capabilities.images else "this environment",
        why=f"backend {backend.name} runs steps "
        + ("in images" if capabilities.images else "in the environment of the run"),
        fix="Say what its image has: DockerSettings(requirements=[…], pyproject_path=…)."
        if capabilities.images
        else "Run it where nodes see this machine's folders, as on Slurm; or install it here.",
    )
    return attrs.evolve(offer, shortfalls=(*offer.shortfalls, shortfall))


def _with_processes(
    offer: Offer, launch: Launch, request: ResourceSettings, granted: Hardware, machine: Hardware | None
) -> Offered:
    """The offer, and as many processes as its hardware allows."""
    from upshift.runtime.launch.processes import evenly, placed, remarks, why_fewer, world_size

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


def _enumerated(things: tuple[str, ...]) -> str:
    shown, more = things[:_LACKING_SHOWN], len(things) - _LACKING_SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
