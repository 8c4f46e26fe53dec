"""What Dockerfiles are rendered to. ``UPDATE_DOCKERFILES=1`` writes them anew: look at the difference."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upshift.images.base import Contents, Ingredients, Parent, Recipe
from upshift.images.containers.dockerfile import arguments, quoted, render
from upshift.images.reference import Reference

GOLDEN = Path(__file__).parent / "dockerfiles"
PARENT = Parent(
    reference=Reference.parse("python:3.11-slim"), digest="sha256:" + "a" * 64, platform="linux/amd64"
)
IN_ENGINE = attrs.evolve(
    PARENT, reference=Reference.parse("registry.example.org:5000/ml/base:2"), in_engine=True
)
NOT_ROOT = attrs.evolve(PARENT, user="jovyan")
PLAIN = Recipe(parent="python:3.11-slim", platform="linux/amd64")

CASES: dict[str, tuple[Recipe, Parent | None, Contents]] = {
    "uv": (
        attrs.evolve(PLAIN, requirements=("numpy==2.1.0", "--extra-index-url https://x.example/simple")),
        PARENT,
        Contents(),
    ),
    "known-python": (
        attrs.evolve(PLAIN, requirements=("numpy",)),
        PARENT,
        Contents(interpreter="/opt/conda/bin/python 3", externally_managed=False),
    ),
    "pip": (
        attrs.evolve(
            PLAIN,
            requirements=("numpy",),
            installer="pip",
            installer_args=("--index-url=https://x.example/a b?c=$d&e", "--no-deps", "--it's"),
        ),
        PARENT,
        Contents(externally_managed=True),
    ),
    "apt": (attrs.evolve(PLAIN, apt_packages=("git", "libgl1=1.6.0-1~deb12u1+b2")), PARENT, Contents()),
    "environment": (
        attrs.evolve(
            PLAIN,
            environment={
                "PLAIN": "1",
                "QUOTES": """it's "quoted" `twice`""",
                "DOLLARS": "$HOME ${HOME} $$ \\$HOME",
                "EMPTY": "",
                "SLASHES": "C:\\temp\\",
                "LINES": "one\ntwo $HOME\n",
                "MORE_LINES": "a\r\nb",
                "WORDS": " # ünïcödé = 1 <<EOF ",
            },
        ),
        PARENT,
        Contents(),
    ),
    "users": (attrs.evolve(PLAIN, user="ml:staff", requirements=("numpy",)), NOT_ROOT, Contents()),
    "user-of-the-parent": (attrs.evolve(PLAIN, apt_packages=("git",)), NOT_ROOT, Contents()),
    "user-by-number": (attrs.evolve(PLAIN, user="1000:1000"), NOT_ROOT, Contents()),
    "in-the-engine": (attrs.evolve(PLAIN, environment={"A": "1"}), IN_ENGINE, Contents()),
    "users-dockerfile": (
        attrs.evolve(PLAIN, parent=None, dockerfile="FROM scratch\n", requirements=("numpy",)),
        None,
        Contents(),
    ),
    "secret": (
        attrs.evolve(PLAIN, requirements=("--index-url https://me:${TOKEN}@x.example/simple", "numpy")),
        PARENT,
        Contents(),
    ),
}


@pytest.mark.parametrize("buildkit", [True, False], ids=["mounts", "copies"])
@pytest.mark.parametrize("case", CASES)
def test_the_rendered_dockerfile(case: str, buildkit: bool) -> None:
    recipe, parent, contents = CASES[case]
    text = render(Ingredients(recipe=recipe), parent, contents, buildkit=buildkit)
    golden = GOLDEN / f"{case}{'' if buildkit else '.copies'}.dockerfile"
    if os.environ.get("UPDATE_DOCKERFILES"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_every_golden_file_has_a_case() -> None:
    names = {f"{case}{kind}.dockerfile" for case in CASES for kind in ("", ".copies")}
    assert {path.name for path in GOLDEN.iterdir()} == names


def unquoted(text: str) -> str:
    """What Docker takes ``text`` for: https://docs.docker.com/reference/dockerfile/#environment-replacement."""
    assert text[0] == text[-1] == '"'
    found, characters = [], iter(text[1:-1])
    for character in characters:
        assert character not in '"$', "a quote that ends it, or a variable"
        if character == "\\":
            character = next(characters)
            assert character in '\\"$'
        found.append(character)
    return "".join(found)


@given(st.text())
@example("\\")
@example('\\"$\\')
def test_what_is_quoted_means_itself(value: str) -> None:
    assert unquoted(quoted(value)) == value


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(), max_size=4))
def test_every_value_is_in_one_line_or_an_argument(environment: dict[str, str]) -> None:
    recipe = attrs.evolve(PLAIN, environment=environment)
    text = render(Ingredients(recipe=recipe), PARENT, Contents(), buildkit=True)
    values, given_later = {}, arguments(recipe)
    for line in text.split("\n"):
        if line.startswith("ENV "):
            name, _, value = line.removeprefix("ENV ").partition("=")
            values[name] = given_later[value[2:-1]] if value[1:2] == "$" else unquoted(value)
    assert values == environment


@given(st.lists(st.text(st.characters(blacklist_characters="\n\r\0")), max_size=3))
def test_options_reach_the_installer_as_they_are(options: list[str]) -> None:
    args = tuple(f"--option={option}" for option in options)
    recipe = attrs.evolve(PLAIN, requirements=("numpy",), installer_args=args, installer="pip")
    text = render(Ingredients(recipe=recipe), PARENT, Contents(), buildkit=True)
    command = next(line for line in text.split("\n") if "-r requirements.txt" in line).removesuffix(" \\")
    words = shlex.split(command)
    assert tuple(words[words.index("requirements.txt") + 1 :]) == args


def test_the_text_depends_on_the_recipe_alone() -> None:
    recipe = attrs.evolve(PLAIN, environment={"A": "1"})
    other = Ingredients(recipe=recipe, repository="team/model", tag="v1", notes=("a note",), rebuild=True)
    assert render(other, PARENT, Contents(), buildkit=True) == render(
        Ingredients(recipe=recipe), PARENT, Contents(), buildkit=True
    )
