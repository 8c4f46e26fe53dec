"""What a Dockerfile copies is in the recipe, and nothing else is; what should be in no image is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from upshift import DockerSettings
from upshift.errors import SettingsError
from upshift.images.recipes.dockerfiles import BuildContext, DockerIgnore, base_of, instructions, read_context
from upshift.images.recipes.recipe import make_ingredients

ORIGIN = "pipeline.py:3 (@step)"
Read = Callable[..., BuildContext]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a Dockerfile in a folder with some files."""
    for name in ("requirements.txt", "src/a.py", "src/deep/b.py", "data/big.bin", "run.sh"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "run.sh").chmod(0o755)

    def read(*lines: str, ignore: str = "") -> BuildContext:
        (tmp_path / "Dockerfile").write_text("\n".join(("FROM python:3.12-slim", *lines)))
        if ignore:
            (tmp_path / ".dockerignore").write_text(ignore)
        return read_context(tmp_path / "Dockerfile", tmp_path, where=ORIGIN)

    return read


def refused(read: Read, *lines: str, ignore: str = "") -> str:
    with pytest.raises(SettingsError) as caught:
        read(*lines, ignore=ignore)
    return str(caught.value)


ALL = ["Dockerfile", "data/big.bin", "requirements.txt", "run.sh", "src/a.py", "src/deep/b.py"]
SRC = ["src/a.py", "src/deep/b.py"]


@pytest.mark.parametrize(
    ("lines", "copied"),
    [
        (["RUN true"], []),
        (["COPY requirements.txt /tmp/"], ["requirements.txt"]),
        (["COPY ./src/ /app", "copy --chown=1:1 /run.sh /"], ["run.sh", *SRC]),
        (['COPY ["requirements.txt", "src/a.py", "/app/"]'], ["requirements.txt", "src/a.py"]),
        (["COPY \\", "  # a comment", "", "  src \\", "  /app"], SRC),
        (["COPY s*c/*.py requirements.* /app/"], ["requirements.txt", "src/a.py"]),
        (["COPY sr[a-z] /app/"], SRC),
        (["COPY . /app"], ALL),
        (["ARG DIR=src", "COPY ${DIR} /app"], ALL),
        (["COPY --from=build src /app"], []),
        (["ADD https://example.org/a.tgz src/a.py /app/"], ["src/a.py"]),
        (["RUN --mount=type=bind,source=src,target=/s --mount=type=cache,target=/c make"], SRC),
        (["RUN --mount=target=/all make"], ALL),
        (["COPY ../requirements.txt /"], ["requirements.txt"]),
        (["COPY <<EOF run.sh /app/", "COPY src /nowhere", "EOF"], ["run.sh"]),
        (["RUN <<EOF", "COPY src /app", "EOF"], []),
        (["# escape=`", "COPY src /app"], SRC),
        (['RUN tr a b <<< "hello"', "COPY src /app"], SRC),
        (["RUN echo $((1 << N))", "COPY src /app"], SRC),
        (['RUN echo "a <<EOF b" cat<<EOF', "COPY src /app"], SRC),
        (["RUN cat <<-'EOF' 3<<TWO", "COPY data /", "\tEOF", "COPY data /", "TWO", "COPY src /app"], SRC),
        (["RUN <<EOF", "\tEOF", "COPY data /", "EOF", "COPY src /app"], SRC),
        (["COPY\trequirements.txt /a"], ["requirements.txt"]),
        (["COPY \"requirements.txt\" 'src/a.py' /a/"], ["requirements.txt", "src/a.py"]),
    ],
)
def test_what_a_dockerfile_names_is_what_counts(read: Read, lines: list[str], copied: list[str]) -> None:
    assert list(read(*lines).files) == copied


def test_another_escape_character(tmp_path: Path) -> None:
    found = list(instructions("# escape=`\nFROM a\nCOPY a `\n  c:\\\nRUN b\n"))
    assert [(one.name, one.value, one.line) for one in found] == [
        ("FROM", "a", 2),
        ("COPY", "a c:\\", 3),
        ("RUN", "b", 5),
    ]


