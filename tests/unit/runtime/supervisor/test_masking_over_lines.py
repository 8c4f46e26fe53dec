"""Secrets in base64 that is broken into lines, and in URLs: nothing that is left has one, once decoded."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from urllib.parse import quote, quote_plus, unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upshift.runtime.masking import Mask, Masking

TOKEN = "".join(chr(33 + at * 7 % 90) for at in range(98))
BREAKS = [b"\n", b"\r\n", b"\\n", b"\\r\\n", b"\\\\n"]


def masked(secrets: list[str], *pieces: bytes) -> bytes:
    masking = Masking(Mask(secrets))
    return b"".join([*(masking.feed(piece) for piece in pieces), masking.end()])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(min(p, len(data)) for p in places), len(data)])]


def wrapped(data: bytes, width: int, line_end: bytes = b"\n", *, url_safe: bool = False) -> bytes:
    """What ``base64 -w WIDTH`` prints."""
    text = base64.urlsafe_b64encode(data) if url_safe else base64.b64encode(data)
    return b"".join(text[at : at + width] + line_end for at in range(0, len(text), width))


def decoded(left: bytes) -> list[bytes]:
    """Whatever there is in base64 where line ends are taken out, at each place that it may begin at."""
    texts = [re.sub(rb"[\r\n]|\\+[rn]", b"", left), left]
    found = [left, unquote_to_bytes(left), unquote_to_bytes(left.replace(b"+", b" "))]
    for text in texts:
        for run in re.findall(rb"[A-Za-z0-9+/_-]{4,}", text):
            run = run.translate(bytes.maketrans(b"-_", b"+/"))
            for first in range(4):
                whole = run[first:]
                found.append(base64.b64decode(whole[: len(whole) // 4 * 4]))
                found.append(base64.b64decode(whole + b"A" * (-len(whole) % 4)))
    return found


def assert_gone(secret: str, left: bytes) -> None:
    assert not [text for text in decoded(left) if secret.encode() in text]


@pytest.mark.parametrize("line_end", BREAKS, ids=["lf", "crlf", "repr lf", "repr crlf", "repr of repr"])
@pytest.mark.parametrize("width", [4, 5, 19, 57, 64, 75, 76, 77, 120])
@pytest.mark.parametrize("before", ["", "u", "user:", "user: " * 20])
def test_no_line_of_base64_shows_more_than_what_stands_around_the_secret(
    before: str, width: int, line_end: bytes
) -> None:
    printed = b"auth:\n" + wrapped(f"{before}{TOKEN} and more".encode(), width, line_end) + b"done\n"
    left = masked([TOKEN], printed)
    assert left.count(line_end) == printed.count(line_end), "lines stay lines"
    own = len(base64.b64encode(before.encode())) + len(base64.b64encode(b" and more"))
    kept = re.sub(rb"[\r\n]|\\+[rn]|\*", b"", left.removeprefix(b"auth:\n").removesuffix(b"done\n"))
    assert len(kept) <= own + 6
    assert_gone(TOKEN, left)


def test_a_secret_in_base64_alone_leaves_nothing() -> None:
    assert masked([TOKEN], base64.encodebytes(TOKEN.encode())) == b"***\n***\n"
    assert masked([TOKEN], repr(base64.encodebytes(TOKEN.encode())).encode()) == rb"b'***\n***\n'"


def test_a_line_that_ends_as_a_secret_begins_is_not_held_back_for_a_few_characters() -> None:
    masking = Masking(Mask([TOKEN]))
    start = base64.b64encode(TOKEN.encode())
    for ordinary in (b"saved to " + start[:1] + b"\n", b"see " + start[:3] + b"\n", b"%\n", b"100%\r"):
        assert masking.feed(ordinary) == ordinary
    assert masking.feed(b"key: " + start[:4] + b"\n") == b"key: "
    assert masking.feed(start[4:]) == b"***\n***"


def test_what_is_held_back_is_bounded_whatever_comes() -> None:
    masking = Masking(Mask([TOKEN]))
    start = base64.b64encode(TOKEN.encode())[:60]
    sent, got = start, masking.feed(start)
    for _ in range(5000):
        sent += b"\n"
        got += masking.feed(b"\n")
        assert len(sent) - len(got) < 1000
    assert got + masking.end() == sent


@pytest.mark.parametrize("secret", ["a/b c=ö?ÿ", "p%2fss/w%C3rd+", "%cafe/%CAFE", "///%%%"])
@pytest.mark.parametrize("write", [quote, quote_plus, lambda text: quote(text, safe="")])
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title, str.swapcase])
def test_urls_are_masked_in_either_case_of_their_digits(secret: str, write, case) -> None:  # type: ignore[no-untyped-def]
    url = re.sub("%..", lambda escape: case(escape.group()), write(secret))
    data = f"GET /x?t={url}&n=%2f%5A".encode()
    assert masked([secret], data) == b"GET /x?t=***&n=%2f%5A"
    assert masked([secret], *(bytes([byte]) for byte in data)) == b"GET /x?t=***&n=%2f%5A"


characters = st.sampled_from("abXY09+/=%é?~ -")
secrets_ = st.text(characters, min_size=4, max_size=40).filter(lambda s: len(s.strip()) >= 4)


@st.composite
def printed(draw: st.DrawFn) -> tuple[list[str], bytes, list[bytes]]:
    """Secrets; a text with them in lines of base64, at any alignment, and in URLs; that text in pieces."""
    secrets = draw(st.lists(secrets_, min_size=1, max_size=2))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.text(characters, max_size=9)) + draw(st.sampled_from(secrets))
        data = (text + draw(st.text(characters, max_size=9))).encode()
        if draw(st.booleans()):
            line_end = draw(st.sampled_from(BREAKS))
            part = wrapped(data, draw(st.integers(4, 90)), line_end, url_safe=draw(st.booleans()))
        else:
            url = quote(data, draw(st.sampled_from(["", "/"])))
            cases = draw(st.lists(st.sampled_from([str.upper, str.lower]), min_size=40, max_size=40))
            escapes = zip(re.split("(%..)", url), cases * len(url), strict=False)
            part = "".join(case(text) if "%" in text else text for text, case in escapes).encode()
        parts.append(draw(st.sampled_from([b"", b"Basic ", b"\n", b"x y\n"])) + part + b"\n#")
    whole = b"".join(parts)
    return secrets, whole, cut(whole, draw(st.lists(st.integers(0, 400), max_size=12)))


@given(printed())
@example((["user"], b"dXN\nlcg==", [b"dX", b"N\nlcg=="]))
def test_no_secret_is_left_to_decode_however_the_text_is_broken_and_cut(
    case: tuple[list[str], bytes, list[bytes]],
) -> None:
    secrets, text, pieces = case
    left = masked(secrets, *pieces)
    assert left == masked(secrets, text), "it does not matter how it is cut"
    for secret in secrets:
        assert_gone(secret, left)
