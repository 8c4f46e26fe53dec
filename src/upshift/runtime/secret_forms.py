"""What a secret looks like where it is not written as it is: escaped, quoted for a URL, in base64."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator

from upshift.model.settings.secrets import SHORTEST, lines_of

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


def written(secret: str) -> Iterator[bytes]:
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


def quoted(secret: str) -> Iterator[bytes]:
    """A secret in a URL, with digits in upper case."""
    from urllib.parse import quote_from_bytes

    for raw in _whole(secret):
        for safe in ("", "/", "~!*'()"):
            text = quote_from_bytes(raw, safe)
            yield text.encode()
            yield text.replace("%20", "+").encode()


def in_base64(secret: str) -> Iterator[bytes]:
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


def long_enough(forms: Iterator[bytes]) -> set[bytes]:
    """Those that can be looked for."""
    return {form for form in forms if len(form) >= SHORTEST}
