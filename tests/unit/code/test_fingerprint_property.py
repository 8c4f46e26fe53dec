"""Random projects, random edits: other output, other fingerprint; a mere rewriting, the same one."""

from __future__ import annotations

import contextlib
import decimal
import random
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fingerprint_projects import Project, fresh_project

MODULES = 4


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("UPSHIFT_HOME", str(Path(folder) / "home"))
        yield from fresh_project(Path(folder), patch)


@attrs.frozen
class Part:
    """A function ``f{n}`` of one module, that takes and gives an integer, made in one of many ways.

    ``numbers`` are the integers written in it; ``target`` is the function that it calls, if any.
    """

    name: str
    module: int
    form: str
    how: str
    numbers: tuple[int, int]
    target: Part | None


# A definition of NAME; CALL is an expression that calls the target with x; A and B are the numbers.
FORMS = {
    "plain": """
        def NAME(x):
            return CALL + A * x + B
    """,
    "constant": """
        K_NAME = A
        def NAME(x):
            return CALL + K_NAME * x + B
    """,
    "container": """
        K_NAME = {'a': [A, (B,)]}
        def NAME(x):
            return CALL + K_NAME['a'][0] + K_NAME['a'][1][0]
    """,
    "computed": """
        def make_NAME():
            return A
        K_NAME = make_NAME()
        def NAME(x):
            return CALL + K_NAME + B
    """,
    "mutated": """
        K_NAME = {}
        K_NAME['a'] = A
        def NAME(x):
            return CALL + K_NAME['a'] + B
    """,
    "default": """
        def NAME(x, y=A, *, z=B):
            return CALL + y * x + z
    """,
    "closure": """
        def make_NAME(y):
            def inner(x):
                return CALL + y * x + B
            return inner
        NAME = make_NAME(A)
    """,
    "nested": """
        def NAME(x):
            def inner(y):
                return y * A + B
            return inner(CALL)
    """,
    "lambda": """
        NAME = lambda x: CALL + A * x + B
    """,
    "comprehension": """
        def NAME(x):
            return sum(CALL + A for x in range(3)) + B
    """,
    "decorated": """
        import functools
        def deco_NAME(f):
            @functools.wraps(f)
            def wrapper(x):
                return f(x) + A
            return wrapper
        @deco_NAME
        def NAME(x):
            return CALL + B * x
    """,
    "decorated without wraps": """
        def add_NAME(n):
            def deco(f):
                return lambda x: f(x) + n
            return deco
        @add_NAME(A)
        def NAME(x):
            return CALL + B * x
    """,
    "partial": """
        import functools
        def base_NAME(n, x):
            return CALL + n * x + B
        NAME = functools.partial(base_NAME, A)
    """,
    "class": """
        class Base_NAME:
            rate = A
            def value(self, x):
                return CALL + self.rate
        class C_NAME(Base_NAME):
            def total(self, x):
                return self.value(x) + B
        def NAME(x):
            return C_NAME().total(x)
    """,
    "property": """
        class C_NAME:
            @property
            def p(self):
                return A
            @staticmethod
            def s(x):
                return CALL + B
        def NAME(x):
            return C_NAME().p + C_NAME.s(x)
    """,
    "dataclass": """
        import dataclasses
        @dataclasses.dataclass
        class C_NAME:
            a: int = A
            b: list = dataclasses.field(default_factory=lambda: [B])
        def NAME(x):
            return CALL + C_NAME().a + C_NAME().b[0]
    """,
    "instance": """
        class C_NAME:
            def __init__(self, n):
                self.n = n
            def __call__(self, x):
                return CALL + self.n + B
        NAME = C_NAME(A)
    """,
    "method": """
        class C_NAME:
            def __init__(self, n):
                self.n = n
            def m(self, x):
                return CALL + self.n + B
        NAME = C_NAME(A).m
    """,
    "registry": """
        R_NAME = {}
        def register_NAME(f):
            R_NAME['f'] = f
            return f
        @register_NAME
        def hidden_NAME(x):
            return CALL + A * x + B
        def NAME(x):
            return R_NAME['f'](x)
    """,
    "dispatch": """
        import functools
        @functools.singledispatch
        def NAME(x):
            return A
        @NAME.register
        def _(x: int):
            return CALL + A * x + B
    """,
    "branch": """
        if A > 0:
            def NAME(x):
                return CALL + B
        else:
            def NAME(x):
                return CALL - B
    """,
    "global": """
        G_NAME = A
        def bump_NAME():
            global G_NAME
            G_NAME = G_NAME * 2 + B
            return G_NAME
        def NAME(x):
            return CALL + bump_NAME()
    """,
    "dynamic": """
        globals()['hid' + 'den_NAME'] = lambda x: x + A
        def NAME(x):
            return CALL + hidden_NAME(x) + B
    """,
    "function attribute": """
        def NAME(x):
            return CALL + NAME.threshold * x + B
        NAME.threshold = A
    """,
    "cached": """
        import functools
        @functools.lru_cache(maxsize=None)
        def NAME(x):
            return CALL + A * x + B
    """,
    "context": """
        import contextvars
        V_NAME = contextvars.ContextVar('V_NAME', default=A)
        def NAME(x):
            return CALL + V_NAME.get() + B
    """,
    "weak": """
        import weakref
        class C_NAME:
            def __init__(self, n):
                self.n = n
        HELD_NAME = C_NAME(A)
        W_NAME = weakref.WeakValueDictionary(a=HELD_NAME)
        def NAME(x):
            return CALL + W_NAME['a'].n + B
    """,
    "lambdas on a line": """
        u_NAME, v_NAME = (lambda x: x + A), (lambda x: x + B)
        def NAME(x):
            return CALL + 2 * u_NAME(x) + v_NAME(x)
    """,
    "subclass": """
        class Base_NAME:
            known = {}
            def __init_subclass__(cls): Base_NAME.known[cls.__name__] = cls
        class C_NAME(Base_NAME):
            def value(self, x):
                return CALL + A
        def NAME(x):
            return Base_NAME.known['C_' + 'NAME']().value(x) + B
    """,
    "metaclass": """
        class Meta_NAME(type):
            known = {}
            def __init__(cls, *args):
                super().__init__(*args)
                Meta_NAME.known[cls.__name__] = cls
        class C_NAME(metaclass=Meta_NAME):
            def value(self, x):
                return CALL + A
        def NAME(x):
            return Meta_NAME.known['C_' + 'NAME']().value(x) + B
    """,
    "made class": """
        import dataclasses
        C_NAME = dataclasses.make_dataclass('C_NAME', [('a', int, A)])
        def NAME(x):
            return CALL + C_NAME().a + B
    """,
    "query": """
        import pandas
        Q_NAME = A
        def NAME(x):
            return CALL + len(pandas.DataFrame({'a': range(-5, 6)}).query('a > @Q_NAME')) + B
    """,
    "late registry": """
        R_NAME = {}
        def fill_NAME():
            R_NAME['f'] = lambda x: CALL + A * x
        def NAME(x):
            fill_NAME()
            return R_NAME['f'](x) + B
    """,
    "evaluated": """
        def used_NAME(x):
            return A * x + B
        def NAME(x):
            return CALL + eval('used_NAME(x)', globals(), {'x': x})
    """,
}
# Ways in which one function calls another: what is written at the top of the module, and the call.
WAYS = {
    "module": ("import mM", "mM.TARGET(x)"),
    "name": ("from mM import TARGET", "TARGET(x)"),
    "alias": ("from mM import TARGET as t_TARGET", "t_TARGET(x)"),
    "star": ("from mM import *", "TARGET(x)"),
    "module alias": ("import mM as alias_mM", "alias_mM.TARGET(x)"),
    "inside": ("", "__import__('mM').TARGET(x)"),
    "literal": ("import importlib", "importlib.import_module('mM').TARGET(x)"),
    "getattr": ("import mM", "getattr(mM, 'f' + 'NUMBER')(x)"),
    "computed": ("import importlib", "importlib.import_module('m' + 'M').TARGET(x)"),
    "value": ("import mM\ndef of_TARGET(m, x):\n    return m.TARGET(x)", "of_TARGET(mM, x)"),
    "assigned": ("import mM\nv_TARGET = mM.TARGET", "v_TARGET(x)"),
    "vars": ("import mM", "vars(mM)['TARGET'](x)"),
    "namespace": ("import mM", "mM.__dict__['f' + 'NUMBER'](x)"),
    "partial": ("import functools, mM\np_TARGET = functools.partial(mM.TARGET)", "p_TARGET(x)"),
    "held": ("import mM\nH_TARGET = {'f': mM.TARGET}", "H_TARGET['f'](x)"),
    "through": ("import through_M", "through_M.TARGET(x)"),
    "getattr through": ("import through_M", "getattr(through_M, 'f' + 'NUMBER')(x)"),
    "within": ("def late_TARGET(x):\n    from mM import TARGET\n    return TARGET(x)", "late_TARGET(x)"),
    "by path": (
        "def path_TARGET(x):\n    import sys\n    sys.path.append('.')\n    import mM\n"
        "    return mM.TARGET(x)",
        "path_TARGET(x)",
    ),
}


