"""Secrets in what a step prints: ``***`` instead, before anything is written or shown.

A secret is found as it is, line by line, escaped as in a ``repr``, in JSON or in HTML, quoted as in a URL,
and in base64 at each of the three places that it can begin at among the bits, over line ends too. What
cannot be seen: a secret in another encoding, cut into pieces by the program itself, or printed by two
processes into one line.
"""

from __future__ import annotations

import binascii
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import attrs

from upshift.model.settings.secrets import SHORTEST, lines_of
from upshift.model.spec import Failure, Stack

MASK = b"***"
_BREAK = re.compile(rb"(?:[\r\n]|\\+[rn])+")
"""An end of a line of base64, as it is or as in a ``repr``."""
_BASE64 = bytes(c for c in range(128) if chr(c).isalnum()) + b"+/-_="
_LOOSEST = 5
"""Bytes that a character of base64 takes, at most, with line ends."""
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{1,2}")

Span = tuple[int, int]


class Mask:
    """Knows every form of some secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        secrets = tuple(secrets)
        find = _long_enough
        written = find(form for secret in secrets for form in _written_forms(secret))
        quoted = find(form for secret in secrets for form in _quoted_forms(secret))
        base64 = find(form for secret in secrets for form in _base64_forms(secret))
        in_urls = {form for form in quoted if b"%" in form}
        # The end of each line would be held back that ends with the first character of a secret in base64. So
        # some characters have to stand before a line end, and where fewer do, the rest is found by itself.
        # It has to be long enough for that: else each line does wait.
        short = min(map(len, base64), default=SHORTEST) < 2 * SHORTEST - 1
        self._head = 1 if short else SHORTEST
        self._rests = find(form[cut:] for form in base64 for cut in range(self._head))
        self._written = _Forms(written | (quoted - in_urls))
        self._in_urls = _Forms(in_urls)
        self._in_base64 = _Forms(self._rests)
        self._shortest_rests = _Forms(find(form[self._head - 1 :] for form in base64))
        self._widest = _LOOSEST * self._in_base64.longest

    def text(self, text: str) -> str:
        """A whole text without secrets."""
        masked = Masking(self)
        data = text.encode("utf-8", "surrogatepass")
        return (masked.feed(data) + masked.end()).decode("utf-8", "surrogatepass")

    def failure(self, failure: Failure) -> Failure:
        """A failure without secrets: an exception's text may hold one, and a line of its traceback."""
        return attrs.evolve(
            failure,
            message=self.text(failure.message),
            traceback=failure.traceback and self.text(failure.traceback),
            where=failure.where and self.text(failure.where),
            fix=failure.fix and self.text(failure.fix),
        )

    def stack(self, stack: Stack) -> Stack:
        """Where a process was, without secrets: they may be in names of files and functions, too."""
        return attrs.evolve(
            stack,
            waits=stack.waits and self.text(stack.waits),
            where=stack.where and self.text(stack.where),
            silent=stack.silent and self.text(stack.silent),
            text=self.text(stack.text),
        )

    def spans(
        self,
        data: bytes,
        # where there are parts of secrets that begin before; one that began there has a negative start
        known: Sequence[Span],
    ) -> list[Span]:
        """Where there are secrets, in order; those that overlap are one."""
        found = [*known, *self._written.places(data), *self._over_lines(data)]
        if self._in_urls.longest and _ESCAPE.search(data):
            found += self._in_urls.places(_in_upper_case(data))
        merged: list[Span] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def undecided(self, data: bytes) -> int:
        """Where the longest end of ``data`` starts that may become a secret when more comes."""
        places = [next(self._written.begun(data), len(data)), next(self._begun_over_lines(data), len(data))]
        near = data[max(0, len(data) - self._in_urls.longest) :]
        if b"%" in near:
            places.append(len(data) - len(near) + next(self._in_urls.begun(_in_upper_case(near)), len(near)))
        return min(places)

    def mostly(self, data: bytes) -> bool:
        """Whether this is more than half of a secret, from its beginning."""
        return (
            self._written.mostly(data)
            or self._in_urls.mostly(_in_upper_case(data))
            or self._in_base64.mostly(_Unbroken(data).text)
        )

    def _over_lines(self, data: bytes) -> Iterator[Span]:
        """What there is in base64, with a span for each line."""
        unbroken = _Unbroken(data)
        for at, past in self._shortest_rests.places(unbroken.text):
            end = unbroken.place(past - 1) + 1
            for first in range(max(0, at - self._head + 1), at + 1):
                start = unbroken.place(first)
                if (
                    unbroken.text[first:past] in self._rests
                    and end - start <= self._widest
                    and self._has_head(data, start)
                ):
                    for gap in _BREAK.finditer(data, start, end):
                        yield start, gap.start()
                        start = gap.end()
                    yield start, end
                    break

    def _begun_over_lines(self, data: bytes) -> Iterator[int]:
        near = data[max(0, len(data) - self._widest) :]
        end = near[len(near.rstrip(_BASE64 + b"\r\n\\")) :]
        unbroken = _Unbroken(end.rstrip(b"\\"))  # there a line end may begin
        for first in self._in_base64.begun(unbroken.text):
            start = unbroken.place(first)
            if self._has_head(end, start):
                yield len(data) - len(end) + start

    def _has_head(self, data: bytes, start: int) -> bool:
        """Whether no line ends too soon after this for what begins there to be a secret."""
        return _BREAK.search(data, start, start + self._head) is None


