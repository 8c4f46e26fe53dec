"""Whatever is typed, exported or configured: a command ends, says what is wrong and what to do, and shows no
stack trace of Upshift's.

``UPSHIFT_FUZZ_CASES`` is how many cases each command gets, ``UPSHIFT_TEST_SEED`` what they are chosen by.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import click
import pytest

from odd import Odd
from prepared import UPSHIFT, Interpreter
from project import Outcome, Project
from upshift.cli import upshift as program

CASES = int(os.environ.get("UPSHIFT_FUZZ_CASES", "5"))
SEED = os.environ.get("UPSHIFT_TEST_SEED", "1")
SECONDS = 30
"""Until a command counts as hanging."""
BYTES = 2 << 30
"""Of address space, that a command may take."""
MOST_TYPED = 100_000
"""Characters of a command line."""
ENDS = (0, 1, 2, 130)

PIPELINE = """
import dataclasses, datetime, enum, pathlib, typing

class Colour(enum.Enum):
    red = 1

@dataclasses.dataclass
class Config:
    lr: float = 0.1
    depths: list[int] = dataclasses.field(default_factory=list)

@step
def double(x: int) -> int:
    print("doubling", x)
    return 2 * x

@step
def total(xs: list[int], config: Config) -> float:
    return sum(xs) * config.lr

@pipeline
def example(
    n: int = 2, x: float = 0.5, name: str = "a", flag: bool = False, items: list[int] = [1, 2],
    table: dict[str, float] = {}, colour: Colour = Colour.red, config: Config = Config(),
    size: typing.Literal[1, "big"] = 1, when: datetime.date = datetime.date(2026, 1, 1),
    file: pathlib.Path = pathlib.Path("pipeline.py"), either: int | None = None, anything=None,
):
    return total(double.map(items), config)
"""
FAILING = """
@step
def broken(x: int) -> int:
    raise ValueError(x)

@pipeline
def fails():
    return broken.map([1, 2])
"""
PARAMETERS = (
    *("n", "x", "name", "flag", "items", "table", "colour", "config", "config.lr", "config.depths"),
    *("size", "when", "file", "either", "anything"),
)
USUAL: Mapping[str, Sequence[str]] = {
    "FILE[:PIPELINE]": ("pipeline.py", "pipeline.py:example", "failing.py"),
    "NAME=VALUE": ("n=3", "items=[1]"),
    "FILE": ("params.json", "params.toml"),
    "TARGET": ("local",),
    "STEP": ("double", "total"),
    "[STEP[INDEX]]": ("double", "double[1]", "total"),
    "TASK": ("double[1]", "total"),
    "AGE": ("30d",),
    "N": ("1", "2"),
    "NAME": ("example",),
}
"""By metavar, what makes sense; anything about a run is ``latest``."""
VARIABLES = (
    *(
        "UPSHIFT_HOME",
        "UPSHIFT_CATALOG",
        "UPSHIFT_STORE",
        "UPSHIFT_DEFAULT_TARGET",
        "UPSHIFT_DURABILITY",
        "UPSHIFT_VERIFY",
    ),
    *("UPSHIFT_INSECURE_REGISTRIES", "UPSHIFT_NO_CGROUPS", "UPSHIFT_DEVICE_ROOT", "UPSHIFT_VERIFY"),
    *("HOME", "TMPDIR", "USER"),
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG"),
    *("DOCKER_HOST", "DOCKER_BUILDKIT", "REGISTRY_AUTH_FILE", "CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "PATH"),
)
KEYS = (
    *("default_target", "catalog", "store", "durability", "insecure_registries", "targets", "targets.local"),
    *("targets.a.backend", "targets.a.store", "targets.a.registry", "targets.a.mounts", "targets.a.options"),
    *("targets.local.backend", "targets.local.mounts", "targets.local.options", '"\\u0000"', "storr"),
)


@attrs.frozen
class Case:
    """A command as it is typed, where, and with what.

    Parameters
    ----------
    arguments
        After ``upshift``.
    variables
        Of the environment, beside the usual ones.
    files
        In the working folder.
    """

    arguments: Sequence[str]
    variables: Mapping[str, str]
    files: Mapping[str, bytes]

    def __str__(self) -> str:
        parts = [f"{name}={value!r:.200}" for name, value in self.variables.items()]
        parts += [f"{name}: {content!r:.200}" for name, content in self.files.items()]
        return "; ".join([shlex.join(["upshift", *(f"{a:.200}" for a in self.arguments)]), *parts])


def commands(group: click.Command = program, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that is no group."""
    if not isinstance(group, click.Group):
        yield path
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, (*path, name))


def command_of(path: Sequence[str]) -> click.Command:
    command: click.Command = program
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def usual(odd: Odd, parameter: click.Parameter) -> str:
    """A value that makes sense."""
    if isinstance(parameter.type, click.Choice):
        return str(odd.one(list(parameter.type.choices)))
    if isinstance(parameter.type, click.Path):
        return "written.html"
    return odd.one(USUAL.get(parameter.metavar or "", ("latest",)))


