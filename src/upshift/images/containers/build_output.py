"""What ``docker build`` and ``podman build`` write: which instruction is at work, and what it says itself.

Three forms: of Docker before BuildKit, of BuildKit (``--progress plain``), and of Podman.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from upshift.images.recipes.instructions import instructions

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STDERR = "\x1b[91m"  # Docker before BuildKit marks it, and sends it before or after the rest as it comes
_STEP = re.compile(r"(?:Step|STEP) (\d+)/(\d+) ?: (.*)")
_VERTEX = re.compile(r"#(\d+) (.*)")
_INSTRUCTION = re.compile(r"\[(?:\S+ +)?(\d+)/(\d+)\] (.*)")
_MADE = re.compile(r" ---> ([0-9a-f]{12,64})")
_SAID = re.compile(r"\d+\.\d+ (.*)")
_NOISE = re.compile(
    r"DEPRECATED: The legacy builder .*| +Install the buildx component .*| +https://docs\.docker\.com/go/buildx/"
    r"| *BuildKit is currently disabled; .*| *environment-variable\."
    r"|Sending build context .*| ---> .*|--> .*|Removing intermediate container .*|-+"
    r"|Success(?:fully (?:built|tagged) .*)?|COMMIT .*"
    r"|\[internal\] .*|sha256:[0-9a-f]{64}.*|transferring .*|DONE [0-9.]+s|CACHED"
    r"|exporting .*|writing image .*"
)
_ENDED = re.compile(
    r"The command '.*' returned a non-zero code: (\d+)|executor failed running \[.*\]: exit code: (\d+)"
    r'|process ".*" did not complete successfully: exit code: (\d+)'
    r'|Error: building at STEP ".*": while running runtime: exit status (\d+)'
)
"""That a program failed, and its exit code: what it said itself is shown already."""
_PREFIX = re.compile(r'Error: building at STEP ".*": (?:Build error: )?')
_LINE = re.compile(r"(?:^\S*:(\d+)$)|(?:parse error (?:on )?line (\d+))")
_KEPT = 30  # lines of an instruction, of its stderr, and of what it began with


@attrs.define
class Said:
    """What an instruction said: its last lines, and those of its stderr that came before them.

    Parameters
    ----------
    instruction
        ``RUN pip install six``; None: it was said outside of any.
    """

    instruction: str | None = None
    _last: deque[tuple[int, str]] = attrs.field(factory=lambda: deque(maxlen=_KEPT), init=False)
    _stderr: deque[tuple[int, str]] = attrs.field(factory=lambda: deque(maxlen=_KEPT), init=False)
    _number: int = attrs.field(default=0, init=False)

    def take(self, line: str, *, stderr: bool = False) -> None:
        """Keep a line."""
        self._last.append((self._number, line))
        if stderr:
            self._stderr.append((self._number, line))
        self._number += 1

    @property
    def lines(self) -> list[str]:
        """In the order in which they came."""
        return [line for _, line in self._kept()]

    @property
    def excerpt(self) -> list[str]:
        """The same, with a mark where lines are left out."""
        shown, expected = [], 0
        for number, line in self._kept():
            if number != expected:
                shown.append("…")
            shown.append(line)
            expected = number + 1
        return shown

    def _kept(self) -> list[tuple[int, str]]:
        return sorted({*self._stderr, *self._last})


class BuildOutput:
    """Takes the output of a build line by line.

    Parameters
    ----------
    mask
        Gives a line without what nobody is to see.
    keep
        Takes every line of it as it is to be kept.

    Attributes
    ----------
    said
        By the instruction that is at work, or failed.
    status
        The exit code of the program that failed; None: it is not known.
    layer
        The last image that Docker before BuildKit made on the way, and leaves without a name.
    """

    def __init__(
        self, *, mask: Callable[[str], str] = str, keep: Callable[[str], object] = lambda line: None
    ) -> None:
        self.said = Said()
        self.status: int | None = None
        self.layer: str | None = None
        self._mask, self._keep = mask, keep
        self._by_vertex: dict[str, Said] = {}
        self._failed = False
        self._stderr = False
        self._place: int | None = None

    @property
    def instruction(self) -> str | None:
        """The one that is at work, or failed."""
        return self.said.instruction

    @property
    def lines(self) -> Sequence[str]:
        """What it said, as far as it was kept."""
        return self.said.lines

    def take(self, line: str) -> str | None:
        """Take a line; gives what of it is worth showing, None: nothing."""
        stderr = self._is_stderr(line)
        line = self._mask(_COLOURS.sub("", line).rstrip())
        self._keep(line)
        if (found := _LINE.search(line)) is not None:
            self._place = int(found[1] or found[2])
        if (step := _STEP.fullmatch(line)) is not None:
            self.said = Said(step[3])
            return line
        if (made := _MADE.fullmatch(line)) is not None and not (self.instruction or "").startswith("FROM"):
            self.layer = made[1]
        vertex = _VERTEX.fullmatch(line)
        if vertex is not None:
            return self._take_vertex(vertex[1], vertex[2])
        if not line or self._failed or _NOISE.fullmatch(line):
            return None  # a failed vertex is shown once more at the end
        if self._is_the_end(line):
            return None
        line = _PREFIX.sub("", line)
        self.said.take(line, stderr=stderr)
        return line

    def line_in(self, dockerfile: str) -> int | None:
        """The line in a Dockerfile of the instruction that failed; None: it is not known."""
        if self._place is not None:
            return self._place
        wanted = " ".join((self.instruction or "").split())
        for one in instructions(dockerfile):
            if " ".join(f"{one.name} {one.value}".split()) == wanted:
                return one.line
        return None

    def _take_vertex(self, number: str, text: str) -> str | None:
        """A line of BuildKit, several of whose instructions may be at work at once."""
        if (found := _INSTRUCTION.fullmatch(text)) is not None:
            self.said = self._by_vertex.setdefault(number, Said(found[3]))
            return f"Step {found[1]}/{found[2]}: {found[3]}"
        said = self._by_vertex.setdefault(number, Said())
        if text.startswith("ERROR"):
            self._failed = True
            self.said = said
            text = text.removeprefix("ERROR: ")
            if not self._is_the_end(text):
                said.take(text)
            return None
        if _NOISE.fullmatch(text):
            return None
        own = _SAID.fullmatch(text)
        shown = own[1] if own else text
        said.take(shown)
        return shown if own else None

    def _is_the_end(self, text: str) -> bool:
        ended = _ENDED.fullmatch(text)
        if ended is not None:
            self.status = int(next(filter(None, ended.groups())))
        return ended is not None

    def _is_stderr(self, line: str) -> bool:
        """Whether Docker marks a line as such: from where it begins to mark until it ends, over lines."""
        stderr = self._stderr
        for colour in _COLOURS.finditer(line):
            self._stderr = colour[0] == _STDERR or (self._stderr and colour[0] != "\x1b[0m")
            if not _COLOURS.sub("", line[: colour.start()]):
                stderr = self._stderr
        return stderr