class Masking:
    """Masks a stream. However it is cut into pieces, the result is the same.

    What may be the beginning of a secret is held back until the line goes on, or the stream ends.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""
        self._known: list[Span] = []  # secrets in there that begin before, or began so

    def feed(self, data: bytes) -> bytes:
        """What can be written now."""
        data = self._held + data
        return self._let_go(data, self._mask.undecided(data))

    def end(self) -> bytes:
        """What is left. The most of a secret counts as one: its end may be what was not written any more."""
        masked_already = bool(self._known) and self._known[0][0] < 0
        if not masked_already and self._mask.mostly(self._held):
            return MASK
        return self._let_go(self._held, len(self._held))

    def _let_go(self, data: bytes, cut: int) -> bytes:
        out: list[bytes] = []
        at, known = 0, []
        for start, end in self._mask.spans(data, self._known):
            if end > cut:
                known.append((start - cut, end - cut))
            if start < cut:
                if start >= 0:
                    out += [data[at:start], MASK]
                at = end
        out.append(data[at:cut])
        self._held, self._known = data[cut:], known
        return b"".join(out)


class _Forms:
    """Texts that are looked for all at once."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = sorted(forms)
        self.longest = max(map(len, self._forms), default=0)
        self._by_start: dict[bytes, list[bytes]] = {}
        for form in self._forms:
            self._by_start.setdefault(form[:SHORTEST], []).append(form)
        self._starts = {form[:size] for form in self._by_start for size in range(1, SHORTEST + 1)}

    def places(self, data: bytes) -> Iterator[Span]:
        """Where the forms are in the data."""
        for form in self._possible(data):
            at = data.find(form)
            while at >= 0:
                yield at, at + len(form)
                at = data.find(form, at + 1)

    def begun(self, data: bytes) -> Iterator[int]:
        """Where there is one of which the data has the beginning only. None has a line feed in it."""
        first = max(0, len(data) - self.longest + 1)
        for at in range(max(first, data.rfind(b"\n", first) + 1), len(data)):
            if data[at : at + SHORTEST] in self._starts:
                end = data[at:]
                longer = bisect_right(self._forms, end)  # those that begin with it come next
                if longer < len(self._forms) and self._forms[longer].startswith(end):
                    yield at

    def mostly(self, data: bytes) -> bool:
        """Whether this is more than half of one, from its beginning."""
        return any(2 * len(data) > len(form) and form.startswith(data) for form in self._forms)

    def _possible(self, data: bytes) -> Iterable[bytes]:
        """The forms that may be in the data: hundreds of them are not looked for in each short line."""
        if len(data) > 2 * len(self._forms):
            return self._forms
        starts = {data[at : at + SHORTEST] for at in range(len(data) - SHORTEST + 1)}
        return [form for start in starts for form in self._by_start.get(start, ())]


