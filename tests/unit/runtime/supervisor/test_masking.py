"""Secrets in a stream: none is left, whatever its form, and however the stream is cut."""

from __future__ import annotations

import base64
import html
import json
import sys
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upshift.runtime.masking import Mask, Masking

TOKEN = "hf_Ab+/=9 ü?~x"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\r\nhkiG9w0BAQEFAASC\n-----END KEY-----"


def masked(secrets: list[str], *pieces: bytes) -> bytes:
    masking = Masking(Mask(secrets))
    return b"".join([*(masking.feed(piece) for piece in pieces), masking.end()])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(min(p, len(data)) for p in places), len(data)])]


@pytest.mark.parametrize("around", [b"", b"x", b"token=", b'{"a": "'])
def test_a_secret_is_masked_as_it_is_and_what_is_around_it_stays(around: bytes) -> None:
    assert masked([TOKEN], around + TOKEN.encode() + b" end\n") == around + b"*** end\n"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "u", "us", "user:", "user"])
@pytest.mark.parametrize("after", ["", "\n", "@h", "@host"])
def test_base64_is_masked_wherever_the_secret_begins_among_the_bits(encode, before, after) -> None:  # type: ignore[no-untyped-def]
    whole = encode((before + TOKEN + after).encode())
    left = masked([TOKEN], b"Basic " + whole + b"\n")
    assert b"***" in left
    # At each end one character may be left, whose bits are not all of the secret.
    kept = encode(before.encode()).rstrip(b"=")[: len(before.encode()) * 8 // 6]
    head, _, tail = left.removeprefix(b"Basic ").rstrip(b"\n").partition(b"***")
    assert head.startswith(kept) and len(head) <= len(kept) + 2
    assert len(tail.rstrip(b"=")) <= len(after.encode()) * 8 // 6 + 2


def test_base64_that_is_wrapped_into_lines_is_masked() -> None:
    secret = "".join(chr(33 + i * 7 % 90) for i in range(300))
    wrapped = base64.encodebytes(secret.encode())
    left = masked([secret], wrapped)
    assert all(len(line.replace(b"***", b"")) < 8 for line in left.splitlines())


@pytest.mark.parametrize(
    "form",
    [
        quote(TOKEN),
        quote(TOKEN, safe=""),
        quote_plus(TOKEN),
        json.dumps(TOKEN)[1:-1],
        repr(TOKEN)[1:-1],
        repr(TOKEN.encode())[2:-1],
    ],
)
def test_quoted_and_escaped_forms_are_masked(form: str) -> None:
    assert masked([TOKEN], f"a={form}&b".encode()) == b"a=***&b"


@pytest.mark.parametrize("secret", ["p4ss'w0rd", 'p4ss"w0rd', "p4'ss\"w0rd", "p4\\'ss\\w0rd", 'pä"ss\tword'])
@pytest.mark.parametrize("around", ["{}", "'{}", '"{}', "'\"{}"])
@pytest.mark.parametrize(
    "escape",
    [
        repr,
        lambda text: repr(text.encode()),
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
    ],
    ids=["repr", "repr of bytes", "json", "json in utf-8"],
)
def test_quotes_are_masked_however_they_are_escaped(secret: str, around: str, escape) -> None:  # type: ignore[no-untyped-def]
    printed = escape(around.format(secret)).encode()
    left = masked([secret], printed)
    quotes = printed[: printed.index(b"p")]
    assert left == quotes + b"***" + printed[-1:]


URL = "postgresql://ann:Pa55'w0\"rd<Q>@db/x?sslmode=require&application_name=y"


@pytest.mark.parametrize(
    "form",
    [
        html.escape(URL),
        html.escape(URL, quote=False),
        html.escape(URL, quote=False).replace('"', "&quot;"),
        html.escape(URL).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
        json.dumps(URL)[1:-1].translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&'"}),
        json.dumps(URL)[1:-1].replace("<", "\\u003c").replace(">", "\\u003e").replace("/", "\\u002f"),
    ],
)
def test_forms_in_html_are_masked(form: str) -> None:
    assert masked([URL], f"<td>{form}</td>".encode()) == b"<td>***</td>"


def test_each_line_of_a_secret_of_several_lines_is_masked() -> None:
    assert masked([KEY], KEY.encode() + b"\n") == b"***\n***\r\n***\n***\n"
    assert masked([KEY], b"key: MIIEvQIBADANBgkq.") == b"key: ***."
    assert masked([KEY], repr(KEY).encode()) == rb"'***\n***\r\n***\n***'"
    assert masked([KEY], b"x " + base64.b64encode(KEY.encode())) == b"x ***"


def test_bytes_that_are_no_text_are_masked_too() -> None:
    secret = b"caf\xe9\xff!"
    assert masked([secret.decode("utf-8", "surrogateescape")], b"<" + secret + b">") == b"<***>"


def test_what_may_become_a_secret_is_held_back_until_it_is_decided() -> None:
    masking = Masking(Mask(["hunter2"]))
    assert masking.feed(b"login hun") == b"login "
    assert masking.feed(b"ter") == b""
    assert masking.feed(b"2\n") == b"***\n"
    assert masking.feed(b"hunt\n") == b"hunt\n", "a line end decides"
    assert masking.feed(b"hun") == b""
    assert masking.end() == b"hun"
    assert masked(["hunter2"], b"killed at hunter") == b"killed at ***", "more than half is too much"


def test_a_secret_of_hundreds_of_lines_is_looked_for_at_once() -> None:
    lines = [base64.b64encode(bytes((number % 251, number // 251, 7)) * 16).decode() for number in range(900)]
    masking = Masking(Mask(["\n".join(lines)]))
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        left = [
            masking.feed(piece) for piece in (b"epoch 3, loss 0.2\n", f"key {lines[800]}\n".encode(), b"#")
        ]
    finally:
        sys.setprofile(None)
    assert left == [b"epoch 3, loss 0.2\n", b"key ***\n", b"#"]
    assert calls < 300, "not one for each line of the secret"


def test_secrets_that_overlap_leave_nothing_of_either() -> None:
    assert masked(["abcdef", "defghi"], b"-abcdefghi-") == b"-***-"
    assert masked(["xabc", "abcdef"], b"-xabc", b"zz") == b"-***zz"
    assert masked(["aaaa"], *[b"a"] * 1000, b"b") == b"***b"
    assert masked(["aaaa"], b"aaaab" * 2) == b"***b***b"


def test_a_text_is_masked_as_a_whole() -> None:
    assert Mask([TOKEN]).text(f"ValueError: {TOKEN!r} \ud800 é") == "ValueError: '***' \ud800 é"


letters = st.text(st.sampled_from("ab+/\n é"), max_size=12)
secret = st.text(st.sampled_from("ab+/é"), min_size=4, max_size=9)


@st.composite
def printed(draw: st.DrawFn) -> tuple[list[str], bytes, list[bytes]]:
    """Secrets, a text with forms of them in it, and that text in pieces."""
    secrets = draw(st.lists(secret, min_size=1, max_size=3))
    one = st.sampled_from(secrets)
    parts = st.one_of(
        letters.map(str.encode),
        one.map(str.encode),
        one.map(lambda s: base64.b64encode(s.encode())),
        one.map(lambda s: quote(s, safe="").encode()),
    )
    text = b"".join(draw(st.lists(parts, max_size=8)))
    return secrets, text, cut(text, draw(st.lists(st.integers(0, 80), max_size=8)))


@given(printed())
@example((["aaaa"], b"aaaa", [b"aaaa", b""]))
@example((["abab", "baba"], b"abababaab", [b"ababa", b"b", b"aab"]))
def test_random_texts_cut_at_random_hold_no_secret_and_read_the_same(
    case: tuple[list[str], bytes, list[bytes]],
) -> None:
    secrets, text, pieces = case
    left = masked(secrets, *pieces)
    assert left == masked(secrets, text), "it does not matter how it is cut"
    for each in secrets:
        assert each.encode() not in left
        assert base64.b64encode(each.encode()).rstrip(b"=")[:-1] not in left
        assert each == quote(each, safe="") or quote(each, safe="").encode() not in left


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_text_without_secrets_passes_as_it_is(text: bytes, places: list[int]) -> None:
    text = text.replace(b"*", b"")
    left = masked(["a secret of another kind", KEY], *cut(text, places))
    assert left == text
