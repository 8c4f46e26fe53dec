"""Values by name: what a step of a pipeline made is ``pipeline/step``, each new result a version of it.

Versions are numbered when somebody first looks for them, and keep their numbers. Numbers and tags are in the
catalog, and in the records of the run that has the version, from which a new catalog gets them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import NotFound, StoreUnavailable, UsageError, suggestion
from upshift.model.checks import shown
from upshift.model.spec.task import Artifact, TaskId, TaskResult
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.catalog.rows import VersionRow
from upshift.runs.catalog.version_rows import record_versions
from upshift.runs.history.records import utc
from upshift.runs.history.runs import Run
from upshift.runs.history.tasks import Task
from upshift.runs.history.values import Rows, named
from upshift.runtime.storage.artifacts import load_value
from upshift.runtime.storage.digest import digest_of
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.model.configuration import Configuration

LATEST = "latest"
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_NAME = re.compile(r"(?P<name>.+?)(?:\[(?P<item>[0-9]{1,18})\])?", re.DOTALL)


@attrs.frozen(kw_only=True)
class ArtifactName:
    """What is meant by a name: a step, one of its outputs, and perhaps one task of a mapped step."""

    pipeline: str
    step: str
    output: str | None = None
    item: int | None = None

    def __str__(self) -> str:
        output = "" if self.output in (None, "output") else f".{self.output}"
        return f"{self.pipeline}/{self.step}{output}"


class ArtifactVersion:
    """A value that a step made, under its name. A pipeline takes it as a parameter.

    Attributes
    ----------
    name
        ``pipeline/step``; where the step has several outputs ``pipeline/step.output``.
    version
        Its number, from 1.
    run, task
        The id of the run that made it, and the task in it.
    type, digest, bytes
        Of the value.
    """

    __upshift_artifact__ = True

    def __init__(self, name: ArtifactName, row: VersionRow, artifact: Artifact) -> None:
        self._name, self._row = name, row
        self.artifact = artifact
        self.name = str(name)
        self.version = row.number
        self.run = row.run
        self.task = str(_made_by(row))
        self.type, self.digest, self.bytes = artifact.type, artifact.digest, artifact.bytes

    @property
    def store(self) -> Store:
        """The store that has it."""
        return open_store(self._row.store)

    @functools.cached_property
    def value(self) -> Any:
        """The value itself, loaded when it is first asked for."""
        return load_value(self.artifact, self.store)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, as they were when it was found."""
        return self._row.tags

    @property
    def made(self) -> datetime | None:
        """When it was made, in UTC."""
        return None if self._row.made is None else utc(self._row.made)

    @functools.cached_property
    def maker(self) -> Task | None:
        """The task that made it, with its inputs, metrics and records; None: its run was removed."""
        catalog = open_catalog()
        try:
            run: Run[Any] = Run(catalog.run(self.run), catalog)
            tasks = run.by_name[self._row.made_step].tasks
        except NotFound:
            return None
        return next((task for task in tasks if task.index == self._row.item), None)

    @property
    def code(self) -> str | None:
        """The digest of all code that the step which made it reached; None: its run was removed."""
        if self.maker is None:
            return None
        return digest_of(json.dumps(dict(self.maker.code), sort_keys=True).encode())

    def __reduce__(self) -> Any:
        return ArtifactVersion, (self._name, self._row, self.artifact)

    def __repr__(self) -> str:
        return f"<artifact {self.name}@{self.version}: {self.type} of run {self.run}>"


