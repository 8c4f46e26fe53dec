"""One more trivial step in a chain, and one more cache hit."""

from __future__ import annotations

from benchmarks.harness import Effort, Report, Row, fresh_home, program


def measure(effort: Effort) -> Report:
    """Thin, and in a process that has imported scikit-learn and pandas."""
    rows: list[Row] = []
    sizes: list[str] = []
    for label, heavy in (("thin", False), ("with scikit-learn and pandas", True)):
        length, rounds = max(20, effort.size(40 if heavy else 100)), effort.rounds(4 if heavy else 8)
        sizes.append(f"{label}: N = {length}, {rounds} rounds")
        with fresh_home() as home:
            found = program("chain", str(length), str(rounds), home=home, heavy=heavy)
        ms = {name: 1000 * value for name, value in found.items()}
        rows += [
            Row(what=f"floor: fork, exit, wait of the same process, {label}", value=ms["fork"], unit="ms"),
            Row(
                what=f"one more step, {label} (target: the fork + 5 ms)",
                value=ms["step"],
                unit="ms",
                target=ms["fork"] + 5,
            ),
        ]
        if not heavy:
            rows += [
                Row(what="floor: SQLite commit", value=ms["commit"], unit="ms"),
                Row(what="floor: write and rename a file", value=ms["rename"], unit="ms"),
                Row(what="one more cache hit", value=ms["hit"], unit="ms", target=1.0),
            ]
    return Report(
        title="One more trivial step in a chain",
        how="(seconds of a chain of N steps − seconds of a chain of 1) ÷ (N − 1), the two and the bare fork "
        f"of the same process in turns, medians ({'; '.join(sizes)}). Each step has its own "
        "process, its input and output are kept, its state is committed. The cache hits are the same chains "
        "once more.",
        rows=rows,
    )
