"""What a registry asks for with a 401: :func:`challenge_of`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

_PARAMETER = re.compile(r'([a-zA-Z_]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@attrs.frozen
class Challenge:
    """How who we are is to be proved."""

    scheme: str  # `"basic"` or `"bearer"`
    # realm, service: where a token is fetched, and for whom
    realm: str = ""
    service: str = ""


def challenge_of(headers: Mapping[str, str]) -> Challenge | None:
    """What ``WWW-Authenticate`` asks for; a token where there is a choice."""
    line = headers.get("WWW-Authenticate", "")
    bearer = re.search(r"\bbearer\s+(.*)", line, re.IGNORECASE | re.DOTALL)
    if bearer:
        given = {
            name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain
            for name, quoted, plain in _PARAMETER.findall(bearer[1])
        }
        if given.get("realm"):
            return Challenge("bearer", given["realm"], given.get("service", ""))
    return Challenge("basic") if re.search(r"\bbasic\b", line, re.IGNORECASE) else None