def test_an_edit_elsewhere_changes_nothing_and_one_of_content_or_mode_does(
    read: Read, tmp_path: Path
) -> None:
    before = read("COPY src run.sh /app/").files
    (tmp_path / "data" / "big.bin").write_text("changed")
    os.utime(tmp_path / "src" / "a.py", (1, 1))
    assert read("COPY src run.sh /app/").files == before
    (tmp_path / "run.sh").chmod(0o644)
    changed = read("COPY src run.sh /app/").files
    assert {name for name in before if before[name] != changed[name]} == {"run.sh"}
    (tmp_path / "src" / "a.py").write_text("changed")
    assert read("COPY src run.sh /app/").files["src/a.py"] != before["src/a.py"]


def test_dockerignore_counts_and_that_of_the_dockerfile_goes_before_it(read: Read, tmp_path: Path) -> None:
    assert list(read("COPY . /app", ignore="data\n**/*.py\n!src/deep\nDockerfile\n.dockerignore").files) == [
        "requirements.txt",
        "run.sh",
        "src/deep/b.py",
    ]
    (tmp_path / "Dockerfile.dockerignore").write_text("*\n!run.sh\n")
    assert list(read("COPY . /app").files) == ["run.sh"]


@pytest.mark.parametrize(
    ("patterns", "path", "ignored"),
    [
        ("data", "data/big.bin", True),
        ("data", "other/data", False),
        ("/data/", "data/big.bin", True),
        ("**/data", "other/data/x", True),
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "a.py", True),
        ("src/**", "src/deep/b.py", True),
        ("src/*", "src/deep/b.py", True),
        ("*\n!keep", "keep/x", False),
        ("*\n!keep\nkeep/x", "keep/x", True),
        ("# data\n\n  data  ", "data", True),
        ("./src/../data", "data", True),
        (".", "data", False),
        ("a?c", "abc", True),
        ("[a-c]x", "bx", True),
        ("[", "[", True),
        ("a\\*", "a*", True),
        ("a\\*", "ab", False),
    ],
)
def test_patterns_of_dockerignore(patterns: str, path: str, ignored: bool) -> None:
    assert DockerIgnore(patterns).ignores(path) is ignored


def test_links_stay_links_and_empty_folders_are_there(read: Read, tmp_path: Path) -> None:
    (tmp_path / "src" / "link.py").symlink_to("a.py")
    (tmp_path / "src" / "empty").mkdir()
    assert list(read("COPY src /app").files.items())[1:4] == [
        ("src/deep/b.py", read("COPY src /app").files["src/deep/b.py"]),
        ("src/empty/", "folder"),
        ("src/link.py", "link:a.py"),
    ]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd", "../../.."])
def test_a_link_that_leads_out_is_refused(read: Read, tmp_path: Path, target: str) -> None:
    (tmp_path / "src" / "deep" / "link").symlink_to(target)
    assert "outside of build_context_root" in refused(read, "COPY src /app")
    assert list(read("COPY src /app", ignore="**/link").files) == SRC


def test_a_source_that_is_itself_a_link_out_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("/etc")
    assert "etc/passwd leads to /etc/passwd, outside" in refused(read, "COPY etc/passwd /app")


def test_devices_pipes_and_sockets_are_refused(read: Read, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "src" / "pipe")
    assert "src/pipe is neither a file, a folder nor a link" in refused(read, "COPY src /app")
    os.unlink(tmp_path / "src" / "pipe")
    before = Path.cwd()
    os.chdir(tmp_path / "src")
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket")
    finally:
        os.chdir(before)
    assert "src/socket is neither" in refused(read, "COPY src /app")


def test_a_name_with_control_characters_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / "src" / "a\nb").touch()
    assert "'src/a\\nb' is not a valid file name" in refused(read, "COPY src /app")