class ArtifactList(Rows[ArtifactVersion]):
    """Versions: a list, and a table with a row for each."""

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each version; ``inputs.NAME`` and ``metrics.NAME`` are those of its task."""
        return [
            {
                "name": one.name,
                "version": one.version,
                "tags": list(one.tags),
                "run": one.run,
                "task": one.task,
                "type": one.type,
                "bytes": one.bytes,
                "made": one.made,
                "code": one.code,
                **(named("inputs", one.maker.plain_inputs) if one.maker else {}),
                **(named("metrics", one.maker.metrics) if one.maker else {}),
            }
            for one in self
        ]


def get_artifact(
    name: str, version: int | str = LATEST, *, configuration: Configuration | None = None
) -> ArtifactVersion:
    """A value that a step of an earlier run made, by name.

    Parameters
    ----------
    name
        ``"pipeline/step"``; ``"pipeline/step.output"`` where the step has several outputs, or
        ``"pipeline/output"`` where that is the output of one step only; ``"sweep/fit[3]"`` is what this task
        of a mapped step made. ``"training/fit@3"`` and ``"training/fit@production"`` say the version, too.
    version
        Its number, a tag, or ``"latest"``.
    configuration
        Default: the one of the working folder.

    Raises
    ------
    NotFound
        There is no such value.
    UsageError
        The name or the version is none, or several values have it.
    """
    if isinstance(name, str) and "@" in name and version == LATEST:
        name, _, version = name.rpartition("@")
    catalog = open_catalog(configuration)
    meant = _meant(name, catalog)
    rows = _numbered(meant, catalog)
    return _version(meant, _chosen(meant, rows, version), catalog)


def list_artifacts(name: str | None = None, *, configuration: Configuration | None = None) -> ArtifactList:
    """The versions of a name, newest first; without one, the newest version of each name.

    Raises
    ------
    NotFound
        Nothing has the name.
    """
    catalog = open_catalog(configuration)
    if name is None:
        return ArtifactList(one for one in _newest(catalog))
    meant = _meant(name, catalog)
    rows = _numbered(meant, catalog)
    return ArtifactList(_version(meant, row, catalog) for row in reversed(rows))


def tag_artifact(
    name: str,
    tag: str,
    version: int | str = LATEST,
    *,
    remove: bool = False,
    configuration: Configuration | None = None,
) -> ArtifactVersion:
    """Give a version a tag, which no other version of the name has from then on; ``remove`` takes it away.

    Parameters
    ----------
    name, version
        As for :func:`get_artifact`.
    tag
        Such as ``"production"``: letters, digits, ``.``, ``_`` and ``-``, beginning with a letter.
    remove
        Whether the version is to lose it.

    Raises
    ------
    NotFound
        There is no such version, or it has no such tag.
    UsageError
        ``tag`` is none.
    """
    if not isinstance(tag, str) or not _TAG.fullmatch(tag) or tag == LATEST:
        raise UsageError(
            f"the tag {shown(tag)} is invalid",
            fix="Use letters, digits, '.', '_' and '-', beginning with a letter; not 'latest'.",
        )
    found = get_artifact(name, version, configuration=configuration)
    if remove and tag not in found.tags:
        raise NotFound(f"{found.name}@{found.version} has no tag {tag!r}", fix=suggestion(tag, found.tags))
    catalog = open_catalog(configuration)
    _write_down(catalog.versions.tag(found._row, tag, remove=remove), catalog)
    return get_artifact(found.name, found.version, configuration=configuration)


def _meant(name: str, catalog: Catalog) -> ArtifactName:
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise UsageError(f"{shown(name)} is not the name of a value", fix='Name one as "pipeline/step".')
    wanted, item = match["name"], None if match["item"] is None else int(match["item"])
    known = catalog.versions.names()
    by_output: list[ArtifactName] = []
    for pipeline, step in known:
        whole = f"{pipeline}/{step}"
        if wanted == whole:
            return ArtifactName(pipeline=pipeline, step=step, item=item)
        if wanted.startswith(f"{whole}."):
            return ArtifactName(
                pipeline=pipeline, step=step, output=wanted.removeprefix(f"{whole}."), item=item
            )
        if wanted.startswith(f"{pipeline}/"):
            by_output.append(
                ArtifactName(
                    pipeline=pipeline, step=step, output=wanted.removeprefix(f"{pipeline}/"), item=item
                )
            )
    found = [one for one in by_output if one.output in list(_outputs(one, catalog))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"several steps have an output {shown(found[0].output)}",
            fix=f"Name one: {', '.join(map(str, found))}.",
        )
    names = [f"{pipeline}/{step}" for pipeline, step in known]
    raise NotFound(
        f"no value is called {shown(name)}",
        fix=suggestion(wanted, names) if names else "Run a pipeline first.",
    )


def _outputs(name: ArtifactName, catalog: Catalog) -> Iterable[str]:
    rows = _numbered(name, catalog)
    return _result(rows[-1], catalog).outputs if rows else ()


def _numbered(name: ArtifactName, catalog: Catalog) -> list[VersionRow]:
    """The versions that are there, in the order of their numbers; new ones get theirs."""
    try:
        new = catalog.versions.number(name.pipeline, name.step)
        _write_down(new, catalog)
    except StoreUnavailable:  # somebody else's, which can only be read
        return catalog.versions.as_numbered(name.pipeline, name.step)
    return catalog.versions.of_step(name.pipeline, name.step)


def _write_down(rows: Iterable[VersionRow], catalog: Catalog) -> None:
    """Write what has changed into the records of the runs, from which a new catalog is made."""
    for run, store in dict.fromkeys((row.holder, row.store) for row in rows):
        record_versions(run, catalog.versions.of_run(run), open_store(store))


def _chosen(name: ArtifactName, rows: list[VersionRow], version: int | str) -> VersionRow:
    if isinstance(version, bool) or not isinstance(version, (int, str)):
        raise UsageError(f"version={shown(version)} is invalid", fix="Give a number, a tag, or 'latest'.")
    mine = rows if name.item is None else [row for row in rows if row.holder_item == name.item]
    wanted = (
        int(version) if isinstance(version, str) and version.isdecimal() and len(version) < 19 else version
    )
    if wanted == LATEST:
        if not mine:
            raise NotFound(f"{name} has no version" + ("" if name.item is None else f" of task {name.item}"))
        newest = mine[-1]
        many = sum(row.holder == newest.holder for row in mine)
        if name.item is None and newest.holder_item is not None and many > 1:
            raise UsageError(
                f"{name} has {many:,} values of run {newest.holder}",
                why="The step is mapped: each of its tasks made one.",
                fix=f"Name one: {name}[{newest.holder_item}], a version, or a tag.",
            )
        return newest
    if isinstance(wanted, int):
        found = [row for row in mine if row.number == wanted]
    else:
        found = [row for row in mine if wanted in row.tags]
    if not found:
        tags = [tag for row in mine for tag in row.tags]
        what = f"version {wanted}" if isinstance(wanted, int) else f"version or tag {shown(wanted)}"
        fix = suggestion(wanted, [*tags, LATEST]) if isinstance(wanted, str) else None
        raise NotFound(f"{name} has no {what}", fix=fix or f"upshift artifacts show {name} lists them.")
    return found[0]


def _version(name: ArtifactName, row: VersionRow, catalog: Catalog) -> ArtifactVersion:
    outputs = _result(row, catalog).outputs
    output = name.output
    if output is None:
        if len(outputs) != 1:
            raise UsageError(
                f"{name} has several outputs",
                fix=f"Name one: {', '.join(f'{name}.{one}' for one in outputs)}.",
            )
        output = next(iter(outputs))
    if output not in outputs:
        raise NotFound(f"step {name.step!r} has no output {shown(output)}", fix=suggestion(output, outputs))
    return ArtifactVersion(attrs.evolve(name, output=output), row, outputs[output])


def _result(row: VersionRow, catalog: Catalog) -> TaskResult:
    task = _made_by(row)
    for attempt in catalog.attempts(task.run, task.step):
        if attempt.task == task and attempt.number == row.attempt and attempt.result is not None:
            return attempt.result
    result = open_store(row.store).read_result(task, row.attempt)  # its run was removed, and its result kept
    if result is None:
        raise NotFound(f"the result of {task} of run {task.run} is not in its store", where=row.store)
    return result


def _made_by(row: VersionRow) -> TaskId:
    return TaskId(run=row.run, step=row.made_step, index=row.item)


def _newest(catalog: Catalog) -> Iterator[ArtifactVersion]:
    for pipeline, step in catalog.versions.names():
        name = ArtifactName(pipeline=pipeline, step=step)
        rows = _numbered(name, catalog)
        if rows:
            for output, artifact in _result(rows[-1], catalog).outputs.items():
                if artifact.type != "NoneType":
                    yield ArtifactVersion(attrs.evolve(name, output=output), rows[-1], artifact)
