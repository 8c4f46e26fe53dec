"""What is said of what steps get: once, and only of those that run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from upshift.engine.places import Terms
from upshift.model.spec.hardware import Shortfall

_IMAGE = "image"


class Shortfalls:
    """Collects what is to be said, as steps begin.

    Parameters
    ----------
    terms
        What each step gets, by the name of its definition.
    """

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        self._terms = terms
        self._known: set[tuple[str, str]] = set()
        self._news: dict[str, list[Shortfall]] = {}
        self._remarks: list[str] = []

    def new_of(self, step: str) -> bool:
        """Whether there is something to be said of a step that has not been said."""
        terms = self._terms[step]
        said = (*(shortfall.field for shortfall in terms.shortfalls), *terms.remarks)
        return any((step, what) not in self._known for what in said)

    def began(self, step: str, others: Collection[str]) -> None:
        """A task of a step has been submitted.

        Parameters
        ----------
        step
            The step.
        others
            Steps that may run yet: those with the same image are named with it.
        """
        for remark in self._terms[step].remarks:
            if (step, remark) not in self._known:
                self._known.add((step, remark))
                self._remarks.append(f"{step}: {remark}")
        for shortfall in self._terms[step].shortfalls:
            image = shortfall.field == _IMAGE
            for name in self._terms if image else (step,):
                runs = name == step or name in others
                new = (name, shortfall.field) not in self._known
                if runs and new and shortfall in self._terms[name].shortfalls:
                    self._known.add((name, shortfall.field))
                    self._news.setdefault(name, []).append(shortfall)

    def reused(self, step: str) -> None:
        """A result of a step is reused that was made with less than it asks for."""
        less = [f"asked {s.asked}, got {s.got}" for s in self._terms[step].shortfalls if s.field != _IMAGE]
        if less and (step, "reused") not in self._known:
            self._known.add((step, "reused"))
            self._remarks.append(f"{step}: reused, made with less than it asks for: {'; '.join(less)}")

    def lines(self) -> list[str]:
        """What is new: a line for each step that gets less than it asks for, and for each image not used."""
        lines, self._remarks = self._remarks, []
        images: dict[tuple[str, str], list[str]] = {}
        for name, shortfalls in self._news.items():
            less = [f"asked {s.asked}, gets {s.got}: {s.why}" for s in shortfalls if s.field != _IMAGE]
            if less:
                lines.append(f"{name}: {'; '.join(less)}")
            for shortfall in shortfalls:
                if shortfall.field == _IMAGE:
                    images.setdefault((shortfall.asked, shortfall.why), []).append(name)
        for (asked, why), names in images.items():
            lines.append(f"{', '.join(names)}: {asked} is not used: {why}")
        self._news.clear()
        return lines
