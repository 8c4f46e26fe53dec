"""What only shows when a step runs: an edit that changes its output changes its fingerprint."""

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
    for made in fresh_project(tmp_path, monkeypatch):
        monkeypatch.chdir(made.folder)
        yield made


# name: (files, text that is edited in them, replacement)
Edit = tuple[dict[str, str], str, str]

DOCSTRINGS: dict[str, Edit] = {
    "of the step's own module": (
        {"pipe.py": '"""One."""\ndef step(x): return __doc__\n'},
        "One",
        "Two",
    ),
    "of another module": (
        {"pipe.py": "import h\ndef step(x): return h.__doc__\n", "h.py": '"""One."""\n'},
        "One",
        "Two",
    ),
    "of a module that the step imports": (
        {
            "pipe.py": "def step(x):\n    import h\n    return h.f()\n",
            "h.py": '"""One."""\ndef f(): return __doc__\n',
        },
        "One",
        "Two",
    ),
    "as help for a command line": (
        {
            "pipe.py": """
            import argparse
            import h
            def step(x): return argparse.ArgumentParser(prog="p", description=h.__doc__).format_help()
            """,
            "h.py": '"""One."""\n',
        },
        "One",
        "Two",
    ),
    "by name": (
        {"pipe.py": "import h\ndef step(x): return vars(h)['__doc__']\n", "h.py": '"""One."""\n'},
        "One",
        "Two",
    ),
    "among all globals": (
        {"pipe.py": '"""One."""\ndef step(x): return globals()["__doc__"]\n'},
        "One",
        "Two",
    ),
}

PATCHED: dict[str, Edit] = {
    "default values": (
        {
            "pipe.py": "import h\nh.f.__defaults__ = tuple('a')\ndef step(x): return h.f()\n",
            "h.py": "def f(v='z'): return v\n",
        },
        "tuple('a')",
        "tuple('b')",
    ),
    "default values elsewhere": (
        {
            "pipe.py": "import other\nfrom h import f\ndef step(x): return f()\n",
            "other.py": "import h\nh.f.__defaults__ = ('a',)\n",
            "h.py": "def f(v='z'): return v\n",
        },
        "('a',)",
        "('b',)",
    ),
    "default values by name": (
        {
            "pipe.py": "import h\nh.patch('a')\nfrom h import f\ndef step(x): return f()\n",
            "h.py": "def f(*, v='z'): return v\ndef patch(v): f.__kwdefaults__ = {'v': v}\n",
        },
        "patch('a')",
        "patch('b')",
    ),
    "default values that are no more": (
        {
            "pipe.py": "import h\ndef step(x):\n    try: return h.f()\n    except TypeError: return 0\n",
            "h.py": "def f(v='z'): return v\nimport other\n",
            "other.py": "import sys\nN = 0\nif N: sys.modules['h'].f.__defaults__ = None\n",
        },
        "N = 0",
        "N = 1",
    ),
    "more default values than arguments": (
        {
            "pipe.py": "import other\nfrom h import f\ndef step(x): return f()\n",
            "other.py": "import h\nh.f.__defaults__ = ('c', 'a')\n",
            "h.py": "def f(*v): return f.__defaults__[-1]\n",
        },
        "'a'",
        "'b'",
    ),
    "default values of a method": (
        {
            "pipe.py": "import other\nfrom h import Q\ndef step(x): return Q().f()\n",
            "other.py": "import h\nh.Q.f.__defaults__ = ('a',)\n",
            "h.py": "class Q:\n    def f(self, v='z'): return v\n",
        },
        "('a',)",
        "('b',)",
    ),
    "default values of a method that had none": (
        {
            "pipe.py": "import other\nfrom h import Q\ndef step(x): return Q().f()\n",
            "other.py": "import h\nh.Q.f.__defaults__ = ('a',)\n",
            "h.py": "class Q:\n    def f(self, v): return v\n",
        },
        "('a',)",
        "('b',)",
    ),
    "an operator that is no function": (
        {
            "pipe.py": "import other\nfrom h import Q\ndef step(x): return Q() + 1\n",
            "other.py": "import functools\nimport h\nh.Q.__add__ = functools.partialmethod(h.add, 'a')\n",
            "h.py": "def add(self, how, to): return how\nclass Q: pass\n",
        },
        "'a'",
        "'b'",
    ),
    "plain data with a special name": (
        {
            "pipe.py": """
            import other
            from h import Q
            def step(x):
                match Q():
                    case Q(v): return v
            """,
            "other.py": "import h\nh.Q.__match_args__ = ('a',)\n",
            "h.py": "class Q:\n    a = 1\n    b = 2\n",
        },
        "('a',)",
        "('b',)",
    ),
}

