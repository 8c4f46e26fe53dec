"""Values to artifacts and back: what a step returns is saved here, what it is given is loaded here.

A value that cannot be saved is taken apart, so that the error names the very part, in the words of the user's
code.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import io
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from upshift.errors import BlobDamaged, NotSerializable, UpshiftError
from upshift.model.plain import TYPE, UNKNOWN, has_parts, is_opaque, opaque, plain_of, short_type, type_name
from upshift.model.settings.sizes import format_size
from upshift.model.spec.task import INLINE_LIMIT, Artifact, Value
from upshift.runtime.storage import manifest
from upshift.runtime.storage.digest import Bytes, digest_of
from upshift.runtime.storage.external import code_names
from upshift.runtime.storage.manifest import State
from upshift.runtime.storage.serializers import Serializer, names_blobs, serializer_named, serializers_for
from upshift.runtime.storage.serializers.protocol import Buffers
from upshift.runtime.storage.store import Store

_TOLD = 200
_STATE = "upshift.State"
_STATE_INLINE = INLINE_LIMIT // 2
"""A state of more bytes is a blob: those that follow say only what is different, which is not repeated."""
_STATE_OF_MANY = INLINE_LIMIT // 4
"""The same where many follow: else what each of them adds might make each of them a blob."""
_ITEMS_TOLD = 1_000
"""Items of a list whose plain forms the record of the list has."""
_DEEPEST = 30
_WIDEST = 10_000
"""Parts of one container that are tried."""


def save(
    value: object, store: Store, *, by_item: bool = False, name: str = "output", told: int = _TOLD
) -> Artifact:
    """Save a value."""
    if by_item:
        return _save_items(value, store, name)
    if isinstance(value, State):
        return _save_state(value, store)
    for serializer in serializers_for(value):
        try:
            buffers = serializer.dump(value, store)
        except (UpshiftError, MemoryError):
            raise
        except Exception as error:
            raise _unsaved(value, name, serializer.name, error) from error
        if buffers is not None:
            return _keep(buffers, serializer, value, store, told)
    raise AssertionError("one of them takes any value")


def load(artifact: Artifact, store: Store) -> object:
    """The value of an artifact; arrays are mapped copy-on-write."""
    if artifact.serializer == manifest.NAME:
        if artifact.type == _STATE:
            held = _state(artifact, store)
            return State(
                artifacts=held.artifacts,
                load=lambda item: load(item, store),
                base=held.base,
                about=held.about,
            )
        listed = _items(artifact, store)
        values = [load(item, store) for item in listed.items]
        return tuple(values) if listed.form == "tuple" else values
    serializer = serializer_named(artifact.serializer)
    content = _content(artifact, store, None if serializer.names_blobs else artifact.bytes)
    try:
        return serializer.load(content, store)
    except (UpshiftError, MemoryError):
        raise
    except Exception as error:
        if artifact.inline is None:
            store.compare(artifact.digest)
        raise _unread(artifact, error) from error


def load_value(value: Value, store: Store) -> object:
    """The value of an artifact, or the container of the values of several."""
    if isinstance(value, Artifact):
        return load(value, store)
    items = [load_value(item, store) for item in value.items]
    if value.form == "dict":
        return dict(zip(value.keys, items, strict=True))
    return tuple(items) if value.form == "tuple" else items


def described(value: Value, store: Store | None = None) -> Any:
    """What a value is, in the form of :mod:`upshift.model.plain`; nothing is unpickled."""
    if isinstance(value, Artifact) and value.type == _STATE:
        return _described_state(value, store)
    if not isinstance(value, Artifact):
        items = [described(item, store) for item in value.items[:_ITEMS_TOLD]]
        if value.form == "dict" and len(items) == len(value.items):
            return dict(zip(value.keys, items, strict=True))
        kinds = {item[TYPE] for item in items if is_opaque(item)}
        if len(items) < len(value.items) or (kinds and all(map(is_opaque, items))):
            of = short_type(kinds.pop()) if len(kinds) == 1 else "values"
            return opaque(value.form, f"<{len(value.items):,} {of}>")
        return items
    if value.plain is not None:
        return value.plain
    if value.serializer == "json" and (value.inline is not None or store is not None):
        text = str(_content(value, store), "utf-8", "surrogatepass")
        data = json.loads(text)
        return plain_of(data, most=len(text)) if "NaN" in text or "Infinity" in text else data
    if value.serializer == manifest.NAME and value.inline is not None:
        return [described(part, store) for part in _items(value, store).items]
    return opaque(value.type, f"<{short_type(value.type)}, {format_size(value.bytes)}>")


def plain_value(artifact: Artifact, store: Store) -> object:
    """The value that a ``when`` refers to, without unpickling; None: it is no bool, in JSON or of NumPy."""
    if artifact.serializer == "numpy-scalar" and artifact.type in ("numpy.bool", "numpy.bool_"):
        return bool(_content(artifact, store)[-1])  # which its memory ends with, and no NumPy has to be here
    return load(artifact, store) if artifact.serializer == "json" else None


def items_of(artifact: Artifact, store: Store) -> tuple[Artifact, ...]:
    """The items of a list that was saved by item; none of them is loaded."""
    if artifact.serializer != manifest.NAME:
        raise NotSerializable(
            f"a value of type {artifact.type} has no items in the store", why="It was saved as a whole."
        )
    return _items(artifact, store).items


def verify(artifact: Artifact, store: Store) -> None:
    """See that everything an artifact needs is in the store: items, and the files of a folder, too."""
    if artifact.serializer == manifest.NAME:
        listed = _items(artifact, store)
        for item in listed.items if listed.base is None else (*listed.items, listed.base):
            verify(item, store)
        return
    further = names_blobs(artifact.serializer)
    if artifact.inline is None:
        store.check(artifact.digest, None if further else artifact.bytes)
    if further:
        content = _content(artifact, store)
        for digest, size in serializer_named(artifact.serializer).references(content):
            store.check(digest, size)


def bring(value: Value, store: Store) -> None:
    """Have all that a value needs in the folder of a store, for a process that cannot reach its bucket."""
    if not isinstance(value, Artifact):
        for item in value.items:
            bring(item, store)
        return
    if value.inline is None:
        store.blob_path(value.digest)
    if value.serializer == manifest.NAME:
        listed = _items(value, store)
        for item in listed.items if listed.base is None else (*listed.items, listed.base):
            bring(item, store)
    elif names_blobs(value.serializer):
        for digest, _ in serializer_named(value.serializer).references(_content(value, store)):
            store.blob_path(digest)


def _save_state(state: State, store: Store) -> Artifact:
    """Save what is new in a state, beside what is saved already."""
    new = {
        name: save(value, store, name=name, by_item=name in state.by_item)
        for name, value in state.values.items()
    }
    saved = {**state.artifacts, **new}
    content = whole = manifest.build_state(saved, state.about)
    limit = _STATE_OF_MANY if state.many else _STATE_INLINE
    if state.base is not None and len(whole) > limit:
        known = _blob_of(state.base, store).artifacts
        if known.keys() <= saved.keys():
            changed = {name: item for name, item in saved.items() if known.get(name) != item}
            content, limit = manifest.build_state(changed, state.about, state.base), INLINE_LIMIT
            if len(content) > limit:
                content = whole
    digest, inline = _put([content], len(content), store, limit)
    return Artifact(
        digest=digest,
        serializer=manifest.NAME,
        type=_STATE,
        bytes=len(content) + sum(item.bytes for item in saved.values()),
        inline=inline,
        items=len(saved),
        plain=_named({name: _brief(item, state.values[name]) for name, item in new.items()}) or None,
        code=tuple(sorted({name for item in saved.values() for name in item.code})),
        identity=None if content is whole else digest_of(whole),
    )


def _brief(item: Artifact, value: object) -> Any:
    """What a new artifact is, where that is short; else whoever asks has to look at the artifact."""
    small = item.serializer == "json" and item.bytes <= _TOLD
    if small and type(value) in (bool, int, str):
        return value
    return described(item) if small or item.plain is not None else UNKNOWN


def _described_state(state: Artifact, store: Store | None) -> dict[str, Any]:
    """What a state holds, for people: what its step has set, and as far as it is at hand the rest."""
    told: dict[str, Any] = {}
    if store is not None:
        told = {name: described(item) for name, item in _state(state, store).artifacts.items()}
    elif state.inline is not None:
        listed = _items(state, None)
        told = {name: described(item) for name, item in zip(listed.names, listed.items, strict=True)}
    return _named({**told, **(state.plain or {})})


class _Held(NamedTuple):
    """What a saved state holds, and the base of those that follow it."""

    artifacts: Mapping[str, Artifact]
    base: Artifact | None
    about: Mapping[str, Any]


def _state(state: Artifact, store: Store) -> _Held:
    if state.inline is None:
        return _blob_of(state, store)
    listed = _items(state, store)
    own: Mapping[str, Artifact] = dict(zip(listed.names, listed.items, strict=True))
    if listed.base is not None:
        own = {**_blob_of(listed.base, store).artifacts, **own}
    return _Held(own, listed.base, listed.about)


@functools.lru_cache(maxsize=16)
def _blob_of(base: Artifact, store: Store) -> _Held:
    """A state in the store, which many others are based on."""
    listed = _items(base, store)
    return _Held(dict(zip(listed.names, listed.items, strict=True)), base, listed.about)


def _named(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a state, without what is no artifact of the user's."""
    return {name: one for name, one in told.items() if one is not UNKNOWN and not name.startswith("@")}


