"""Answers that stay right as long as certain files and folders stay as they are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from upshift.model.configuration import home, make_folder
from upshift.runtime.storage.files import Signature, replacing, signature_of

SETTLED = 2 * 10**9
"""Nanoseconds. Two changes within the clock tick of a file system (2 s at most, on FAT) look like one,
so that an answer is kept only if the last change is older than that."""


class Memo:
    """One remembered answer, in ``UPSHIFT_HOME``."""

    def __init__(self, *question: str) -> None:
        self._question = list(question)
        name = hashlib.sha256("\0".join(question).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self._path = home() / "memo" / f"{name}.json"
        self._asked = time.time_ns()  # what is watched is looked at from now on

    def recall(self) -> Any:
        """The answer, if nothing that was watched has changed since; else None."""
        try:
            known = json.loads(self._path.read_bytes())
            if known["question"] != self._question:
                return None
            watched: dict[str, list[int] | None] = known["watched"]
            answer = known["answer"]
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or not a memo
            return None
        for path, then in watched.items():
            now = signature_of(path)
            if (None if now is None else list(now)) != then:
                return None
        return answer

    def remember(self, answer: Any, watched: Mapping[str, Signature | None]) -> None:
        """Keep an answer, with the files and folders that it depends on."""
        if any(max(seen[1:3]) > self._asked - SETTLED for seen in watched.values() if seen is not None):
            return
        content = json.dumps({"question": self._question, "watched": watched, "answer": answer})
        # A memo only saves time: where it cannot be written the answer is worked out again.
        with contextlib.suppress(OSError):
            make_folder(self._path.parent)
            with replacing(self._path) as draft:
                draft.write_text(content, encoding="ascii")
