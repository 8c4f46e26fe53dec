"""Pairs of projects, before and after an edit: what is reused is right, and nothing runs in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pairs

PAIRS = [
    pytest.param(pair, id=f"{file.stem}: {pair.name}")
    for file in sorted((Path(__file__).parent / "pairs").iterdir())
    for pair in pairs.read(file)
]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pairs.Runner]:
    with pairs.Runner(tmp_path_factory.mktemp("pairs")) as made:
        yield made


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_reused_is_what_would_be_computed(runner: pairs.Runner, pair: pairs.Pair) -> None:
    outcome = runner.verdict(pair)

    assert outcome.verdict == pair.known, outcome.details


def test_no_two_pairs_have_the_same_name() -> None:
    names = [str(param.id).partition(": ")[2] for param in PAIRS]

    assert len(set(names)) == len(names)