def _save_items(value: Any, store: Store, name: str) -> Artifact:
    if not manifest.is_list(type(value)):
        raise NotSerializable(
            f"a step is mapped over {name}, which has type {type_name(value)} and is not a list",
            why="Only lists, tuples, ranges and other sequences can be mapped over, one task per item.",
            fix="To pass the whole value to each task, wrap it in unmapped(…) in the call of .map. "
            "To map over its items, return a list.",
        )
    items = tuple(save(item, store, name=f"{name}[{index}]") for index, item in enumerate(value))
    content = manifest.build("tuple" if type(value) is tuple else "list", items)
    digest, inline = _put([content], len(content), store)
    plain = [item.plain for item in items]
    return Artifact(
        digest=digest,
        serializer=manifest.NAME,
        type=type_name(value),
        bytes=len(content) + sum(item.bytes for item in items),
        inline=inline,
        items=len(items),
        plain=plain if len(plain) <= _ITEMS_TOLD and any(plain) else None,
        code=tuple(sorted({name for item in items for name in item.code})),
    )


def _keep(
    buffers: Sequence[Bytes], serializer: Serializer, value: object, store: Store, told: int
) -> Artifact:
    size = sum(memoryview(buffer).nbytes for buffer in buffers)
    digest, inline = _put(buffers, size, store)
    if serializer.names_blobs:
        content = memoryview(b"".join(buffers))
        size += sum(part for _, part in serializer.references(content))
    code = buffers.code if isinstance(buffers, Buffers) else code_names((type(value),))
    plain = plain_of(value, most=told) if serializer.name != "json" and has_parts(value) else UNKNOWN
    return Artifact(
        digest=digest,
        serializer=serializer.name,
        type=type_name(value),
        bytes=size,
        inline=inline,
        code=code,
        plain=None if plain is UNKNOWN else plain,
    )


