"""For each construct of Python: an edit of what a step reaches through it changes the fingerprint."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fingerprint_projects import Project, fresh_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield from fresh_project(tmp_path, monkeypatch)


# name: (files, text that is edited in them, replacement)
SEEN: dict[str, tuple[dict[str, str], str, str]] = {
    "the function itself": ({"pipe.py": "def step(x): return x + 1\n"}, "x + 1", "x + 2"),
    "a function of the module": (
        {"pipe.py": "def f(x): return x + 1\ndef step(x): return f(x)\n"},
        "x + 1",
        "x + 2",
    ),
    "a function three modules away": (
        {
            "pipe.py": "import a\ndef step(x): return a.f(x)\n",
            "a.py": "from b import f as g\ndef f(x): return g(x)\n",
            "b.py": "import c\ndef f(x): return c.f(x)\n",
            "c.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a function of a submodule": (
        {
            "pipe.py": "import pkg.sub.mod\ndef step(x): return pkg.sub.mod.f(x)\n",
            "pkg/__init__.py": "",
            "pkg/sub/__init__.py": "",
            "pkg/sub/mod.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a relative import": (
        {
            "pipe.py": "from pkg.a import f\ndef step(x): return f(x)\n",
            "pkg/__init__.py": "",
            "pkg/a.py": "from .b import g\nfrom . import b\ndef f(x): return g(x) + b.h(x)\n",
            "pkg/b.py": "def g(x): return x + 1\ndef h(x): return x\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a relative import inside a function": (
        {
            "pipe.py": "from pkg.a import f\ndef step(x): return f(x)\n",
            "pkg/__init__.py": "",
            "pkg/a.py": "def f(x):\n    from .b import g\n    from . import c\n    return g(x) + c.h(x)\n",
            "pkg/b.py": "def g(x): return x\n",
            "pkg/c.py": "def h(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a module imported inside the function": (
        {
            "pipe.py": "def step(x):\n    import helpers\n    return helpers.f(x)\n",
            "helpers.py": "def f(x): return g(x)\ndef g(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a constant of a module imported inside the function": (
        {
            "pipe.py": "def step(x):\n    from helpers import f\n    return f(x)\n",
            "helpers.py": "SCALE = 1\ndef f(x): return x + SCALE\n",
        },
        "SCALE = 1",
        "SCALE = 2",
    ),
    "a re-export that is not imported yet": (
        {
            "pipe.py": "def step(x):\n    import pkg\n    return pkg.f(x)\n",
            "pkg/__init__.py": "from pkg.impl import f\n",
            "pkg/impl.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a star import that is not imported yet": (
        {
            "pipe.py": "def step(x):\n    import a\n    return a.f(x)\n",
            "a.py": "from b import *\n",
            "b.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a condition of a module that is not imported yet": (
        {
            "pipe.py": "def step(x):\n    import a\n    return a.f(x)\n",
            "a.py": "N = 3\nif N > 2:\n    def f(x): return x\nelse:\n    def f(x): return -x\n",
        },
        "N > 2",
        "N > 4",
    ),
    "a constant": ({"pipe.py": "SCALE = 1\ndef step(x): return x * SCALE\n"}, "= 1", "= 2"),
    "the type of a constant": ({"pipe.py": "SCALE = 1\ndef step(x): return x * SCALE\n"}, "= 1", "= 1.0"),
    "a constant through the module": (
        {"pipe.py": "import config\ndef step(x): return x * config.SCALE\n", "config.py": "SCALE = 1\n"},
        "= 1",
        "= 2",
    ),
    "a nested constant": (
        {"pipe.py": "C = {'a': [1, (2, {3})]}\ndef step(x): return x * C['a'][0]\n"},
        "{3}",
        "{4}",
    ),
    "a computed constant": (
        {"pipe.py": "def make(): return 1\nSCALE = make()\ndef step(x): return x * SCALE\n"},
        "return 1",
        "return 2",
    ),
    "a constant made of project objects": (
        {
            "pipe.py": """
            import dataclasses
            @dataclasses.dataclass
            class Config:
                rate: float
            CONFIG = Config(0.1)
            def step(x): return x * CONFIG.rate
            """
        },
        "0.1",
        "0.2",
    ),
    "an enum member": (
        {
            "pipe.py": "import enum\n"
            "class E(enum.Enum):\n"
            "    A = 1\n"
            "MODE = E.A\n"
            "def step(x): return MODE.value\n"
        },
        "A = 1",
        "A = 2",
    ),
    "an array": (
        {"pipe.py": "import numpy as np\nW = np.array([1.0, 2.0])\ndef step(x): return x * W[0]\n"},
        "1.0",
        "1.5",
    ),
    "a constant that cannot be stored": (
        {
            "pipe.py": """
            import threading
            class Guarded:
                def __init__(self, n): self.n, self.lock = n, threading.Lock()
                def __reduce_ex__(self, protocol): raise TypeError
            GUARDED = Guarded(1)
            def step(x): return x + GUARDED.n
            """
        },
        "Guarded(1)",
        "Guarded(2)",
    ),
    "a part beside a lock": (
        {
            "pipe.py": """
            import threading
            class Guarded:
                def __init__(self, n): self.n, self.lock = n, threading.Lock()
            N = 1
            GUARDED = Guarded(N)
            def step(x): return x + GUARDED.n
            """
        },
        "N = 1",
        "N = 2",
    ),
    "a mutation of a constant": (
        {"pipe.py": "TABLE = {}\nTABLE['a'] = 1\ndef step(x): return TABLE['a']\n"},
        "= 1",
        "= 2",
    ),
    "a registry filled by decorators": (
        {
            "pipe.py": """
            REGISTRY = {}
            def register(f):
                REGISTRY[f.__name__] = f
                return f
            @register
            def add(x): return x + 1
            def step(x): return REGISTRY["add"](x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "a registry filled by another module": (
        {
            "pipe.py": "import plugins\n"
            "from registry import REGISTRY\n"
            "def step(x): return REGISTRY['a'](x)\n",
            "plugins.py": "from registry import REGISTRY\ndef f(x): return x + 1\nREGISTRY['a'] = f\n",
            "registry.py": "REGISTRY = {}\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a default value": (
        {"pipe.py": "def f(x, n=1): return x + n\ndef step(x): return f(x)\n"},
        "n=1",
        "n=2",
    ),
    "a computed default value": (
        {"pipe.py": "def make(): return 1\ndef f(x, n=make()): return x + n\ndef step(x): return f(x)\n"},
        "return 1",
        "return 2",
    ),
    "a keyword-only default value": (
        {"pipe.py": "N = [1]\ndef f(x, *, n=N[0]): return x + n\ndef step(x): return f(x)\n"},
        "N = [1]",
        "N = [2]",
    ),
    "a decorator's code": (
        {
            "pipe.py": """
            import functools
            def deco(f):
                @functools.wraps(f)
                def wrapper(x): return f(x) + 1
                return wrapper
            @deco
            def step(x): return x
            """
        },
        "f(x) + 1",
        "f(x) + 2",
    ),
    "a decorator without wraps": (
        {
            "pipe.py": """
            def deco(f): return lambda x: f(x) + 1
            @deco
            def step(x): return x * 3
            """
        },
        "x * 3",
        "x * 4",
    ),
    "an argument of a decorator": (
        {
            "pipe.py": """
            def add(n):
                def deco(f):
                    def wrapper(x): return f(x) + n
                    return wrapper
                return deco
            @add(1)
            def step(x): return x
            """
        },
        "@add(1)",
        "@add(2)",
    ),
    "a decorator added": (
        {"pipe.py": "def deco(f): return lambda x: f(x) + 1\n#\ndef step(x): return x\n"},
        "#\n",
        "@deco\n",
    ),
    "a decorator class": (
        {
            "pipe.py": """
            class Deco:
                def __init__(self, f): self.f = f
                def __call__(self, x): return self.f(x) + 1
            @Deco
            def g(x): return x * 3
            def step(x): return g(x)
            """
        },
        "x * 3",
        "x * 4",
    ),
    "a closure": (
        {
            "pipe.py": """
            def adder(n):
                def add(x): return x + n
                return add
            step = adder(1)
            """
        },
        "adder(1)",
        "adder(2)",
    ),
    "a function in a closure": (
        {
            "pipe.py": """
            def twice(f):
                def g(x): return f(f(x))
                return g
            def inc(x): return x + 1
            step = twice(inc)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "a nested function": (
        {"pipe.py": "def step(x):\n    def g(y): return f(y)\n    return g(x)\ndef f(y): return y + 1\n"},
        "y + 1",
        "y + 2",
    ),
    "a lambda": ({"pipe.py": "f = lambda x: x + 1\ndef step(x): return f(x)\n"}, "x + 1", "x + 2"),
    "one of two lambdas on a line": (
        {"pipe.py": "f, g = (lambda x: x + 1), (lambda x: x)\ndef step(x): return f(x)\n"},
        "x + 1",
        "x + 2",
    ),
    "a comprehension": (
        {"pipe.py": "def f(y): return y + 1\ndef step(x): return [f(i) for i in range(x)]\n"},
        "y + 1",
        "y + 2",
    ),
    "a function handed on": (
        {"pipe.py": "def f(y): return y + 1\ndef step(x): return list(map(f, range(x)))\n"},
        "y + 1",
        "y + 2",
    ),
    "a method": (
        {"pipe.py": "class A:\n    def m(self): return 1\ndef step(x): return A().m()\n"},
        "return 1",
        "return 2",
    ),
    "what a method reaches": (
        {
            "pipe.py": """
            def f(): return 1
            class A:
                def m(self): return f()
            def step(x): return A().m()
            """
        },
        "return 1",
        "return 2",
    ),
    "a base class in another module": (
        {
            "pipe.py": "import b\nclass A(b.Base): pass\ndef step(x): return A().m()\n",
            "b.py": "class Base:\n    def m(self): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "which base class": (
        {
            "pipe.py": """
            class P:
                n = 1
            class Q:
                n = 2
            class A(P): pass
            def step(x): return A().n + P.n + Q.n
            """
        },
        "A(P)",
        "A(Q)",
    ),
    "a metaclass": (
        {
            "pipe.py": """
            class Meta(type):
                def __call__(cls): return 1
            class A(metaclass=Meta): pass
            def step(x): return A()
            """
        },
        "return 1",
        "return 2",
    ),
    "a class attribute": (
        {"pipe.py": "class A:\n    n = 1\ndef step(x): return A.n\n"},
        "n = 1",
        "n = 2",
    ),
    "a computed class attribute": (
        {"pipe.py": "def make(): return 1\nclass A:\n    n = make()\ndef step(x): return A.n\n"},
        "return 1",
        "return 2",
    ),
    "a class attribute that is set elsewhere": (
        {
            "pipe.py": "import patch\nfrom b import A\ndef step(x): return A.n\n",
            "b.py": "class A:\n    n = 0\n",
            "patch.py": "from b import A\nA.n = 1\n",
        },
        "A.n = 1",
        "A.n = 2",
    ),
    "a method that is set elsewhere": (
        {
            "pipe.py": "import patch\nfrom b import A\ndef step(x): return A().m()\n",
            "b.py": "class A:\n    def m(self): return 0\n",
            "patch.py": "from b import A\ndef m(self): return 1\nA.m = m\n",
        },
        "return 1",
        "return 2",
    ),
    "a property": (
        {"pipe.py": "class A:\n    @property\n    def p(self): return 1\ndef step(x): return A().p\n"},
        "return 1",
        "return 2",
    ),
    "a class method": (
        {"pipe.py": "class A:\n    @classmethod\n    def c(cls): return 1\ndef step(x): return A.c()\n"},
        "return 1",
        "return 2",
    ),
    "a static method": (
        {"pipe.py": "class A:\n    @staticmethod\n    def s(): return 1\ndef step(x): return A.s()\n"},
        "return 1",
        "return 2",
    ),
    "a cached property": (
        {
            "pipe.py": """
            import functools
            def f(): return 1
            class A:
                @functools.cached_property
                def p(self): return f()
            def step(x): return A().p
            """
        },
        "return 1",
        "return 2",
    ),
    "a dataclass field": (
        {
            "pipe.py": """
            from dataclasses import dataclass
            @dataclass
            class C:
                n: int = 1
            def step(x): return C().n
            """
        },
        "= 1",
        "= 2",
    ),
    "a dataclass default factory": (
        {
            "pipe.py": """
            from dataclasses import dataclass, field
            def make(): return 1
            @dataclass
            class C:
                n: int = field(default_factory=make)
            def step(x): return C().n
            """
        },
        "return 1",
        "return 2",
    ),
    "an attribute whose name has a blank": (
        {
            "pipe.py": """
            class Table: pass
            table = Table()
            setattr(table, "Unit Price", 1)
            def step(x): return getattr(table, "Unit Price") * x + getattr(table, "a.b", 0)
            """
        },
        "* x",
        "+ x",
    ),
    "a module whose name has a blank": (
        {
            "pipe.py": """
            import importlib
            def step(x): return importlib.import_module("my helpers").f(x)
            """,
            "my helpers.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a module in a folder whose name has a blank": (
        {
            "pipe.py": "def step(x): return __import__('my pkg.mod').mod.f(x)\n",
            "my pkg/__init__.py": "",
            "my pkg/mod.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "an attribute with a dot in its name, which a module makes": (
        {
            "pipe.py": "import pkg\ndef step(x): return getattr(pkg, 'sub.f')(x)\n",
            "pkg/__init__.py": """
            from pkg import sub
            def made(x): return x + 1
            def __getattr__(name): return made
            """,
            "pkg/sub.py": "def f(x): return x\n",
        },
        "x + 1",
        "x + 2",
    ),
    "a function that is named as a variable of a method's decorator": (
        {
            "pipe.py": """
            def deco(func):
                def wrapper(*args): return func(*args)
                return wrapper
            def func(x): return x + 1
            class A:
                @deco
                def m(self, x): return 1
                def n(self, x): return func(x)
            def step(x): return A().n(x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "the same of a class that is made in a function": (
        {
            "pipe.py": """
            import functools
            def deco(func):
                @functools.wraps(func)
                def wrapper(*args): return func(*args)
                return wrapper
            def func(x): return x + 1
            def make():
                class A:
                    @deco
                    def m(self, x): return 1
                    def n(self, x): return func(x)
                return A
            A = make()
            def step(x): return A().n(x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "a computed default of an attrs class": (
        {
            "pipe.py": """
            import attrs
            def make(): return 1
            @attrs.define
            class C:
                n: int = make()
                def m(self): return self.n
            def step(x): return C().m()
            """
        },
        "return 1",
        "return 2",
    ),
    "a method of an attrs class with slots": (
        {
            "pipe.py": """
            import attrs
            @attrs.define
            class C:
                n: int = 0
                def m(self): return self.n + 1
            def step(x): return C().m()
            """
        },
        "self.n + 1",
        "self.n + 2",
    ),
    "a converter of an attrs class": (
        {
            "pipe.py": """
            import attrs
            def conv(v): return v + 1
            @attrs.frozen
            class C:
                n: int = attrs.field(converter=conv)
            def step(x): return C(x).n
            """
        },
        "v + 1",
        "v + 2",
    ),
    "a named tuple's default": (
        {
            "pipe.py": """
            from typing import NamedTuple
            class N(NamedTuple):
                n: int = 1
            def step(x): return N().n
            """
        },
        "= 1",
        "= 2",
    ),
    "an annotation's class": (
        {
            "pipe.py": "import b\ndef step(m: b.Model): return m.predict()\n",
            "b.py": "class Model:\n    def predict(self): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a quoted annotation's class": (
        {
            "pipe.py": "from b import Model\ndef step(m: 'list[Model]'): return m[0].predict()\n",
            "b.py": "class Model:\n    def predict(self): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a partial": (
        {
            "pipe.py": """
            import functools
            def add(n, x): return x + n
            f = functools.partial(add, 1)
            def step(x): return f(x)
            """
        },
        "partial(add, 1)",
        "partial(add, 2)",
    ),
    "the function of a partial": (
        {
            "pipe.py": """
            import functools
            def add(n, x): return x + n + 10
            f = functools.partial(add, 1)
            def step(x): return f(x)
            """
        },
        "+ 10",
        "+ 20",
    ),
    "a step that is a partial": (
        {"pipe.py": "import functools\ndef add(n, x): return x + n + 10\nstep = functools.partial(add, 1)\n"},
        "+ 10",
        "+ 20",
    ),
    "a bound method": (
        {
            "pipe.py": """
            class A:
                def __init__(self, n): self.n = n
                def m(self, x): return x + self.n
            f = A(1).m
            def step(x): return f(x)
            """
        },
        "A(1)",
        "A(2)",
    ),
    "the function of a bound method": (
        {
            "pipe.py": """
            class A:
                def m(self, x): return x + 1
            f = A().m
            def step(x): return f(x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "an implementation of a single dispatch function": (
        {
            "pipe.py": """
            import functools
            @functools.singledispatch
            def f(x): return 0
            @f.register
            def _(x: int): return x + 1
            def step(x): return f(x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "a cached function": (
        {
            "pipe.py": "import functools\n"
            "@functools.lru_cache\n"
            "def f(x): return x + 1\n"
            "def step(x): return f(x)\n"
        },
        "x + 1",
        "x + 2",
    ),
    "a context manager": (
        {
            "pipe.py": """
            import contextlib
            @contextlib.contextmanager
            def ctx():
                yield 1
            def step(x):
                with ctx() as n: return n
            """
        },
        "yield 1",
        "yield 2",
    ),
    "a vectorized function": (
        {
            "pipe.py": """
            import numpy as np
            def f(x): return x + 1
            v = np.vectorize(f)
            def step(x): return int(v(x))
            """
        },
        "x + 1",
        "x + 2",
    ),
    "a function inside an object written in C": (
        {
            "pipe.py": """
            import numpy as np
            def f(x): return x + 1
            u = np.frompyfunc(f, 1, 1)
            def step(x): return u(x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "a function inside an estimator": (
        {
            "pipe.py": """
            from sklearn.preprocessing import FunctionTransformer
            def f(x): return x + 1
            T = FunctionTransformer(func=f)
            def step(x): return T.transform(x)
            """
        },
        "x + 1",
        "x + 2",
    ),
    "getattr with a name": (
        {
            "pipe.py": "import b\ndef step(x): return getattr(b, 'f')(x)\n",
            "b.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "getattr with a computed name": (
        {
            "pipe.py": "import b\ndef step(x): return getattr(b, 'f' + '')(x)\n",
            "b.py": "def f(x): return g(x)\ndef g(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "getattr of a class": (
        {"pipe.py": "class A:\n    def f(self): return 1\ndef step(x): return getattr(A(), 'f' + '')()\n"},
        "return 1",
        "return 2",
    ),
    "a constant behind getattr": (
        {
            "pipe.py": "import b\ndef step(x): return getattr(b, 'N' + '')\n",
            "b.py": "import os\nN = int('1')\n",
        },
        "int('1')",
        "int('2')",
    ),
    "a module passed as a value": (
        {
            "pipe.py": "import b\ndef use(m): return m.f()\ndef step(x): return use(b)\n",
            "b.py": "def f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a module in a dictionary": (
        {
            "pipe.py": "import b\nMODULES = {'b': b}\ndef step(x): return MODULES['b'].f()\n",
            "b.py": "def f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "the namespace of a module": (
        {
            "pipe.py": "import b\ndef step(x): return b.__dict__['f']()\n",
            "b.py": "def f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "globals()": (
        {"pipe.py": "def f(): return 1\ndef step(x): return globals()['f']()\n"},
        "return 1",
        "return 2",
    ),
    "eval": ({"pipe.py": "def f(): return 1\ndef step(x): return eval('f()')\n"}, "return 1", "return 2"),
    "eval of another module": (
        {"pipe.py": "import b\ndef step(x): return eval('b.f()')\n", "b.py": "def f(): return 1\n"},
        "return 1",
        "return 2",
    ),
    "exec": (
        {
            "pipe.py": "def f(): return 1\n"
            "def step(x):\n"
            "    d = {'f': f}\n"
            "    exec('y = f()', d)\n"
            "    return d['y']\n"
        },
        "return 1",
        "return 2",
    ),
    "import_module with a name": (
        {
            "pipe.py": "import importlib\ndef step(x): return importlib.import_module('b').f()\n",
            "b.py": "def f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "import_module with a computed name": (
        {
            "pipe.py": "import importlib\ndef step(x): return importlib.import_module('b' + '').f()\n",
            "b.py": "import c\ndef f(): return c.g()\n",
            "c.py": "def g(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "import_module by another name": (
        {
            "pipe.py": "from importlib import import_module as load\ndef step(x): return load('b').f()\n",
            "b.py": "def f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "__import__": (
        {"pipe.py": "def step(x): return __import__('b').f()\n", "b.py": "def f(): return 1\n"},
        "return 1",
        "return 2",
    ),
    "sys.modules": (
        {
            "pipe.py": "import sys, b\ndef step(x): return sys.modules['b'].f()\n",
            "b.py": "def f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a star import": (
        {"pipe.py": "from b import *\ndef step(x): return f(x)\n", "b.py": "def f(x): return x + 1\n"},
        "x + 1",
        "x + 2",
    ),
    "a constant from a star import": (
        {"pipe.py": "from b import *\ndef step(x): return N\n", "b.py": "N = 1\n"},
        "N = 1",
        "N = 2",
    ),
    "a module's __getattr__": (
        {
            "pipe.py": "import b\ndef step(x): return b.anything\n",
            "b.py": "def __getattr__(name): return f()\ndef f(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "monkeypatching a module": (
        {
            "pipe.py": "import b\ndef g(): return 1\nb.f = g\ndef step(x): return b.h()\n",
            "b.py": "def f(): return 0\ndef h(): return f()\n",
        },
        "return 1",
        "return 2",
    ),
    "which function a module is patched with": (
        {
            "pipe.py": "import b\nb.f, b.g = b.g, b.f\ndef step(x): return b.h()\n",
            "b.py": "def f(): return 1\ndef g(): return 2\ndef h(): return f() - 10 * g()\n",
        },
        "b.f, b.g = b.g, b.f",
        "pass",
    ),
    "monkeypatching inside the function": (
        {
            "pipe.py": "import b\ndef g(): return 1\ndef step(x):\n    b.f = g\n    return b.h()\n",
            "b.py": "def f(): return 0\ndef h(): return f()\n",
        },
        "return 1",
        "return 2",
    ),
    "a patched function of a library": (
        {
            "pipe.py": "import json\n"
            "def mine(x): return 1\n"
            "json.mine = mine\n"
            "def step(x): return json.mine(x)\n"
        },
        "return 1",
        "return 2",
    ),
    "names assigned dynamically": (
        {
            "pipe.py": """
            def make(n):
                def f(): return n
                return f
            for i in range(2): globals()[f"f{i}"] = make(i + 1)
            def step(x): return f0()
            """
        },
        "i + 1",
        "i + 2",
    ),
    "a conditional import": (
        {
            "pipe.py": "try:\n    from fast import f\nexcept ImportError:\n    from slow import f\n"
            "def step(x): return f(x)\n",
            "slow.py": "def f(x): return x + 1\n",
        },
        "x + 1",
        "x + 2",
    ),
    "which import": (
        {
            "pipe.py": "from a import N as P\nfrom b import N as Q\ndef step(x): return P - 10 * Q\n",
            "a.py": "N = 1\n",
            "b.py": "N = 2\n",
        },
        "from a import N as P\nfrom b import N as Q",
        "from b import N as P\nfrom a import N as Q",
    ),
    "which function is imported": (
        {
            "pipe.py": "from a import f, g\ndef step(x): return f(x) - 10 * g(x)\n",
            "a.py": "def f(x): return 1\ndef g(x): return 2\n",
        },
        "import f, g",
        "import g as f, f as g",
    ),
    "a branch that binds a name": (
        {
            "pipe.py": "FLAG = True\ndef a(): return 1\ndef b(): return 2\nf = a if FLAG else b\n"
            "def step(x): return f() - 10 * a() - 100 * b()\n"
        },
        "FLAG = True",
        "FLAG = False",
    ),
    "a call for its effect": (
        {"pipe.py": "import random\nrandom.seed(1)\ndef step(x): return random.random()\n"},
        "seed(1)",
        "seed(2)",
    ),
    "an effect of an imported module": (
        {
            "pipe.py": "import setup_all\nimport random\ndef step(x): return random.random()\n",
            "setup_all.py": "import random\nrandom.seed(1)\n",
        },
        "seed(1)",
        "seed(2)",
    ),
    "an effect behind a helper": (
        {
            "pipe.py": "import random\ndef fix():\n    random.seed(1)\n    return 0\nN = fix()\n"
            "def step(x): return random.random()\n"
        },
        "seed(1)",
        "seed(2)",
    ),
    "an attribute of a library that is set": (
        {
            "pipe.py": "import numpy as np\nnp.mine = 1\ndef step(x): return np.mine\n",
        },
        "np.mine = 1",
        "np.mine = 2",
    ),
    "an accessor registered with a library": (
        {
            "pipe.py": """
            import pandas as pd
            @pd.api.extensions.register_dataframe_accessor("mine")
            class Mine:
                def __init__(self, frame): pass
                def value(self): return 1
            def step(x): return pd.DataFrame().mine.value()
            """
        },
        "return 1",
        "return 2",
    ),
    "subclasses": (
        {
            "pipe.py": """
            class Base: pass
            class A(Base):
                def m(self): return 1
            def step(x): return [c().m() for c in Base.__subclasses__()]
            """
        },
        "return 1",
        "return 2",
    ),
    "subclasses behind a helper": (
        {
            "pipe.py": "import b, plugins\ndef step(x): return [c().m() for c in b.all_of(b.Base)]\n",
            "b.py": "class Base: pass\ndef all_of(cls): return cls.__subclasses__()\n",
            "plugins.py": "from b import Base\nclass A(Base):\n    def m(self): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a docstring that is read": (
        {"pipe.py": 'def f():\n    "one"\ndef step(x): return f.__doc__\n'},
        "one",
        "two",
    ),
    "a docstring that is read elsewhere": (
        {
            "pipe.py": "from b import doc_of\ndef f():\n    'one'\ndef step(x): return doc_of(f)\n",
            "b.py": "import inspect\ndef doc_of(f): return inspect.getdoc(f)\n",
        },
        "one",
        "two",
    ),
    "a docstring of a function that is handed on": (
        {"pipe.py": "def f():\n    'one'\ndef step(x): return str(f)\n"},
        "one",
        "two",
    ),
    "an attribute of a function": (
        {"pipe.py": "def step(x): return step.n\nstep.n = 1\n"},
        "step.n = 1",
        "step.n = 2",
    ),
    "a name that is not defined yet": (
        {"pipe.py": "def step(x):\n    try: return later()\n    except NameError: return 0\n#\n"},
        "#\n",
        "def later(): return 1\n",
    ),
    "a global that a function changes": (
        {
            "pipe.py": "N = 1\n"
            "def bump():\n"
            "    global N\n"
            "    N += 1\n"
            "    return N\n"
            "def step(x): return bump()\n"
        },
        "N = 1",
        "N = 5",
    ),
    "an optional module that appears": (
        {
            "pipe.py": "def step(x):\n"
            "    try:\n"
            "        import extra\n"
            "    except ImportError:\n"
            "        return 0\n"
            "    return extra.f()\n",
            "other.py": "#\n",
        },
        "#\n",
        "#\n",
    ),
    "two lambdas that change places": (
        {"pipe.py": "f = lambda x: 1\ng = lambda x: 2\ndef step(x): return f(x) - 10 * g(x)\n"},
        "f = lambda x: 1\ng = lambda x: 2",
        "f = lambda x: 2\ng = lambda x: 1",
    ),
    "two closures that change places": (
        {
            "pipe.py": """
            def adder(n):
                def add(x): return x + n
                return add
            f, g = adder(1), adder(2)
            def step(x): return f(x) - 10 * g(x)
            """
        },
        "adder(1), adder(2)",
        "adder(2), adder(1)",
    ),
    "two closures in a list that change places": (
        {
            "pipe.py": """
            def adder(n):
                def add(x): return x + n
                return add
            ALL = [adder(1), adder(2)]
            def step(x): return ALL[0](x) - 10 * ALL[1](x)
            """
        },
        "adder(1), adder(2)",
        "adder(2), adder(1)",
    ),
    "two functions of one name that change places": (
        {"pipe.py": "def f(): return 1\ng = f\ndef f(): return 2\ndef step(x): return f() - 10 * g()\n"},
        "return 1\ng = f\ndef f(): return 2",
        "return 2\ng = f\ndef f(): return 1",
    ),
    "two methods that change places": (
        {
            "pipe.py": """
            class A:
                def m(self): return 1
                def n(self): return 2
            A.m, A.n = A.n, A.m
            def step(x): return A().m() - 10 * A().n()
            """
        },
        "A.m, A.n = A.n, A.m",
        "pass",
    ),
    "two classes made by a function that change places": (
        {
            "pipe.py": """
            def make(k):
                class C:
                    n = k
                    def m(self): return k
                return C
            P, Q = make(1), make(2)
            def step(x): return P().m() - 10 * Q().n
            """
        },
        "make(1), make(2)",
        "make(2), make(1)",
    ),
    "a closure that refers to itself": (
        {
            "pipe.py": """
            def make(n):
                def f(x): return n if x <= 0 else f(x - 1)
                return f
            F = [make(1)]
            def step(x): return F[0](x)
            """
        },
        "make(1)",
        "make(2)",
    ),
    "what a closure of a library holds": (
        {
            "pipe.py": """
            import reprlib
            N = int("1")
            def g(x): return x
            f = reprlib.recursive_repr("<" + str(N) + ">")(g)
            def step(x): return f(x)
            """
        },
        'int("1")',
        'int("2")',
    ),
    "a class that is imported for its annotation": (
        {
            "pipe.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import Model\n"
            "def step(m: 'Model'): return m.predict()\n",
            "b.py": "class Model:\n    def predict(self): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a comment that is read": (
        {
            "pipe.py": """
            import inspect
            def f(): return 1  # one
            def step(x): return inspect.getsource(f)
            """
        },
        "# one",
        "# two",
    ),
    "a constant beside a proxy that knows nothing yet": (
        {
            "pipe.py": """
            class Proxy:
                @property
                def __class__(self): raise RuntimeError("outside of a request")
            P = Proxy()
            N = 1
            def step(x): return [P, N]
            """
        },
        "N = 1",
        "N = 2",
    ),
    "a class that a library keeps a list of": (
        {
            "pipe.py": """
            import libs
            class Plugin(libs.Base):
                def m(self): return 1
            def step(x): return libs.run()
            """,
            "libs.py": "class Base:\n    known = []\n    def __init_subclass__(cls): Base.known.append(cls)\n"
            "def run(): return [c().m() for c in Base.known]\n",
        },
        "return 1",
        "return 2",
    ),
}
EXTRA_FILES = {"an optional module that appears": {"extra.py": "def f(): return 1\n"}}


@pytest.mark.filterwarnings("ignore:registration of accessor")
@pytest.mark.parametrize("construct", SEEN)
def test_an_edit_of_reached_code_changes_the_fingerprint(project: Project, construct: str) -> None:
    files, old, new = SEEN[construct]
    files = {name: textwrap.dedent(text) for name, text in files.items()}
    assert sum(text.count(old) for text in files.values()) >= 1
    edited = {name: text.replace(old, new) for name, text in files.items()} | EXTRA_FILES.get(construct, {})
    before = project.fingerprint(files)
    assert project.fingerprint(files) == before, "the same code has the same fingerprint"
    assert project.fingerprint(edited) != before


def test_folders_that_are_packages_without_a_file_are_found_before_they_are_imported(
    project: Project,
) -> None:
    step = "def step(x):\n    from outer.inner.deep import f\n    return f()\n"
    found = [
        project.fingerprint({"pipe.py": step, "outer/inner/deep.py": f"def f(): return {value}\n"})
        for value in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


def test_code_is_read_once_however_often_it_may_be_found_by_its_name(project: Project) -> None:
    loads = "\n".join(f"    if x == {n}: return importlib.{name}" for n, name in enumerate(LOADERS))
    files = {"pipe.py": f"import importlib, importlib.util, h\ndef step(x):\n{loads}\n", "h.py": "A = 1\n"}
    found = project.fingerprint(files)
    assert [name for name in found if name.startswith("all of h")] == [
        "all of h (h.py): may be found by its name"
    ]


LOADERS = ("import_module", "reload", "util.module_from_spec", "util.spec_from_file_location")
