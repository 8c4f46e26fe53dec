"""Odd things that people and programs hand over: texts, numbers, values and files, chosen by a seed."""

from __future__ import annotations

import datetime
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

TEXTS: Sequence[str] = (
    *("", " ", "\t", "\n", "a\nb", "a\rb", "a b", "'", '"', "\\", "%s%n", "{0}", "$HOME", "`id`", "*", "#"),
    *("\0", "a\0b", "\x1b[2J", "\x1b]52;c;aGk=\x07", "\x7f", "\x9b31m", "\u202e", "\ufeff", "\u2028", ";"),
    *("\udcff", "caf\udce9", "\udc80/\udc81", "é", "Ä" * 64, "漢字", "𝄞", "e\u0301", "a\u200bb"),
    *("-", "--", "-x", "--no-such", ".", "..", "/", "//", "./", "../..", "~", "~nobody/x", "~no-such/x"),
    *("/dev/null", "/dev/full", "/dev/zero", "/dev/tty", "/proc/self/mem", "/proc/self/environ"),
    *("a" * 300, "a/" * 3000, "a" * 70_000, "é" * 200, "=", "a=", "=b", "a=b=c", ",", "a,b", ":", "a:", ":b"),
    *("[", "]", "[]", "[0]", "a[", "a[0", "a[0]", "a[-1]", "a[٣]", "a[" + "9" * 30 + "]", "[" * 50_000),
    *("null", "true", "None", "{}", '{"a": 1}', '{"a":' * 20_000, "1 2", "#1", "latest", "latest ", "LATEST"),
    *("sqlite://", "sqlite:///", "sqlite:///a?b", "file://", "file://host/x", "file:///", "s3://b/x"),
    *(
        "postgresql://u:p@h/d",
        "http://",
        "http://[::1",
        "a://b://c",
        "https://user:pass@host/x",
        "x://" * 999,
    ),
)
"""Texts. NUL and half surrogates cannot be on a command line; undecodable bytes (``\\udcff``) can."""

NUMBERS: Sequence[str] = (
    *("0", "-0", "1", "-1", "2", "7", "00", "+1", "1.5", "-1.5", ".5", "1.", "1e3", "1e-9", "1e308", "1e400"),
    *("nan", "inf", "-inf", "infinity", "0x10", "1_000", "1,000", "٣", "²", "½", "1/2", " 1", "1 "),
    *(str(10**9), str(2**31), str(2**63 - 1), str(2**63), str(-(2**63) - 1), str(2**64), str(10**23)),
    *("9" * 400, "9" * 5000, "-" + "9" * 400, "0." + "0" * 400 + "1", "1e999999999"),
)

NO_JSON: Sequence[bytes] = (
    *(b"", b"[", b"\xff\xfe", b"\0" * 100, b"[" * 200_000, b'{"a":' * 200_000, b"NaN", b"1" * 5000, b"[1]"),
)
NO_TOML: Sequence[bytes] = (
    *(b"\xff", b"\0", b"a = " + b"[" * 100_000, b"=", b"[" * 5000, b"a" * 10**6, b"a.b = 1\na = 2"),
    *(b"\xef\xbb\xbfa = 1", b"a = 1\r", b"a = " + b"9" * 5000, b"[a]\n[a]", b"a = 1e400"),
)
UNITS = ("", "B", "KB", "GB", "GiB", "PB", "G", "g", "GBB", " GB", "s", "m", "h", "d", "w", "y", "%")


