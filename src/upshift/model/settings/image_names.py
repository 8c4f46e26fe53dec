"""The grammar of image names, as texts of regular expressions: one for settings and for what reads them.

Source: https://github.com/distribution/reference/blob/main/reference.go, read in November 2026.
"""

from __future__ import annotations

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"

REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
REPOSITORY = rf"{_PART}(?:/{_PART})*"
TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST = r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
ID = r"(?:sha256:)?[0-9a-f]{64}"

NAME = rf"(?:(?=[^/]*[.:]|localhost/){REGISTRY}/)?{REPOSITORY}"
"""Of a repository, in a registry or in the usual one."""

IMAGE = rf"{NAME}(?::{TAG})?(?:@{DIGEST})?"
