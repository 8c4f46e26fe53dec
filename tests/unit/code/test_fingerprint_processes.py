"""The same code has the same fingerprint in every process; code that changed behind one's back is seen."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import textwrap
import types
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fingerprint_projects import Project, fresh_project

from upshift.code.fingerprint import Analysis, fingerprint
from upshift.code.fingerprint.installed import metadata_of, modules_in
from upshift.runtime.storage.digest import digest_of

SRC = Path(__file__).parents[3] / "src"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield from fresh_project(tmp_path, monkeypatch)


def run(project: Project, *command: str, **environment: str) -> str:
    """What a Python process that works on the project prints."""
    return subprocess.run(
        [sys.executable, "-B", *command],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": f"{project.folder}{os.pathsep}{SRC}", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


PRINT = """
import json, sys
from pathlib import Path
from upshift.code.fingerprint import fingerprint
"""
SHOW = "print(json.dumps(fingerprint(step, Path({folder!r})), sort_keys=True))"


def script(project: Project, body: str) -> str:
    return PRINT + textwrap.dedent(body) + SHOW.format(folder=str(project.folder)) + "\n"


REACHING = """
import helpers
NAMES = {"a", "b", "c", "d"}
class Model:
    tags = frozenset({"x", "y", "z"})
    def run(self): return helpers.f(1)
def step(x): return Model().run() + (x in NAMES)
"""


def test_whatever_the_hash_seed(project: Project) -> None:
    point = """
import attrs
@attrs.frozen
class Point:  # attrs writes a hash into the code of its __hash__
    x: int
"""
    helper = "from point import Point\ndef f(x): return {x, 'p', 'q', 'r', Point(x)}\n"
    project.write({"pipe.py": REACHING, "helpers.py": helper, "point.py": point})
    show = script(project, "from pipe import step\n")

    first, second = (run(project, "-c", show, PYTHONHASHSEED=seed) for seed in ("1", "2"))

    assert first == second


def test_what_cannot_be_told_of_a_package_below_the_project_is_the_same_in_every_process(
    project: Project,
) -> None:
    """Code that loads whatever it is told to reaches every module below the project's folder."""
    lib = "import logging\nlog = logging.getLogger(__name__)  # first\nN = 1\n"
    project.write(
        {
            "pipe.py": "import pickle, lib\ndef step(x): return pickle.loads(x), lib.N\n",
            "deps/lib/__init__.py": lib,
        }
    )
    metadata = project.folder / "deps" / "lib-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: lib\nVersion: 1.0\n")
    (metadata / "RECORD").write_text("lib/__init__.py,,\nlib-1.0.dist-info/RECORD,,\n")
    show = f"import sys; sys.path.append({str(project.folder / 'deps')!r})\n"
    show += script(project, "from pipe import step\n")

    first, again = run(project, "-c", show), run(project, "-c", show)
    (project.folder / "deps/lib/__init__.py").write_text(lib.replace("first", "second"))

    assert first == again == run(project, "-c", show)
    assert json.loads(first)["package lib"] == "1.0"


def test_run_as_a_script_or_imported(project: Project) -> None:
    guard = '\nif __name__ == "__main__":\n'
    show = textwrap.indent(script(project, ""), "    ")
    project.write({"pipe.py": REACHING + guard + show, "helpers.py": "def f(x): return x\n"})

    assert run(project, "pipe.py") == run(project, "-c", script(project, "from pipe import step\n"))


GUARDED = """
import pickle, sys

def helper(x): return x

def step(path):
    {read}

if __name__ == "__main__":
    amount = {amount}
    made = [amount]
"""


def fingerprint_of_script(project: Project, read: str, amount: int) -> dict[str, str]:
    show = textwrap.indent(script(project, ""), "    ")
    project.write({"pipe.py": GUARDED.format(read=read, amount=amount) + show})
    return json.loads(run(project, "pipe.py"))


@pytest.mark.parametrize("read", ["return pickle.load(open(path, 'rb'))", "return pickle._loads(path)"])
def test_a_step_that_unpickles_does_not_run_again_for_a_variable_of_the_script(
    project: Project, read: str
) -> None:
    first = fingerprint_of_script(project, read, 5)

    assert fingerprint_of_script(project, read, 6) == first
    assert "pipe.helper (pipe.py)" in first  # which the pickle may name


@pytest.mark.parametrize("read", ["return eval(path)", "return sys.modules['__main__'].amount"])
def test_a_step_that_may_read_a_variable_of_the_script_runs_again_for_it(project: Project, read: str) -> None:
    assert fingerprint_of_script(project, read, 5) != fingerprint_of_script(project, read, 6)


