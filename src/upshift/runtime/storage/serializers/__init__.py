"""Values to bytes and back, by kind of value: which serializer is for a value, or for an artifact.

Plain values come first and ask nobody else. Then third parties, by the names of the value's types;
then what comes with Upshift, by the package that the value's types are from; pickle last. Nothing
is imported before there is a value for it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from upshift.errors import NotSerializable
from upshift.runtime.storage.digest import algorithm
from upshift.runtime.storage.serializers.protocol import JsonSerializer, Serializer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Serializer", "names_blobs", "prepare", "serializer_named", "serializers_for"]

GROUP = "upshift.serializers"
_PLUGIN = "plugin:"

_JSON = JsonSerializer()
_BUILT_IN: dict[str, str] = {
    "bytes": "protocol:BytesSerializer",
    "container": "pickled:ContainerSerializer",
    "external": "pickled:ExternalSerializer",
    "json": "protocol:JsonSerializer",
    "numpy": "arrays:ArraySerializer",
    "numpy-scalar": "arrays:ScalarSerializer",
    "pandas": "tables:PandasSerializer",
    "arrow": "tables:ArrowSerializer",
    "path": "pickled:PathSerializer",
    "pickle": "pickled:PickleSerializer",
    "safetensors": "arrays:SafetensorsSerializer",
    "torch": "arrays:TorchSerializer",
}
_NAMING = frozenset(("container", "path"))
_BY_PACKAGE: dict[str, tuple[str, ...]] = {
    "numpy": ("numpy", "numpy-scalar"),
    "pandas": ("pandas",),
    "pathlib": ("path",),
    "pyarrow": ("arrow",),
    "torch": ("safetensors", "torch"),
    "upshift": ("external",),
}


def serializers_for(value: object) -> Iterator[Serializer]:
    """The serializers that accept a value, the best first; in the end one that takes what is left."""
    if _JSON.accepts(value):
        yield _JSON
        return
    for serializer in _candidates(value):
        if serializer.accepts(value):
            yield serializer
    yield _built_in("pickle")
    yield _built_in("container")


def serializer_named(name: str) -> Serializer:
    """The serializer that an artifact names.

    Raises
    ------
    NotSerializable
        There is none of this name here.
    """
    if name in _BUILT_IN:
        return _built_in(name)
    plugin = _plugins().get(name.removeprefix(_PLUGIN))
    if plugin is None or not name.startswith(_PLUGIN):
        raise NotSerializable(
            f"the value cannot be read: there is no serializer {name!r} here",
            why=f"Known here: {', '.join((*_BUILT_IN, *(_PLUGIN + known for known in _plugins())))}.",
            fix="Install the package that registers it, in the version that wrote the value.",
        )
    return _load_plugin(name.removeprefix(_PLUGIN))


def names_blobs(name: str) -> bool:
    """Whether the content that this serializer writes names further blobs.

    Nothing is imported to answer for those that come with Upshift: whoever only looks whether a value
    is there needs neither NumPy nor torch.
    """
    return name in _NAMING if name in _BUILT_IN else serializer_named(name).names_blobs


def prepare() -> None:
    """Do now what the first save would do once: find third parties, import cloudpickle and blake3.

    For a process that is about to be forked many times.
    """
    import_module("cloudpickle")
    algorithm()
    _plugins()


def _candidates(value: object) -> Iterator[Serializer]:
    kinds = type(value).__mro__[:-1]
    plugins = _plugins()
    if plugins:
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
        for name in plugins:
            if any(own == name or own.startswith(name + ".") for own in names):
                yield _load_plugin(name)
    if type(value) is bytes:
        yield _built_in("bytes")
    for package in dict.fromkeys(kind.__module__.partition(".")[0] for kind in kinds):
        for name in _BY_PACKAGE.get(package, ()):
            yield _built_in(name)
    if _holds_tensors(value):
        yield _built_in("safetensors")
        yield _built_in("torch")


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(
        type(item).__module__.partition(".")[0] == "torch" for item in value.values()
    )


@functools.cache
def _built_in(name: str) -> Serializer:
    module, _, attribute = _BUILT_IN[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)()  # type: ignore[no-any-return]


@functools.cache
def _plugins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


@functools.cache
def _load_plugin(name: str) -> Serializer:
    try:
        found: Any = _plugins()[name].load()
        serializer: Serializer = found() if isinstance(found, type) else found
    except Exception as error:  # it is somebody else's code that runs here
        raise NotSerializable(
            f"the serializer {name!r}, registered as {_plugins()[name].value}, cannot be used",
            why=f"{type(error).__name__}: {error}",
            fix="Repair or uninstall the package that registers it.",
        ) from error
    serializer.name = _PLUGIN + name
    return serializer
