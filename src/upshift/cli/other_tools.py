"""From other tools and to them: ``upshift migrate`` and ``upshift export``.

Migrated files are the user's own with Upshift's imports; anything without a counterpart is listed.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from upshift.cli import LazyCommand, LazyGroup, echo
from upshift.cli import shared_options as shared
from upshift.errors import UsageError
from upshift.model.checks import name_to_come, option_of_another_tool

_FIX = "Give Python files: upshift migrate flow.py steps.py"
_TOOLS = ("metaflow", "zenml")
_RENAMED = {
    "HTMLString": "HTML",
    "MetaflowException": "UpshiftError",
    "MetaflowS3AccessDenied": "StoreUnavailable",
    "MetaflowS3Exception": "StoreError",
    "MetaflowS3InvalidObject": "UsageError",
    "MetaflowS3InvalidRange": "StoreError",
    "MetaflowS3NotFound": "NotFound",
    "MetaflowS3URLException": "UsageError",
    "torchrun_parallel": "torchrun",
}
"""Names that differ here."""

_OF_ZENML = ("step", "pipeline", "ResourceSettings", "DockerSettings", "run_with_accelerate", "HTMLString")
"""Names with the same meaning here; others, such as ``Client``, exist in both by chance."""

_INSTEAD = {
    "ArtifactConfig": 'Name the output alone: Annotated[Model, "model"].',
    "BaseMaterializer": "Values of its type need a serializer of their own.",
    "Checkpoint": "A step with @checkpoint has current.checkpoint; give other processes its directory.",
    "Client": "Runs are found by upshift.get_run and upshift.list_runs, values by upshift.get_artifact.",
    "ExternalArtifact": "Pass the value itself, or upshift.External(path) for data that is not to be copied.",
    "MarkdownString": "upshift.current.card.append takes a plain text.",
    "Model": "Versions of a model are named by upshift.tag_artifact, and found by upshift.get_artifact.",
    "Schedule": option_of_another_tool("schedule"),
    "deepspeed": "Use @run_with_accelerate(use_deepspeed=True) on the step whose body is the training.",
    "get_logger": "Use logging.getLogger(__name__).",
    "get_pipeline_context": "What it tells is in upshift.current.",
    "get_step_context": "What it tells is in upshift.current.",
    "load_artifact": "Use upshift.get_artifact.",
    "huggingface_hub": "Download in a step, and set the folder on self: self.model = Path(…).",
    "load_model": "A Path set on self is an artifact: self.model = Path(…); steps that follow read it.",
    "log_artifact_metadata": "Use upshift.log(name=value).",
    "log_metadata": "Use upshift.log(name=value).",
    "log_step_metadata": "Use upshift.log(name=value).",
    "model": "A Path set on self is an artifact: self.model = Path(…); steps that follow read it.",
    "save_artifact": "Return it from the step.",
}

_LEFT_OUT = {
    (
        "checkpoint",
        "load_policy",
    ): 'Only "fresh" and "none": a run does not begin with the checkpoints of others.',
    ("checkpoint", "temp_dir_root"): "The directory is below UPSHIFT_HOME.",
    ("run", "push_results_dir_to_cloud"): "Set what is to be kept on self: self.model = Path(…).",
    ("run", "local_output_dir"): "Set what is to be kept on self: self.model = Path(…).",
    ("run", "cloud_output_dir"): "Set what is to be kept on self: self.model = Path(…).",
}
"""Options of Metaflow's decorators and methods that have no counterpart."""


class Edit(NamedTuple):
    """A replacement; lines count from 1, columns are bytes."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Unmapped(NamedTuple):
    """A name without a counterpart in Upshift."""

    line: int
    what: str


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--write", is_flag=True, help="Change the files. Default: show what would change.")
def migrate(files: Sequence[str], write: bool) -> int:
    """Change the imports of Metaflow or ZenML to Upshift's.

    Prints the changes as a diff, and lists everything without a counterpart, with its line. Nothing is run or
    imported.
    """
    for name in files:
        path = Path(name)
        before, encoding = _read(path)
        after, unmapped = migrated(before, name)
        for line in difflib.unified_diff(_lines(before), _lines(after), name, name):
            echo(line, nl=not line.endswith("\n"))
        for one in sorted(unmapped):
            echo(f"{name}:{one.line}: {one.what}", err=True)
        if before == after:
            echo(f"{name}: no import of Metaflow or ZenML to change", err=True)
        elif write:
            path.write_bytes(after.encode(encoding))
    return 0


def migrated(source: str, name: str) -> tuple[str, list[Unmapped]]:
    """A file with Upshift's imports, and what has no counterpart."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        where = f"{name}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(
            f"{name} is not valid Python: {getattr(error, 'msg', error)}", where=where, fix=_FIX
        ) from None
    found = _Reader(source)
    found.visit(tree)
    return _edited(source, found.edits), found.unmapped


