"""A 1 GiB array from one step to the next."""

from __future__ import annotations

import statistics

from benchmarks.harness import Effort, Report, Row, fresh_home, program

GIB = 1 << 30


def measure(effort: Effort) -> Report:
    """Seconds from the producer's return to the consumer's first line, and the memory of both."""
    size, rounds = effort.size(GIB) // 8 * 8, effort.rounds(5)
    found = []
    for seed in range(rounds):
        with fresh_home() as home:
            found.append(program("pass_on", str(size), str(seed), home=home))
    middle = {key: statistics.median(f[key] for f in found) for key in found[0]}
    return Report(
        title="A 1 GiB array from one step to the next",
        how=f"Random 64-bit integers, {size:,} bytes, {rounds} rounds, each with an empty home, another "
        "seed, and both floors in the same process, onto the same file system, before the run. The time goes "
        "from the last line of the producer to the first line of the consumer: saving, hashing, recording, "
        "scheduling, starting the next process, mapping. Memory is the peak of the record `used`. The "
        "consumer reads the whole array.",
        rows=[
            Row(what="floor: np.save", value=middle["save"], unit="s"),
            Row(what="floor: blake3, one thread", value=middle["hash"], unit="s"),
            Row(
                what="producer's return to consumer's first line (target: 2 × np.save + blake3)",
                value=middle["pass"],
                unit="s",
                target=2 * middle["save"] + middle["hash"],
            ),
            Row(
                what="producer's peak memory ÷ array (target: 1.1)",
                value=middle["producer"] / size,
                unit="×",
                target=1.1,
            ),
            Row(
                what="consumer's memory that is not the mapped file ÷ array",
                value=middle["consumer"] / size,
                unit="×",
                target=0.1,
            ),
        ],
    )
