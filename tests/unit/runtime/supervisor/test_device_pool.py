"""Which device a task gets where several are free, and what is said of those that are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, Device, EntryPoint, Hardware, TaskId, TaskSpec
from upshift.runtime.accelerators import locks
from upshift.runtime.accelerators.agent import Snapshot
from upshift.runtime.accelerators.files import LOCKS
from upshift.runtime.accelerators.vendor import Inventory, Reading
from upshift.runtime.supervisor.device_pool import DevicePool, Grant

GPUS = tuple(
    Device(vendor="nvidia", model="NVIDIA L4", memory=24 << 30, index=n, uuid=f"GPU-{n}") for n in range(3)
)
SOMEBODY = os.getppid()
"""A process that is no child of this one."""


class Watched:
    """Devices with readings that a test writes down."""

    def __init__(self, *readings: Reading) -> None:
        inventory = Inventory(vendor="nvidia", devices=GPUS)
        self.known = True
        self.inventories = (inventory,)
        self.latest = (Snapshot(inventory=inventory, readings=readings, read=True, at=time.monotonic()),)

    @property
    def readings(self) -> dict[str, Reading]:
        return {reading.uuid: reading for snapshot in self.latest for reading in snapshot.readings}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))


@pytest.fixture
def stock() -> Callable[..., DevicePool]:
    """Makes a stock of three GPUs with these readings."""
    return lambda *readings: DevicePool(cast(Any, Watched(*readings)), engine=0, returned=lambda: None)


def spec(count: int = 1) -> TaskSpec:
    return TaskSpec(
        task=TaskId(run="r", step="train"),
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/"),
        store="/",
        request=ResourceSettings(gpu_count=count),
        granted=Hardware(gpus=GPUS[:count]),
    )


def taken(stock: DevicePool, count: int = 1, *, share: bool = False) -> list[int | None] | None:
    """The numbers of the devices, which go back at once; None: none."""
    grant = stock.take(spec(count), share=share)
    if grant is None:
        return None
    grant.give_back()
    return [device.index for device in grant.devices or ()]


def grant_of(stock: DevicePool, count: int = 1, *, share: bool = False) -> Grant:
    grant = stock.take(spec(count), share=share)
    assert grant is not None
    return grant


def test_what_programs_of_ones_own_work_with_comes_last(stock: Callable[..., DevicePool]) -> None:
    some = stock(Reading(uuid="GPU-0", processes={os.getpid(): 1 << 30}))
    assert taken(some) == [1]
    assert taken(some, 3) == [0, 1, 2]


def test_what_other_programs_work_with_is_left_to_them(stock: Callable[..., DevicePool]) -> None:
    some = stock(Reading(uuid="GPU-0", processes={SOMEBODY: 3 << 30}))
    grant = grant_of(some, 2)
    assert [device.index for device in grant.devices or ()] == [1, 2]
    assert grant.remarks[0].startswith(f"GPU 0 (NVIDIA L4) is in use by process {SOMEBODY} (")
    assert "3.22 GB), and avoided" in grant.remarks[0]
    grant.give_back()
    assert taken(some, 3) is None
    assert f"waits for 3 × GPU: GPU 0 (NVIDIA L4) is in use by process {SOMEBODY}" in some.why(spec(3))


def test_it_is_shared_where_that_is_wanted_and_nothing_else_is_left(stock: Callable[..., DevicePool]) -> None:
    some = stock(Reading(uuid="GPU-0", processes={SOMEBODY: None}))
    assert taken(some, share=True) == [1]
    grant = grant_of(some, 3, share=True)
    assert grant.remarks[0].endswith("this step works beside it")
    grant.give_back()


def test_a_process_that_has_ended_since_is_no_trouble(stock: Callable[..., DevicePool]) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert taken(stock(Reading(uuid="GPU-0", processes={child: 1 << 30}))) == [0]


def test_memory_without_a_program_is_trouble_unless_it_was_a_steps(stock: Callable[..., DevicePool]) -> None:
    full = [Reading(uuid=gpu.uuid or "", memory=20 << 30) for gpu in GPUS]
    some = stock(*full[1:])
    grant = grant_of(some)  # the one that is empty
    assert taken(some) is None
    assert "programs that cannot be seen from here (21.5 GB of 25.8 GB)" in some.why(spec())
    grant.give_back()
    watched = cast(Any, some)._accelerators
    (snapshot,) = watched.latest
    watched.latest = (attrs.evolve(snapshot, readings=full, at=snapshot.at - 60),)
    assert taken(some) == [0]  # the reading is older than its return


def test_a_device_that_is_lost_is_not_handed_out(stock: Callable[..., DevicePool]) -> None:
    some = stock(Reading(uuid="GPU-0", problem="it has fallen off the bus"))
    assert taken(some) == taken(some, share=True) == [1]
    assert taken(some, 3, share=True) is None
    assert "GPU 0 (NVIDIA L4) is out of order: it has fallen off the bus" in some.why(spec(3))


def test_who_has_what_is_said_in_words(stock: Callable[..., DevicePool]) -> None:
    some = stock()
    mine = grant_of(some)
    others = locks.hold(GPUS[1:])
    assert others is not None
    mine_and_others = some.why(spec(3)).removeprefix("waits for 3 × GPU: ").split("; ")
    assert mine_and_others[0] == "GPU 0 (NVIDIA L4) is held by train"
    by = f"another run (process {os.getpid()} ("
    assert mine_and_others[1].startswith(f"GPU 1 and GPU 2 (NVIDIA L4) are held by {by}")
    others.give_back()
    mine.give_back()


def test_who_did_not_ask_sees_what_nobody_has(stock: Callable[..., DevicePool]) -> None:
    some = stock()
    assert some.rest().environment == {}
    held = grant_of(some, 2)
    assert some.rest().environment["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    assert some.rest().devices is None
    held.give_back()


def test_who_did_not_ask_keeps_what_somebody_had_for_an_instant(
    stock: Callable[..., DevicePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, looks = stock(), iter([False, True, True, True])
    monkeypatch.setattr(locks, "free", lambda device: next(looks))
    assert some.rest().environment == {}


def test_fewer_devices_than_were_promised_are_waited_for(stock: Callable[..., DevicePool]) -> None:
    some = stock()
    four = attrs.evolve(spec(3), request=ResourceSettings(gpu_count=4), granted=Hardware(gpus=(GPUS[0],) * 4))
    assert some.take(four, share=False) is None
    assert "this machine has 3 × NVIDIA L4" in some.why(four)


def test_what_is_left_will_do_where_that_is_said(stock: Callable[..., DevicePool]) -> None:
    some = stock(Reading(uuid="GPU-0", problem="GPU is lost"))
    assert (some.lack(spec(2)), some.take(spec(2), share=False, less=True).less) == (None, False)  # type: ignore[union-attr]
    lack = some.lack(spec(3))
    assert lack is not None
    assert str(lack) == (
        "asked 3 × GPU, gets 2 × NVIDIA L4: this machine has 2 × NVIDIA L4, 25.8 GB each; "
        "GPU 0 (NVIDIA L4) is out of order: GPU is lost"
    )


def test_what_is_left_is_waited_for_as_well(stock: Callable[..., DevicePool]) -> None:
    some = stock(Reading(uuid="GPU-0", problem="GPU is lost"))
    held = grant_of(some)
    assert some.take(spec(3), share=False, less=True) is None
    held.give_back()
    grant = some.take(spec(3), share=False, less=True)
    assert grant is not None and grant.less
    assert [device.index for device in grant.devices or ()] == [1, 2]
    assert grant.remarks == (str(some.lack(spec(3))),)
    grant.give_back()


def test_nothing_is_left(stock: Callable[..., DevicePool]) -> None:
    some = stock(*(Reading(uuid=gpu.uuid or "", problem="GPU is lost") for gpu in GPUS))
    assert some.take(spec(), share=True) is None
    grant = some.take(spec(), share=False, less=True)
    assert grant is not None and grant.less
    assert (grant.devices, grant.environment["CUDA_VISIBLE_DEVICES"]) == ((), "")


def test_another_model_than_was_promised_is_less(stock: Callable[..., DevicePool]) -> None:
    some = stock()
    promised = Device(vendor="nvidia", model="NVIDIA H100 80GB HBM3", memory=80 << 30)
    large = attrs.evolve(
        spec(), request=ResourceSettings(accelerator="H100"), granted=Hardware(gpus=(promised,))
    )
    assert some.take(large, share=False) is None
    grant = some.take(large, share=False, less=True)
    assert grant is not None and grant.less
    grant.give_back()


def test_nodes_of_one_machine_get_theirs_at_once_or_none_does(stock: Callable[..., DevicePool]) -> None:
    some, other = stock(), stock()
    one = grant_of(other)
    two = attrs.evolve(spec(), granted=Hardware(gpus=GPUS[:1], nodes=3))
    assert some.take(two, share=False, nodes=3) is None
    assert taken(some, 2) == [1, 2]  # nothing of it is held meanwhile
    assert some.why(two, nodes=3).startswith(
        "waits for 1 × GPU on each of 3 nodes: GPU 0 (NVIDIA L4) is held by "
    )
    one.give_back()
    grant = some.take(two, share=False, nodes=3)
    assert grant is not None
    each = [one.devices for one in (grant, *grant.further)]
    assert each == [GPUS[:1], GPUS[1:2], GPUS[2:]]
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in grant.further] == ["GPU-1", "GPU-2"]
    assert taken(other) is None
    grant.give_back()
    assert taken(other, 3) == [0, 1, 2]


def test_a_node_gets_no_more_than_it_was_promised_where_others_need_the_rest(
    stock: Callable[..., DevicePool],
) -> None:
    less = attrs.evolve(spec(3), granted=Hardware(gpus=GPUS[:1], nodes=2))  # 3 on each were asked for
    grant = stock().take(less, share=False, nodes=2)
    assert grant is not None
    assert [one.devices for one in (grant, *grant.further)] == [GPUS[:1], GPUS[1:2]]
    grant.give_back()
