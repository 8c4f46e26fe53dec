"""Requirements of every kind are flattened to lines, and what is invalid is refused with its line."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upshift import DockerSettings
from upshift.errors import MissingExtra, SettingsError
from upshift.images.recipes.reading import digest_of
from upshift.images.recipes.recipe import requirements_of
from upshift.images.recipes.requirements import Requirements
from upshift.images.uv import find_uv

Read = Callable[..., Requirements]
ORIGIN = "pipeline.py:3 (@step)"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(**fields: Any) -> Requirements:
        origins = dict.fromkeys(fields, ORIGIN)
        return requirements_of(DockerSettings(**fields), project=tmp_path, origins=origins)

    return read


def refused(read: Read, **fields: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        read(**fields)
    return str(caught.value)


def wheel(folder: Path, name: str = "tiny-1.0-py3-none-any.whl", content: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("tiny.py", content)
    return folder / name


def test_a_list_is_kept_in_order_and_said_once(read: Read) -> None:
    lines = [
        "torchvision",
        "numpy >= 1.26,<3",
        "numpy>=1.26,<3",
        "--extra-index-url https://a.example.org/simple",
    ]
    assert read(requirements=lines).lines == (
        "torchvision",
        "numpy<3,>=1.26",
        "--extra-index-url https://a.example.org/simple",
    )


@pytest.mark.parametrize(
    "line",
    [
        "upshift",
        "upshift==0.39.1",
        "Upshift[torch] >= 9 ; python_version > '3'",
        "upshift @ git+https://example.org/upshift.git",
        "git+https://example.org/upshift.git@main",
        "git+ssh://git@example.org/upshift#egg=upshift",
        "https://example.org/upshift-0.3-py3-none-any.whl",
        "https://example.org/upshift-0.3.tar.gz",
        "git+https://example.org/upshift.git@feat/x",
        "git+https://example.org/upshift.git#subdirectory=a/b",
        "https://github.com/me/upshift/archive/refs/heads/main.zip",
        "https://github.com/me/upshift/zipball/main",
        "https://gitlab.example.org/me/upshift/-/archive/v1/v1.tar.gz",
    ],
)
def test_upshift_in_any_form_is_the_running_one(read: Read, line: str) -> None:
    found = read(requirements=[line, "six"])
    assert "six" in found.lines
    assert not any(name.startswith("upshift") or "/upshift" in name for name in found.lines)
    assert len(found.notes) == 1
    assert "the running version of Upshift is used" in found.notes[0]


def test_the_extras_of_upshift_bring_what_they_need(read: Read) -> None:
    assert any(line.startswith("torch>=") for line in read(requirements=["upshift[torch]==0.1"]).lines)
    assert read(requirements=["upshift==0.1"]).lines == ()


def test_the_wheel_of_upshift_is_the_running_one_too(read: Read, tmp_path: Path) -> None:
    wheel(tmp_path, "upshift-0.1-py3-none-any.whl")
    found = read(requirements=["./upshift-0.1-py3-none-any.whl"])
    assert found.lines == () and found.paths == {} and len(found.notes) == 1


def test_files_include_others_and_their_comments_do_not_count(read: Read, tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# all of it\n"
        "six==1.17.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb  # pinned\n"
        "-r requirements/more.txt\n"
        "\n"
        "-i https://index.example.org/simple\n"
        "--no-binary=:all:\n"
    )
    (tmp_path / "requirements" / "more.txt").write_text("\ufeffidna # a comment\r\n-c limits.txt\n")
    (tmp_path / "requirements" / "limits.txt").write_text("idna<4\n")
    found = read(requirements="requirements.txt")
    assert found.lines == (
        "six==1.17.0 --hash=sha256:aa --hash=sha256:bb",
        "idna",
        "--constraint limits.txt",
        "--index-url https://index.example.org/simple",
        "--no-binary :all:",
    )
    assert found.paths == {"limits.txt": tmp_path / "requirements" / "limits.txt"}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("six\ntorch=2.1\n", ["'torch=2.1' is not a requirement", "requirements.txt:2"]),
        ("six\n\n-r missing.txt\n", ["missing.txt cannot be read", "requirements.txt:3"]),
        ("-r requirements.txt\n", ["requirements.txt includes itself"]),
        ("-r https://example.org/r.txt", ["is not on this machine", "Keep a copy"]),
        ("--find-links ./wheels\n", ["a folder of this machine"]),
        ("--turbo\n", ["--turbo is not an option"]),
        ("-r\n", ["--requirement names nothing"]),
        ("--trusted-host\n", ["--trusted-host names nothing"]),
        ("--pre=yes\n", ["--pre takes no value"]),
        (
            "-i https://a/simple --extra-index-url https://b/simple\n",
            ["several options", "its own line"],
        ),
        ("./missing-1.0-py3-none-any.whl\n", ["there is no file missing-1.0-py3-none-any.whl"]),
        ("https://me:correct-horse@example.org/a-1.0-py3-none-any.whl\n", ["${TOKEN}", "requirements.txt:1"]),
        ("--index-url https://me:${NO_SUCH_TOKEN}@example.org/simple\n", ["NO_SUCH_TOKEN is not set"]),
    ],
)
def test_a_line_that_makes_no_sense_is_named(
    read: Read, tmp_path: Path, content: str, named: list[str]
) -> None:
    (tmp_path / "requirements.txt").write_text(content)
    text = refused(read, requirements="requirements.txt")
    for word in named:
        assert word in text
    assert "correct-horse" not in text


def test_a_value_of_a_lock_cannot_add_lines(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(
        'lock-version = "1.0"\n[[packages]]\nname = "tiny"\n'
        'archive = {url = "https://h/tiny-1.0.tar.gz\\n--index-url https://other.example.org"}\n'
    )
    text = refused(read, pyproject_path="pylock.toml")
    assert "a requirement holds a line break" in text
    assert "pylock.toml (tiny)" in text


def test_another_tool_among_requirements_gets_a_word(read: Read) -> None:
    found = read(requirements=["zenml==0.39.1"])
    assert found.lines == ("zenml==0.39.1",)
    assert "steps need nothing of zenml here" in found.notes[0]


def test_versions_that_exclude_each_other_are_refused_with_both_places(read: Read, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy>=2\nsix\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("numpy==1.26.4\n")
    text = refused(read, requirements="requirements.txt")
    assert "no numpy is both ==1.26.4 and >=2" in text
    assert "requirements.txt:1 and more.txt:1" in text
    assert "no torch is both ==2.2 and ==2.1" in refused(read, requirements=["torch==2.1", "torch==2.2"])


@pytest.mark.parametrize(
    "lines",
    [
        ["torch==2.1", "torch>=2"],
        ["torch==2.1", "torch==2.1.0"],
        ["torch==2.1.*", "torch==2.1.2"],
        ["torch==2.1 ; python_version<'3.12'", "torch==2.2 ; python_version>='3.12'"],
        ["torch==2.1.0+cu121", "torch==2.1.0"],
        ["torch>=2", "torch<2"],
    ],
)
def test_versions_that_may_go_together_are_left_to_the_installer(read: Read, lines: list[str]) -> None:
    assert len(read(requirements=lines).lines) == 2


@pytest.mark.parametrize("line", ["git+https://[::1/a", "a @ https://h]/a-1.0.tar.gz", "a @ file://[a"])
def test_an_address_that_is_none_is_named(read: Read, line: str) -> None:
    assert f"{line!r} is not a requirement" in refused(read, requirements=[line])


def test_a_file_that_is_not_there_is_named_with_the_users_line(read: Read) -> None:
    text = refused(read, requirements="torch")
    assert "requirements='torch' is the path of a file that does not exist" in text
    assert ORIGIN in text
    assert "requirements=['torch']" in text
    assert "lines.txt cannot be read: No such file" in refused(read, requirements="lines.txt")


def test_a_variable_in_an_address_stays_one(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEX_TOKEN", "correct-horse")
    line = "--index-url https://me:${INDEX_TOKEN}@example.org/simple"
    assert read(requirements=[line, "six"]).lines == (line, "six")


def test_options_of_pip_become_those_of_uv(read: Read) -> None:
    lines = ["--pre", "--trusted-host index.example.org", "--require-hashes"]
    assert read(requirements=lines).installer_args == (
        "--prerelease=allow",
        "--allow-insecure-host=index.example.org",
        "--require-hashes",
    )
    assert read(requirements=["--prefer-binary", "six"]).lines == ("six",)


def test_wheels_of_this_machine_are_named_without_their_folder(read: Read, tmp_path: Path) -> None:
    one = wheel(tmp_path / "dist")
    found = read(
        requirements=["./dist/tiny-1.0-py3-none-any.whl[fast] ; python_version > '3'", f"tiny @ file://{one}"]
    )
    assert found.lines == (
        "./tiny-1.0-py3-none-any.whl[fast] ; python_version > '3'",
        "./tiny-1.0-py3-none-any.whl",
    )
    assert found.paths == {"tiny-1.0-py3-none-any.whl": one}


def test_two_wheels_of_one_name_are_two_files(read: Read, tmp_path: Path) -> None:
    wheel(tmp_path / "a", content="1")
    wheel(tmp_path / "b", content="2")
    name = "tiny-1.0-py3-none-any.whl"
    found = read(requirements=[f"a/{name}", f"b/{name}"])
    assert found.lines == (f"./{name}", f"./2/{name}")
    assert digest_of(found.paths[name]) != digest_of(found.paths[f"2/{name}"])


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("tiny.whl", "not a valid wheel name"),
        ("requirements.txt", "-r PATH"),
        ("lib", "a folder with sources"),
    ],
)
def test_what_is_no_package_is_refused(read: Read, tmp_path: Path, name: str, named: str) -> None:
    (tmp_path / "tiny.whl").touch()
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "lib").mkdir()
    assert named in refused(read, requirements=[f"./{name}"])


PROJECT = """
[project]
name = "demo"
version = "1"
dependencies = ["six>=1.15", "tomli; python_version < '3.11'", "upshift>=0.1"]
[project.optional-dependencies]
Plots = ["pillow"]
"""


def test_the_project_itself_stands_for_what_it_needs(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = read(requirements=["-e .[plots]"])
    assert found.lines == ("six>=1.15", 'tomli ; python_version < "3.11"', "pillow")
    assert any("code travels by itself" in note for note in found.notes)
    assert any("running version of Upshift" in note for note in found.notes)
    assert "no extra 'plot'" in refused(read, requirements=["-e .[plot]"])


def test_a_pyproject_is_read_and_its_lock_pointed_to(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        PROJECT
        + '[[tool.uv.index]]\nurl = "https://index.example.org/simple"\n[tool.uv.sources]\nother = {}\n'
    )
    (tmp_path / "uv.lock").touch()
    found = read(pyproject_path="pyproject.toml", requirements=["six==1.16"])
    assert found.lines == (
        "six==1.16",
        "--extra-index-url https://index.example.org/simple",
        'tomli ; python_version < "3.11"',
    )
    assert any("pyproject_path='uv.lock'" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[tool.poetry.dependencies]\nsix = '^1'\n", "Name poetry.lock"),
        ("[project]\nname = 'a'\ndynamic = ['dependencies']\n", "Name a requirements file or a lock"),
        (PROJECT + "[tool.uv.sources]\nSix = { index = 'a' }\n", 'pyproject_path="uv.lock"'),
        ("[project\n", "pyproject.toml is not valid TOML"),
    ],
)
def test_a_pyproject_that_only_another_tool_understands(
    read: Read, tmp_path: Path, content: str, named: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    assert named in refused(read, pyproject_path="pyproject.toml")


def test_each_line_of_a_pyproject_counts(read: Read, tmp_path: Path) -> None:
    lines = ["numpy<2; python_version<'3.12'", "numpy>=2; python_version>='3.12'", "six", "six[x]", "idna"]
    (tmp_path / "pyproject.toml").write_text(
        f"[project]\nname = 'mine'\ndependencies = {json.dumps(lines)}\n"
    )
    assert read(pyproject_path="pyproject.toml", requirements=["idna==3.6"]).lines == (
        "idna==3.6",
        'numpy<2 ; python_version < "3.12"',
        'numpy>=2 ; python_version >= "3.12"',
        "six",
        "six[x]",
    )


def test_extras_of_the_project_itself_are_never_asked_of_an_index(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("""
[project]
name = "My.Proj"
dependencies = ["attrs"]
[project.optional-dependencies]
dev = ["my_proj[test, all]; python_version < '4'", "idna"]
test = ["six", "packaging; sys_platform == 'linux'"]
all = ["my-proj[dev]"]
""")
    assert read(requirements=["-e .[dev]"]).lines == (
        "attrs",
        "idna",
        'six ; python_version < "4"',
        'packaging ; python_version < "4" and sys_platform == "linux"',
        'idna ; python_version < "4"',
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[project]\ndependencies = [1]"),
        ("pyproject.toml", "[project]\ndependencies = 'torch'"),
        ("pyproject.toml", "tool = 'x'\n[project]\ndependencies = []"),
        ("pyproject.toml", "[project]\ndependencies = []\n[[tool.uv.index]]\nname = 'x'"),
        ("pylock.toml", "lock-version = '1.0'\n[[packages]]\nversion = '1'"),
        ("pylock.toml", "lock-version = '1.0'\npackages = 'six'"),
        (
            "pylock.toml",
            "lock-version = '1.0'\n[[packages]]\nname = 's'\nindex = 'https://i'\n"
            "[[packages.wheels]]\nurl = 'https://i/s-1-py3-none-any.whl'\nhashes = {}",
        ),
        ("pylock.toml", "lock-version = '1.0'\n[[packages]]\nname = 's'\nversion = '1'\n[[packages.wheels]]"),
        ("pylock.toml", "lock-version = '1.0'\n[[packages]]\nname = 's'\ndirectory = {path = 1}"),
        ("poetry.lock", "[metadata]\nlock-version = '2.1'\n[[package]]\nname = 'six'"),
        ("poetry.lock", "metadata = []"),
    ],
)
def test_a_file_that_has_not_its_form_is_named(read: Read, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    said = refused(read, pyproject_path=name)
    assert f"{name} is malformed" in said
    assert ORIGIN in said


def test_a_dependency_that_is_none_is_named(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['numpy=2']")
    said = refused(read, pyproject_path="pyproject.toml")
    assert "'numpy=2' is not a requirement" in said and "is malformed" not in said


def test_a_password_in_a_project_is_not_shown(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['https://me:hunter22@h/a.whl']")
    said = refused(read, pyproject_path="pyproject.toml")
    assert "holds the password of an address" in said and "hunter22" not in said


def test_a_lock_with_groups_gives_what_counts_by_default(read: Read, tmp_path: Path) -> None:
    markers = {
        "a": "'dev' in dependency_groups",
        "b": "'Main' in dependency_groups or 'x' in extras",
        "c": "'x' not in extras",
        "d": "'x' in extras and python_version > '3'",
        "e": "'main' in dependency_groups and os_name == 'posix'",
    }
    packages = (f'[[packages]]\nname = "{name}"\nmarker = "{marker}"\n' for name, marker in markers.items())
    wheels = "version = '1'\n[[packages.wheels]]\nhashes = {}\n"
    (tmp_path / "pylock.toml").write_text(
        "lock-version = '1.0'\ndefault-groups = ['main']\n" + "".join(one + wheels for one in packages)
    )
    assert read(pyproject_path="pylock.toml").lines == (
        "b==1",
        "c==1",
        'd==1 ; python_version < "0" and python_version > "3"',
        'e==1 ; python_version > "0" and os_name == "posix"',
    )


def test_groups_are_known_to_locks_alone(read: Read) -> None:
    assert "only a lock" in refused(read, requirements=["six; 'dev' in dependency_groups"]).lower()


@pytest.mark.parametrize(
    "fields", [{"requirements": "{}.txt"}, {"requirements": ["./{}.whl"]}, {"pyproject_path": "{}"}]
)
def test_a_name_that_is_too_long_is_no_file(read: Read, fields: dict[str, Any]) -> None:
    long = json.loads(json.dumps(fields).replace("{}", "n" * 300))
    assert "n" * 300 in refused(read, **long)


def test_a_wheel_that_cannot_be_read_is_named(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path)

    def closed(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", closed)
    assert f"{path} cannot be read: Permission denied" in refused(read, requirements=[f"./{path.name}"])


def test_uv_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_uv("it is needed") == str(tmp_path / "uv")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtra, match="it is needed: uv is not installed"):
        find_uv("it is needed")


def test_a_file_of_another_name_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / "Pipfile.lock").touch()
    assert "Name pyproject.toml, uv.lock" in refused(read, pyproject_path="Pipfile.lock")
    assert "cannot be read: No such file" in refused(read, pyproject_path="uv.lock")


UV_LOCK = """
version = 1
revision = 3
requires-python = ">=3.10"
[[package]]
name = "demo"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "six" }, { name = "tomli", marker = "python_full_version < '3.11'" }]
[package.metadata]
requires-dist = [{ name = "six" }, { name = "tomli", marker = "python_full_version < '3.11'" }]
[[package]]
name = "six"
version = "1.17.0"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://files.example.org/six-1.17.0-py2.py3-none-any.whl", hash = "sha256:4721" }]
[[package]]
name = "tomli"
version = "2.0.1"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://files.example.org/tomli-2.0.1-py3-none-any.whl", hash = "sha256:939d" }]
"""


def test_a_lock_of_uv_gives_versions_with_hashes(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "demo"\nversion = "1"\nrequires-python = ">=3.10"\n'
        'dependencies = ["six", "tomli; python_full_version < \'3.11\'"]\n'
    )
    (tmp_path / "uv.lock").write_text(
        UV_LOCK.replace("sha256:4721", "sha256:" + "4" * 64).replace("939d", "9" * 64)
    )
    assert read(pyproject_path="uv.lock").lines == (
        f"six==1.17.0 --hash=sha256:{'4' * 64}",
        f'tomli==2.0.1 ; python_full_version < "3.11" --hash=sha256:{"9" * 64}',
    )
    assert read(pyproject_path="uv.lock", requirements=["six==1.16"]).lines[0] == "six==1.16"


def test_a_lock_of_uv_that_is_damaged_says_so_in_uvs_words(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text("version = 99\n")
    text = refused(read, pyproject_path="uv.lock")
    assert "uv.lock cannot be read" in text and ORIGIN in text and "why:" in text


PYLOCK = """
lock-version = "1.0"
created-by = "test"
[[packages]]
name = "six"
version = "1.17.0"
index = "https://pypi.org/simple/"
wheels = [{ url = "https://files.example.org/six-1.17.0-py2.py3-none-any.whl", hashes = { sha256 = "47" } }]
[packages.sdist]
url = "https://files.example.org/six-1.17.0.tar.gz"
hashes = { sha256 = "ff" }
[[packages]]
name = "torch"
version = "2.5.1+cu121"
marker = "sys_platform == 'linux'"
index = "https://whl.example.org"
wheels = [
  { url = "TORCH-cp311-cp311-linux_x86_64.whl", hashes = { sha256 = "a1" } },
  { url = "TORCH-cp312-cp312-manylinux_2_28_aarch64.whl", hashes = { sha256 = "a2" } },
  { url = "TORCH-cp312-cp312-win_amd64.whl", hashes = { sha256 = "a3" } },
  { url = "TORCH-cp313-cp313t-linux_x86_64.whl", hashes = { sha256 = "a4" } },
]
[[packages]]
name = "upshift"
version = "0.1"
[[packages]]
name = "forked"
vcs = { type = "git", url = "https://example.org/forked.git", commit-id = "abc", subdirectory = "py" }
[[packages]]
name = "demo"
directory = { path = ".", editable = true }
""".replace("TORCH", "https://whl.example.org/torch-2.5.1%2Bcu121")


def test_a_pylock_names_the_files_of_other_indexes(read: Read, tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(PYLOCK)
    marker = 'sys_platform == "linux" and (python_version == "3.%d" and platform_machine == "%s")'
    torch = "torch @ https://whl.example.org/torch-2.5.1%2Bcu121"
    assert read(pyproject_path="pylock.toml").lines == (
        "six==1.17.0 --hash=sha256:47 --hash=sha256:ff",
        f"{torch}-cp311-cp311-linux_x86_64.whl#sha256=a1 ; {marker % (11, 'x86_64')}",
        f"{torch}-cp312-cp312-manylinux_2_28_aarch64.whl#sha256=a2 ; {marker % (12, 'aarch64')}",
        "forked @ git+https://example.org/forked.git@abc#subdirectory=py",
    )
    (tmp_path / "pylock.dev.toml").write_text('lock-version = "2.0"\n')
    assert "lock-version 2.0" in refused(read, pyproject_path="pylock.dev.toml")


POETRY = """
[[package]]
name = "six"
version = "1.17.0"
optional = false
groups = ["main"]
files = [{ file = "six.whl", hash = "sha256:47" }]
[[package]]
name = "tomli"
version = "2.0.1"
optional = false
groups = ["main", "dev"]
markers = { main = "python_version == '3.10'", dev = "os_name == 'nt'" }
files = []
[[package]]
name = "pytest"
version = "8.0"
optional = false
groups = ["dev"]
files = []
[[package]]
name = "forked"
version = "1"
optional = false
groups = ["main"]
files = []
source = { type = "git", url = "https://example.org/forked.git", resolved_reference = "abc" }
[[package]]
name = "inner"
version = "1"
optional = false
groups = ["main"]
files = []
source = { type = "legacy", url = "https://index.example.org/simple", reference = "ours" }
[metadata]
lock-version = "2.1"
"""


def test_a_lock_of_poetry_gives_its_main_group(read: Read, tmp_path: Path) -> None:
    (tmp_path / "poetry.lock").write_text(POETRY)
    assert read(pyproject_path="poetry.lock").lines == (
        "six==1.17.0 --hash=sha256:47",
        'tomli==2.0.1 ; python_version == "3.10"',
        "forked @ git+https://example.org/forked.git@abc",
        "inner==1",
        "--extra-index-url https://index.example.org/simple",
    )
    (tmp_path / "poetry.lock").write_text(POETRY.replace('"2.1"', '"2.0"'))
    assert "lock-version 2.0" in refused(read, pyproject_path="poetry.lock")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs packages of nothing but metadata, and hides all others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr("sys.path", [str(folder)])

    def install(name: str, version: str, origin: Any = None) -> None:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))

    return install


def test_what_is_installed_here_is_pinned(read: Read, tmp_path: Path, installed: Callable[..., None]) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    built = wheel(tmp_path / "dist", "built-1.0-py3-none-any.whl")
    installed("Six", "1.17.0")
    installed("pip", "26.0")
    installed("upshift", "0.1")
    installed("torch", "2.5.1+cu121")
    installed("idna", "3.1")
    installed(
        "forked", "2", {"url": "https://example.org/f.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    )
    installed("built", "1.0", {"url": f"file://{built}", "archive_info": {}})
    installed("lib", "1", {"url": f"file://{lib}", "dir_info": {"editable": True}})
    installed("demo", "1", {"url": f"file://{tmp_path}", "dir_info": {"editable": True}})
    found = read(replicate_local_python_environment=True, requirements=["idna<4"])
    assert found.lines == (
        "idna<4",
        "./built-1.0-py3-none-any.whl",
        "forked @ git+https://example.org/f.git@abc",
        "Six==1.17.0",
        "torch==2.5.1+cu121",
    )
    notes = "\n".join(found.notes)
    assert "lib 1 is installed here from" in notes and "build a wheel" in notes
    assert "torch 2.5.1+cu121 is a build that the usual index lacks" in notes
    assert "the running version is used" in notes
    assert "demo" not in notes