def _chain(draw: st.DrawFn, depth: int, counter: list[int]) -> Part:
    counter[0] += 1
    name = f"f{counter[0]}"
    return Part(
        name=name,
        module=depth,
        form=draw(st.sampled_from(sorted(FORMS))),
        how=draw(st.sampled_from(sorted(WAYS))),
        numbers=(draw(st.integers(-3, 3)), draw(st.integers(-3, 3))),
        target=_chain(draw, depth + 1, counter) if depth + 1 < MODULES else None,
    )


@st.composite
def chains(draw: st.DrawFn) -> Part:
    return _chain(draw, 0, [0])


def parts_of(part: Part | None) -> list[Part]:
    return [] if part is None else [part, *parts_of(part.target)]


def edited(part: Part, number: int, change: tuple[str, object]) -> Part:
    """The chain with one field of its ``number``-th part changed."""
    if number == 0:
        return attrs.evolve(part, **{change[0]: change[1]})
    assert part.target is not None
    return attrs.evolve(part, target=edited(part.target, number - 1, change))


def render(part: Part, style: int = 0, unrelated: int = 0) -> dict[str, str]:
    files: dict[str, str] = {}
    for piece in parts_of(part):
        top, call = ("", "x") if piece.target is None else _call(piece.how, piece.target)
        body = textwrap.dedent(FORMS[piece.form]).replace("CALL", call).replace("NAME", piece.name)
        body = _numbers(body, piece.numbers)
        text = f"{top}\n{body}\n"
        if piece.module == 0:
            text += f"def unrelated(x):\n    return x + {unrelated}\n"
        files[f"m{piece.module}.py"] = _styled(text, style)
        if piece.target is not None:
            name = f"through_{piece.target.module}.py"
            files[name] = f"from m{piece.target.module} import {piece.target.name}\n"
    return files