class _Reader(ast.NodeVisitor):
    """Finds what to change in a file."""

    def __init__(self, source: str) -> None:
        self.edits: list[Edit] = []
        self.unmapped: list[Unmapped] = []
        self._lines = _lines(source)
        self._modules: set[str] = set()
        self._zenml = False
        self._metaflow = False
        self._set: set[str] = set()  # what steps set: local names, and attributes as self.NAME

    def visit_Import(self, node: ast.Import) -> None:
        changed = [self._imported(node, alias) for alias in node.names]
        if changed != node.names:
            self._replace(node, f"import {', '.join(map(ast.unparse, changed))}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        tool = module.partition(".")[0]
        if node.level or tool not in _TOOLS:
            return
        self._zenml = self._zenml or tool == "zenml"
        self._metaflow = self._metaflow or tool == "metaflow"
        home = "upshift.cards" if module == "metaflow.cards" else "upshift"
        kept = [alias for alias in node.names if not _known(alias.name, tool, home)]
        mapped = [alias for alias in node.names if alias not in kept]
        for alias in kept:
            self._miss(alias, alias.name, module)
        if not mapped:
            return
        if not kept and not any(alias.name in _RENAMED for alias in mapped):
            line = self._lines[node.lineno - 1].encode()
            start = line.find(module.encode(), node.col_offset)
            if start > 0:  # comments and brackets behind it stay as they are
                self.edits.append(Edit(node.lineno, start, node.lineno, start + len(module.encode()), home))
                return
        renamed = [
            ast.alias(_RENAMED[alias.name], alias.asname or alias.name) if alias.name in _RENAMED else alias
            for alias in mapped
        ]
        statements = [f"from {home} import {', '.join(map(ast.unparse, renamed))}"]
        if kept:
            statements.append(f"from {module} import {', '.join(map(ast.unparse, kept))}")
        self._replace(node, f"\n{' ' * node.col_offset}".join(statements))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        value = node.value
        if isinstance(value, ast.Name) and value.id in self._modules:
            if not _known(node.attr, "metaflow", "upshift"):
                self._miss(node, node.attr, value.id)
            if value.id == "metaflow":
                self._replace(value, "upshift")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if self._zenml and name in ("step", "pipeline", "with_options"):
            for keyword in node.keywords:
                self._option(name, keyword)
        for keyword in node.keywords if self._metaflow else ():
            self._of_flow(name, keyword)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        inside = (part for method in methods for part in ast.walk(method))
        self._set = {ast.unparse(one) for one in inside if isinstance(getattr(one, "ctx", None), ast.Store)}
        self.generic_visit(node)

    def _of_flow(self, function: str, keyword: ast.keyword) -> None:
        """Report options of a flow that are refused here."""
        value = ast.unparse(keyword.value)
        if function == "next" and keyword.arg == "num_parallel":
            used = {ast.unparse(one) for one in ast.walk(keyword.value) if isinstance(one, ast.expr)}
            if known_later := sorted(used & self._set):
                what = (
                    f"num_parallel={value} is known before a run here, and {known_later[0]} is set in a step"
                )
                fix = "Make it a Parameter, a Config, or a constant."
                self.unmapped.append(Unmapped(keyword.lineno, f"{what}. {fix}"))
        elif (why := _LEFT_OUT.get((function, str(keyword.arg)))) and value not in ("'fresh'", "'none'"):
            self.unmapped.append(
                Unmapped(keyword.lineno, f"{function}() has no {keyword.arg}={value}. {why}")
            )

    def _option(self, function: str, keyword: ast.keyword) -> None:
        start = (keyword.lineno, keyword.col_offset)
        if keyword.arg == "enable_cache":
            self.edits.append(Edit(*start, keyword.lineno, start[1] + len("enable_cache"), "cache"))
        elif keyword.arg is not None and keyword.arg not in _options(function):
            instead = option_of_another_tool(keyword.arg)
            what = f"{function}() has no option {keyword.arg!r}"
            self.unmapped.append(Unmapped(keyword.lineno, f"{what}. {instead}" if instead else what))

    def _imported(self, node: ast.Import, alias: ast.alias) -> ast.alias:
        if alias.name == "metaflow":
            self._modules.add(alias.asname or alias.name)
            self._metaflow = True
            return ast.alias("upshift", alias.asname)
        if alias.name.partition(".")[0] in _TOOLS:
            self.unmapped.append(Unmapped(node.lineno, f"there is no module like {alias.name}"))
        return alias

    def _miss(self, node: ast.alias | ast.Attribute, name: str, module: str) -> None:
        instead = _INSTEAD.get(name) or name_to_come(name) or "It has no counterpart."
        self.unmapped.append(Unmapped(node.lineno, f"{name} of {module} stays. {instead}"))

    def _replace(self, node: ast.stmt | ast.expr, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        self.edits.append(Edit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text))


def _known(name: str, tool: str, home: str) -> bool:
    """Whether a name of another tool is one of Upshift's, too."""
    if tool == "zenml" and name not in _OF_ZENML:
        return False
    return name == "*" or _RENAMED.get(name, name) in import_module(home).__all__


def _options(function: str) -> Iterator[str]:
    import inspect

    import upshift

    known = upshift.Step.with_options if function == "with_options" else getattr(upshift, function)
    return iter(inspect.signature(known).parameters)


def _edited(source: str, edits: Sequence[Edit]) -> str:
    lines = [line.encode() for line in _lines(source)]
    for edit in sorted(edits, reverse=True):
        before = lines[edit.line - 1][: edit.column]
        after = lines[edit.end_line - 1][edit.end_column :]
        lines[edit.line - 1 : edit.end_line] = [before + edit.text.encode() + after]
    return b"".join(lines).decode()


def _lines(source: str) -> list[str]:
    """The lines as Python counts them; str.splitlines() splits at more characters."""
    return io.StringIO(source, newline="").readlines()


def _read(path: Path) -> tuple[str, str]:
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding), encoding
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", fix=_FIX) from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not valid Python: {error}", fix=_FIX) from None


