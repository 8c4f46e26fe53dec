"""``python -m benchmarks.peers``: measure Upshift and other tools, and write ``docs/benchmarks.md``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from benchmarks import kept
from benchmarks.harness import Effort
from benchmarks.peers.measures import MEASURES, Comparison, Measure, compare
from benchmarks.peers.page import shown
from benchmarks.peers.places import Place
from benchmarks.peers.tools import TOOLS, Tool


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument(
        "--peers",
        type=_tools,
        metavar="NAME,…",
        help=f"some of {', '.join(TOOLS)}; nothing is written",
    )
    parser.add_argument("--rounds", type=int, help="of each measure, instead of what it usually has")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round; nothing is written")
    options = parser.parse_args()

    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    writes = not options.quick and not options.peers
    entries = kept.read(kept.PEERS) if writes else {}
    entries.setdefault("measures", {})
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        places = [Place(tool, Path(folder)) for tool in options.peers or TOOLS.values()]
        for place in places:
            place.prepare()
            say(f"{place.tool.name}: {place.failure or 'is installed and runs'}")
        entries["tools"] = {place.tool.name: {"packages": place.packages} for place in places}
        for name in options.only:
            measure, circumstances = MEASURES[name], kept.circumstances()
            rounds = options.rounds or (1 if options.quick else measure.rounds)
            found = compare(measure, places, Effort(quick=options.quick), rounds, say)
            _print(measure, found)
            entries["measures"][name] = {**circumstances, "found": _plain(found)}
            if writes:
                kept.write(kept.PEERS, entries)


def _tools(names: str) -> list[Tool]:
    chosen = names.split(",")
    unknown = [name for name in chosen if name not in TOOLS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(TOOLS)}")
    return [tool for name, tool in TOOLS.items() if name in chosen]


def _plain(found: Comparison) -> dict[str, Any]:
    return {
        figure: {tool: attrs.asdict(one) for tool, one in tools.items()} for figure, tools in found.items()
    }


def _print(measure: Measure, found: Comparison) -> None:
    for figure in measure.figures:
        print(f"\n{figure.title}")
        for name, one in found[figure.name].items():
            said = one.absent if one.median is None else shown(figure, one.median)
            print(f"  {TOOLS[name].title:<24} {said:>16}  {one.of}", flush=True)


if __name__ == "__main__":
    main()
