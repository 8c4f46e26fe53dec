"""What objects of Python and of libraries do that no name in the source tells.

Some find code by name, or get at every name of a module: using them makes more count (:func:`widen`). And
of the calls at the top level of a module, some change what everybody sees (``np.random.seed``), and count
for all code that imports the module. Those that only make a value matter to whoever uses it, and its
fingerprint holds it. A table cannot be complete: a call that it does not name counts.
"""

from __future__ import annotations

import abc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from upshift.code.fingerprint.pieces import ACTS, ALTERS_PATH, Piece
from upshift.code.fingerprint.sources import Module

_NAMES = frozenset({("builtins", "eval"), ("builtins", "exec"), ("builtins", "globals")})
"""What gets at every name of the module that calls it."""

_LOADERS = frozenset(
    {
        "importlib", "importlib.util", "importlib._bootstrap", "importlib._bootstrap_external",
        "_frozen_importlib", "_frozen_importlib_external", "importlib.machinery", "importlib.abc",
        "importlib._abc", "importlib.metadata", "imp", "_imp", "zipimport", "pkgutil", "runpy", "pydoc",
        "doctest", "unittest.loader", "modulefinder", "code", "site", "pkg_resources", "stevedore",
        "stevedore.driver", "stevedore.extension", "stevedore.named", "importlib_metadata",
    }
)  # fmt: skip
"""Modules whose business is to find code by name."""
_NO_LOADERS = frozenset(
    {
        ("importlib", "invalidate_caches"), ("importlib.util", "cache_from_source"),
        ("importlib.metadata", "version"), ("importlib.metadata", "metadata"),
        ("importlib.metadata", "requires"), ("importlib.metadata", "PackageNotFoundError"),
        ("pkgutil", "get_data"), ("pkgutil", "extend_path"),
    }
)  # fmt: skip
_PROJECT = frozenset(
    {
        ("builtins", "__import__"), ("builtins", "eval"), ("builtins", "exec"),
        ("logging.config", "BaseConfigurator"), ("logging.config", "dictConfig"),
        ("logging.config", "fileConfig"),
        ("sys", "_getframe"), ("inspect", "currentframe"), ("inspect", "stack"), ("inspect", "trace"),
        ("inspect", "getmodule"), ("inspect", "getclosurevars"), ("sys", "_current_frames"),
        ("gc", "get_objects"), ("gc", "get_referents"), ("gc", "get_referrers"),
    }
)  # fmt: skip
_UNPICKLING = frozenset(
    {
        ("_pickle", "load"), ("_pickle", "loads"), ("_pickle", "Unpickler"),
        ("pickle", "_load"), ("pickle", "_loads"), ("pickle", "_Unpickler"),
        ("joblib.numpy_pickle", "load"), ("dill._dill", "load"), ("dill._dill", "loads"),
    }
)  # fmt: skip
_OWNERS = _LOADERS | {owner for owner, _ in _NAMES | _PROJECT | _UNPICKLING}


def widen(piece: Piece, value: Any, module: Module | None) -> None:
    """Make a piece reach all that using a live object may lead to, from code of this module."""
    if value is sys.modules:
        piece.reaches.append(("project",))
    elif value is sys.path:
        piece.reaches.append(("project",))
        piece.flags |= ALTERS_PATH
    elif type(value) in (BuiltinFunctionType, FunctionType, type, abc.ABCMeta):
        owner = value.__module__
        if owner not in _OWNERS:  # nearly all
            return
        key = (owner, value.__qualname__)
        names = key in _NAMES
        if key in _PROJECT or (owner in _LOADERS and key not in _NO_LOADERS):
            piece.reaches.append(("project",))
        elif key in _UNPICKLING:
            piece.reaches.append(("project", "pickled"))
        elif not names:
            return
        piece.flags |= ACTS
        if names and module is not None:
            piece.reaches.append(("names", module))
        elif names:
            piece.reaches.append(("project",))


def widens(value: Any) -> bool:
    """Whether using a live object makes more count."""
    widen(piece := Piece(), value, None)
    return bool(piece.reaches)


def is_loader(module: ModuleType) -> bool:
    """Whether who gets a module of Python may import anything."""
    return module.__name__ in _LOADERS


# which calls only make a value

_ACTING_BUILTINS = frozenset({"exec", "eval", "setattr", "delattr", "open", "input", "__import__"})

