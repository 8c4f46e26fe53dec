"""Which calls at the top level of a module only make a value.

Such a call matters to those who use the value, and their fingerprint holds it. Any other call may
change what everybody sees (``torch.set_default_dtype``, ``np.random.seed``), and counts for all
code that imports the module. A table cannot be complete: what it does not name counts.
"""

from __future__ import annotations

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
