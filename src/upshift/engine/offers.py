"""What a step is offered: by its backend, and what does not come from there: its image, its processes."""

from __future__ import annotations

from pathlib import Path

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
    """What one step is offered.

    Parameters
    ----------
    offer
        What its backend offers, with everything that the step does not get.
    launch
        How many processes it has there, and how they are started; None: one.
    remarks
        What is worth a word though nothing is short.
    """

    offer: Offer
    launch: Launch | None = None
    remarks: tuple[str, ...] = ()


def offered(
    offer: Offer,
    definition: StepDefinition,
    backend: Backend,
    *,
    request: ResourceSettings,
    project: str | None,
) -> Offered:
    """What a step is offered, by what its backend offers for the request.

    Parameters
    ----------
    request
        What was asked for: by the definition, or more of it.
    project
        The project's folder, to say what of an image this environment lacks; None: that is not said.
    """
    offer = _with_image(offer, definition, backend, project)
    launch = definition.launch
    if offer.granted is None:
        return Offered(offer=offer, launch=launch)
    if launch is None:
        return Offered(offer=_on_one_node(offer, offer.granted))
    return _with_processes(offer, launch, request, offer.granted, backend.capacity())


def short_of_processes(launch: Launch | None) -> tuple[Shortfall, ...]:
    """What a step is short of that runs in this very process, and so is one."""
    if launch is None or launch.processes == 1:
        return ()
    why = "it runs in this very process"
    return (Shortfall(field="launch", asked=f"{launch.processes} processes", got="1", why=why),)


def missing_launcher(step: str, definition: StepDefinition, backend: Backend) -> MissingExtra | None:
    """Why no process of a step could start in the environment of the run; None: nothing is missing there."""
    from upshift.runtime.launch.arguments.installed import is_installed

    elsewhere = backend.capabilities.remote or backend.capabilities.images
    launch = definition.launch
    if launch is None or launch.launcher != "accelerate" or elsewhere or is_installed("accelerate"):
        return None
    return MissingExtra(
        f"step {step} runs with Accelerate, which is not installed here",
        where=definition.settings.origins.get("launch"),
        why=f"Backend {backend.name} runs steps in the environment of the run.",
        fix="pip install accelerate; or run it in an image that has it: "
        'DockerSettings(requirements=["accelerate"]) and --on docker.',
    )


def _with_image(offer: Offer, definition: StepDefinition, backend: Backend, project: str | None) -> Offer:
    """The offer of a backend, with a word on the image where it runs none."""
    docker = definition.settings.docker
    if docker is None or backend.capabilities.images:
        return offer
    from upshift.images.recipes.present import image_asked, lacking

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


def _with_processes(
    offer: Offer, launch: Launch, request: ResourceSettings, granted: Hardware, machine: Hardware | None
) -> Offered:
    """The offer, and as many processes as its hardware allows."""
    from upshift.runtime.launch.processes import placed, remarks, why_fewer, world_size

    launch = placed(launch, request, granted)
    size = world_size(launch, granted)
    shortfalls = offer.shortfalls
    if size < launch.processes:
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


def _on_one_node(offer: Offer, granted: Hardware) -> Offer:
    """What is offered to a step that is one process: nobody would use what there is on further nodes."""
    if (granted.nodes or 1) == 1:
        return offer
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