def test_a_second_process_reads_the_memo_of_the_first(project: Project, upshift_home: Path) -> None:
    project.write({"pipe.py": REACHING, "helpers.py": "def f(x): return x\n"})
    show = script(project, "from pipe import step\n")
    parsed = "print('parsed', 'upshift.code.fingerprint.parsing' in sys.modules)\n"

    first, second = run(project, "-c", show + parsed), run(project, "-c", show + parsed)

    assert first.splitlines()[0] == second.splitlines()[0]
    assert (first.splitlines()[1], second.splitlines()[1]) == ("parsed True", "parsed False")


def test_several_processes_at_once_share_a_memo(project: Project) -> None:
    project.write({"pipe.py": REACHING, "helpers.py": "def f(x): return x\n"})
    show = script(project, "from pipe import step\n")
    with ThreadPoolExecutor(4) as pool:
        seen = set(pool.map(lambda _: run(project, "-c", show), range(4)))

    assert seen == {run(project, "-c", show)}


def test_a_damaged_memo_is_one_that_is_not_there(project: Project, upshift_home: Path) -> None:
    files = {"pipe.py": REACHING, "helpers.py": "def f(x): return x\n"}
    before = project.fingerprint(files)
    memos = list((upshift_home / "fingerprints").iterdir())
    for content in (b"", b"short", b"x" * 1000):
        for memo in memos:
            memo.write_bytes(content)
        modules_in.cache_clear()
        assert project.fingerprint(files) == before
    for memo in memos:
        whole = bytearray(memo.read_bytes())
        whole[len(whole) // 2] ^= 1
        memo.write_bytes(whole)
    modules_in.cache_clear()
    assert project.fingerprint(files) == before


def test_a_home_that_cannot_be_written_is_no_error(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "file" / "home"))

    assert "pipe.step (pipe.py)" in project.fingerprint({"pipe.py": "def step(x): return x\n"})


