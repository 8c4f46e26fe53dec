"""Word stems of a text: the step that needs a package of its own runs in a container that has it.

    upshift image show examples/stems/pipeline.py
    upshift run examples/stems/pipeline.py

Docker has to be there; for Podman write on="podman". The image is built once, from the official slim Python
of the version that runs here. Nothing of this file is in it: edit it, and the next run builds nothing.
"""

import re
from collections import Counter
from pathlib import Path

from upshift import DockerSettings, ResourceSettings, pipeline, step

STEMMER = DockerSettings(requirements=["snowballstemmer==3.1.1"])


@step
def words(text: Path) -> list[str]:
    return re.findall(r"[a-z]{5,}", text.read_text(encoding="utf-8").lower())


@step(on="docker", settings={"docker": STEMMER, "resources": ResourceSettings(cpu_count=1, memory="500MB")})
def count_stems(words: list[str]) -> dict[str, int]:
    import snowballstemmer

    print(f"stemming {len(words):,} words")
    return dict(Counter(snowballstemmer.stemmer("english").stemWords(words)))


@step
def most_common(counts: dict[str, int], n: int) -> list[str]:
    return [f"{stem} {count}" for stem, count in Counter(counts).most_common(n)]


@pipeline
def stems(text: Path = Path(__file__).parents[2] / "LICENSE", n: int = 5) -> list[str]:
    return most_common(count_stems(words(text)), n)
