"""``python -m benchmarks [--only NAME …] [--quick]``: measure, and write ``docs/benchmarks.md``."""

from __future__ import annotations

import argparse
import time

import attrs

from benchmarks import (
    array,
    buckets,
    chain,
    clouds,
    container,
    fan_out,
    flow,
    images,
    install,
    kept,
    launch,
    profile,
    report,
    reuse,
    sampling,
    slurm,
    startup,
)
from benchmarks.harness import Effort, Report
from benchmarks.page import figure

MEASUREMENTS = {
    "chain": chain.measure,
    "profile": profile.measure,
    "sampling": sampling.measure,
    "fan_out": fan_out.measure,
    "flow": flow.measure,
    "reuse": reuse.measure,
    "report": report.measure,
    "array": array.measure,
    "buckets": buckets.measure,
    "startup": startup.measure,
    "install": install.measure,
    "images": images.measure,
    "container": container.measure,
    "mapped-containers": container.measure_mapped,
    "launch": launch.measure,
    "slurm": slurm.measure,
    "clouds": clouds.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="rough figures, nothing is written")
    parser.add_argument(
        "--page", action="store_true", help="write the page from what is kept, and measure nothing"
    )
    options = parser.parse_args()
    if options.page:
        kept.render()
        return

    entries = kept.read(kept.OURS)
    for name in options.only:
        circumstances = kept.circumstances()
        began = time.perf_counter()
        found = MEASUREMENTS[name](Effort(quick=options.quick))
        _print(found, time.perf_counter() - began)
        entries[name] = {**circumstances, "report": attrs.asdict(found)}
        if not options.quick:
            kept.write(kept.OURS, {name: entries[name] for name in MEASUREMENTS if name in entries})


def _print(report: Report, seconds: float) -> None:
    print(f"\n{report.title}   ({seconds:.0f} s)")
    for row in report.rows:
        verdict = {None: "", True: "reached", False: "MISSED"}[row.met]
        print(f"  {row.what:<72} {figure(row.value):>8} {row.unit:<8} {verdict}", flush=True)


if __name__ == "__main__":
    main()
