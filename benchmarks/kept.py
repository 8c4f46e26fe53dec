"""What was measured last, kept as JSON beside the page that is made of it.

So one measurement can be repeated alone, and the page be written again without measuring.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.harness import Report, Row
from benchmarks.peers import chart as peers_chart
from benchmarks.peers import page as peers_page

DOCS = Path(__file__).parents[1] / "docs"
OURS = "benchmarks.json"
PEERS = "benchmarks-peers.json"


def read(name: str, docs: Path = DOCS) -> dict[str, Any]:
    """What one of the two files has; empty if it is not there."""
    file = docs / name
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return kept


def write(name: str, entries: Mapping[str, Any], docs: Path = DOCS) -> None:
    """Keep what was measured, and write the page anew."""
    text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
    (docs / name).write_text(text, encoding="utf-8")
    render(docs)


def render(docs: Path = DOCS) -> None:
    """Write the page and its charts from what is kept."""
    entries = read(OURS, docs)
    reports = {name: {**entry, "report": _report(entry["report"])} for name, entry in entries.items()}
    rows = [row for entry in reports.values() for row in entry["report"].rows]
    (docs / "benchmarks.svg").write_text(page.chart(rows), encoding="utf-8")
    text = page.page(reports)
    peers = read(PEERS, docs)
    if peers:
        text += "\n" + peers_page.section(peers)
        (docs / "benchmarks-peers.svg").write_text(peers_chart.chart(peers), encoding="utf-8")
    (docs / "benchmarks.md").write_text(text, encoding="utf-8")


def circumstances() -> dict[str, str]:
    """``date`` and ``machine``, as they are just before measuring."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": f"{_machine()}, load {os.getloadavg()[0]:.1f} before",
    }


def _machine() -> str:
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return (
        f"{os.cpu_count()} cores of {model}, {platform.system()} {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def _report(fields: dict[str, Any]) -> Report:
    return Report(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})