class _Unbroken:
    """Data without line ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._gaps: list[tuple[int, int]] | None = None
        self.text = _BREAK.sub(b"", data) if b"\\" in data else data.replace(b"\n", b"").replace(b"\r", b"")

    def place(self, at: int) -> int:
        """Where the character at this place of the text is in the data."""
        if self._gaps is None:
            self._gaps, left_out = [], 0
            for gap in _BREAK.finditer(self._data):
                left_out += gap.end() - gap.start()
                self._gaps.append((gap.end() - left_out, left_out))
        before = bisect_right(self._gaps, (at, len(self._data)))
        return at + (self._gaps[before - 1][1] if before else 0)


def _in_upper_case(data: bytes) -> bytes:
    """What is quoted for a URL has its digits in either case."""
    return _ESCAPE.sub(lambda escape: escape.group().upper(), data)


# -- how a secret may be written ------------------------------------------------------------------

_WRAP = 76
"""Characters in a line of base64, as base64(1) and MIME have it."""
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_MARKUP = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_IN_HTML = tuple(
    _MARKUP | {ord('"'): double, ord("'"): single}
    for double, single in (
        ('"', "'"),
        ("&quot;", "'"),
        ("&quot;", "&#x27;"),
        ("&quot;", "&#39;"),
        ("&#34;", "&#39;"),
    )
)
"""Characters as they are written in HTML; how quotes are is everybody's own choice."""
_IN_SCRIPT = tuple({ord(c): f"\\u{ord(c):04x}" for c in these} for these in ("<>/", "<>&", "<>&'"))
"""What of JSON is escaped in addition where it becomes a part of HTML, by Plotly and by others."""


def _written_forms(secret: str) -> Iterator[bytes]:
    """Each line of a secret as it is, and escaped as in a ``repr``, in JSON or in HTML."""
    for line in lines_of(secret):
        raw = line.encode("utf-8", "surrogateescape")
        yield raw
        # What else is in a text decides whether its repr escapes a ' or not; it never escapes a ".
        in_bytes, in_text = repr(b'"' + raw)[3:-1], repr('"' + line)[2:-1]
        in_json = [json.dumps(line, ensure_ascii=ascii)[1:-1] for ascii in (True, False)]
        in_script = (text.translate(escapes) for text in in_json for escapes in _IN_SCRIPT)
        in_html = (line.translate(escapes) for escapes in _IN_HTML)
        for text in (line, *in_json, *in_script, *in_html, *_unescaped(in_bytes), *_unescaped(in_text)):
            yield text.encode("utf-8", "surrogatepass")


def _quoted_forms(secret: str) -> Iterator[bytes]:
    """A secret in a URL, with digits in upper case."""
    from urllib.parse import quote_from_bytes

    for raw in _whole(secret):
        for safe in ("", "/", "~!*'()"):
            text = quote_from_bytes(raw, safe)
            yield text.encode()
            yield text.replace("%20", "+").encode()


def _base64_forms(secret: str) -> Iterator[bytes]:
    """What of base64 depends on a secret alone, at each of the three places that it can begin at."""
    for raw in _whole(secret):
        whole = binascii.b2a_base64(raw, newline=False)
        forms = [whole, *(whole[at : at + _WRAP] for at in range(0, len(whole) - 8, _WRAP))]
        for before in range(3):
            encoded = binascii.b2a_base64(b"\0" * before + raw, newline=False)
            forms.append(encoded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6])
        for form in forms:
            yield form
            yield form.translate(_URL_SAFE)


def _whole(secret: str) -> Iterator[bytes]:
    for text in {secret, secret.strip()}:
        yield text.encode("utf-8", "surrogateescape")


def _unescaped(text: str) -> tuple[str, str]:
    return text, text.replace("\\'", "'")


def _long_enough(forms: Iterator[bytes]) -> set[bytes]:
    """The forms long enough to be looked for."""
    return {form for form in forms if len(form) >= SHORTEST}