def test_an_edit_that_keeps_size_and_times_is_seen(project: Project) -> None:
    before = project.fingerprint({"pipe.py": "def step(x): return x + 1\n"})
    file = project.folder / "pipe.py"
    stat = file.stat()
    file.write_text("def step(x): return x + 2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert project.fingerprint() != before


@pytest.mark.parametrize("size", [1 << 16, (1 << 17) + 1])
def test_a_long_file_is_read_to_its_end(project: Project, size: int) -> None:
    last = "def step(x): return x + 1\n"
    long = "#" * (size - len(last) - 1) + "\n" + last
    before = project.fingerprint({"pipe.py": long})

    assert (project.folder / "pipe.py").stat().st_size == size
    assert project.fingerprint({"pipe.py": long.replace("+ 1", "+ 2")}) != before


def test_the_stamp_of_a_file_is_of_the_content_that_was_read(project: Project) -> None:
    project.write({"pipe.py": "def step(x): return x + 1\n"})
    file = project.folder / "pipe.py"
    analysis = Analysis(project.folder)
    analysis.function(project.function())
    size, time, digest = analysis.stamps[str(file)]

    assert (size, time) == (file.stat().st_size, file.stat().st_mtime_ns)
    assert digest == digest_of(file.read_bytes())


# code that is loaded, and code that is written


@pytest.fixture
def young_files(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are newer than the process, as in a notebook."""
    monkeypatch.setattr("upshift.code.fingerprint.live._process_start", lambda: 0.0)


FRESH = "N = 5\ndef f(x): return x + N + 1\nT = [sum([1, 2])]\ndef step(x): return f(x) + T[0]\n"


@pytest.mark.usefixtures("young_files")
def test_a_file_that_did_not_change_is_not_suspected_of_its_functions(project: Project) -> None:
    names = set(project.fingerprint({"pipe.py": FRESH}))

    assert {"pipe.f (pipe.py)", "pipe.step (pipe.py)"} <= names
    assert not any("as loaded" in name or "changed" in name for name in names)


@pytest.mark.usefixtures("young_files")
@pytest.mark.parametrize(("old", "new"), [("N + 1", "N + 2"), ("N = 5", "N = 6")])
def test_a_function_edited_after_its_import_matches_neither_version(
    project: Project, old: str, new: str
) -> None:
    as_loaded = project.fingerprint({"pipe.py": FRESH})
    step = project.function()
    (project.folder / "pipe.py").write_text(FRESH.replace(old, new))
    mixed = fingerprint(step, project.folder)
    as_written = project.fingerprint()

    assert mixed != as_loaded
    assert mixed != as_written


def test_a_patched_function_is_seen_though_no_file_changed(project: Project) -> None:
    before = project.fingerprint(
        {"pipe.py": "import b\ndef step(x): return b.f(x)\n", "b.py": "def f(x): return x\n"}
    )
    step = project.function()
    sys.modules["b"].f = lambda x: x + 1  # type: ignore[attr-defined]

    assert fingerprint(step, project.folder) != before


def test_a_constant_set_at_run_time_is_seen(project: Project) -> None:
    before = project.fingerprint({"pipe.py": "N = 1\ndef step(x): return x + N\n"})
    step = project.function()
    sys.modules["pipe"].N = 2  # type: ignore[attr-defined]
    changed = fingerprint(step, project.folder)
    sys.modules["pipe"].N = 1  # type: ignore[attr-defined]

    assert changed != before
    assert fingerprint(step, project.folder) == before


METHODS = """
class A:
    def one(self): return 1
    def two(self): return 2
    def three(self, n=1): return n
    def four(self): return __class__
    five = lambda self: 5
def step(x): return A().one()
"""


@pytest.mark.parametrize(
    "patch",
    [
        "A.one, A.two = A.two, A.one",
        "A.one = A.two",
        "A.one = lambda self: 1",
        "A.one.changed = 1",
        "A.one.__code__ = A.two.__code__",
        "A.five = A.one",
    ],
)
def test_a_method_that_is_not_the_one_in_the_source_is_seen(project: Project, patch: str) -> None:
    before = project.fingerprint({"pipe.py": METHODS})
    step = project.function()
    exec(patch, vars(sys.modules["pipe"]))

    assert fingerprint(step, project.folder) != before


@pytest.mark.parametrize("chosen", ["True", "False"])
def test_a_class_that_is_written_twice_counts_by_both(project: Project, chosen: str) -> None:
    text = (
        f"if {chosen}:\n    class A:\n        def m(self): return 1\n"
        "else:\n    class A:\n        def m(self): return 2\ndef step(x): return A().m()\n"
    )
    before = project.fingerprint({"pipe.py": text})

    assert project.fingerprint({"pipe.py": text.replace("return 1", "return 3")}) != before
    assert project.fingerprint({"pipe.py": text.replace("return 2", "return 3")}) != before


# code without a file


def executed(source: str, name: str = "<string>") -> types.ModuleType:
    module = types.ModuleType("made")
    exec(compile(textwrap.dedent(source), name, "exec"), module.__dict__)
    return module


def test_code_without_source_counts_by_its_bytecode(project: Project) -> None:
    source = "N = 1\ndef f(x): return x + 10\ndef step(x): return f(x) + N\n"

    def look(text: str) -> dict[str, str]:
        return fingerprint(executed(text).step, project.folder)

    assert look(source) == look(source) == look("\n# a comment\n" + source)
    assert look(source) != look(source.replace("+ 10", "+ 20"))
    assert look(source) != look(source.replace("N = 1", "N = 2"))
    assert look(source) != look(source.replace("f(x) + N", "f(x) - N"))


def test_a_cell_of_a_notebook_counts_by_its_source(project: Project) -> None:
    def look(text: str, name: str) -> dict[str, str]:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        return fingerprint(executed(text, name).step, project.folder)

    source = "def f(x): return x + 10\nclass A:\n    def m(self): return f(1)\ndef step(x): return A().m()\n"

    assert look(source, "<cell 1>") == look("# again\n" + source, "<cell 2>")
    assert look(source, "<cell 1>") != look(source.replace("10", "20"), "<cell 3>")
    assert not any("as loaded" in name for name in look(source, "<cell 1>"))


def test_what_nothing_describes_is_never_reused(project: Project) -> None:
    source = "import threading\nL = threading.Lock()\ndef step(x):\n    with L: return x\n"
    first, second = (fingerprint(executed(source).step, project.folder) for _ in range(2))

    assert first != second
    assert any("cannot be compared" in name for name in first)


def test_a_module_in_an_archive_counts_by_its_source(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write({"pipe.py": "import packed\ndef step(x): return packed.f(x)\n"})

    def look(text: str, name: str) -> dict[str, str]:
        archive = tmp_path / name
        with zipfile.ZipFile(archive, "w") as content:
            content.writestr("packed.py", text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(archive))
            sys.modules.pop("packed", None)
            return project.fingerprint()

    one = look("def f(x): return x + 1\n", "a.zip")
    assert one == look("# again\ndef f(x): return x + 1\n", "b.zip")
    assert one != look("def f(x): return x + 2\n", "c.zip")


# classes, methods, packages


def test_the_fingerprint_of_a_class_holds_what_its_methods_reach(project: Project) -> None:
    files = {
        "pipe.py": "import b\nclass Base:\n    def m(self): return b.f()\nclass Data(Base):\n    n = 1\n",
        "b.py": "def f(): return 1\n",
    }

    def look(edit: tuple[str, str] = ("", "")) -> dict[str, str]:
        project.write({name: text.replace(*edit) for name, text in files.items()})
        return fingerprint(project.function("pipe.Data"), project.folder)

    assert look() == look()
    assert {"pipe.Data (pipe.py)", "pipe.Base (pipe.py)", "b (b.py)"} <= look().keys()
    assert look() != look(("return 1", "return 2"))
    assert look() != look(("n = 1", "n = 2"))


def test_what_python_leaves_in_a_class_for_its_annotations_does_not_count(project: Project) -> None:
    before = project.fingerprint({"pipe.py": "class Data:\n    n: int = 1\n"}, "pipe.Data")
    cls = project.function("pipe.Data")
    cls.__annotate_func__ = executed("def __annotate__(format): return {'n': int}\n").__annotate__

    assert fingerprint(cls, project.folder) == before


def test_the_class_of_a_library_counts_by_its_version(project: Project) -> None:
    import pandas

    assert fingerprint(pandas.DataFrame, project.folder)["package pandas"] == pandas.__version__


def test_a_class_of_python_counts_by_the_version_of_python(project: Project) -> None:
    assert fingerprint(dict, project.folder) == {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}


FLOW = """
def helper(): return 1
class Flow:
    scale = 2
    def start(self):
        self.value = self.shared() + self.scale
    def shared(self): return helper()
    def end(self): return 10
"""


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("return helper()", "return -helper()", True),
        ("return 1\n", "return 3\n", True),
        ("scale = 2", "scale = 3", True),
        ("return 10", "return 20", False),
    ],
)
def test_a_method_reaches_what_it_takes_from_self(project: Project, old: str, new: str, seen: bool) -> None:
    def look(text: str) -> dict[str, str]:
        project.write({"pipe.py": text})
        return fingerprint(project.function("pipe.Flow").start, project.folder)

    assert (look(FLOW) != look(FLOW.replace(old, new))) is seen


def test_the_object_of_a_bound_method_counts(project: Project) -> None:
    text = "class A:\n    def __init__(self, n): self.n = n\n    def m(self, x): return x + self.n\n"
    project.write({"pipe.py": text})
    made = project.function("pipe.A")

    assert fingerprint(made(1).m, project.folder) == fingerprint(made(1).m, project.folder)
    assert fingerprint(made(1).m, project.folder) != fingerprint(made(2).m, project.folder)


def test_a_package_that_is_installed_in_editable_form_counts_by_its_code(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.syspath_prepend(str(other))
    project.write({"pipe.py": "import lib\ndef step(x): return lib.f(x)\n"})

    def look(text: str) -> dict[str, str]:
        (other / "lib.py").write_text(text)
        sys.modules.pop("lib", None)
        return project.fingerprint()

    assert look("def f(x): return x\n") != look("def f(x): return -x\n")


def test_an_installed_package_counts_by_its_version_wherever_it_is(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    metadata = target / "thing-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "RECORD").write_text("lib_of_thing.py,,\nthing-1.0.dist-info/RECORD,,\n")
    (target / "lib_of_thing.py").write_text("def f(x): return x\n")
    monkeypatch.syspath_prepend(str(target))
    project.write({"pipe.py": "import lib_of_thing\ndef step(x): return lib_of_thing.f(x)\n"})

    assert project.fingerprint()["package thing"] == "1.0"
    metadata.rename(target / "thing-1.1.dist-info")
    modules_in.cache_clear()
    metadata_of.cache_clear()
    assert project.fingerprint()["package thing"] == "1.1"
    sys.modules.pop("lib_of_thing", None)


def test_one_analysis_serves_all_steps_of_a_pipeline(project: Project) -> None:
    project.write({"pipe.py": "def f(x): return x\ndef a(x): return f(x)\ndef b(x): return f(x) + 1\n"})
    module = sys.modules[project.function("pipe.a").__module__]
    together = Analysis(project.folder)

    assert together.function(module.a) == fingerprint(module.a, project.folder)
    assert together.function(module.b) == fingerprint(module.b, project.folder)


def test_nothing_is_analysed_by_importing_upshift() -> None:
    code = "import sys, upshift; print(any('fingerprint' in name for name in sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        text=True,
    )

    assert out.stdout == "False\n"
