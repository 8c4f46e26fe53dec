"""Pairs of projects, before and after an edit: is what is reused right, and does nothing run in vain?

A file of pairs looks like this::

    === a helper of the step's own file
    --- main.py
    def helper(): return 1
    def step(x): return helper()
    +++ main.py: return 1 => return 2

``---`` is a file of the project, ``+++`` the edit: ``FILE: OLD => NEW``; ``FILE``, its new content below;
``FILE: gone``; ``$NAME: VALUE`` for an environment variable; ``NAME=VALUE`` for a parameter of the pipeline.
Before the files, ``$NAME: VALUE`` is an environment variable of both versions. A project without a pipeline
gets one that calls its function ``step`` with 7.

``??? vain: why`` before the files says that the verdict is known not to be ``right``.

The truth is what the edited project computes when nothing is reused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

RIGHT, WRONG, VAIN, IDLE = "right", "wrong", "vain", "idle"
_LIBRARIES = ("numpy", "pandas")
"""Take long to import, and make a process slow to fork."""

_PIPELINE = """
import upshift as _upshift
_the_step = _upshift.step(step)
@_upshift.pipeline
def example(): return _the_step(7)
"""


@attrs.frozen
class Edit:
    """One change: of a file, an environment variable or a parameter."""

    where: str
    old: str | None
    new: str | None


@attrs.frozen
class Pair:
    """A project and an edit of it.

    Parameters
    ----------
    known
        The verdict that is known not to be right; and why.
    """

    name: str
    files: dict[str, str]
    edits: tuple[Edit, ...]
    environ: dict[str, str]
    known: str = RIGHT
    because: str = ""


@attrs.frozen
class Outcome:
    """The verdict on a pair, and what it follows from."""

    verdict: str
    details: str


def read(file: Path) -> Iterator[Pair]:
    """The pairs of a file."""
    for text in re.split(r"^=== ", file.read_text(), flags=re.MULTILINE)[1:]:
        head, *parts = re.split(r"^(---|\+\+\+) ", text, flags=re.MULTILINE)
        name, _, notes = head.partition("\n")
        files: dict[str, str] = {}
        edits: list[Edit] = []
        for mark, part in zip(parts[::2], parts[1::2], strict=True):
            said, _, content = part.partition("\n")
            if mark == "---":
                files[said.strip()] = textwrap.dedent(content)
            else:
                edits.append(_edit(said, content))
        known = re.search(r"^\?\?\? (\w+): (.*)", notes, re.MULTILINE)
        environ = dict(re.findall(r"^\$(\w+): (.*)", notes, re.MULTILINE))
        verdict, because = known.groups() if known else (RIGHT, "")
        assert verdict in (RIGHT, WRONG, VAIN, IDLE), f"{name}: {verdict}"
        yield Pair(name.strip(), files, tuple(edits), environ, verdict, because)


def _edit(said: str, content: str) -> Edit:
    if match := re.fullmatch(r"(\$?\w+)(?:: |=)(.*)", said) if said[0] == "$" or "=>" not in said else None:
        return Edit(match[1] if said[0] == "$" else f"{match[1]}=", None, match[2])
    file, colon, change = said.partition(": ")
    if not colon:
        return Edit(file.strip(), None, textwrap.dedent(content))
    if change == "gone":
        return Edit(file, None, None)
    old, _, new = change.partition(" => " if " => " in change else " =>")
    return Edit(file, old.replace("\\n", "\n"), new.replace("\\n", "\n"))


class Runner:
    """Runs pairs, in processes that differ in all that differs from one process to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._zygotes: dict[tuple[str, ...], list[subprocess.Popen[str]]] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _both(self, pair: Pair) -> list[subprocess.Popen[str]]:
        """Two processes with other hash seeds, which have imported the libraries that the pair needs."""
        texts = [*pair.files.values(), *(edit.new or "" for edit in pair.edits)]
        needed = tuple(name for name in _LIBRARIES if any(name in text for text in texts))
        if needed not in self._zygotes:
            self._zygotes[needed] = [self._start(seed, needed) for seed in ("1", "2")]
        return self._zygotes[needed]

    def _start(self, seed: str, libraries: Sequence[str]) -> subprocess.Popen[str]:
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        zygote = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("pairs_zygote.py")), *libraries],
            env={**environ, "PYTHONHASHSEED": seed, "UPSHIFT_HOME": str(self._folder / "home")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(zygote.wait)
        self._stack.callback(zygote.stdout.close)
        self._stack.callback(zygote.stdin.close)
        return zygote

    @staticmethod
    def _ask(process: subprocess.Popen[str], **request: Any) -> dict[str, Any]:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def verdict(self, pair: Pair) -> Outcome:
        """Run a pair: before, once more, after the edit, and after the edit with nothing reused."""
        folder = self._folder / re.sub(r"\W+", "-", pair.name)
        files, environ, arguments = dict(pair.files), dict(pair.environ), {}
        _write(folder, {}, files)
        first = "main.py" if "main.py" in files else "pipe.py"
        request = {
            "folder": str(folder),
            "file": first,
            "store": str(folder.with_suffix(".store")),
            "known": str(folder.with_suffix(".known")),
        }
        one, other = self._both(pair)
        before = self._ask(one, **request, environ=environ, arguments=arguments, reuse=True)
        again = self._ask(other, **request, environ=environ, arguments=arguments, reuse=True)
        for edit in pair.edits:
            _apply(edit, files, environ, arguments, pair.name)
        _write(folder, pair.files, files)
        after = self._ask(one, **request, environ=environ, arguments=arguments, reuse=True)
        if all("truth" in task for task in after["tasks"].values()):
            tasks = {name: {"value": task["truth"]} for name, task in after["tasks"].items()}
            truth = {**after, "tasks": tasks}
        else:
            truth = self._ask(other, **request, environ=environ, arguments=arguments, reuse=False)
        return _judged(before, again, after, truth)


def _apply(
    edit: Edit, files: dict[str, str], environ: dict[str, str], arguments: dict[str, Any], name: str
) -> None:
    if edit.where.startswith("$"):
        environ[edit.where[1:]] = str(edit.new)
    elif edit.where.endswith("="):
        arguments[edit.where[:-1]] = json.loads(str(edit.new))
    elif edit.new is None:
        del files[edit.where]
    elif edit.old is None:
        files[edit.where] = edit.new
    else:
        assert edit.old in files[edit.where], f"{name}: {edit.where} has no {edit.old!r}"
        files[edit.where] = files[edit.where].replace(edit.old, edit.new)


def _write(folder: Path, before: dict[str, str], files: dict[str, str]) -> None:
    first = "main.py" if "main.py" in files else "pipe.py"
    for name in before.keys() - files.keys():
        (folder / name).unlink()
    for name, text in files.items():
        if before.get(name) == text:
            continue
        if name == first and not any("@pipeline" in t for t in files.values()):
            text += _PIPELINE
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if not before:  # else Python may take the bytecode of this version for that of the next
            os.utime(file, (time.time() - 10,) * 2)
    (folder / "pyproject.toml").touch()  # here the project begins


def _judged(
    before: dict[str, Any], again: dict[str, Any], after: dict[str, Any], truth: dict[str, Any]
) -> Outcome:
    runs = {"before": before, "again": again, "after": after, "truth": truth}
    failed = {name: run["error"] for name, run in runs.items() if "error" in run}
    if failed:
        return Outcome("broken", "\n".join(f"{name}: {text}" for name, text in failed.items()))
    idle = [name for name, task in again["tasks"].items() if not task["cached"]]
    wrong, vain = [], []
    for name, task in truth["tasks"].items():
        reused = after["tasks"].get(name)
        if reused is None or (reused["cached"] and reused["value"] != task["value"]):
            wrong.append(f"{name}: {reused and reused['value']}, not {task['value']}")
        elif not reused["cached"] and name in before["tasks"] and _same(name, before, truth):
            vain.append(f"{name}: still {task['value']}")
    details = "\n".join([*(f"{name} ran again" for name in idle), *wrong, *vain])
    return Outcome(IDLE if idle else WRONG if wrong else VAIN if vain else RIGHT, details)


def _same(name: str, before: dict[str, Any], truth: dict[str, Any]) -> bool:
    return bool(before["tasks"][name]["value"] == truth["tasks"][name]["value"])
