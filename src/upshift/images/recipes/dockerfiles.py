"""The instructions of a Dockerfile, as far as they say what it builds on and what it copies.

Source: https://docs.docker.com/reference/dockerfile/ (November 2026).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping

import attrs

_ESCAPE = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)
_DIRECTIVE = re.compile(r"#\s*[a-zA-Z]+\s*=.*")
_WORD = re.compile(r"(?:[^\s\"'\\]|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[\"'\\])+")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")  # a word of its own, as BuildKit has it
_QUOTES = re.compile(r"[\"']")
_FLAG = re.compile(r"--[a-z-]+(?:=(?:\"[^\"]*\"|\S*))?(?:\s+|$)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"})
_ELSEWHERE = re.compile(r"(?:https?|ftp|git|ssh)://|git@")


@attrs.frozen
class Instruction:
    """One instruction."""

    name: str  # in capitals: `COPY`
    value: str  # what follows, continued lines joined; without the text of here-documents
    line: int  # where it begins

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags before the arguments: ``--from=build``."""
        found, rest = [], self.value
        while (match := _FLAG.match(rest)) is not None:
            found.append(match[0].strip())
            rest = rest[match.end() :]
        return tuple(found)

    @property
    def copied(self) -> tuple[str, ...] | None:
        """What it takes from the context; None: that depends on variables, so it may be anything."""
        if self.name in ("COPY", "ADD"):
            sources = self._sources()
        elif self.name == "RUN":
            sources = self._mounted()
        else:
            return ()
        return None if any("$" in source for source in sources) else sources

    def _sources(self) -> tuple[str, ...]:
        if any(flag.startswith("--from=") for flag in self.flags):
            return ()
        rest = self.value
        while (match := _FLAG.match(rest)) is not None:
            rest = rest[match.end() :]
        words = [_QUOTES.sub("", word) for word in rest.split()]
        if rest.lstrip().startswith("["):
            with contextlib.suppress(ValueError):  # Docker takes what is no JSON for words as well
                words = [str(word) for word in json.loads(rest)]
        sources = [word for word in words[:-1] if not _HEREDOC.fullmatch(word)]
        return tuple(word for word in sources if self.name == "COPY" or not _ELSEWHERE.match(word))

    def _mounted(self) -> tuple[str, ...]:
        found = []
        for flag in self.flags:
            if flag.startswith("--mount="):
                options = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
                if options.get("type", "bind") == "bind" and "from" not in options:
                    found.append(options.get("source") or options.get("src") or ".")
        return tuple(found)


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile, in order."""
    escape, directives = "\\", True
    lines = enumerate(text.removeprefix("\ufeff").splitlines(), 1)
    pending, first = "", 0
    for number, line in lines:
        stripped = line.strip()
        if stripped.startswith("#") or not stripped:
            match = _ESCAPE.fullmatch(stripped) if directives else None
            escape = match[1] if match else escape
            directives = directives and _DIRECTIVE.fullmatch(stripped) is not None
            continue
        directives = False
        first = first if pending else number
        if stripped.endswith(escape):
            pending += stripped[:-1].rstrip() + " "
            continue
        name, *following = (pending + stripped).split(maxsplit=1)
        value = following[0] if following else ""
        pending = ""
        if name.upper() in ("RUN", "COPY", "ADD"):
            for heredoc in filter(None, map(_HEREDOC.fullmatch, _WORD.findall(value))):
                end = _QUOTES.sub("", heredoc[2])
                for _, inner in lines:
                    if (inner.lstrip("\t") if heredoc[1] else inner) == end:
                        break
        yield Instruction(name.upper(), value.strip(), first)


def declared_arguments(text: str) -> dict[str, int]:
    """The build arguments that a Dockerfile declares, each with its first line."""
    found: dict[str, int] = {}
    for one in instructions(text):
        if one.name == "ARG":
            for name in _arguments(one):
                found.setdefault(name, one.line)
    return found


def _arguments(one: Instruction) -> dict[str, str]:
    """What an ARG declares: names and their defaults."""
    words = (_QUOTES.sub("", word).partition("=") for word in _WORD.findall(one.value))
    return {name: default for name, _, default in words}


def is_predefined(argument: str) -> bool:
    """Whether engines know a build argument that no Dockerfile declares: those of proxies, and their own."""
    return argument.upper() in _PROXIES or argument.startswith("BUILDKIT_") or argument == "SOURCE_DATE_EPOCH"


@attrs.frozen
class Base:
    """What the last stage of a Dockerfile builds on."""

    # As Docker names images; None: none (`scratch`), or one that cannot be told from here
    image: str | None = None
    unknown: str | None = None  # what its FROM says, where that cannot be told from here


def base_of(text: str, build_args: Mapping[str, str], platform: str) -> Base:
    """The image that the last stage of a Dockerfile builds on."""
    system, _, architecture = platform.partition("/")
    known = {
        "TARGETPLATFORM": platform,
        "TARGETOS": system,
        "TARGETARCH": architecture.partition("/")[0],
    }
    stages: dict[str, Base] = {}
    base = Base()
    for one in instructions(text):
        if one.name == "ARG" and not stages:
            for name, default in _arguments(one).items():
                value = build_args.get(name) if name in build_args else _replaced(default, known)
                if value:
                    known[name] = value
        elif one.name == "FROM":
            words = [word for word in one.value.split() if not word.startswith("--")] or [""]
            image = _replaced(words[0], known)
            base = Base(None if image == "scratch" else image, None if image else words[0])
            base = stages.get((image or "").lower(), base)
            alias = words[2] if len(words) > 2 and words[1].lower() == "as" else str(len(stages))
            stages[alias.lower()] = base
    return base


def _replaced(text: str, known: Mapping[str, str]) -> str | None:
    """With values in place of variables; None: one has none."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        found = known.get(match[1] or match[2]) or match[3] or ""
        missing = missing or not found
        return found

    replaced = _VARIABLE.sub(value, _QUOTES.sub("", text))
    return None if missing or "$" in replaced else replaced
