"""What an engine knows of a container: whether it is there, and what it died of when it is gone."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from upshift.errors import ImageError
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.model.settings.sizes import format_size

PATIENCE = 60.0
"""Seconds for one command of the engine."""
KILLED = 137
"""128 + SIGKILL."""


def state_of(engine: ContainerEngine, name: str) -> str | None:
    """State of a container: ``"running"``; empty: there is none; None: the engine does not answer."""
    try:
        answer = engine.run(
            ["container", "inspect", "--format", "{{.State.Status}}", name], timeout=PATIENCE, check=False
        )
    except ImageError:
        return None
    if answer.returncode == 0:
        return answer.stdout.strip()
    return "" if "no such container" in answer.stderr.lower() else None


def ran_out_of_memory(engine: ContainerEngine, name: str, since: float) -> bool:
    """Whether the kernel has killed in it for want of memory, since then (seconds since the epoch)."""
    return bool(_events(engine, name, "oom", since))


def exit_code(engine: ContainerEngine, name: str, since: float) -> int | None:
    """What it ended with, since then; None: the engine does not know any more."""
    for event in _events(engine, name, "died" if engine.name == PODMAN else "die", since):
        attributes = event.get("Actor", {}).get("Attributes", {})
        with contextlib.suppress(TypeError, ValueError):
            return int(attributes.get("exitCode", event.get("ContainerExitCode")))
    return None


def violent_end(
    engine: ContainerEngine, name: str, since: float, *, code: int | None, memory: int | None
) -> tuple[str, str] | None:
    """Why a container was killed that ended with this code, of so much memory; None: it was not."""
    if ran_out_of_memory(engine, name, since):
        limit = f" of {format_size(memory)}" if memory is not None else ""
        return "out-of-memory", f"the container went beyond its memory{limit}, says {engine.title}"
    if code == KILLED:
        return (
            "infrastructure",
            f"the container was killed from outside (exit code {code}), says {engine.title}",
        )
    return None


def complaint(said: Path | None) -> str:
    """What a command of the engine has complained of, in this file; empty: nothing."""
    if said is None:
        return ""
    try:
        text = said.read_text(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return "\n".join(lines[-8:])


def _events(engine: ContainerEngine, name: str, kind: str, since: float) -> list[dict[str, Any]]:
    """What the engine remembers of a container, though it is gone."""
    window = ["--since", f"{since - 1:.0f}", "--until", f"{time.time() + 1:.0f}"]
    filters = ["--filter", f"container={name}", "--filter", f"event={kind}"]
    form = ["--stream=false", "--format", "json"] if engine.name == PODMAN else ["--format", "{{json .}}"]
    with contextlib.suppress(ImageError, ValueError):
        answer = engine.run(["events", *window, *filters, *form], timeout=PATIENCE, check=False)
        return [json.loads(line) for line in answer.stdout.splitlines() if line.strip()]
    return []