def test_secrets_are_left_out_with_a_word_or_refused_where_named(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TOKEN=x")
    found = read("COPY . /app")
    assert ".env" not in found.files
    assert len(found.notes) == 1
    assert found.notes[0].startswith(".env looks like a secret: Dockerfile does not copy it")
    assert "!.env into .dockerignore" in found.notes[0]
    text = refused(read, "RUN true", "COPY .env /app/")
    assert "Dockerfile:3 copies .env, which looks like a secret" in text
    assert "Dockerfile:3" in text
    assert list(read("COPY .env /app/", ignore="!.env").files) == [".env"]


def test_what_belongs_to_tools_is_left_out_unless_it_is_named(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "src" / "__pycache__" / "a.pyc").touch()
    assert list(read("COPY . /app").files) == ALL
    assert ".git/HEAD" in read("COPY .git/HEAD /app/").files
    assert ".git/HEAD" in read("COPY . /app", ignore="!.git").files


def test_what_is_not_there_is_named_with_the_line_of_the_dockerfile(read: Read, tmp_path: Path) -> None:
    text = refused(read, "RUN true", "COPY missing.txt /app/")
    assert "Dockerfile:3 copies missing.txt, which is not there" in text and text.count("Dockerfile:3") == 1
    assert "nothing there has such a name" in refused(read, "COPY *.toml /app/")
    assert ".dockerignore leaves it out" in refused(read, "COPY data/big.bin /app/", ignore="data")


def test_without_a_folder_nothing_can_be_copied(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM a\nRUN true\n")
    assert read_context(dockerfile, None, where=ORIGIN) == BuildContext(dockerfile="FROM a\nRUN true\n")
    dockerfile.write_text("FROM a\nCOPY a b\n")
    with pytest.raises(SettingsError, match="no build_context_root says from where") as caught:
        read_context(dockerfile, None, where=ORIGIN)
    assert "Dockerfile:2" in str(caught.value)
    with pytest.raises(SettingsError, match="is not a folder") as caught:
        read_context(dockerfile, tmp_path / "nowhere", where=ORIGIN)
    assert caught.value.where == ORIGIN
    with pytest.raises(SettingsError, match="Nowhere cannot be read: No such file"):
        read_context(tmp_path / "Nowhere", None, where=ORIGIN)


@pytest.mark.parametrize(
    ("lines", "base"),
    [
        (["FROM python:3.12-slim", "RUN true"], "python:3.12-slim"),
        (["# one", "from --platform=linux/amd64 a AS b"], "a"),
        (["FROM a AS build", "RUN true", "FROM b", "COPY --from=build /x /x"], "b"),
        (["FROM a AS Base", "FROM b AS other", "FROM base"], "a"),
        (["ARG BASE=a:1", "FROM ${BASE}"], "a:1"),
        (['ARG BASE="a"', "ARG TAG=2", "FROM $BASE:${TAG}"], "a:2"),
        (["ARG GIVEN", "FROM ${GIVEN}"], "given:1"),
        (["ARG GIVEN=a", "FROM $GIVEN"], "given:1"),
        (["ARG TAG", "FROM a:${TAG:-3}"], "a:3"),
        (["ARG TAG", "FROM a:${TAG}"], None),
        (["ARG V=3.12", "ARG B=python:${V}", "FROM $B"], "python:3.12"),
        (['ARG V=3.12 W="x y"', "FROM python:$V"], "python:3.12"),
        (["ARG V", "ARG B=python:${V}", "FROM $B"], None),
        (["FROM --platform=$BUILDPLATFORM a-${TARGETARCH}"], "a-amd64"),
        (["FROM\ta:1"], "a:1"),
        (["FROM a", 'RUN tr a b <<< "hello"', "FROM b"], "b"),
        (["FROM a:${TAG%x}"], None),
        (["FROM scratch"], None),
        (["FROM scratch AS a", "FROM a"], None),
        (["FROM a", "ARG GIVEN=b"], "a"),
        (["RUN true"], None),
    ],
)
def test_what_a_dockerfile_builds_on(lines: list[str], base: str | None) -> None:
    assert base_of("\n".join(lines), {"GIVEN": "given:1"}, "linux/amd64").image == base


@pytest.mark.parametrize(
    ("lines", "unknown"),
    [
        (["FROM a:${TAG}"], "a:${TAG}"),
        (["FROM $B AS one", "FROM one"], "$B"),
        (["FROM $B AS one", "FROM a"], None),
        (["FROM scratch"], None),
    ],
)
def test_a_base_that_cannot_be_told_is_named(tmp_path: Path, lines: list[str], unknown: str | None) -> None:
    assert base_of("\n".join(lines), {}, "linux/amd64").unknown == unknown
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    settings = DockerSettings(dockerfile="Dockerfile")
    notes = make_ingredients(settings, project=tmp_path, platform="linux/amd64").notes
    assert [note for note in notes if "cannot be told" in note and f"FROM {unknown} " in note] == list(notes)
    assert bool(notes) == (unknown is not None)


def test_paths_of_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM a\nCOPY Dockerfile /x\n")
    settings = DockerSettings(dockerfile="~/Dockerfile", build_context_root="~")
    ingredients = make_ingredients(settings, project=tmp_path / "project", platform="linux/amd64")
    assert ingredients.context_root == tmp_path
    assert ingredients.dockerfile == tmp_path / "Dockerfile"