def _put(
    buffers: Sequence[Bytes], size: int, store: Store, limit: int = INLINE_LIMIT
) -> tuple[str, str | None]:
    if size > limit:
        return store.put(*buffers)[0], None
    content = b"".join(buffers)
    return digest_of(content), binascii.b2a_base64(content, newline=False).decode("ascii")


def _content(artifact: Artifact, store: Store | None, size: int | None = None) -> memoryview:
    if artifact.inline is not None:
        return memoryview(bytearray(binascii.a2b_base64(artifact.inline)))
    assert store is not None
    return store.read(artifact.digest, size)


def _items(artifact: Artifact, store: Store | None) -> manifest.Manifest:
    content = _content(artifact, store)
    try:
        listed = manifest.parse(content)
    except ValueError:
        if artifact.inline is None and store is not None:
            store.compare(artifact.digest)
        raise BlobDamaged("the list of a value's items cannot be read", where=artifact.digest) from None
    if artifact.plain is None or listed.form == manifest.STATE:
        return listed
    both = zip(listed.items, artifact.plain, strict=True)
    return listed._replace(items=tuple(attrs.evolve(item, plain=plain) for item, plain in both))


# Why a value cannot be saved, or read


def _unsaved(value: object, name: str, serializer: str, error: Exception) -> NotSerializable:
    """The error for a value that could not be saved, which names its very part and that part's type."""
    if serializer != "pickle":
        return NotSerializable(
            f"{name} of type {type_name(value)} cannot be saved",
            why=f"serializer {serializer!r}: {type(error).__name__}: {error}",
        )
    path, part, reason = _culprit(value, name, error)
    kind = type(part).__name__
    says_no_more = reason in (f"cannot pickle {n!r} object" for n in (kind, type_name(part)))
    return NotSerializable(
        f"{path} of type {type_name(part)} cannot be saved",
        why=None if says_no_more else reason,
        fix=_fix(path, name, part),
    )