C = TypeVar("C", bound=Callable[..., Any])

_COMMANDS = {
    "kubeflow": LazyCommand(
        "upshift.cli.other_tools:kubeflow", "Write a pipeline for Kubeflow Pipelines, version 2."
    ),
    "skypilot": LazyCommand(
        "upshift.cli.other_tools:skypilot",
        "Write a pipeline as a chain of SkyPilot's tasks, for sky jobs launch.",
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def export() -> None:
    """Write a pipeline in the form of another tool: Kubeflow, SkyPilot.

    The other tool then starts the steps.
    """


def _takes_pipeline(command: C) -> C:
    """Add the options of a pipeline, as for a run, and of the output."""
    options = (
        shared.takes_graph,
        shared.decorators,
        shared.strict("Default: strict."),
        click.option(
            "--output", "-o", metavar="FILE", type=click.Path(dir_okay=False), help="The file to write."
        ),
        click.option(
            "-t", "--tag", "tags", metavar="TAG", multiple=True, help="A tag of its runs. Repeatable."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=shared.PipelineCommand)
@_takes_pipeline
def kubeflow(**said: Any) -> None:
    """Write a pipeline for Kubeflow Pipelines, version 2.

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several. Without
    --on, the target is the only one of the configuration with the backend kubeflow. Images are built and
    pushed; code and everything else that pods need goes into the target's bucket. Nothing runs.
    """
    _export("kubeflow", **said)


@click.command(cls=shared.PipelineCommand)
@_takes_pipeline
def skypilot(**said: Any) -> None:
    """Write a pipeline as a chain of SkyPilot's tasks, for sky jobs launch.

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several. Without
    --on, the target is the only one of the configuration with the backend skypilot. Images are built and
    pushed; code and what else machines need goes into the target's bucket. Nothing runs, and SkyPilot need
    not be installed.
    """
    _export("skypilot", **said)


def _export(
    tool: str,
    *,
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    params_from: str | None,
    target: str | None,
    decorators: tuple[str, ...],
    strict: bool | None,
    output: str | None,
    tags: tuple[str, ...],
) -> None:
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    from upshift.authoring.running import export as exported
    from upshift.engine import RunOptions

    if decorators:
        from upshift.authoring.flow.step_decorators import with_decorators

        pipeline = with_decorators(pipeline, decorators)
    text = exported(
        pipeline,
        arguments,
        tool,
        options=RunOptions(target=target, strict=strict, tags=tags),
        announce=shared.announce,
    )
    if output is None:
        echo(text, nl=False)
        return
    Path(output).write_text(text, encoding="utf-8")
    echo(f"wrote {output}", err=True)
