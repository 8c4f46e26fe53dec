"""``python -m benchmarks [--only NAME …] [--quick]``: measure, and write ``docs/benchmarks.md``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs

from benchmarks import array, chain, fan_out, install, profile, reuse, startup
from benchmarks.harness import Effort, Report, Row
from benchmarks.page import chart, figure, page

MEASUREMENTS = {
    "chain": chain.measure,
    "profile": profile.measure,
    "fan_out": fan_out.measure,
    "reuse": reuse.measure,
    "array": array.measure,
    "startup": startup.measure,
    "install": install.measure,
}
DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "benchmarks.json"
"""What was measured last, so that one measurement can be repeated alone."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="rough figures, nothing is written")
    options = parser.parse_args()

    entries: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in options.only:
        began, load = time.perf_counter(), os.getloadavg()[0]
        report = MEASUREMENTS[name](Effort(quick=options.quick))
        _print(report, time.perf_counter() - began)
        entries[name] = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "machine": f"{_machine()}, load {load:.1f} before",
            "report": attrs.asdict(report),
        }
        if not options.quick:
            _write({name: entries[name] for name in MEASUREMENTS if name in entries})


def _write(entries: dict[str, Any]) -> None:
    KEPT.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    reports = {name: {**entry, "report": _report(entry["report"])} for name, entry in entries.items()}
    (DOCS / "benchmarks.md").write_text(page(reports), encoding="utf-8")
    rows = [row for entry in reports.values() for row in entry["report"].rows]
    (DOCS / "benchmarks.svg").write_text(chart(rows), encoding="utf-8")


def _print(report: Report, seconds: float) -> None:
    print(f"\n{report.title}   ({seconds:.0f} s)")
    for row in report.rows:
        verdict = {None: "", True: "reached", False: "MISSED"}[row.met]
        print(f"  {row.what:<72} {figure(row.value):>8} {row.unit:<8} {verdict}", flush=True)


def _report(fields: dict[str, Any]) -> Report:
    return Report(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})


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


if __name__ == "__main__":
    main()
