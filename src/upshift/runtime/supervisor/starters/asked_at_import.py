"""What the modules in this process have asked the environment for, before there was any task.

A step process is forked from one that has the user's modules. What they took from the environment at their
import, ``LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))``, is that of no rank and of no step; and an
``Accelerator`` that they made there takes itself for the only one. Where that is not as it is to be, a step
process has to import them itself.

Who asked is not guessed from their source: the environment notes who looks. PyTorch, Accelerate, peft,
transformers and pandas ask for nothing of a rank when they are imported (November 2026).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

from upshift.errors import is_upshifts, is_user_file
from upshift.model.spec import TaskSpec
from upshift.runtime.confine import Confinement
from upshift.runtime.launch.ranks import GROUP
from upshift.runtime.step.context import current
from upshift.runtime.supervisor.starters.thread_pools import VARIABLES

_OF_ACCELERATE: Final = "ACCELERATE_"
_PLAIN: Final = type(os.environ)

_names: Final[set[str]] = set()
_COPY: Final = ""
"""Among the names: all of them. No variable is called so."""


class _Watched(_PLAIN):  # type: ignore[misc, valid-type]
    """The environment of this process, which notes what is looked for in it."""

    def __getitem__(self, name: str) -> str:
        # Accelerate looks for variables of its own when it is imported, such as those of its logger.
        if isinstance(name, str) and (not name.startswith(_OF_ACCELERATE) or _for_users_module()):
            _names.add(name)
        value: str = super().__getitem__(name)
        return value

    def __iter__(self) -> Iterator[str]:
        # So it is copied. Packages do that as well, tqdm and fsspec to look for variables of their own.
        if _for_users_module():
            _names.add(_COPY)
        names: Iterator[str] = super().__iter__()
        return names


def watch() -> None:
    """Note from now on who asks. Call it before any module of the user's is imported."""
    os.environ.__class__ = _Watched


def outdated(spec: TaskSpec, bounds: Confinement) -> bool:
    """Whether a module may know what is not true in the process of a task: call it before that is confined.

    It has asked for a variable that the task has another value of, or nobody has watched.
    """
    # Pools are told of theirs otherwise.
    own = {*spec.environment, *spec.settings.secret_sources}.difference(VARIABLES)
    if any(asked([name]) and bounds.environment.get(name) != os.environ.get(name) for name in own):
        return True
    return bounds.rank is not None and asked_for_rank()


def asked_for_rank() -> bool:
    """Whether a module may have asked which of several processes this is, or nobody has watched."""
    return (
        asked(GROUP)
        or any(name.startswith(_OF_ACCELERATE) for name in _names)
        or current.shares()
        or _has_met()
    )


def asked(names: Iterable[str]) -> bool:
    """Whether a module may have asked for one of these variables, or nobody has watched."""
    return not isinstance(os.environ, _Watched) or not _names.isdisjoint([_COPY, *names])


def _for_users_module() -> bool:
    """Whether a module of the user's, and none of a package, is what is being imported here."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        if is_upshifts(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return (
        frame is not None
        and frame.f_globals.get("__name__") != "__main__"  # the command itself
        and is_user_file(frame.f_code.co_filename)
    )


def _has_met() -> bool:
    """Whether this process is in a group already, or has a state of Accelerate's."""
    state: Any = sys.modules.get("accelerate.state")
    if getattr(getattr(state, "PartialState", None), "_shared_state", None):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