def _unread(artifact: Artifact, error: Exception) -> NotSerializable:
    """The error for a value whose content is intact and that cannot be read all the same."""
    if isinstance(error, ModuleNotFoundError):
        fix = f"Install {(error.name or 'it').partition('.')[0]!r} here, or put the module where it was."
    elif isinstance(error, (AttributeError, ImportError)):
        fix = "A class or function was moved or renamed: put it back, or run again the step that made it."
    else:
        fix = "Use the versions of Python and of the packages that wrote it, or run its step again."
    return NotSerializable(
        f"a value of type {artifact.type} cannot be read back",
        why=f"{type(error).__name__}: {error}",
        fix=fix,
    )


def _culprit(value: object, path: str, error: BaseException) -> tuple[str, object, str]:
    """The innermost part that fails by itself: its path, itself, and what Python says about it."""
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        seen.add(id(value))
        for step, part in _parts(value):
            failure = None if id(part) in seen else _failure(part)
            if failure is not None:
                value, path, error = part, path + step, failure
                break
        else:
            break
    return path, value, str(error) or type(error).__name__


def _failure(value: object) -> Exception | None:
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    try:
        cloudpickle.Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception as error:  # whatever a user's __reduce__ raises is the finding
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in list(value.items())[:_WIDEST]:
            yield f"[{key!r}]", item
            yield f".keys()[{key!r}]", key
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value[:_WIDEST]):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in list(value)[:_WIDEST]:
            yield f".{{{item!r}}}", item
    if isinstance(value, types.FunctionType):
        yield from _captured(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif not isinstance(value, (type, types.ModuleType)):
        yield from _attributes(value)


def _captured(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield f" (uses {name!r})", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" (uses {name!r})", function.__globals__[name]


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict):
        for name, item in state.items():
            yield f".{name}", item
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):  # not set
                yield f".{name}", getattr(value, name)


def _fix(path: str, name: str, part: object) -> str:
    if hasattr(part, "__next__") and not isinstance(part, io.IOBase):
        return f"A {type(part).__name__} can be read once only. Make it a list: list(…)."
    if isinstance(part, io.IOBase):
        return "Close the file, and give its pathlib.Path instead: the store keeps the content."
    if path == name:
        return "Use plain data, arrays, tables or a pathlib.Path that the value can be made from again."
    return "Leave it out, or give the class that holds it a __getstate__ that drops it."
