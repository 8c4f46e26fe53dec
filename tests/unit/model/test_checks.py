"""What comes in from outside: texts, numbers, paths and small files."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import SettingsError, nearest
from upshift.model import checks
from upshift.model.checks import local_path, number, shown, small_text, unfit

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "'a'"), (deep(), "a list"), (Silent(), "a Silent"), (10**5000, "an int"), ("\udcff", r"'\udcff'")],
    ids=["text", "deep", "silent", "long", "undecodable"],
)
def test_any_value_can_be_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_shown_with_its_beginning_and_its_end() -> None:
    text = shown("a" * 10**6 + "z")
    assert len(text) == checks.MOST_SHOWN
    assert text.startswith("'aaa")
    assert text.endswith("aaz'")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("caf\udce9", "holds a byte that is not UTF-8 (0xe9)"),
        ("\ud800", r"holds half of a character ('\ud800')"),
        ("a\0b", "holds a NUL"),
        ("a\nb", "holds a line break"),
        ("a\u2028b", "holds a line break"),
        ("\x1b[2J", r"holds a control character ('\x1b')"),
        ("\x9b2J", r"holds a control character ('\x9b')"),
    ],
)
def test_what_no_record_can_hold_is_named(text: str, problem: str) -> None:
    assert unfit(text) == problem


def test_texts_of_any_language_are_fit() -> None:
    assert unfit("Größe\t漢字 𝄞 🙂") is None
    assert unfit("a\nb", lines=True) is None


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, 10**400, -1, 0.5, 1j, [1]], ids=type)
def test_what_is_no_number_within_the_limits_is_refused_with_them(value: object) -> None:
    with pytest.raises(SettingsError, match="Expected a whole number from 0 to 1,000") as caught:
        number("Owner", "field", value, most=1000, whole=True)
    assert "Owner: field=" in caught.value.what


def test_numbers_of_other_libraries_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert number("Owner", "field", numpy.int64(3), most=1000, whole=True) == 3
    assert number("Owner", "field", numpy.float32(0.5), most=1000) == 0.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("~no-such-user/x", "nobody's home is known"),
        ("a\0b", "a NUL"),
        ("\udcff", "not UTF-8"),
        ("a" * 5000, "5,000 characters"),
        ("file://host/x", "names a machine, 'host'; a path here is file:///x"),
    ],
)
def test_what_can_be_no_path_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        local_path(text)


def test_a_path_may_be_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert local_path("file:///a/b") == Path("/a/b") == local_path("file://localhost/a/b")
    assert local_path("a") == tmp_path / "a"
    assert local_path("~/a") == Path("/home/ada/a")


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    for file, problem in (
        (Path("/dev/zero"), "more than 16,777,216 bytes"),
        (tmp_path, "Is a directory"),
        (tmp_path / "missing", "No such file"),
    ):
        with pytest.raises(ValueError, match=problem):
            small_text(file)
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        small_text(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa")
    assert small_text(tmp_path / "a") == "a"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Memroy", "memory"),
        ("max", "max_workers_of_all"),
        ("gpu", None),
        ("zz", None),
        ("ma", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_alike_or_the_only_one_that_begins_so(name: str, found: str | None) -> None:
    known = ["memory", "max_workers_of_all", "gpu_count_of_all", "gpu_memory_of_all"]
    assert nearest(name, known) == found


def test_every_limit_is_in_the_reference() -> None:
    text = REFERENCE.read_text()
    spelled = {
        "MOST_BYTES": "1,000 PB",
        "MOST_SECONDS": "10 years",
        "MOST_TEXT": "4,096 characters",
        "MOST_FILE": "16 MiB",
    }
    inner = ("MOST_SHOWN", "MOST_RUNS")
    for name, value in inspect.getmembers(checks, lambda member: isinstance(member, int)):
        if name.startswith("MOST_") and name not in inner:
            assert spelled.get(name, f"{value:,}") in text, name
