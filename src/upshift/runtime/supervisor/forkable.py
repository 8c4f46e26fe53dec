"""What makes a process that has the user's modules fit to be forked into step processes.

Native thread pools (OpenMP, OpenBLAS, MKL) are quiet before a fork, and as large as the grant after it.
Environment variables are read when a library is loaded, so they are right for libraries that are yet to come;
those that are loaded already are told through their own API (threadpoolctl).

What modules took from the environment at their import, ``LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))``,
is that of no rank and of no step; and an ``Accelerator`` that they made there takes itself for the only one.
Where that is not as it is to be, a step process has to import them itself. Who asked is not guessed from
their source: the environment notes who looks. PyTorch, Accelerate, peft, transformers and pandas ask for
nothing of a rank when they are imported (November 2026).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from upshift.errors import is_upshifts, is_user_file
from upshift.runtime import proc
from upshift.runtime.launch.ranks import GROUP, THREADS

if TYPE_CHECKING:
    from upshift.model.spec import TaskSpec
    from upshift.runtime.confine import Confinement

VARIABLES = (
    THREADS,
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_OF_LIBRARY = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
OWN_THREAD_PREFIX = "upshift-"
"""Threads of ours have names that begin so: they are parked in a system call and hold no lock."""

SURVIVE_FORKS = frozenset(["jemalloc_bg_thd"])
"""Names of native threads whose library takes care of forks. jemalloc, which pyarrow brings along,
does so in ``background_thread_prefork`` and ``background_thread_postfork_child``."""

_quieted: set[str] = set()
_NATIVE = ("numpy", "scipy", "torch", "sklearn", "tensorflow", "jaxlib", "numba", "pyarrow")


def quiet_pools() -> None:
    """Start no native pools in this process: call it before the user's module is imported.

    A process whose only thread is the main one forks safely. Variables that the user set stay.
    """
    for name in VARIABLES:
        if name not in os.environ:
            os.environ[name] = "1"
            _quieted.add(name)


class Pools:
    """The native pools of this process, found once before a fork and sized after it."""

    def __init__(self) -> None:
        self._controller: Any = None

    def find(self) -> None:
        """Look for the pools of the modules that are loaded by now."""
        if any(name in sys.modules for name in _NATIVE):
            from threadpoolctl import ThreadpoolController

            self._controller = ThreadpoolController()

    def size(self, cpus: int | None, own: Mapping[str, str]) -> None:
        """Set the variables as :func:`size_variables` does, and size the pools that are loaded by them."""
        size_variables(os.environ, cpus, own)
        if self._controller is None or (cpus is None and not _quieted and not own.keys() & set(VARIABLES)):
            return
        for library in self._controller.lib_controllers:
            library.set_num_threads(_threads(_OF_LIBRARY.get(library.internal_api, THREADS)))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(_threads(THREADS))


def size_variables(environment: MutableMapping[str, str], cpus: int | None, own: Mapping[str, str]) -> None:
    """Set the variables of a process that native pools are sized by."""
    for name in VARIABLES:
        if name in own:
            continue
        if cpus is not None and THREADS not in own:
            environment[name] = str(cpus)
        elif name in _quieted or cpus is not None:
            environment.pop(name, None)


def inherited() -> dict[str, str]:
    """The environment without what made the pools of this process quiet: for one that does so itself."""
    return {name: value for name, value in os.environ.items() if name not in _quieted}


def users_own() -> dict[str, str]:
    """``OMP_NUM_THREADS``, if whoever started this process has set it."""
    return {THREADS: os.environ[THREADS]} if THREADS in os.environ and THREADS not in _quieted else {}


def _threads(variable: str) -> int:
    """What a library makes of the environment: of ``4,2`` the second is for teams within a team."""
    said = os.environ.get(variable) or os.environ.get(THREADS, "")
    number = said.partition(",")[0].strip()
    return int(number) if number.isdecimal() and int(number) > 0 else len(os.sched_getaffinity(0))


def unsafe_to_fork() -> str | None:
    """Why a fork of this process would not be safe, or None.

    Python threads, an OpenMP pool that has been used, or CUDA do not survive a fork. OpenBLAS does:
    it takes its threads down before a fork and starts them again after it.

    A pool that was used and taken down again by its library leaves no trace here.
    """
    if sys.platform != "linux":
        return f"forking is not safe on {sys.platform}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialized"
    alive = set(map(int, os.listdir("/proc/self/task")))
    if len(alive) == 1:
        return None
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.name.startswith(OWN_THREAD_PREFIX):
            return f"thread {thread.name!r} is alive"
        alive.discard(thread.native_id or 0)
    names = [proc.read(f"/proc/self/task/{thread}/comm") or "" for thread in alive]
    native = [name.strip() for name in names if name.strip() not in SURVIVE_FORKS]
    if native and len(native) > _openblas_threads():
        return f"native threads are alive: {', '.join(native)}"
    return None


def _openblas_threads() -> int:
    from threadpoolctl import threadpool_info

    return sum(
        pool["num_threads"] - 1
        for pool in threadpool_info()
        if pool["internal_api"] == "openblas" and pool.get("threading_layer") == "pthreads"
    )


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
    from upshift.runtime.step.context import current  # whoever only sizes pools goes without

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
