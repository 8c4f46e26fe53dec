"""One recorded attempt again, in this process: the same spec, inputs and code. Nothing is recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from upshift.backends.base import Offer
from upshift.backends.inline import InlineBackend
from upshift.engine.offers import short_of_processes
from upshift.errors import NotFound
from upshift.model.settings.secrets import read_secrets
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.codec import decode
from upshift.model.spec.task import Code, TaskResult, TaskSpec
from upshift.runs.catalog import AttemptRow, RunRow
from upshift.runtime.storage.serializers import scratch
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor.inline import run_inline


@attrs.frozen(kw_only=True)
class Replayed:
    """What became of an attempt, this time and when it was recorded.

    Parameters
    ----------
    result
        This time.
    recorded
        Then; None: it did not get that far.
    """

    result: TaskResult
    recorded: TaskResult | None

    @property
    def other_outputs(self) -> list[str] | None:
        """Names of the outputs whose content is another one; None: there is nothing to compare."""
        before = self.recorded
        if before is None or not before.outputs or not self.result.outputs:
            return None
        return [name for name, now in self.result.outputs.items() if not _same(name, now, before.outputs)]


def read_attempt(row: AttemptRow, store: Store) -> TaskSpec:
    """The spec of an attempt.

    Raises
    ------
    StoreError
        It is not in the store any more.
    """
    return store.read_spec(store.spec_path(row.task, row.number))


def recorded_code(row: RunRow, *, package: bool) -> Code:
    """Where the code of a run was.

    Parameters
    ----------
    package
        Whether it has to be the code as it was; else what is there now will do.

    Raises
    ------
    NotFound
        The code as it was is not in the store.
    """
    code = decode(Code, row.source["code"])
    if package and code.package is None:
        raise NotFound(
            f"the code of run {row.id} was not recorded",
            why=row.source.get("code_lacks") or "The run ended before its code was stored.",
            fix="Use the code as it is now.",
        )
    return code


def offered_here(spec: TaskSpec) -> Offer:
    """What this process has for an attempt, which may be less than it had then."""
    offer = InlineBackend(sink=lambda event: None).offer(spec.request)
    return attrs.evolve(offer, shortfalls=(*offer.shortfalls, *short_of_processes(spec.launch)))


def replay(spec: TaskSpec, code: Code | None, store: Store) -> Replayed:
    """Run an attempt again.

    Parameters
    ----------
    spec
        Its spec.
    code
        The code as it was, with its package; None: the project as it is now.
    store
        The store with its inputs. What it makes goes to a folder that is removed in the end.

    Raises
    ------
    RequestRefused
        A secret of the step is not there.
    """
    recorded = store.read_result(spec.task, spec.attempt)
    secrets = read_secrets(
        spec.settings.secret_sources, project=spec.code.project
    )  # they are not in a package
    granted = offered_here(spec).granted
    spec = attrs.evolve(spec, code=code or attrs.evolve(spec.code, package=None), granted=granted)
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        spec = attrs.evolve(spec, cwd=None)
    result = run_inline(spec, store, secrets=secrets, into=open_store(scratch.new_folder()), stop=True)
    return Replayed(result=result, recorded=recorded)


def _same(name: str, now: Artifact, before: Mapping[str, Artifact]) -> bool:
    return name in before and before[name].digest == now.digest
