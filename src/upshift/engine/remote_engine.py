"""An engine that goes to nodes which have nothing of this machine: pods, and jobs in the cloud.

::

    here:   its package (:mod:`upshift.code.runtime_package`) and its order into the store; images are made
    there:  bootstrap ─► package ─► order ─► the run

Such an engine reaches its own cluster, and runs steps of the target ``local`` beside itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import attrs

from upshift.code.runtime_package import bootstrap, engine_package
from upshift.engine.images import MadeImage, StepImages
from upshift.errors import NotFound, RequestRefused
from upshift.model.spec.codec import from_json
from upshift.runtime.storage.replica import blob_key
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.backends.engines import Engines, Journey
    from upshift.engine.preflight import Preflight
    from upshift.images.base import Image, Progress
    from upshift.model.configuration import Configuration, Target

T = TypeVar("T")

_MODULE = "upshift.cli.detached"


def log_of(token: str) -> str:
    """The name of the file with what an engine prints, beside the records of its run."""
    return f"engine-{token}.log"


def order_name(token: str) -> str:
    """The record of a run with the order of an engine."""
    return f"engine-{token}.json"


def at_address(store: Store, run: str, name: str) -> str:
    """A record of a run, as others find it who see the store."""
    return f"{store.name}/runs/{run}/{name}"


def read_order(kind: type[T], address: str) -> T:
    """The order at an address. Raises ``NotFound`` where there is none."""
    place, _, rest = address.rpartition("/runs/")
    run, _, name = rest.partition("/")
    store = open_store(place)
    store.bring_run(run)
    content = store.read_record(run, name)
    if content is None:
        raise NotFound(f"{address} is not there", fix=f"See the state of the run: upshift show {run}")
    return from_json(kind, content)


def command_of(store: Store, order: str, journey: Journey) -> tuple[str, ...]:
    """The command of an engine; its package is in the store then."""
    digest = engine_package(store, extras=journey.extras)
    if store.replica is not None:
        store.replica.upload_blob(blob_key(digest), str(store.blob_path(digest)))
    package = f"{store.name}/{blob_key(digest)}"
    return (journey.python, "-Sc", bootstrap(store.name), package, "-m", _MODULE, order)


def surroundings(store: Store, journey: Journey) -> dict[str, str]:
    """The variables of an engine that are no secrets."""
    found = {} if journey.home is None else {"UPSHIFT_NODE_HOME": journey.home}
    return found if store.replica is None else {**found, **store.replica.objects.environment}


def confirm_reached(found: Preflight, engines: Engines) -> None:
    """Refuse a run of which the engine cannot do a step. Raises ``RequestRefused``."""
    own = found.target.name
    for name in found.graph.used:
        definition = found.graph.steps[name]
        target = found.places[definition.settings.on].target
        if target.backend != "local" and engines.seen(target) is None:
            raise RequestRefused(
                f"step {name} runs on target {target.name!r}, which an engine on {own!r} does not reach",
                where=definition.location,
                why=f"It runs inside the cluster of {own!r}, and has nothing of this machine.",
                fix="Leave --detach out, or have the step run on a target of the same cluster.",
            )
        for secret in found.secrets.get(name, ()):
            if secret.source.startswith("file:"):
                raise RequestRefused(
                    f"secret {secret.name} ({secret.source}) cannot be brought to an engine on {own!r}",
                    where=secret.origin,
                    why="The file is on this machine, and the engine is not.",
                    fix="Leave --detach out, or name a source that the node of the step reads by itself.",
                )


def targets_there(configuration: Configuration, engines: Engines) -> dict[str, Target]:
    """The targets that an engine reaches, as it has them."""
    found = {}
    for name, target in configuration.targets.items():
        seen = target if target.backend == "local" else engines.seen(target)
        if seen is not None:
            found[name] = seen
    return found


def make_images(images: StepImages, tell: Callable[[str], None]) -> dict[str, MadeImage]:
    """The images of steps by the names of their definitions, made now if there are no equal ones."""
    made: dict[object, Image] = {}
    found: dict[str, MadeImage] = {}
    for name, prepared in images.prepared.items():
        if prepared.same not in made:
            told: list[Progress] = []

            def begin(progress: Progress, name: str = name, told: list[Progress] = told) -> None:
                if not told:
                    tell(f"making the image of {name}, before anything is submitted")
                told.append(progress)

            began = time.monotonic()
            image = made[prepared.same] = prepared.make(begin)
            if told:
                tell(f"made {image.name or image.reference} in {time.monotonic() - began:.0f} s")
        image = made[prepared.same]
        found[name] = MadeImage(digest=prepared.digest, **attrs.asdict(image, recurse=False))
    return found
