"""Random numbers of a task: its own, and the same again when the user seeded the generator.

Tasks are forked from one process, so without this all of them would begin with the same numbers. And no
state that is looked at below the engine tells what the user seeded: Python reseeds ``random`` in each
forked process, and a fresh interpreter may import other modules. So a run draws once from each generator,
in the process that the user's modules were imported in, and its specs bring along what it drew: an
unseeded generator gives every run something else. Mixed with what the task is, it seeds the generator of the
step's process. Each generator goes by itself.

The ranks of a task begin with the same numbers, as those do that torchrun starts, once they have seeded.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple


class _Generator(NamedTuple):
    draw: Callable[[ModuleType], bytes]
    seed: Callable[[ModuleType, bytes], object]


def draws() -> dict[str, str]:
    """A number from each global generator that there is in this process, by its module, in hex."""
    return {name: generator.draw(module).hex() for name, module, generator in _imported()}


def enter(drawn: Mapping[str, str], stream: str) -> None:
    """Seed the generators of this process for a task."""
    for name, module, generator in _imported():
        state = drawn.get(name) or generator.draw(module).hex()
        generator.seed(module, hashlib.sha256(f"{state} {stream}".encode()).digest())


def _imported() -> Iterator[tuple[str, ModuleType, _Generator]]:
    for name, generator in _GENERATORS.items():
        if (module := sys.modules.get(name)) is not None:
            yield name, module, generator


def _seed_numpy(numpy_random: ModuleType, seed: bytes) -> None:
    words = [int.from_bytes(seed[i : i + 4], "big") for i in range(0, len(seed), 4)]
    try:
        numpy_random.seed(words)
    except TypeError:  # the user has put another bit generator there, which is seeded when it is made
        numpy_random.set_bit_generator(type(numpy_random.get_bit_generator())(words))


def _draw_torch(torch_random: ModuleType) -> bytes:
    torch = sys.modules["torch"]
    number: int = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
    return number.to_bytes(8, "big")


_GENERATORS = {
    "random": _Generator(lambda _: random.randbytes(32), lambda _, seed: random.seed(seed)),
    "numpy.random": _Generator(lambda module: module.bytes(32), _seed_numpy),
    "torch.random": _Generator(
        _draw_torch, lambda module, seed: module.manual_seed(int.from_bytes(seed[:8], "big", signed=True))
    ),
}
