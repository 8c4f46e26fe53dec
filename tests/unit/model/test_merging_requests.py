"""The one rule by which requests merge: what is said beats what is implied, and 0 is said."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from upshift.config import ResourceSettings
from upshift.errors import SettingsError

AMOUNTS = ("cpu_count", "memory", "num_nodes", "disk", "shared_memory")
KINDS = [
    "H100",
    "H100-SXM",
    "A100",
    "A100-40GB",
    "A100-80GB",
    "MI300X",
    "Trainium",
    "other:B900",
    "A100-80GB/1g.10gb",
]


def accelerators() -> st.SearchStrategy[Any]:
    counted = st.builds(
        lambda kind, count: kind if count is None else f"{kind}:{count}",
        st.sampled_from(KINDS),
        st.sampled_from([None, 1, 2, 8]),
    )
    alternatives = st.lists(counted, min_size=2, max_size=3, unique_by=lambda text: text.partition(":")[0])
    return st.one_of(counted, alternatives)


FIELDS = {
    "cpu_count": st.sampled_from([0.5, 1, 4]),
    "memory": st.sampled_from(["1GB", "4GB"]),
    "num_nodes": st.integers(1, 3) | st.sampled_from([(1, 2), (2, 4), (1, 3)]),
    "disk": st.sampled_from(["10GB", "20GB"]),
    "shared_memory": st.sampled_from(["1GB", "2GB"]),
    "gpu_count": st.sampled_from([0, 1, 2, 4, 8]),
    "gpu_memory": st.sampled_from(["10GB", "16GB", "40GB", "80GB"]),
    "gpu_vendor": st.sampled_from(["nvidia", "amd"]),
    "accelerator": accelerators(),
}


@st.composite
def requests(draw: st.DrawFn) -> ResourceSettings:
    fields = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=4))
    said = {name: draw(FIELDS[name]) for name in sorted(fields)}
    try:
        return ResourceSettings(**said)
    except SettingsError:
        assume(False)
        raise


def over(*requests: ResourceSettings) -> ResourceSettings | None:
    """The first over the others; None where that contradicts itself."""
    first, *others = requests
    try:
        for other in others:
            first = first.over(other)
        return first
    except SettingsError:
        return None


def beside(*requests: ResourceSettings) -> ResourceSettings | None:
    first, *others = requests
    try:
        for other in others:
            first = first.beside(other)
        return first
    except SettingsError:
        return None


def same(one: ResourceSettings | None, other: ResourceSettings | None) -> bool:
    """Whether they ask for the same, and say as much of it."""
    return one == other and (one is None or other is None or one.explicit() == other.explicit())


@given(requests(), requests(), requests())
def test_over_is_associative_where_nothing_contradicts(
    inner: ResourceSettings, middle: ResourceSettings, outer: ResourceSettings
) -> None:
    left = over(inner, middle)
    right = over(middle, outer)
    assume(left is not None and right is not None)
    assert left is not None
    assert right is not None
    assert same(over(left, outer), over(inner, right))


@given(requests(), requests())
def test_what_is_said_inside_is_never_lost(inner: ResourceSettings, outer: ResourceSettings) -> None:
    merged = over(inner, outer)
    assume(merged is not None)
    assert merged is not None
    said = inner.explicit()
    for field in (*AMOUNTS, "gpu_count", "gpu_memory", "gpu_vendor"):
        if field in said:
            assert getattr(merged, field) == said[field], field
        elif field in AMOUNTS:
            assert getattr(merged, field) == getattr(outer, field), field
    if inner.gpu_count == 0:
        assert [wanted.count for wanted in merged.alternatives] == [0]
    elif inner.gpu_count is not None:
        assert all(wanted.count > 0 for wanted in merged.alternatives)
    if inner.named:
        assert [one.name for one in merged.named] == [one.name for one in inner.named]


@given(requests())
def test_nothing_over_and_under_changes_nothing(request: ResourceSettings) -> None:
    empty = ResourceSettings()
    assert same(over(request, empty), request)
    assert same(over(empty, request), request)
    assert same(over(request, request), request)
    assert same(beside(request, empty), request)
    assert same(beside(empty, request), request)


@given(st.lists(requests(), min_size=2, max_size=3))
def test_beside_does_not_care_for_the_order(several: list[ResourceSettings]) -> None:
    results = [beside(*order) for order in itertools.permutations(several)]
    assert all(same(result, results[0]) for result in results)


@given(requests(), requests(), requests())
def test_beside_is_associative(one: ResourceSettings, two: ResourceSettings, three: ResourceSettings) -> None:
    left, right = beside(one, two), beside(two, three)
    if left is not None and right is not None:
        assert same(beside(left, three), beside(one, right))


@given(requests(), requests())
def test_beside_asks_for_no_less_than_either(one: ResourceSettings, other: ResourceSettings) -> None:
    merged = beside(one, other)
    assume(merged is not None)
    assert merged is not None
    for side in (one, other):
        said = side.explicit()
        for field in (*AMOUNTS, "gpu_memory"):
            if field in said and field != "num_nodes":
                assert getattr(merged, field) >= said[field], field
        assert merged.least_nodes >= side.least_nodes and merged.most_nodes >= side.most_nodes
        if "gpu_count" in said:
            assert merged.gpu_count is not None
            assert all(wanted.count >= said["gpu_count"] for wanted in merged.alternatives)
    if one.explicit().get("gpu_count") == 0 and other.gpu_count is None:
        assert merged.gpu_count == 0


def asked(*, over: dict[str, Any], inner: dict[str, Any]) -> list[str]:
    return [str(wanted) for wanted in ResourceSettings(**inner).over(ResourceSettings(**over)).alternatives]


@pytest.mark.parametrize(
    ("inner", "outer", "said"),
    [
        ({"gpu_count": 0}, {"accelerator": "H100:8"}, ["0 × GPU"]),
        ({"gpu_count": 2}, {"accelerator": "H100:8"}, ["2 × H100"]),
        ({"gpu_count": 2}, {"accelerator": ["H100:8", "A100:16"]}, ["2 × H100", "2 × A100"]),
        ({"accelerator": "H100"}, {"gpu_count": 4}, ["4 × H100"]),
        ({"accelerator": "H100"}, {"accelerator": "A100:8"}, ["8 × H100"]),
        ({"accelerator": "H100:2"}, {"gpu_count": 4}, ["2 × H100"]),
        ({"accelerator": "H100"}, {"gpu_count": 0}, ["1 × H100"]),
        ({"gpu_memory": "40GB"}, {"gpu_count": 0}, ["1 × GPU, ≥ 40 GB"]),
        ({"gpu_memory": "40GB"}, {"gpu_count": 4}, ["4 × GPU, ≥ 40 GB each"]),
        ({"gpu_memory": "40GB"}, {"accelerator": "H100:4"}, ["4 × H100, ≥ 40 GB each"]),
        ({"accelerator": "MI300X"}, {"gpu_vendor": "nvidia"}, ["1 × MI300X"]),
    ],
)
def test_a_step_over_its_pipeline(inner: dict[str, Any], outer: dict[str, Any], said: list[str]) -> None:
    assert asked(inner=inner, over=outer) == said


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"accelerator": "H100:8"}, {"gpu_count": 16}, ["16 × H100"]),
        ({"accelerator": "H100:8"}, {"gpu_count": 4}, ["8 × H100"]),
        ({"accelerator": "H100"}, {"gpu_count": 4}, ["4 × H100"]),
        ({"accelerator": "H100"}, {"gpu_count": 0}, ["0 × GPU"]),  # what is said beats what is implied
        ({"accelerator": "A100:8"}, {"accelerator": "A100-80GB"}, ["8 × A100-80GB"]),
        ({"accelerator": ["H100:8", "A100:16"]}, {"gpu_count": 12}, ["12 × H100", "16 × A100"]),
        (
            {"accelerator": ["H100:8", "A100"]},
            {"accelerator": ["H100", "A100-80GB:4"]},
            ["8 × H100", "4 × A100-80GB"],
        ),
        ({"gpu_memory": "40GB"}, {"gpu_memory": "16GB", "gpu_count": 2}, ["2 × GPU, ≥ 40 GB each"]),
        ({"accelerator": "tpu-v5e-8"}, {"accelerator": "tpu-v5e-8:2x4"}, ["tpu-v5e-8 (2x4)"]),
        ({"accelerator": "tpu-v5e-8:2x4"}, {"accelerator": "tpu-v5e-16"}, ["tpu-v5e-16"]),
    ],
)
def test_two_requests_on_one_step(one: dict[str, Any], other: dict[str, Any], said: list[str]) -> None:
    merged = ResourceSettings(**one).beside(ResourceSettings(**other))
    assert [str(wanted) for wanted in merged.alternatives] == said


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (
            {"accelerator": "H100"},
            {"accelerator": "A100"},
            "accelerator is set twice on one step: 'H100' and 'A100'",
        ),
        ({"accelerator": "H100"}, {"accelerator": ["H100", "A100"]}, "accelerator is set twice on one step"),
        ({"accelerator": "A100"}, {"accelerator": "A100/1g.5gb"}, "accelerator is set twice on one step"),
        ({"accelerator": "tpu-v5e-8:2x4"}, {"accelerator": "tpu-v5e-8:1x8"}, "accelerator is set twice"),
        ({"gpu_vendor": "amd"}, {"gpu_vendor": "nvidia"}, "gpu_vendor is set twice on one step"),
        ({"accelerator": "H100"}, {"gpu_vendor": "amd"}, "contradicts gpu_vendor='amd'"),
        ({"accelerator": "T4"}, {"gpu_memory": "40GB"}, "contradicts gpu_memory of 40 GB"),
    ],
)
def test_what_no_device_can_be_is_refused(one: dict[str, Any], other: dict[str, Any], what: str) -> None:
    for first, second in ((one, other), (other, one)):
        with pytest.raises(SettingsError, match=r"set twice|contradicts") as caught:
            ResourceSettings(**first).beside(ResourceSettings(**second))
        if first is one:
            assert what in caught.value.what


def test_what_is_no_range_of_nodes_is_refused() -> None:
    assert ResourceSettings(num_nodes=(3, 3)) == ResourceSettings(num_nodes=3)
    assert ResourceSettings(num_nodes=[2, 4]).num_nodes == (2, 4)
    for value, what in (
        ((4, 2), "num_nodes=(4, 2) is invalid"),
        ((0, 2), "num_nodes=0 is invalid"),
        ((1, 2, 3), "the least and the most: (2, 4)"),
        ("2:4", "num_nodes='2:4' is invalid"),
    ):
        with pytest.raises(SettingsError) as caught:
            ResourceSettings(num_nodes=value)
        assert what in str(caught.value)
