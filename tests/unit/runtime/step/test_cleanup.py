"""``cleanup_memory`` gives back what nobody uses, says how much, ends, and imports nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator

import pytest

import upshift
from upshift import cleanup_memory


class Node:
    """Part of a cycle."""

    def __init__(self, size: int = 0) -> None:
        self.me = self
        self.data = bytearray(size)


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Nothing is collected meanwhile but by the function, which does not look at what was there before."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("by_hand")
def test_cycles_are_collected_and_their_memory_is_counted() -> None:
    node = Node(64 << 20)
    gone = weakref.ref(node)
    del node
    assert gone() is not None
    freed = cleanup_memory()
    assert gone() is None
    assert freed >= 60 << 20


@pytest.mark.usefixtures("by_hand")
def test_finalizers_that_free_more_are_followed() -> None:
    class Last(Node):
        pass

    class First(Node):
        def __del__(self) -> None:
            kept.pop()  # the only reference to a cycle

    kept = [Last()]
    gone = weakref.ref(kept[0])
    first = First()
    del first
    cleanup_memory()
    assert gone() is None


@pytest.mark.usefixtures("by_hand")
def test_finalizers_that_always_leave_garbage_do_not_keep_it_going() -> None:
    made = []

    class Phoenix(Node):
        def __del__(self) -> None:
            made.append(1)
            if len(made) < 10_000:  # so that the test ends, whatever the function does
                Phoenix()

    Phoenix()
    cleanup_memory()
    assert 1 < len(made) < 1000
    made.extend([1] * 10_000)
    gc.collect()


def test_what_is_referred_to_stays() -> None:
    node = Node(1 << 20)
    cleanup_memory()
    assert len(node.data) == 1 << 20


def test_no_framework_is_imported_for_it() -> None:
    code = (
        "import sys, upshift\n"
        "assert upshift.cleanup_memory() >= 0\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def device(reserved: dict[int, int], cached: int) -> types.SimpleNamespace:
    """A device of PyTorch, as far as it is asked."""

    def empty_cache() -> None:
        for number in reserved:
            reserved[number] -= cached

    return types.SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(reserved),
        memory_reserved=reserved.__getitem__,
        empty_cache=empty_cache,
    )


def test_the_caches_of_all_devices_are_emptied_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    mps = types.SimpleNamespace(allocated=3 * gib, empty_cache=lambda: setattr(mps, "allocated", gib))
    mps.driver_allocated_memory = lambda: mps.allocated
    torch = types.SimpleNamespace(
        cuda=device({0: 4 * gib, 1: 5 * gib}, gib),
        xpu=device({0: 2 * gib}, gib),
        mps=mps,
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: True)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert cleanup_memory() // gib == 2 + 1 + 2
    assert torch.cuda.memory_reserved(1) == 4 * gib and torch.xpu.memory_reserved(0) == gib


def test_a_device_that_was_never_used_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched() -> None:
        raise AssertionError("initialized")

    cuda = types.SimpleNamespace(is_initialized=lambda: False, empty_cache=touched, device_count=touched)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert cleanup_memory() >= 0


@pytest.mark.parametrize("broken", [types.SimpleNamespace(), types.SimpleNamespace(cuda=None), None])
def test_a_half_imported_pytorch_does_no_harm(broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", broken)
    assert cleanup_memory() >= 0


def test_a_device_that_is_lost_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> int:
        raise RuntimeError("CUDA error: the launch failed")

    cuda = types.SimpleNamespace(
        is_initialized=lambda: True, empty_cache=lost, device_count=lost, memory_reserved=lost
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert cleanup_memory() >= 0


def test_the_real_pytorch() -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, upshift\n"
        "x = torch.ones(10)\n"
        "assert upshift.cleanup_memory() >= 0\n"
        "assert x.sum() == 10\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_is_public() -> None:
    assert "cleanup_memory" in upshift.__all__