def _call(how: str, target: Part) -> tuple[str, str]:
    top, call = (
        text.replace("mM", f"m{target.module}")
        .replace("through_M", f"through_{target.module}")
        .replace("'M'", f"'{target.module}'")
        .replace("NUMBER", target.name[1:])
        .replace("TARGET", target.name)
        for text in WAYS[how]
    )
    return top, call


def _numbers(text: str, numbers: tuple[int, int]) -> str:
    for letter, number in zip("AB", numbers, strict=True):
        text = re.sub(rf"\b{letter}\b", f"({number})", text)
    return text


def _styled(text: str, style: int) -> str:
    """The same code, written differently."""
    if style == 0:
        return text
    lines = []
    for line in text.splitlines():
        if style % 2 and line.strip():
            line += f"  # {style}"
        if line.startswith(("def ", "class ")) and style % 3:
            lines += [""] * style + [f"# about what follows {style}"]
        if line.lstrip().startswith("return ") and style > 1:
            head, _, value = line.partition("return ")
            code, _, comment = value.partition("  #")
            line = f"{head}return ({code}\n{head}    )" + (f"  #{comment}" if comment else "")
        lines.append(line)
    return f"# style {style}\n" + "\n".join(lines) + "\n"


# What an entry does to others that no name of the project's own leads to; EFFECT is a number.
EFFECTS = {
    "attribute": "import decimal\ndecimal.getcontext().prec = 10 + EFFECT",
    "environment": "import os\nos.environ['UPSHIFT_TEST_WORLD'] = str(EFFECT)",
    "module": "import sys\nsys.upshift_test_effect = EFFECT",
    "call": "import sys\nsys.setrecursionlimit(2000 + EFFECT)",
    "constant": "import sys\nN = EFFECT\nsys.setrecursionlimit(3000 + N)",
    "function": "import sys\ndef f(n): sys.upshift_test_effect = n\nf(EFFECT)",
    "loop": "import sys\nfor n in range(6): setattr(sys, 'upshift_test_effect', EFFECT + n)",
    "seed": "import random\nrandom.seed(EFFECT)",
    "constructor": "import sys\nclass C:\n def __init__(self, n): sys.upshift_test_effect = n\nC(EFFECT)",
    "value of a function": "import sys\ndef f(n): sys.upshift_test_effect = n\nX = f(EFFECT)",
    "given module": "import sys\ndef f(m, n): m.upshift_test_effect = n\nX = f(sys, EFFECT)",
    "several functions": "import sys\ndef g(n): sys.upshift_test_effect = n\ndef f(n): g(n)\nX = [f(EFFECT)]",
}
WORLD = """
def world():
    import decimal, os, random, sys
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    found = getattr(sys, 'upshift_test_effect', None), sys.getrecursionlimit()
    return str(decimal.Decimal(1) / 3), os.environ.get('UPSHIFT_TEST_WORLD'), found, drawn
"""
"""What sees all of them."""