class Odd:
    """A source of odd things: with the same seed the same ones.

    Parameters
    ----------
    seed
        Anything; its text is the seed.
    """

    def __init__(self, seed: object) -> None:
        self._random = random.Random(str(seed))

    def one(self, things: Sequence[T]) -> T:
        """One of these."""
        return self._random.choice(things)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def number(self) -> str:
        """A number as text, with a unit at times."""
        return self.one(NUMBERS) + (self.one(UNITS) if self.chance(0.4) else "")

    def text(self) -> str:
        """Any text; at times two of them, or one inside something that is right."""
        roll = self._random.random()
        if roll < 0.25:
            return self.number()
        if roll < 0.35:
            return self.one(TEXTS) + self.one(TEXTS)
        if roll < 0.45:
            return "".join(chr(self._point()) for _ in range(self._random.randint(1, 12)))
        return self.one(TEXTS)

    def argument(self) -> str:
        """What a shell can hand over: no NUL, and no surrogate but those that stand for a byte."""
        return _typed(self.text())

    def value(self, depth: int = 2) -> Any:
        """A Python value of any kind."""
        kinds: list[Callable[[], Any]] = [
            self.text,
            lambda: self.one((None, True, False, ..., NotImplemented)),
            lambda: self.one((0, 1, -1, 2, 5, 10**8, 2**31, 2**63, 10**23, -(10**23), 10**400)),
            lambda: self.one((0.0, -0.0, 0.5, 1e-9, 5e-324, 1e308, math.nan, math.inf, -math.inf)),
            lambda: self.one((b"", b"\xff", bytearray(b"x"), 1j, Decimal("NaN"), Decimal("1e99"), range(3))),
            lambda: self.one(
                (object(), int, print, Path("x"), Path("\udcff"), datetime.timedelta.max, Unruly())
            ),
            lambda: self.one((datetime.timedelta(0), datetime.timedelta(days=-1), datetime.datetime.now())),
            lambda: _nested(self.one((3, 500, 5000)), self.one((list, dict))),
        ]
        if depth > 0:
            kinds += [
                lambda: [self.value(depth - 1) for _ in range(self._random.randint(0, 3))],
                lambda: (self.value(depth - 1),) * self._random.randint(0, 2),
                lambda: {self._key(): self.value(depth - 1) for _ in range(self._random.randint(0, 3))},
                lambda: {self.text() for _ in range(self._random.randint(0, 2))},
                lambda: iter([self.value(depth - 1)]),
            ]
        return self.one(kinds)()

    def json(self) -> bytes:
        """A file that is meant to be JSON."""
        if self.chance(0.4):
            return self.one(NO_JSON)
        return json.dumps({self.text(): self._plain() for _ in range(2)}).encode()

    def toml(self, keys: Sequence[str]) -> bytes:
        """A file that is meant to be TOML, with some of these keys, dotted ones too."""
        if self.chance(0.15):
            return self.one(NO_TOML)
        lines = [f"{self.one(keys)} = {self.toml_value()}" for _ in range(self._random.randint(1, 3))]
        return "\n".join(lines).encode(errors="surrogateescape") + b"\n"

    def toml_value(self, depth: int = 2) -> str:
        """A value as TOML writes it, and some that it does not."""
        kinds: list[Callable[[], str]] = [
            lambda: json.dumps(self.argument(), ensure_ascii=False).replace("\x7f", ""),
            lambda: json.dumps(self.one(("local", "docker", "process", "power", "/data", "store", "a"))),
            lambda: self.one(
                ("true", "0", "-1", "1.5", "nan", "inf", "1979-05-27", "07:32:00", "9" * 400, "1e400")
            ),
            lambda: self.one(('"\\u0000"', '"\\u001b[2J"', '"\\n"', '"\\uFFFF"', "'''\n'''", "[]", "{}")),
        ]
        if depth > 0:
            kinds += [
                lambda: f"[{self.toml_value(depth - 1)}, {self.toml_value(depth - 1)}]",
                lambda: f"{{ a = {self.toml_value(depth - 1)}, {json.dumps(self.argument())} = 1 }}",
            ]
        return self.one(kinds)()

    def _plain(self) -> Any:
        return self.one((None, True, 1, 10**30, 1.5, self.text(), [self.text()], {self.text(): 1}))

    def _key(self) -> Any:
        return self.text() if self.chance(0.8) else self.one((1, None, (), b"a"))

    def _point(self) -> int:
        """A code point: mostly small ones."""
        return self._random.randrange(self.one((0x20, 0x250, 0x11_0000)))


class Unruly:
    """Like an array: comparisons give no truth, and it is no key."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Unruly:  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


def _nested(depth: int, kind: type) -> Any:
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def _typed(text: str) -> str:
    return re.sub("[\0\ud800-\udc7f\udd00-\udfff]", "", text)
