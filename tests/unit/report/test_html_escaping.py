"""Text becomes HTML in one place, from which it cannot break out."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.report.page import as_data, environment, markdown, script_hashes, visible

TEXTS = st.text(st.characters(exclude_categories=[]), max_size=60)


class Reader(HTMLParser):
    """What a reader of HTML makes of it: elements with their attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


PLACES = environment().from_string('<p title="{{ x }}">{{ x }}</p><script type="j">{{ x|data }}</script>')


@given(TEXTS)
def test_a_text_stays_a_text(value: str) -> None:
    written = PLACES.render(x=value)
    read = Reader(written.partition("<script")[0])
    assert read.elements == [("p", {"title": visible(value)})]
    assert read.text == visible(value)
    written.encode("utf-8")


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8))
def test_data_does_not_end_its_element_and_is_read_as_it_was(value: object) -> None:
    written = as_data(value)
    assert "<" not in written
    assert json.loads(written) == shown(value)


def shown(value: object) -> object:
    """A value whose texts are as a reader sees them."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(key): shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("exe.\u202egnp", r"exe.\u202egnp"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("\udc80", r"\udc80"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("עברית ← \u200f", "עברית ← \u200f"),
    ],
)
def test_what_would_not_be_seen_is_spelled_out(value: str, shown: str) -> None:
    assert visible(value) == shown


def test_markdown_holds_no_html_no_scripts_and_no_pictures() -> None:
    page = markdown(
        "# Title\n\n<script>x</script> **bold** [a](javascript:x) [b](https://example.org/) ![c](https://example.org/c.png)"
    )
    read = Reader(str(page))
    assert [element for element, _ in read.elements] == ["h1", "p", "strong", "a", "a"]
    links = [attributes for element, attributes in read.elements if element == "a"]
    assert [link["href"] for link in links] == ["https://example.org/", "https://example.org/c.png"]
    assert all(link["rel"] == "noopener noreferrer" and link["target"] == "_blank" for link in links)
    assert "<script>x</script>" in read.text


@given(TEXTS)
def test_any_markdown_is_safe(value: str) -> None:
    for element, attributes in Reader(str(markdown(value))).elements:
        assert element not in ("script", "img", "iframe", "style", "form", "input")
        assert not any(key.startswith("on") for key in attributes)
        assert (
            not (attributes.get("href") or "")
            .lower()
            .strip()
            .startswith(("javascript:", "data:", "vbscript:"))
        )


def test_the_scripts_of_a_page_are_named_by_what_is_written_in_them() -> None:
    page = "<p><script>one < two && 'x'</script><SCRIPT type=module>\n2\n</SCRIPT><script src=x></script></p>"
    expected = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
        for script in (b"one < two && 'x'", b"\n2\n", b"")
    ]
    assert script_hashes(page) == expected
