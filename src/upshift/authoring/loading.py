"""The pipeline that the user names on the command line: ``FILE[:PIPELINE]``."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

from upshift.authoring.pipelines import Pipeline
from upshift.errors import LoadError, NotFound, UpshiftError, location, suggestion
from upshift.model.checks import NOT_YET, module_of_another_tool, shown
from upshift.model.configuration import project_root, working_folder
from upshift.runtime.tracebacks import user_line, user_text


def load_pipeline(text: str) -> Pipeline[Any, Any]:
    """Import a file, and give the pipeline in it.

    Parameters
    ----------
    text
        ``FILE``, or ``FILE:PIPELINE`` where there are several.

    Raises
    ------
    LoadError
        There is no such file, it cannot be imported, or it is not clear which pipeline is meant.
    NotFound
        It has no pipeline of this name.
    """
    path, name = _parse(text)
    return find_pipeline(load_module(path), path, name)


def load_module(path: Path) -> ModuleType:
    """Import the user's file; pipelines that it calls do not run.

    Raises
    ------
    LoadError
        There is no such file, or its code fails; then the user's own traceback is shown.
    """
    from upshift.runtime import usercode
    from upshift.runtime.shadowing import advice

    _check_file(path)
    try:
        return usercode.import_file(path)
    except UpshiftError:
        raise  # it names the user's line itself
    except SyntaxError as error:
        where = location(error.filename, error.lineno) if error.filename and error.lineno else str(path)
        raise LoadError(
            f"{path} cannot be imported: {type(error).__name__}: {error.msg}",
            where=where,
            why=_shown_syntax(error),
        ) from None
    except (Exception, SystemExit) as error:
        said = str(error).partition("\n")[0]
        project = str(project_root(path))
        missing, not_yet, instead = said.partition(f" {NOT_YET} ")
        if not_yet:  # of Upshift's own: all is said
            raise LoadError(
                f"{path} cannot be imported: {missing}{not_yet.rstrip(' .')}",
                where=user_line(error, project) or str(path),
                fix=instead,
            ) from None
        raise LoadError(
            f"{path} cannot be imported: {type(error).__name__}{': ' if said else ''}{said}",
            where=user_line(error, project) or str(path),
            why=user_text(error, project),
            fix=advice(error, project) or _fix(error, path, project),
        ) from None


def find_pipeline(module: ModuleType, path: Path, name: str | None) -> Pipeline[Any, Any]:
    """The pipeline of this name; without a name the only one there is.

    A pipeline that the file defines goes before those that it imports.

    Raises
    ------
    LoadError
        There is none, or there are several and no name.
    NotFound
        None has this name.
    """
    known = {n: p for n, value in vars(module).items() if (p := _pipeline_in(value)) is not None}
    if name is not None:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        pipeline = _pipeline_in(found)
        if pipeline is not None:
            return pipeline
        what = (
            f"{name!r} in {path} is not a pipeline"
            if found is not None
            else f"{path} has no pipeline {name!r}"
        )
        raise NotFound(what, fix=suggestion(name, known))
    if not known:
        raise LoadError(
            f"{path} has no pipeline",
            fix="Decorate the function that composes the steps with @pipeline, from upshift import pipeline; "
            "or write a class of steps, from upshift import FlowSpec.",
        )
    own = {n: p for n, p in known.items() if p.callee.function.__module__ == module.__name__} or known
    distinct = {id(p): n for n, p in reversed(own.items())}
    if len(distinct) > 1:
        listing = "\n".join(f"{n}, {own[n].callee.location}" for n in own if n in distinct.values())
        raise LoadError(
            f"{path} has {len(distinct)} pipelines, and none is named",
            why=listing,
            fix=f"Name one: {path}:{next(iter(own))}",
        )
    return next(iter(own.values()))


def _pipeline_in(value: Any) -> Pipeline[Any, Any] | None:
    """A pipeline, be it written as a function or as a flow; None: the value is none."""
    # By type: a proxy for what is not there yet may raise where it is asked for its class.
    found = vars(value).get("__upshift_pipeline__") if issubclass(type(value), type) else value
    return found if issubclass(type(found), Pipeline) else None


def _parse(text: str) -> tuple[Path, str | None]:
    file, colon, name = text.rpartition(":")
    if not colon or os.path.exists(text):
        return Path(text), None
    if not name:
        raise LoadError(
            f"{text!r} names no pipeline after the colon", fix=f"Write {file} or {file}:PIPELINE."
        )
    return Path(file), name


def _check_file(path: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        fix = suggestion(path.name, siblings) if siblings else "Name the Python file with the pipeline."
        raise LoadError(
            f"there is no file {path}", where=f"working folder {working_folder()}", fix=fix
        ) from None
    except OSError as error:  # such as a name that is too long
        fix = "Name the Python file with the pipeline."
        raise LoadError(f"{shown(str(path))} cannot be read", why=error.strerror, fix=fix) from None
    if is_folder:
        candidates = sorted(p.name for p in path.glob("*.py"))
        fix = f"Name a file in it: {path / candidates[0]}" if candidates else "Name the Python file in it."
        raise LoadError(f"{path} is a folder, not a Python file", fix=fix)
    if path.suffix != ".py":
        raise LoadError(f"{path} is not a Python file", fix="Give a file with a name that ends in .py.")


def _shown_syntax(error: SyntaxError) -> str | None:
    if error.text is None:
        return None
    line = error.text.rstrip("\n")
    indent = len(line) - len(line.lstrip())
    caret = " " * max(0, (error.offset or 1) - 1 - indent) + "^"
    return f"{line.strip()}\n{caret}"


def _fix(error: BaseException, path: Path, project: str) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        if name == error.name and any(
            os.path.exists(os.path.join(project, found)) for found in (name, f"{name}.py")
        ):
            return (
                f"{name!r} is in {project}, and modules are looked for beside the file: "
                f"PYTHONPATH={shlex.quote(project)} upshift run {shlex.quote(str(path))}"
            )
        return (
            module_of_another_tool(name)
            or f"Install {name!r} in this environment, or put the module beside the file."
        )
    if isinstance(error, SystemExit):
        return 'Put what only a script should do under `if __name__ == "__main__":`.'
    return None
