"""The engine of a run as a job of a cluster: what ``--detach`` submits there, and finds again by its name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.base import Ask
from upshift.backends.scheduler import Cluster, Launch, NotNow, State
from upshift.errors import BackendError, ConfigError, RequestRefused, SettingsError
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings

AGAIN = (0.5, 1.0, 2.0, 5.0)
"""Seconds until a scheduler that does not answer is given the engine again; whoever submits it waits."""
TRAVELING = ("kubernetes", "aws-batch")
"""Backends whose engines bring themselves, and what they need: images are made before."""
_REQUEST = ("cpu_count", "memory")
_DEFAULTS: Mapping[str, Any] = {"cpu_count": 1, "memory": "1GB"}
_IMAGE = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
"""What an engine runs in where nothing else is said."""


@attrs.frozen(kw_only=True)
class EngineJob:
    """An engine, as a job."""

    name: str  # no other job has it
    comment: str
    command: tuple[str, ...]
    output: str | None = None  # the file for what it prints; None: it sees to that itself
    environment: Mapping[str, str] = attrs.field(factory=dict)  # no secrets


@attrs.frozen(kw_only=True)
class Journey:
    """How an engine gets to nodes that have nothing of this machine: as a package."""

    python: str = "python3"  # what runs it there
    images: bool = True  # whether it is in an image
    extras: tuple[str, ...] = ()  # of Upshift, which it needs there
    home: str | None = None  # a folder of the node's own; None: one in its /tmp


class Engines:
    """Where a target runs engines, by its option ``detach``."""

    def __init__(
        self,
        target: Target,
        cluster: Cluster,
        settings: type,  # the class of its backend's settings
        # what the target says to its steps, checked; ``detach`` says otherwise for engines, field by field
        options: Mapping[str, Any],
        *,
        private: bool,  # whether its jobs have the variables of this process, and nobody else can read them
        # adds what an engine needs where its settings do not say so
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda said: said,
        # gives a target as an engine has it; None: it does not reach it
        seen: Callable[[Target], Target | None] = lambda target: target,
        # how engines get there; None: as the Python and the folders of this machine, which nodes see
        journey: Journey | None = None,
    ) -> None:
        self._target = target
        self._cluster = cluster
        self._complete = complete
        self.private = private
        self.seen = seen
        self.journey = journey
        in_image = journey is not None and journey.images
        own = _checked(target, settings, ("image",) if in_image else ())
        image = own.pop("image", None) or target.options.get("image") or _IMAGE
        self._image = image if in_image else None
        asked = {**_DEFAULTS, **{name: own[name] for name in _REQUEST if name in own}}
        try:
            self._request = ResourceSettings(**asked)
        except SettingsError as error:
            raise _invalid(target, error, "ResourceSettings") from None
        unwanted = ("efa", "exclusive", "gres", "jobset", "time")  # of steps
        self._said = {
            **{name: value for name, value in options.items() if name not in unwanted},
            **{name: value for name, value in own.items() if name not in _REQUEST},
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What is said of an engine, and what it needs."""
        return dict(self._complete(self._said))

    def launch(self, job: EngineJob) -> Launch:
        """The job of an engine.

        Raises
        ------
        RequestRefused, BackendError
            The target does not take it.
        """
        settings = self.settings
        try:
            offer = self._cluster.offer(Ask(request=self._request), settings)
        except NotNow as error:
            raise BackendError(str(error), fix="Try again in a moment.") from None
        if offer.shortfalls or offer.granted is None:
            why = "; ".join(
                f"asked {short.asked}, gets {short.got}: {short.why}" for short in offer.shortfalls
            )
            raise RequestRefused(
                f"target {self._target.name!r} cannot grant what the engine of the run requests",
                why=why or None,
                fix=f"Set its resources: [targets.{self._target.name}] options = "
                '{ detach = { memory = "500MB" } }. Or run without --detach.',
            )
        return Launch(
            name=job.name,
            comment=job.comment,
            command=job.command,
            granted=offer.granted,
            settings=settings,
            output=job.output,
            image=self._image,
            environment=job.environment,
        )

    def submit(self, launch: Launch, environment: Mapping[str, str]) -> str:
        """Give it to the scheduler, with these variables, which are secret; where it is, in words.

        Raises
        ------
        BackendError
            It is refused, or the scheduler does not answer.
        """
        script = self._cluster.render(launch)
        for number, pause in enumerate((*AGAIN, None)):
            try:
                # It may have been taken though the scheduler did not say so.
                id = self._cluster.find([launch.name]).get(launch.name) if number else None
                return self._named(id or self._cluster.submit(script, environment))
            except NotNow as error:
                if pause is None:
                    raise BackendError(
                        str(error), fix="Try again, when the cluster answers: nothing was submitted."
                    ) from None
                time.sleep(pause)
        raise AssertionError("unreachable")

    def state(self, name: str) -> tuple[str, State] | None:
        """Where the job of this name is, in words, and how; None: the scheduler knows none.

        Raises
        ------
        BackendError
            It does not answer.
        """
        try:
            id = self._cluster.find([name]).get(name)
            if id is None:
                return None
            state = self._cluster.states([id]).get(id)
            if state is None:
                return None
            if state.phase == "ended" and state.message is None:
                words = self._cluster.words(id)
                state = attrs.evolve(state, message=f"it ended: {words}" if words else "it ended")
            return self._named(id), state
        except NotNow as error:
            raise BackendError(str(error)) from None

    def withdraw(self, name: str) -> None:
        """Take it back, or end it. Raises ``BackendError`` where the scheduler does not answer."""
        try:
            id = self._cluster.find([name]).get(name)
            if id is not None:
                self._cluster.stop([id], grace=False, kill=True)
        except NotNow as error:
            raise BackendError(str(error)) from None

    def _named(self, id: str) -> str:
        return f"job {id} of {self._cluster.title}"


def _checked(target: Target, settings: type, own: Sequence[str]) -> dict[str, Any]:
    given = target.options.get("detach", {})
    known = [*own, *_REQUEST, *(field.name for field in attrs.fields(settings))]
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"target {target.name!r}: detach = {given!r} is invalid",
            fix='Write what the engine of a run gets: detach = { memory = "2GB" }.',
        )
    for name in given:
        if name not in known:
            raise ConfigError(
                f"target {target.name!r}: detach has no option {name!r}", fix=f"Options: {', '.join(known)}."
            )
    if not isinstance(given.get("image", ""), str):
        raise ConfigError(
            f"target {target.name!r}: detach: image = {given['image']!r} is invalid", fix="Write a text."
        )
    unlike = (*own, *_REQUEST)
    try:
        said = settings(**{name: value for name, value in given.items() if name not in unlike})
    except SettingsError as error:
        raise _invalid(target, error, settings.__name__) from None
    return {name: given[name] if name in unlike else getattr(said, name) for name in given}


def _invalid(target: Target, error: SettingsError, name: str) -> ConfigError:
    what = error.what.replace(name, f"target {target.name!r}: detach", 1)
    return ConfigError(what, why=error.why, fix=error.fix)