STATE: dict[str, Edit] = {
    "that is not stored": (
        {
            "pipe.py": """
            class Q:
                def __init__(self, t): self.t = t
                def __getstate__(self): return {}
            X = Q("a")
            def step(x): return X.t
            """
        },
        'Q("a")',
        'Q("b")',
    ),
    "of an object that is made anew": (
        {
            "pipe.py": """
            class Q:
                t = "z"
                def __reduce__(self): return (Q, ())
            X = Q()
            def change(v): X.t = v
            [change(v) for v in "a"]
            def step(x): return X.t
            """
        },
        'in "a"',
        'in "b"',
    ),
    "in slots": (
        {
            "pipe.py": """
            import conf
            class Q:
                __slots__ = ("t",)
                def __reduce__(self): return (Q, ())
            X = Q()
            X.t = conf.T
            def step(x): return X.t
            """,
            "conf.py": "T = 'a'\n",
        },
        "'a'",
        "'b'",
    ),
    "of an object that is found by name": (
        {
            "pipe.py": """
            import json
            class Q:
                def __reduce__(self): return "CFG"
            CFG = Q()
            CFG.t = json.load(open("k.json"))
            def step(x): return CFG.t
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "of a dictionary that is stored empty": (
        {
            "pipe.py": """
            import json
            class D(dict):
                def __reduce__(self): return (D, ())
            X = D(json.load(open("k.json")))
            def step(x): return X["a"]
            """,
            "k.json": '{"a": 1}',
        },
        "1",
        "2",
    ),
    "of a set whose method is registered": (
        {
            "pipe.py": """
            import copyreg
            import json
            class D(set): pass
            copyreg.pickle(D, lambda value: (D, ()))
            X = D(json.load(open("k.json")))
            def step(x): return sorted(X)
            """,
            "k.json": "[1]",
        },
        "1",
        "2",
    ),
    "of a logger": (
        {
            "pipe.py": """
            import json
            import logging
            LOG = logging.getLogger("upshift test")
            LOG.setLevel(json.load(open("k.json")))
            def step(x): return LOG.level
            """,
            "k.json": "10",
        },
        "10",
        "20",
    ),
    "of a member of an enumeration": (
        {
            "pipe.py": """
            import enum
            import json
            class Color(enum.Enum):
                RED = 1
            Color.RED.share = json.load(open("k.json"))
            def step(x): return Color.RED.share
            """,
            "k.json": "10",
        },
        "10",
        "20",
    ),
    "of a thread": (
        {
            "pipe.py": """
            import json
            import threading
            T = threading.local()
            T.v = json.load(open("k.json"))
            def step(x): return T.v
            """,
            "k.json": "10",
        },
        "10",
        "20",
    ),
    "of a context": (
        {
            "pipe.py": """
            import contextvars
            import json
            C = contextvars.ContextVar("C")
            C.set(json.load(open("k.json")))
            def step(x): return C.get()
            """,
            "k.json": "10",
        },
        "10",
        "20",
    ),
}

OPAQUE: dict[str, Edit] = {
    "a structure": (
        {
            "pipe.py": """
            import json
            import struct
            ST = struct.Struct(json.load(open("k.json")))
            def step(x): return ST.size
            """,
            "k.json": '"i"',
        },
        "i",
        "q",
    ),
    "compiled code": (
        {
            "pipe.py": """
            CODE = compile(open("k.txt").read(), "k.txt", "eval")
            def step(x): return eval(CODE)
            """,
            "k.txt": "1 + 1",
        },
        "1",
        "2",
    ),
    "a function of an array": (
        {
            "pipe.py": """
            import json
            import numpy as np
            def adding(n): return lambda v: v + n
            U = np.frompyfunc(adding(json.load(open("k.json"))), 1, 1)
            def step(x): return U(1)
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "what a function reads": (
        {
            "pipe.py": """
            import numpy as np
            from pathlib import Path
            def content(): return Path("k.json").read_text()
            def made():
                n = content()
                return np.frompyfunc(lambda v: n, 1, 1)
            U = made()
            def step(x): return U(1)
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "inside a closure": (
        {
            "pipe.py": """
            import numpy as np
            def made(n):
                u = np.frompyfunc(lambda v: v + n, 1, 1)
                def inner(v): return u(v)
                return inner
            F = made(int(open("k.json").read()))
            def step(x): return F(1)
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "an attribute of a class": (
        {
            "pipe.py": """
            import numpy as np
            def adding(n): return lambda v: v + n
            class Q:
                U = np.frompyfunc(adding(int(open("k.json").read())), 1, 1)
            def step(x): return Q.U(1)
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "a default value": (
        {
            "pipe.py": """
            import numpy as np
            def adding(n): return lambda v: v + n
            def f(v, u=np.frompyfunc(adding(int(open("k.json").read())), 1, 1)): return u(v)
            def step(x): return f(1)
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "a generator": (
        {
            "pipe.py": """
            import json
            G = (x for x in [json.load(open("k.json"))])
            def step(x): return next(G)
            """,
            "k.json": "1",
        },
        "1",
        "2",
    ),
    "a generator that went on": (
        {
            "pipe.py": "import other\nfrom h import G\ndef step(x): return next(G)\n",
            "h.py": "G = (x * x for x in range(9))\n",
            "other.py": "import h\nN = [next(h.G) for _ in range(1)]\n",
        },
        "range(1)",
        "range(2)",
    ),
}


SCALE = "def scale(): return 1\n"
BY_NAME: dict[str, Edit] = {
    "a function that imports, in a dictionary": (
        {
            "pipe.py": """
            import importlib
            O = {"i": importlib.import_module}
            def step(x): return O["i"]("h1").scale()
            """,
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "a built-in function that imports, in a list": (
        {"pipe.py": "O = [__import__]\ndef step(x): return O[0]('h1').scale()\n", "h1.py": SCALE},
        "return 1",
        "return 2",
    ),
    "a module that imports, as a value": (
        {
            "pipe.py": """
            import importlib
            def do(module, name): return getattr(module, "import_" + "module")(name)
            def step(x): return do(importlib, "h1").scale()
            """,
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "pydoc": (
        {"pipe.py": "import pydoc\ndef step(x): return pydoc.locate('h1.scale')()\n", "h1.py": SCALE},
        "return 1",
        "return 2",
    ),
    "an entry point": (
        {
            "pipe.py": """
            from importlib.metadata import EntryPoint
            def step(x): return EntryPoint("x", "h1:scale", "g").load()()
            """,
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "an entry point that is a constant": (
        {
            "pipe.py": """
            from importlib.metadata import EntryPoint
            E = EntryPoint("x", "h1:scale", "g")
            def step(x): return E.load()()
            """,
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "what configures logging": (
        {
            "pipe.py": """
            import logging.config
            def step(x): return logging.config.BaseConfigurator({}).resolve("h1.scale")()
            """,
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "a loader": (
        {
            "pipe.py": """
            import importlib.machinery
            def step(x):
                return importlib.machinery.SourceFileLoader("h9", "h1.py").load_module().scale()
            """,
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "a loader that another module finds": (
        {
            "pipe.py": "import b\ndef step(x): return b.get('h1').scale()\n",
            "b.py": "import pkgutil\ndef get(n): return pkgutil.get_loader(n).load_module(n)\n",
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "the globals of a function": (
        {
            "pipe.py": "import h\ndef step(x): return h.k.__globals__['z']()\n",
            "h.py": "def k(): pass\ndef z(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "the module of a class": (
        {
            "pipe.py": "import inspect\nimport h\ndef step(x): return inspect.getmodule(h.V).z()\n",
            "h.py": "class V: pass\ndef z(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "an import in a text": (
        {
            "pipe.py": "def step(x):\n    names = {}\n    exec('import h1', names)\n"
            "    return names['h1'].scale()\n",
            "h1.py": SCALE,
        },
        "return 1",
        "return 2",
    ),
    "a module that may be there": (
        {
            "pipe.py": "import importlib.util\n"
            "def step(x): return importlib.util.find_spec('h1') is not None\n",
            "h.py": "",
        },
        "",
        "",
    ),
    "a function that is named as one that imports": (
        {
            "pipe.py": "import h\ndef step(x): return h.import_module('json')\n",
            "h.py": "def import_module(name): return 1\n",
        },
        "return 1",
        "return 2",
    ),
}
APPEARS = {"a module that may be there": {"h1.py": SCALE}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", BY_NAME)
def test_code_that_is_reached_by_name_counts(project: Project, way: str) -> None:
    files, old, new = BY_NAME[way]
    files = {name: textwrap.dedent(text) for name, text in files.items()}
    edited = {name: text.replace(old, new) for name, text in files.items()} | APPEARS.get(way, {})

    before = project.fingerprint(files)
    output = project.function()(0)
    assert project.fingerprint(files) == before, "the same code has the same fingerprint"
    after = project.fingerprint(edited)

    assert project.function()(0) != output, "the edit matters"
    assert after != before


@pytest.mark.filterwarnings("ignore:Exception ignored in", "ignore:unclosed file")
def test_what_a_file_holds_is_compared_once_it_has_a_name(project: Project) -> None:
    source = """
    import json
    import numpy as np
    def adding(n): return lambda v: v + n
    N = json.load(open("k.json"))
    U = np.frompyfunc(adding(N), 1, 1)
    def step(x): return U(1)
    """
    before = project.fingerprint({"pipe.py": source, "k.json": "1"})

    assert project.fingerprint({"pipe.py": source, "k.json": "1"}) == before
    assert project.fingerprint({"pipe.py": source, "k.json": "2"}) != before


@pytest.mark.parametrize(
    "source",
    [
        "import importlib.metadata\nV = importlib.metadata.version('numpy')\ndef step(x): return V\n",
        "import importlib.util\nif importlib.util.find_spec('numpy'): N = 1\ndef step(x): return N\n",
        "import pkgutil\n__path__ = pkgutil.extend_path([], 'pipe')\ndef step(x): return x\n",
        "import logging\nLOG = logging.getLogger(__name__)\ndef step(x): LOG.info('x')\n",
        "import threading\nL = threading.Lock()\ndef step(x):\n    with L: return x\n",
    ],
)
def test_usual_ways_do_not_make_the_whole_project_count(project: Project, source: str) -> None:
    before = project.fingerprint({"pipe.py": source, "unrelated.py": "A = 1\n"})

    assert project.fingerprint({"pipe.py": source, "unrelated.py": "A = 2\n"}) == before


@pytest.mark.filterwarnings("ignore:Exception ignored in", "ignore:unclosed file")
@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(edit, id=f"{group}: {name}")
        for group, edits in (
            ("docstring", DOCSTRINGS),
            ("patched", PATCHED),
            ("state", STATE),
            ("opaque", OPAQUE),
        )
        for name, edit in edits.items()
    ],
)
def test_an_edit_that_changes_the_output_changes_the_fingerprint(project: Project, edit: Edit) -> None:
    files, old, new = edit
    files = {name: textwrap.dedent(text) for name, text in files.items()}
    data = [name for name in files if not name.endswith(".py")]
    edited = files | {name: files[name].replace(old, new) for name in data or files}

    before = project.fingerprint(files)
    output = project.function()(0)
    again = project.fingerprint(files)
    assert again == before or any("made from a file" in name for name in again), "the same code"
    after = project.fingerprint(edited)

    assert project.function()(0) != output, "the edit matters"
    assert after != before
