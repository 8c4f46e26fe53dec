"""Breaks a line of Upshift at a time, and counts how often the tests notice.

::

    python tests/mutations.py --seed 7 --count 60

Places are chosen at random, equally many from each room of ``src``. All tests run once with a mark at each
place, which writes down the tests that come by. Then each place is changed (a comparison turned round, a
call left out, …) and the quickest of its tests run until one fails. ``build/mutations`` keeps what became of
each change, and which tests come by: ``--again`` takes them from there.

``src`` is changed in place and put back, so it has to be clean. A broken Upshift may kill processes and
remove files that are not its own: run this where nothing else is.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import itertools
import json
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "upshift"
KEPT = ROOT / "build" / "mutations"
MARK = 'getattr(__import__("builtins"), "_reached", int)({number})\n'
"""What is written above a place: interpreters of other environments do not have the function."""
REACHED = """
import builtins, os

def _reached(number, _seen=set(), _variables=os.environ._data):
    test = _variables.get(b"PYTEST_CURRENT_TEST", b"").rpartition(b" ")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, b"%d %s\\n" % (number, test))
        os.close(file)

builtins._reached = _reached
"""
_OTHER: dict[type[ast.AST], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.And: "or", ast.Or: "and",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+",
    ast.BitOr: "&", ast.BitAnd: "|",
}  # fmt: skip


class Mutation(NamedTuple):
    """A change of one place: these bytes of a file, and what is there instead."""

    file: str
    line: int
    mark: int
    """The line above which a mark can be written."""
    start: int
    end: int
    new: str

    def __str__(self) -> str:
        old = (ROOT / self.file).read_bytes()[self.start : self.end].decode()
        return f"{self.file}:{self.line}: {' '.join(old.split())[:60]} → {' '.join(self.new.split())[:60]}"

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """The file has it."""
        with replaced({self.file: self._apply((ROOT / self.file).read_bytes())}):
            yield

    def _apply(self, content: bytes) -> bytes:
        return content[: self.start] + self.new.encode() + content[self.end :]


class Places(ast.NodeVisitor):
    """Finds what can be changed in the functions of a file."""

    def __init__(self, file: Path) -> None:
        self.found: list[Mutation] = []
        self._file = str(file.relative_to(ROOT))
        self._content = file.read_bytes()
        self._lines = [0, *itertools.accumulate(map(len, self._content.splitlines(keepends=True)))]
        self._mark = 0
        self._within = 0
        self.visit(ast.parse(self._content))

    def visit(self, node: ast.AST) -> None:
        outer = self._mark
        if isinstance(node, ast.stmt) and self._is_first(node):
            self._mark = node.lineno
        if self._within and self._mark:
            self._change(node)
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self._within += function
        for child in node.body if function else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
            self.visit(child)
        self._within -= function
        self._mark = outer

    def _is_first(self, node: ast.stmt) -> bool:
        """Whether a line can be written above it."""
        before = self._content[self._lines[node.lineno - 1] : self._start(node)]
        return not before.strip() and not self._text(node).startswith("elif")

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._content[self._start(node) : self._end(node)].decode()

    def _change(self, node: ast.AST) -> None:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                self._operator(left, operator, right)
            case ast.BoolOp(op=operator, values=[left, right]):
                self._operator(left, operator, right)
            case ast.BinOp(left=left, op=operator, right=right):
                self._operator(left, operator, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._put(node, self._text(operand))
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                self._put(test, f"(not ({self._text(test)}))")
            case ast.Constant(value=bool(value)):
                self._put(node, str(not value))
            case ast.Constant(value=int(value)):
                self._put(node, str(value + 1))
            case ast.Return(value=ast.expr() as value) if self._text(value) != "None":
                self._put(value, "None")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete() | ast.AugAssign():
                self._put(node, "pass")
            case ast.Break():
                self._put(node, "continue")
            case ast.Continue():
                self._put(node, "break")

    def _operator(self, left: ast.expr, operator: ast.AST, right: ast.expr) -> None:
        between = self._content[self._end(left) : self._start(right)].decode()
        if type(operator) in _OTHER and "(" not in between and ")" not in between and "#" not in between:
            self._add(self._end(left), self._start(right), f" {_OTHER[type(operator)]} ", right.lineno)

    def _put(self, node: ast.expr | ast.stmt, new: str) -> None:
        self._add(self._start(node), self._end(node), new, node.lineno)

    def _add(self, start: int, end: int, new: str, line: int) -> None:
        change = Mutation(self._file, line, self._mark, start, end, new)
        with contextlib.suppress(SyntaxError):  # in an f-string, Python before 3.12 does not know where it is
            ast.parse(change._apply(self._content))
            self.found.append(change)


@contextlib.contextmanager
def replaced(contents: dict[str, bytes]) -> Iterator[None]:
    """These files of the repository have these contents."""
    before = {name: (ROOT / name).read_bytes() for name in contents}
    try:
        for name, content in contents.items():
            (ROOT / name).write_bytes(content)
        yield
    finally:
        for name, content in before.items():
            (ROOT / name).write_bytes(content)


def chosen(seed: int, count: int) -> list[Mutation]:
    """As many places of each room, at random."""
    chance = random.Random(seed)
    rooms: dict[str, list[Mutation]] = collections.defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        room = file.relative_to(SOURCE).parts[:-1][:1]
        rooms["".join(room)] += Places(file).found
    for places in rooms.values():
        chance.shuffle(places)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*rooms.values()))
    return list(itertools.islice(filter(None, in_turn), count))


def come_by(mutations: list[Mutation]) -> dict[int, list[str]]:
    """Run all tests; the tests that reach each place."""
    contents = {mutation.file: (ROOT / mutation.file).read_bytes() for mutation in mutations}
    for file in contents:
        lines = contents[file].splitlines(keepends=True)
        here = [(mutation.mark, number) for number, mutation in enumerate(mutations) if mutation.file == file]
        for line, number in sorted(here, reverse=True):
            above = lines[line - 1]
            indent = above[: len(above) - len(above.lstrip())]
            lines.insert(line - 1, indent + MARK.format(number=number).encode())
        contents[file] = b"".join(lines)
    reached = KEPT / "reached.txt"
    reached.unlink(missing_ok=True)
    start = Path(sysconfig.get_path("purelib"), "upshift_mutations.pth")  # read when an interpreter starts
    program = KEPT / "reached.py"
    program.write_text(REACHED.format(path=str(reached)))
    start.write_text(f"import runpy; runpy.run_path({str(program)!r})\n")
    try:
        with replaced(contents):
            subprocess.run([sys.executable, "tests/side_by_side.py"], cwd=ROOT)
    finally:
        start.unlink()
    found: dict[int, list[str]] = collections.defaultdict(list)
    for line in sorted(set(reached.read_text().splitlines())):
        number, _, test = line.partition(" ")
        found[int(number)].append(test)
    return found


def noticed(mutation: Mutation, tests: list[str], seconds: dict[str, float], longest: float) -> str | None:
    """The test that fails for a change; None: none of those that take ``longest`` seconds together."""
    quickest = sorted(tests, key=lambda test: seconds.get(test, 1.0))
    times = itertools.accumulate(seconds.get(test, 1.0) for test in quickest)
    run = [test for test, time in zip(quickest, times, strict=True) if time <= longest] or quickest[:1]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *run]
    with mutation.made():
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 + 5 * longest)
        except subprocess.TimeoutExpired:
            return "a test that did not end"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else f"pytest ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument(
        "--longest", type=float, default=60.0, help="seconds that the tests of one place may take"
    )
    parser.add_argument("--list", action="store_true", help="only show the changes")
    parser.add_argument("--again", action="store_true", help="which tests come by is known")
    asked = parser.parse_args()
    mutations = chosen(asked.seed, asked.count)
    if asked.list:
        print(*mutations, sep="\n")
        return 0
    if subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True).stdout:
        sys.exit("src has changes: commit them first.")
    KEPT.mkdir(parents=True, exist_ok=True)
    known = KEPT / f"tests-{asked.seed}.json"
    if not asked.again:
        known.write_text(json.dumps(come_by(mutations)))
    tests: dict[str, list[str]] = json.loads(known.read_text())
    seconds = json.loads((ROOT / "build" / "tests" / "seconds.json").read_text())
    counts: collections.Counter[str] = collections.Counter()
    with open(KEPT / f"results-{asked.seed}.txt", "w") as results:
        for number, mutation in enumerate(mutations):
            by = tests.get(str(number), [])
            test = noticed(mutation, by, seconds, asked.longest) if by else None
            end = "noticed" if test else "unnoticed" if by else "no test comes by"
            counts[end] += 1
            line = f"{end}: {mutation}{f' ({test})' if test else f', {len(by)} tests'}"
            print(line, flush=True)
            print(line, file=results, flush=True)
        total = f"seed {asked.seed}: " + ", ".join(f"{counts[end]} {end}" for end in sorted(counts))
        print(total)
        print(total, file=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
