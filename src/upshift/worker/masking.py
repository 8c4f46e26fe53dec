"""Secrets in what a step prints: ``***`` instead, before anything is written or shown.

A secret is found as it is, line by line, escaped as in a ``repr``, in JSON or in HTML, quoted as in a URL,
and in base64 at each of the three places that it can begin at among the bits. What cannot be seen: a secret
in another encoding, cut into pieces by the program itself, or printed by two processes into one line.
"""

from __future__ import annotations

import binascii
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import attrs

from upshift.config.secrets import SHORTEST, lines_of
from upshift.spec import Failure

MASK = b"***"
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


class Mask:
    """Knows every form of some secrets.

    Parameters
    ----------
    secrets
        Their values.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST}
        self._forms = sorted(forms)
        self._longest = max(map(len, forms), default=0)
        self._by_start: dict[bytes, list[bytes]] = {}
        for form in self._forms:
            self._by_start.setdefault(form[:SHORTEST], []).append(form)
        self._starts = {form[:size] for form in self._by_start for size in range(1, SHORTEST + 1)}

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

    def spans(self, data: bytes, covered: int) -> list[tuple[int, int]]:
        """Where there are secrets, in order; those that overlap are one.

        Parameters
        ----------
        data
            Bytes.
        covered
            How many of them, from the first, are of a secret that begins before.
        """
        found = [(at, at + len(form)) for form in self._possible(data) for at in _places(data, form)]
        if covered:
            found.append((0, covered))
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def undecided(self, data: bytes) -> int:
        """Where the longest end of ``data`` starts that may become a secret when more comes.

        No form has a line feed in it, so that the current line is all that has to be looked at.
        """
        first = max(0, len(data) - self._longest + 1)
        for at in range(max(first, data.rfind(b"\n", first) + 1), len(data)):
            if data[at : at + SHORTEST] in self._starts:
                end = data[at:]
                longer = bisect_right(self._forms, end)  # those that begin with it come next
                if longer < len(self._forms) and self._forms[longer].startswith(end):
                    return at
        return len(data)

    def _possible(self, data: bytes) -> Iterable[bytes]:
        """The forms that may be in there: not each of hundreds is looked for in each short line."""
        if len(data) > 2 * len(self._forms):
            return self._forms
        starts = {data[at : at + SHORTEST] for at in range(len(data) - SHORTEST + 1)}
        return [form for start in starts for form in self._by_start.get(start, ())]

    def mostly(self, data: bytes) -> bool:
        """Whether this is more than half of a secret, from its beginning."""
        return any(2 * len(data) > len(form) and form.startswith(data) for form in self._forms)


class Masking:
    """Masks a stream. However it is cut into pieces, the result is the same.

    What may be the beginning of a secret is held back until the line goes on, or the stream ends.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""
        self._covered = 0  # bytes of these that are masked already

    def feed(self, data: bytes) -> bytes:
        """What can be written now."""
        data = self._held + data
        return self._let_go(data, self._mask.undecided(data))

    def end(self) -> bytes:
        """What is left. The most of a secret counts as one: its end may be what was not written any more."""
        if not self._covered and self._mask.mostly(self._held):
            return MASK
        return self._let_go(self._held, len(self._held))

    def _let_go(self, data: bytes, cut: int) -> bytes:
        out: list[bytes] = []
        at = 0
        for start, end in self._mask.spans(data, self._covered):
            if start or not self._covered:
                if start >= cut:
                    break
                out += [data[at:start], MASK]
            at = end
        out.append(data[at:cut])
        self._held, self._covered = data[cut:], max(at - cut, 0)
        return b"".join(out)


def _places(data: bytes, form: bytes) -> Iterator[int]:
    at = data.find(form)
    while at >= 0:
        yield at
        at = data.find(form, at + 1)


def _forms(secret: str) -> Iterator[bytes]:
    """Everything that shows this secret; some forms may be equal, or too short to be looked for."""
    from urllib.parse import quote_from_bytes

    for text in {secret, secret.strip()}:
        raw = text.encode("utf-8", "surrogateescape")
        yield from _in_base64(raw)
        for safe in ("", "/", "~!*'()"):
            quoted = quote_from_bytes(raw, safe)
            yield quoted.encode()
            yield quoted.replace("%20", "+").encode()
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


def _unescaped(text: str) -> tuple[str, str]:
    return text, text.replace("\\'", "'")


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """What of base64 depends on these bytes alone, whatever stands before and after them."""
    whole = binascii.b2a_base64(raw, newline=False)
    yield whole
    yield whole.translate(_URL_SAFE)
    for before in range(3):
        encoded = binascii.b2a_base64(b"\0" * before + raw, newline=False)
        inner = encoded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        yield inner
        yield inner.translate(_URL_SAFE)
    if len(whole) > _WRAP:
        yield from (whole[at : at + _WRAP] for at in range(0, len(whole) - 8, _WRAP))
