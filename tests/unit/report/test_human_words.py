"""Times, widths and hardware as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from upshift.config import ResourceSettings
from upshift.model.spec import Device, Hardware
from upshift.report import human
from upshift.report.terminal import Page, cells, cut, fit, wrap
from upshift.report.views.records import brief, side_by_side

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0082, "8 ms"),
        (0.9996, "1.00 s"),
        (3.214, "3.21 s"),
        (9.996, "10.0 s"),
        (42.26, "42.3 s"),
        (59.97, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (273_600, "3 d 04 h"),
        (-1, "0 ms"),
    ],
)
def test_durations_have_three_figures_at_most(seconds: float, words: str) -> None:
    assert human.duration(seconds) == words


def test_a_span_names_its_unit_once() -> None:
    assert human.span([3.3, 1.1, 2.0]) == "1.10–3.30 s"
    assert human.span([0.5, 2.0]) == "500 ms–2.00 s"
    assert human.span([61, 125]) == "1 min 01 s–2 min 05 s"
    assert human.span([2.0, 2.0]) == "2.00 s"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "just now"), (60, "1 minute ago"), (7300, "2 hours ago"), (200_000, "2 days ago"), (-5, "just now")],
)
def test_how_long_ago(seconds: float, words: str) -> None:
    assert human.ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_widths_count_what_a_terminal_shows() -> None:
    assert cells("abc") == 3
    assert cells("\x1b[31mabc\x1b[0m") == 3
    assert cells("数据") == 4
    assert cells("e\N{COMBINING ACUTE ACCENT}") == 1


def test_a_cut_text_ends_with_an_ellipsis() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 4) == "abc…"
    assert cut("数据数据", 5) == "数据…"


def test_text_wraps_between_words_and_within_those_that_are_too_long() -> None:
    assert wrap("the quick brown fox", 9) == ["the quick", "brown fox"]
    assert wrap("abcdefghij k", 4) == ["abcd", "efgh", "ij k"]
    assert wrap("one\ntwo", 10) == ["one", "two"]
    assert wrap("", 10) == [""]
    assert all(cells(line) <= 3 for line in wrap("数据数据", 3))


def test_the_widest_columns_give_way_first_and_none_below_its_least() -> None:
    assert fit([10, 30, 5], 35, least=[4, 8, 5]) == [10, 20, 5]
    assert fit([10, 30, 5], 10, least=[4, 8, 5]) == [4, 8, 5]


def test_painted_text_may_be_cut_into_lines() -> None:
    assert Page(colour=True).paint("a\nb", "red") == "\x1b[31ma\x1b[0m\n\x1b[31mb\x1b[0m"
    assert Page(colour=False).paint("a", "red") == "a"


def test_the_records_stand_side_by_side_a_line_for_each_kind_of_hardware() -> None:
    attempt = {
        "asked": Hardware.asked(
            ResourceSettings(cpu_count=4, memory="4GB", accelerator="H100:2", num_nodes=2)
        ),
        "granted": Hardware(
            cpu_count=4,
            memory=4_000_000_000,
            gpus=(Device(model="H100", memory=80_000_000_000, index=0),) * 2,
            nodes=2,
            details={"cpus": [0, 1, 2, 6]},
        ),
        "seen": Hardware(cpu_count=4, memory=23_400_000_000, gpus=(), nodes=2),
        "used": Hardware(
            cpu_count=1.93, memory=812_000_000, details={"cpu_mean": 1.93, "memory_peak": 812_000_000}
        ),
    }
    assert side_by_side([attempt]) == [
        ("4 CPU", "4 CPU (0-2,6)", "4 CPU", "1.93 CPU mean"),
        ("4 GB", "4 GB", "23.4 GB", "812 MB peak"),
        ("2 × H100", "2 × H100, 80 GB each", "no GPU", "–"),
        ("2 nodes", "2 nodes", "2 nodes", "–"),
    ]


def test_many_tasks_show_the_least_and_the_most() -> None:
    def used(cpus: float, memory: int) -> dict[str, Hardware | None]:
        return {
            "granted": Hardware(cpu_count=2, details={"cpus": [int(cpus)]}),
            "used": Hardware(cpu_count=cpus, memory=memory),
        }

    assert side_by_side([used(1.5, 700_000_000), used(0.25, 1_200_000_000)]) == [
        ("–", "2 CPU", "–", "0.25–1.5 CPU mean"),
        ("–", "–", "–", "700 MB–1.2 GB peak"),
    ]


def test_a_grant_below_the_request_is_marked() -> None:
    asked = Hardware.asked(ResourceSettings(cpu_count=8, memory="1GB", gpu_count=1))
    granted = Hardware(cpu_count=2, memory=1_000_000_000, gpus=())
    rows = side_by_side([{"asked": asked, "granted": granted}])
    assert [row[1] for row in rows] == ["2 CPU !", "1 GB", "no GPU !"]


def test_one_node_is_shown_where_more_were_asked_for() -> None:
    one = Hardware(nodes=1)
    rows = [side_by_side([{"asked": Hardware(nodes=n), "granted": one}]) for n in (None, 1, 2)]
    assert rows == [[], [], [("2 nodes", "1 node !", "–", "–")]]


def _gpu_row(request: ResourceSettings, *granted: Device) -> tuple[str, str]:
    rows = side_by_side([{"asked": Hardware.asked(request), "granted": Hardware(gpus=granted)}])
    return rows[-1][:2]


def test_a_request_for_accelerators_is_read_as_it_was_meant() -> None:
    h100 = Device(vendor="nvidia", model="NVIDIA H100 80GB HBM3", kind="H100-SXM", memory=85_520_809_984)
    a100 = Device(
        vendor="nvidia", model="NVIDIA A100-SXM4-80GB", kind="A100-SXM4-80GB", memory=85_899_345_920
    )
    mig = Device(vendor="nvidia", model="NVIDIA A100-SXM4-80GB", memory=10_200_547_328, partition="1g.10gb")
    either = ResourceSettings(accelerator=["H100:2", "A100-80GB:4"], gpu_memory="40GB")
    asked = "2 × H100, ≥ 40 GB each or 4 × A100-80GB, ≥ 40 GB each"
    assert _gpu_row(either, h100, h100) == (asked, "2 × NVIDIA H100 80GB HBM3, 85.5 GB each")
    assert _gpu_row(either, *[a100] * 4) == (asked, "4 × NVIDIA A100-SXM4-80GB, 85.9 GB each")
    assert _gpu_row(either, a100, a100) == (asked, "2 × NVIDIA A100-SXM4-80GB, 85.9 GB each !")
    assert _gpu_row(ResourceSettings(accelerator="H100"), a100)[1].endswith(" !")
    assert _gpu_row(ResourceSettings(accelerator="A100-80GB/1g.10gb:2"), mig, mig) == (
        "2 × A100-80GB/1g.10gb",
        "2 × NVIDIA A100-SXM4-80GB/1g.10gb, 10.2 GB each",
    )
    slice_ = [Device(vendor="tpu", model="TPU v5 lite", kind="tpu-v5e")] * 8
    assert _gpu_row(ResourceSettings(accelerator="tpu-v5e-8:2x4"), *slice_) == (
        "tpu-v5e-8 (2x4)",
        "8 × TPU v5 lite",
    )
    assert _gpu_row(ResourceSettings(gpu_vendor="amd", gpu_count=2))[0] == "2 × AMD GPU"
    assert _gpu_row(ResourceSettings(accelerator="other:B900:8"))[0] == "8 × B900"


def test_which_devices_they_are_is_told_once_and_only_where_all_tasks_had_the_same() -> None:
    gpus = [
        Device(model="NVIDIA L4", memory=24 * 10**9, index=index, uuid=f"GPU-{index}") for index in range(4)
    ]
    one = {"granted": Hardware(gpus=(gpus[0],)), "seen": Hardware(gpus=(gpus[0],))}
    three = Hardware(gpus=(gpus[0], gpus[1], gpus[3]))
    assert side_by_side([one])[-1] == ("–", "1 × NVIDIA L4 (0), 24 GB", "same", "–")
    several = side_by_side([{"granted": three, "seen": Hardware(gpus=())}])[-1]
    assert several == ("–", "3 × NVIDIA L4 (0-1,3), 24 GB each", "no GPU", "–")
    other = {"granted": Hardware(gpus=(gpus[1],)), "seen": Hardware(gpus=(gpus[1],))}
    assert side_by_side([one, other])[-1] == ("–", "1 × NVIDIA L4, 24 GB", "same", "–")


def test_that_there_is_no_gpu_is_no_news_where_none_was_asked_for() -> None:
    nothing = Hardware(cpu_count=1, gpus=())
    assert side_by_side([{"asked": Hardware(), "granted": nothing, "seen": nothing}]) == [
        ("–", "1 CPU", "1 CPU", "–")
    ]
    asked = Hardware.asked(ResourceSettings(gpu_count=0))
    assert side_by_side([{"asked": asked, "seen": nothing}])[-1] == ("no GPU", "–", "no GPU", "–")


def test_a_grant_in_half_a_line() -> None:
    assert brief(Hardware(cpu_count=2, memory=4_000_000_000, gpus=())) == "2 CPU · 4 GB · no GPU"
    assert brief(None) == ""


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("ml/train@sha256:" + "9b74c9897bac" * 5 + "0000", "ml/train@sha256:9b74c9897bac"),
        ("sha256:" + "9b74c9897bac" * 5 + "0000", "sha256:9b74c9897bac"),
        ("ml/train:latest", "ml/train:latest"),
    ],
)
def test_an_image_is_told_from_others_by_the_beginning_of_its_digest(reference: str, words: str) -> None:
    assert human.short_image(reference) == words
