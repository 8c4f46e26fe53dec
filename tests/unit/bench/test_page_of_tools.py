"""The page about other tools is made of what is kept, so it can be written again without measuring."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept
from benchmarks.__main__ import MEASUREMENTS
from benchmarks.peers.chart import chart
from benchmarks.peers.page import section

ABSENT = {"values": [], "of": "", "failed": False}
SVG = "{http://www.w3.org/2000/svg}"


def values(*of_rounds: float, of: str = "") -> dict[str, Any]:
    return {"values": list(of_rounds), "of": of, "absent": "", "failed": False}


@pytest.fixture
def measured() -> dict[str, Any]:
    return {
        "tools": {
            "upshift": {"packages": {"upshift": "0.1.0"}},
            "zenml": {"packages": {"zenml": "0.98.0"}},
            "metaflow": {"packages": {}},
            "no-longer-compared": {"packages": {}},
        },
        "measures": {
            "chain": {
                "date": "2026-11-21",
                "machine": "2 cores",
                "found": {
                    "step": {
                        "upshift": values(0.007, 0.006, 0.02, of="100 steps"),
                        "zenml": values(0.16, of="30 steps"),
                        "metaflow": {**ABSENT, "absent": "OSError: `x` is gone", "failed": True},
                        "no-longer-compared": values(1.0),
                    },
                    "hit": {
                        "upshift": values(0.0002, 0.0003, 0.0004),
                        "zenml": values(0.03),
                        "metaflow": {**ABSENT, "absent": "none"},
                    },
                },
            }
        },
    }


def table_row(text: str, title: str, after: str) -> list[str]:
    lines = text[text.index(after) :].splitlines()
    row = next(line for line in lines if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_overview_has_medians_and_says_what_failed_or_is_not_there(measured: dict[str, Any]) -> None:
    text = section(measured)
    assert table_row(text, "Upshift", "| | step, ms |") == ["Upshift", "7", "0.3"]
    assert table_row(text, "ZenML", "| | step, ms |") == ["ZenML", "160", "30"]
    assert table_row(text, "Metaflow", "| | step, ms |") == ["Metaflow", "failed", "none"]
    assert "no-longer-compared" not in text


def test_each_figure_has_its_spread_how_it_was_measured_and_errors(measured: dict[str, Any]) -> None:
    text = section(measured)
    heading = "### One more trivial step"
    assert table_row(text, "Upshift", heading) == [
        "Upshift",
        "100 steps",
        "7 ms (6 to 20)",
        "0.3 ms (0.2 to 0.4)",
        "3",
    ]
    assert table_row(text, "ZenML", heading) == ["ZenML", "30 steps", "160 ms", "30 ms", "1"]
    assert "2026-11-21, 2 cores." in text
    assert "÷ (N − 1)" in text
    assert "Metaflow: `OSError: 'x' is gone`" in text
    assert table_row(text, "ZenML", "The tools do not do the same")[1] == "0.98.0"


def test_the_chart_is_in_order_of_values(measured: dict[str, Any]) -> None:
    root = ET.fromstring(chart(measured))
    panel = root.findall(f"{SVG}g")[0]
    ours, zenml = (float(dot.attrib["cx"]) for dot in panel.findall(f"{SVG}circle"))
    assert ours < zenml
    said = [text.text for text in panel.findall(f"{SVG}text")]
    assert "7 ms" in said
    assert "160 ms" in said
    assert said[-2:] == ["Metaflow", "failed"]


def test_a_figure_of_nothing_can_be_drawn(measured: dict[str, Any]) -> None:
    found = measured["measures"]["chain"]["found"]
    found["step"] = {"upshift": values(0.0), "zenml": values(-0.001)}
    found["hit"] = {"metaflow": {**ABSENT, "absent": "does not install", "failed": True}}
    ET.fromstring(chart(measured))
    assert section(measured).count("below the noise") >= 2


def test_measuring_upshift_alone_keeps_the_other_tools(measured: dict[str, Any], tmp_path: Path) -> None:
    entry = {
        "date": "2026-11-21",
        "machine": "2 cores",
        "report": {
            "title": "Starting",
            "how": "Somehow.",
            "rows": [{"what": "a", "value": 1.0, "unit": "s", "target": 2.0, "at_least": False}],
        },
    }
    kept.write(kept.OURS, {"startup": entry}, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "## Starting" in page
    assert "other tools" not in page

    kept.write(kept.PEERS, measured, tmp_path)
    both = (tmp_path / "benchmarks.md").read_text()
    assert both.startswith(page)
    assert "## Beside other tools" in both
    assert (tmp_path / "benchmarks-peers.svg").exists()

    kept.write(kept.OURS, {"startup": entry}, tmp_path)
    assert (tmp_path / "benchmarks.md").read_text() == both


def test_the_page_is_the_one_that_is_kept(tmp_path: Path) -> None:
    for name in (kept.OURS, kept.PEERS):
        if (kept.DOCS / name).exists():
            (tmp_path / name).write_text((kept.DOCS / name).read_text())
    kept.render(tmp_path)
    for file in tmp_path.glob("benchmarks*"):
        assert file.read_text() == (kept.DOCS / file.name).read_text(), (
            "python -m benchmarks --page writes it"
        )


def test_every_measurement_of_the_kept_file_is_known() -> None:
    measured = list(json.loads((kept.DOCS / kept.OURS).read_text()))
    assert measured and measured == [name for name in MEASUREMENTS if name in measured], (
        "python -m benchmarks --only NAME writes them in this order; one of them may not be measured yet"
    )
    assert re.match(r"# Benchmarks\n", (kept.DOCS / "benchmarks.md").read_text())
