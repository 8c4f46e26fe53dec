"""Flows made up at random come to what their shapes mean, whatever fails on the way."""

from __future__ import annotations

import random
from typing import Any

import pytest

import upshift
from project import Project

Sequence_ = list[tuple[Any, ...]]


class MadeUp:
    """A flow made up from a seed: its code, and what it comes to.

    Each step adds its name to ``self.trace``, in a foreach with its item; a join puts the traces that it
    joins into a list.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self._methods: list[str] = []
        self._failing: str | None = None
        self.shape = self._sequence(2)

    def code(self) -> str:
        """The file."""
        first = self._write(self.shape, "end")
        names = [line.split("(")[0].removeprefix("def ") for line in self._methods]
        self._failing = self._random.choice(names)
        flaky = set(self._random.sample(names, k=min(3, len(names))))
        body = []
        for name, text in zip(names, self._methods, strict=True):
            retry = "    @retry(times=1, minutes_between_retries=0)\n" if name in flaky else ""
            retry += "    @parallel\n" if name.endswith("_node") else ""
            lines = text.replace("#", f"fail({name!r}, {name in flaky})").split("\n")
            body.append(f"{retry}    @step\n" + "\n".join(f"    {line}" for line in lines))
        return (
            f"""
import os

def fail(name, flaky):
    if flaky and current.attempt == 1:
        raise ValueError("an attempt")
    if name == {self._failing!r} and not os.path.exists("mended"):
        raise ValueError("not mended")

class MadeUp(FlowSpec):
    @step
    def start(self):
        self.trace = []
        self.next(self.{first})

"""
            + "\n".join(body)
            + "\n\n    @step\n    def end(self):\n        pass\n"
        )

    def expected(self) -> list[Any]:
        """What ``self.trace`` is in the end."""
        return self._done(self.shape, [], None)

    def _sequence(self, depth: int) -> Sequence_:
        return [self._element(depth) for _ in range(self._random.randint(1, 2))]

    def _element(self, depth: int) -> tuple[Any, ...]:
        kinds = ["step", "loop", "nodes"] + ["split", "foreach", "foreach", "switch"] * (depth > 0)
        kind = self._random.choice(kinds)
        self._count += 1
        name = f"{kind}{self._count}"
        if kind == "step":
            return kind, name
        if kind in ("loop", "nodes"):
            return kind, name, self._random.randint(1, 3)
        if kind == "foreach":
            return kind, name, self._random.randint(0, 3), self._sequence(depth - 1)
        branches = [self._sequence(depth - 1) for _ in range(2)]
        if kind == "split":
            return kind, name, branches
        return kind, name, self._random.randint(0, 1), branches

    def _write(self, sequence: Sequence_, after: str) -> str:
        for element in reversed(sequence):
            after = self._write_one(element, after)
        return after

    def _write_one(self, element: tuple[Any, ...], after: str) -> str:
        kind, name, *rest = element
        said = "self.trace = [*self.trace, NAME if self.input is None else (NAME, self.input)]"
        head = f"def {name}(self):\n    #\n    {said.replace('NAME', repr(name))}\n"
        join = (
            f"def {name}_join(self, inputs):\n    #\n    self.trace = [[i.trace for i in inputs], {name!r}]\n"
        )
        if kind == "step":
            self._methods.append(f"{head}    self.next(self.{after})")
        elif kind == "loop":
            self._methods.append(
                f"{head}    self.n_{name} = getattr(self, 'n_{name}', 0) + 1\n"
                f"    self.more = self.n_{name} < {rest[0]}\n"
                f'    self.next({{True: self.{name}, False: self.{after}}}, condition="more")'
            )
        elif kind == "nodes":
            self._methods.append(f"{head}    self.next(self.{name}_node, num_parallel={rest[0]})")
            node = head.replace(f"def {name}", f"def {name}_node")
            self._methods.append(f"{node}    self.next(self.{name}_join)")
            self._methods.append(f"{join}    self.next(self.{after})")
        elif kind == "foreach":
            inner = self._write(rest[1], f"{name}_join")
            self._methods.append(
                f"{head}    self.xs = list(range({rest[0]}))\n    self.next(self.{inner}, foreach='xs')"
            )
            self._methods.append(f"{join}    self.next(self.{after})")
        elif kind == "split":
            inner = ", ".join(f"self.{self._write(branch, f'{name}_join')}" for branch in rest[0])
            self._methods.append(f"{head}    self.next({inner})")
            self._methods.append(f"{join}    self.next(self.{after})")
        else:
            cases = ", ".join(f"{n}: self.{self._write(case, after)}" for n, case in enumerate(rest[1]))
            self._methods.append(
                f'{head}    self.case = {rest[0]}\n    self.next({{{cases}}}, condition="case")'
            )
        return str(name)

    def _done(self, sequence: Sequence_, trace: list[Any], item: int | None) -> list[Any]:
        for kind, name, *rest in sequence:
            own = name if item is None else (name, item)
            if kind == "step":
                trace = [*trace, own]
            elif kind == "loop":
                trace = [*trace, *([own] * rest[0])]
            elif kind == "nodes":
                trace = [*trace, own]
                trace = [[[*trace, (name, node)] for node in range(rest[0])], name]
            elif kind == "foreach":
                trace = [*trace, own]
                trace = [[self._done(rest[1], trace, number) for number in range(rest[0])], name]
            elif kind == "split":
                trace = [*trace, own]
                trace = [[self._done(branch, trace, item) for branch in rest[0]], name]
            else:
                trace = self._done(rest[1][rest[0]], [*trace, own], item)
        return trace


@pytest.mark.parametrize("seed", range(12))
def test_a_flow_comes_to_what_its_shape_means(project: Project, seed: int) -> None:
    made_up = MadeUp(seed)
    header = "from upshift import FlowSpec, current, parallel, retry, step\n"
    project.write(made_up.code(), "flow.py", header=header)
    first = project.upshift("run", "flow.py", expect=None)
    (project.folder / "mended").touch()
    if first.code:
        assert "not mended" in first.err
        project.upshift("resume", "latest")
    assert upshift.get_run("latest").output.trace == made_up.expected()