_ACTING_STANDARD = frozenset(
    {
        "atexit", "asyncio", "builtins", "codecs", "copyreg", "ctypes", "faulthandler", "gc", "importlib",
        "locale", "mimetypes", "multiprocessing", "random", "runpy", "shutil", "signal", "site", "socket",
        "sqlite3", "subprocess", "sys", "threading", "warnings",
    }
)  # fmt: skip

_PURE_STANDARD = frozenset(
    {
        ("os", "getenv"), ("os", "environ", "get"), ("os", "cpu_count"), ("os", "getcwd"),
        ("sys", "getsizeof"),
        ("random", "Random"), ("threading", "Lock"), ("threading", "RLock"), ("threading", "local"),
        ("multiprocessing", "cpu_count"),
    }
)  # fmt: skip

_PURE_PACKAGES: dict[str, frozenset[str]] = {
    # package: first attributes below it whose calls may act; everything else only makes values
    "numpy": frozenset(
        {"random", "seterr", "setbufsize", "set_printoptions", "set_string_function", "testing"}
    ),
    "pandas": frozenset({"set_option", "reset_option", "api", "options", "plotting", "set_eng_float_format"}),
    "pyarrow": frozenset(
        {"set_cpu_count", "set_io_thread_count", "set_memory_pool", "register_extension_type", "fs"}
    ),
    "attr": frozenset({"set_run_validators", "validators"}),
    "attrs": frozenset({"validators"}),
    "pydantic": frozenset(),
    "typing_extensions": frozenset(),
    "dateutil": frozenset(),
    "packaging": frozenset(),
    "yaml": frozenset({"add_constructor", "add_representer"}),
}

_PURE_DECORATORS = frozenset(
    {
        ("numba", "jit"), ("numba", "njit"), ("numba", "vectorize"), ("numba", "guvectorize"),
        ("jax", "jit"), ("jax", "vmap"), ("jax", "pmap"), ("jax", "grad"), ("jax", "checkpoint"),
        ("torch", "no_grad"), ("torch", "inference_mode"), ("torch", "compile"), ("torch", "jit", "script"),
        ("tenacity", "retry"), ("pydantic", "validate_call"), ("pydantic", "validator"),
        ("pydantic", "field_validator"), ("pydantic", "model_validator"), ("attr", "s"), ("attr", "define"),
        ("attr", "frozen"), ("attrs", "define"), ("attrs", "frozen"), ("attrs", "mutable"),
        ("numpy", "vectorize"), ("tensorflow", "function"), ("beartype", "beartype"),
        ("typeguard", "typechecked"), ("jaxtyping", "jaxtyped"), ("pytest", "fixture"), ("joblib", "delayed"),
        ("equinox", "filter_jit"),
    }
)  # fmt: skip

_SETTERS = frozenset(
    {
        "seed",
        "seed_everything",
        "manual_seed",
        "seterr",
        "use",
        "setdefault",
        "update",
        "filterwarnings",
        "simplefilter",
        "basicConfig",
        "putenv",
        "chdir",
        "register",
    }
)

UNREGISTERING = frozenset({"pydantic", "pydantic_settings", "sklearn", "typing_extensions", "attr", "torch"})
"""Packages that do not look for the classes made from theirs."""


def builtin_acts(name: str) -> bool:
    """Whether a built-in function may change something."""
    return name in _ACTING_BUILTINS


def standard_acts(path: tuple[str, ...]) -> bool:
    """Whether a function of the standard library, ``("os", "getenv")``, may change something."""
    if path in _PURE_STANDARD or path[:2] == ("os", "path"):
        return False
    if path[0] in ("os", "posix", "nt"):
        return True
    if path[0] in ("logging", "pathlib"):
        return path[1:] not in (("getLogger",), ("Path",), ("PurePath",))
    return path[0] in _ACTING_STANDARD


def package_acts(path: tuple[str, ...]) -> bool:
    """Whether a function of an installed package, ``("numpy", "linspace")``, may change something."""
    acting = _PURE_PACKAGES.get(path[0])
    return acting is None or (len(path) > 1 and path[1] in acting)


def decorator_acts(path: tuple[str, ...]) -> bool:
    """Whether a decorator of an installed package may register what it decorates."""
    return path not in _PURE_DECORATORS and package_acts(path)


def is_setter(name: str) -> bool:
    """Whether a function is one that changes what everybody sees, as far as its name tells."""
    return name in _SETTERS or name.startswith("set_")