def begun(part: Part, effect: str, number: int, through: bool, first: bool) -> dict[str, str]:
    """The chain, with an entry that has an effect, itself or through a module that only it imports."""
    files = render(part)
    text = EFFECTS[effect].replace("EFFECT", str(number)) + "\n"
    imports = "import m0\n"
    if through:
        files["settled.py"], text = text, "import settled\n"
    files["main.py"] = text + imports if first else imports + text
    files["m0.py"] += WORLD + f"def step(x): return world(), {part.name}(x)\n"
    return files


def look(
    project: Project, files: dict[str, str], name: str, entry: str | None = None
) -> tuple[object, dict[str, str]]:
    """What the function gives when it is run without a cache, and its fingerprint before."""
    print_of = project.fingerprint(files, name, entry=entry)
    function = project.function(name, entry=entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        return [function(x) for x in (1, 2, 5)], print_of


changes = st.one_of(
    st.tuples(st.just("numbers"), st.tuples(st.integers(-3, 3), st.integers(-3, 3))),
    st.tuples(st.just("form"), st.sampled_from(sorted(FORMS))),
    st.tuples(st.just("how"), st.sampled_from(sorted(WAYS))),
)
bounded = settings(
    max_examples=45,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@bounded
@given(chains(), st.integers(0, MODULES - 1), changes)
def test_other_output_means_another_fingerprint(
    project: Project, part: Part, number: int, change: tuple[str, object]
) -> None:
    before, first = look(project, render(part), "m0.f1")
    after, second = look(project, render(edited(part, number, change)), "m0.f1")

    if before != after:
        assert first != second


@bounded
@given(
    chains(),
    st.sampled_from(sorted(EFFECTS)),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_another_effect_of_the_entry_means_another_fingerprint(
    project: Project, part: Part, effect: str, number: int, other: int, through: bool, first: bool
) -> None:
    outputs, prints = [], []
    for n in (number, other):
        with untouched():
            output, print_of = look(project, begun(part, effect, n, through, first), "m0.step", "main")
        outputs.append(output)
        prints.append(print_of)

    assert (outputs[0] != outputs[1]) == (number != other), "the effect is seen, and nothing else"
    assert (prints[0] != prints[1]) == (number != other)


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """What the effects change is afterwards as it was."""
    limit, state = sys.getrecursionlimit(), random.getstate()
    with decimal.localcontext(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("UPSHIFT_TEST_WORLD", "")
        patch.setattr(sys, "upshift_test_effect", None, raising=False)
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)
            random.setstate(state)


@bounded
@given(chains(), st.integers(1, 6))
def test_comments_and_layout_never_change_a_fingerprint(project: Project, part: Part, style: int) -> None:
    before, first = look(project, render(part), "m0.f1")
    after, second = look(project, render(part, style), "m0.f1")

    assert before == after, "the rewriting keeps the meaning"
    assert first == second


RESOLVED = sorted(
    set(WAYS) - {"getattr", "getattr through", "computed", "value", "vars", "namespace", "by path"}
)
FOUND = sorted(set(FORMS) - {"evaluated", "dynamic"})


@settings(bounded, max_examples=25)
@given(chains(), st.data())
def test_an_unrelated_function_of_the_steps_file_never_changes_a_fingerprint(
    project: Project, part: Part, data: st.DataObject
) -> None:
    for number in range(MODULES):
        part = edited(part, number, ("how", data.draw(st.sampled_from(RESOLVED))))
        part = edited(part, number, ("form", data.draw(st.sampled_from(FOUND))))
    _, first = look(project, render(part), "m0.f1")
    _, second = look(project, render(part, unrelated=1), "m0.f1")

    assert first == second
