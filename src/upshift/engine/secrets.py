"""The secrets that the steps of a run need: looked for before anything runs, and forgotten at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from upshift.engine.places import Place
from upshift.errors import RequestRefused
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.secrets import NeededSecret, read_secret, read_secrets, scheme_of


def needed_secrets(
    graph: Graph, places: Mapping[str | None, Place], *, project: str
) -> dict[str, tuple[NeededSecret, ...]]:
    """The secrets of each step that is used, by the name of its definition.

    Parameters
    ----------
    graph, places
        The graph, and where its steps run.
    project
        Folder that relative paths start from.
    """
    return {
        name: _of_step(name, graph.steps[name], places[graph.steps[name].settings.on], project)
        for name in graph.used
        if graph.steps[name].settings.secret_sources
    }


def missing_secrets(needed: Iterable[Iterable[NeededSecret]]) -> RequestRefused | None:
    """The error that says of every secret that a step cannot have why; None: there is no such secret."""
    problems = [s.problem for secrets in needed for s in secrets if s.problem is not None]
    if len(problems) < 2:
        return problems[0] if problems else None
    return RequestRefused(
        f"{len(problems)} secrets cannot be had",
        where=problems[0].where,
        why="\n".join(f"{problem.what} ({problem.where})" for problem in problems),
        fix="\n".join(dict.fromkeys(problem.fix for problem in problems if problem.fix)),
    )


def _of_step(step: str, definition: StepDefinition, place: Place, project: str) -> tuple[NeededSecret, ...]:
    found = []
    for name, source in definition.settings.secret_sources.items():
        origin = definition.settings.origins.get(f"secrets.{name}")
        try:
            _look_for(name, source, place, project)
            problem = None
        except RequestRefused as error:
            problem = _of(step, error, origin or definition.location)
        found.append(NeededSecret(name=name, source=source, origin=origin, problem=problem))
    if not any(secret.problem for secret in found):
        try:
            read_secrets(definition.settings.secret_sources, project=project)
        except RequestRefused as error:  # each by itself is right, and all together are not
            found[0] = attrs.evolve(found[0], problem=_of(step, error, found[0].origin))
    return tuple(found)


def _look_for(name: str, source: str, place: Place, project: str) -> None:
    backend = place.backend
    if scheme_of(source) not in backend.capabilities.secrets:
        forms = ", ".join(f"{scheme}:…" for scheme in sorted(backend.capabilities.secrets))
        raise RequestRefused(
            f"secret {name} ({source}): backend {backend.name} cannot bring it to the step",
            fix=f"It takes {forms}." if forms else "Choose another target with --on; this one takes none.",
        )
    read_secret(name, source, project=project)


def _of(step: str, error: RequestRefused, where: str | None) -> RequestRefused:
    return RequestRefused(f"step {step}: {error.what}", where=where, fix=error.fix)
