"""The code that a step reaches in a project of many modules. Prints seconds as JSON.

``analysis.py FOLDER MODULES``: the project is made in the folder by the first call. What was kept of an
earlier call, in ``UPSHIFT_HOME``, counts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

MODULE = '''"""Module {i}."""

import math

{imports}

SCALE_{i} = {i}


def root_{i}(value):
    """The root of a value, scaled."""
    return math.sqrt(value) * SCALE_{i}
{functions}

class Model{i}:
    """Holds state."""

    def __init__(self, size=3):
        self.size = size

    def fit(self, values):
        self.mean = sum(work_{i}_0(value) for value in values) / len(values)
        return self

    def predict(self, value):
        return work_{i}_1(value) + self.mean


def all_{i}():
    Model{i}().fit([1, 2, 3]).predict(2)
{calls}
'''
FUNCTION = '''

def work_{i}_{k}(count, factor=2):
    """Work of kind {k}."""
    total = 0
    for number in range(count):
        if number % factor:
            total += number * factor + SCALE_{i}
        else:
            total -= root_{i}(number)
    return total
'''
PIPELINE = """from upshift import pipeline, step
from package.m0 import all_0


@step
def work() -> int:
    all_0()
    return 1


@pipeline
def example():
    return work()
"""


def write(folder: Path, modules: int) -> None:
    package = folder / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for i in range(modules):
        below = [j for j in (2 * i + 1, 2 * i + 2) if j < modules]  # a tree, so that imports nest little
        text = MODULE.format(
            i=i,
            imports="\n".join(f"from package.m{j} import Model{j}, all_{j}" for j in below),
            functions="".join(FUNCTION.format(i=i, k=k) for k in range(8)),
            calls="".join(f"    Model{j}()\n    all_{j}()\n" for j in below) or "    pass\n",
        )
        (package / f"m{i}.py").write_text(text)
    (folder / "steps.py").write_text(PIPELINE)


def main() -> None:
    folder, modules = Path(sys.argv[1]), int(sys.argv[2])
    if not folder.exists():
        write(folder, modules)
    sys.path.insert(0, str(folder))
    import steps  # type: ignore[import-not-found]

    from upshift.code.fingerprint import fingerprint

    began = time.perf_counter()
    pieces = fingerprint(steps.work.callee.function, folder)
    analysed = time.perf_counter() - began
    began = time.perf_counter()
    sources = sorted(folder.rglob("*.py"))
    for source in sources:
        compile(source.read_bytes(), str(source), "exec", 0x400)  # the syntax tree only
    parsed = time.perf_counter() - began
    assert len(pieces) > 5 * modules, "the step reaches every module"
    print(json.dumps({"analysed": analysed, "parsed": parsed, "pieces": len(pieces), "files": len(sources)}))


if __name__ == "__main__":
    main()