def strange(odd: Odd, parameter: click.Parameter) -> str:
    """A value that is odd, wholly or in a part."""
    if parameter.metavar == "NAME=VALUE" and odd.chance(0.8):
        return f"{odd.one(PARAMETERS)}={odd.argument()}"
    if odd.chance(0.2):
        return usual(odd, parameter) + odd.argument()
    return odd.argument()


def case(path: Sequence[str], odd: Odd) -> Case:
    """A command of this name in which one or two things are odd."""
    given = [p for p in command_of(path).params if _is_given(p, odd)]
    typed = [parameter for parameter in given if not _is_flag(parameter)]
    places: list[object] = [*typed, "typed", *("variable", "file") * (1 + len(typed) // 2)]
    wrong = [odd.one(places) for _ in range(2 if odd.chance(0.4) else 1)]
    arguments: list[str] = []
    for parameter in given:
        value = (strange if parameter in wrong else usual)(odd, parameter)
        name = [] if isinstance(parameter, click.Argument) else [odd.one(parameter.opts)]
        arguments += name if _is_flag(parameter) else [*name, _harmless(value)]
    if "typed" in wrong:
        arguments.insert(0 if odd.chance(0.3) else len(arguments), _harmless(odd.argument()))
    variables = {}
    if "variable" in wrong:
        name = odd.one(VARIABLES)
        variables = {name: "" if odd.chance(0.05) else _harmless(odd.argument())}
    files = {"params.json": b'{"n": 1}', "params.toml": b"n = 1\n"}
    if "file" in wrong:
        files |= {
            odd.one(("upshift.toml", "upshift.toml", "pyproject.toml", "params.toml")): odd.toml(KEYS),
            "params.json": odd.json(),
        }
    return Case([*path, *arguments], variables, files)


def _is_given(parameter: click.Parameter, odd: Odd) -> bool:
    return parameter.required or odd.chance(0.6 if isinstance(parameter, click.Argument) else 0.25)


def _is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag


def _harmless(text: str) -> str:
    """Not a place outside the folder of the test that could be written to."""
    bare = re.sub(r"^(file|sqlite)://", "", text)
    outside = bare.startswith("/") and not bare.startswith(("/dev/", "/proc/"))
    return "x" + text if outside else text


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """Where commands are forked from."""
    one = Interpreter(tmp_path_factory.mktemp("interpreter"), os.environ, most_bytes=BYTES)
    yield one
    one.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project, and a home with two runs of it, one of which failed."""
    folder = tmp_path_factory.mktemp("odd") / "kept"
    place = folder.with_name("here")  # records hold its path
    project = Project(place / "project", place / "home")
    project.write(PIPELINE)
    project.write(FAILING, "failing.py")
    project.upshift("run", "failing.py", expect=1)
    project.upshift("run", "pipeline.py:example", "--tag", "a")
    (place / "user").mkdir()
    place.rename(folder)
    return folder


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_ends_with_a_word_on_what_is_wrong(
    path: tuple[str, ...], kept: Path, interpreter: Interpreter
) -> None:
    found = []
    for number in range(CASES):
        odd = Odd((SEED, path, number))
        one = case(path, odd)
        ended = attempt(one, kept, interpreter, fresh=odd.chance(0.05))
        problem = complaint(ended)
        if problem is not None:
            found.append("\n".join((f"[{number}] {problem}", f"  {one}", *_end(ended))))
    assert not found, f"{len(found)} of {CASES}, seed {SEED}\n\n" + "\n\n".join(found)


RUN = ["run", "pipeline.py"]
ODD = (
    (["run", "caf\udce9.py"], {}, {}, r"argument 2 is not UTF-8: b'caf\xe9.py'"),
    (["show", "\udcff"], {}, {}, "argument 2 is not UTF-8"),
    (["runs"], {"UPSHIFT_HOME": "h\udcff"}, {}, r"UPSHIFT_HOME = 'h\udcff' holds a byte that is not UTF-8"),
    (["runs"], {"UPSHIFT_HOME": "~no-such-user/x"}, {}, "nobody's home is known by that name"),
    (["runs"], {"UPSHIFT_HOME": "x/" * 1000}, {}, "folders deep"),
    (["runs"], {"UPSHIFT_CATALOG": "/dev/null"}, {}, "the catalog /dev/null is not a file"),
    (["runs"], {"UPSHIFT_CATALOG": "\x1b[2J"}, {}, r"UPSHIFT_CATALOG '\x1b[2J' holds a control character"),
    (RUN, {"UPSHIFT_STORE": "file://host/x"}, {}, "names a machine, 'host'"),
    (["runs"], {}, {"upshift.toml": rb'store = "a\u0000b"'}, r"store = 'a\x00b' holds a NUL"),
    (["runs"], {}, {"upshift.toml": rb'catalog = "a\u0000b"'}, r"catalog = 'a\x00b' holds a NUL"),
    (["runs"], {}, {"upshift.toml": b"a = " + b"[" * 100_000}, "upshift.toml is not valid TOML"),
    (["runs"], {}, {"pyproject.toml": b"a = " + b"[" * 100_000}, "It is nested too deeply."),
    (["runs"], {}, {"upshift.toml": b"targets.a.mounts = { a = 1 }"}, "mounts: 'a' = 1 is invalid"),
    ([*RUN, "-p", "items=" + "[" * 100_000], {}, {}, "parameter 'items': '[[["),
    ([*RUN, "-p", "config" + ".a" * 10_000 + "=1"], {}, {}, "A name has at most 100 dots."),
    ([*RUN, "--params-file", "/dev/zero"], {}, {}, "it has more than 16,777,216 bytes"),
    ([*RUN, "--params-file", "a"], {}, {"a": b"[" * 200_000}, "It is nested too deeply."),
    (["run", "a" * 300 + ".py"], {}, {}, "cannot be read"),
    ([*RUN, "-t", "\x1b[2J"], {}, {}, r"--tag: tags[0] holds a control character ('\x1b')"),
    (["logs", "latest", ""], {}, {}, "has no step ''"),
    (["logs", "latest", "double[" + "9" * 30 + "]"], {}, {}, "has no step 'double[999"),
    (["runs", "--limit", "1" + "0" * 23], {}, {}, "is not in the range 1<=x<=999999999"),
    (["gc", "--older-than", "9" * 400 + "d"], {}, {}, "at most 3,650 days"),
)


@pytest.mark.parametrize(
    ("arguments", "variables", "files", "text"), ODD, ids=[ascii(" ".join(one[0]))[:60] for one in ODD]
)
def test_an_odd_input_is_refused_with_what_is_wrong(
    arguments: list[str],
    variables: dict[str, str],
    files: dict[str, bytes],
    text: str,
    kept: Path,
    interpreter: Interpreter,
) -> None:
    ended = attempt(Case(arguments, variables, files), kept, interpreter)
    assert ended is not None
    assert (ended.code, complaint(ended)) == (2, None), ended.err
    assert text in ended.err


@pytest.mark.parametrize("line", ["show latest", "runs", "plan pipeline.py", "compare --last 2", "top"])
def test_a_narrow_terminal_is_no_reason_to_hang(line: str, kept: Path, interpreter: Interpreter) -> None:
    for columns in ("1", "10"):
        ended = attempt(Case(line.split(), {"COLUMNS": columns}, {}), kept, interpreter)
        assert ended is not None, columns
        assert (ended.code, complaint(ended)) == (0, None), columns


def attempt(one: Case, kept: Path, interpreter: Interpreter, *, fresh: bool = False) -> Outcome | None:
    """Run it in a copy of the project and its home, forked or in a new process; None: it hangs."""
    place = kept.with_name("here")
    shutil.copytree(kept, place)
    work = place / "project"
    for name, content in one.files.items():
        (work / name).write_bytes(content)
    env = {
        "PATH": str(place / "user"),
        "HOME": str(place / "user"),
        "LANG": "C.UTF-8",
        "USER": "somebody",
        "UPSHIFT_HOME": str(place / "home"),
        "BROWSER": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        **one.variables,
    }
    try:
        if fresh and sum(map(len, one.arguments)) < MOST_TYPED:
            done = subprocess.run(
                [UPSHIFT, *one.arguments],
                cwd=work,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        else:
            done = interpreter.run(one.arguments, cwd=work, env=env, timeout=SECONDS)
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return Outcome(done.returncode, out, err)
    except subprocess.TimeoutExpired:
        return None
    finally:
        shutil.rmtree(place)


def complaint(ended: Outcome | None) -> str | None:
    """What is wrong with how a command ended; None: nothing."""
    if ended is None:
        return "hangs"
    if ended.code not in ENDS:
        return f"exit code {ended.code}"
    if re.search(r'File ".*/upshift/', ended.err):
        return "a stack trace of Upshift's"
    if "out of memory" in ended.err:
        return f"takes more than {BYTES:,} bytes"
    if ended.code == 2 and re.search(r'→ |"fix"', ended.out + ended.err):
        return None  # findings about an image, each with what to do
    if ended.code == 2 and not re.search(r"^(Error:|Usage:)", ended.err, re.MULTILINE):
        return "refused without a word"
    if ended.code == 2 and not re.search(r"^  (fix|why): |^Try '", ended.err, re.MULTILINE):
        return "refused without a word on what to do"
    if ended.code == 1 and not ended.err.strip() and not ended.out.strip():
        return "failed without a word"
    return None


def _end(ended: Outcome | None) -> list[str]:
    return [] if ended is None else [f"    {line:.200}" for line in ended.err.strip().splitlines()[-8:]]
