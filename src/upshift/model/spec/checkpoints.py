"""What became of an attempt's checkpoints, in short. A checkpoint's name is ``ATTEMPT.NUMBER``."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Checkpoints:
    """What an attempt has had of checkpoints: all of it, or what a step tells its supervisor at a time.

    Parameters
    ----------
    resumed_from
        The one that the step went on from; None: it began from the start.
    saved
        How many were completed.
    newest, bytes
        The last of them, and its size.
    """

    resumed_from: str | None = None
    saved: int = 0
    newest: str | None = None
    bytes: int = 0

    def and_then(self, news: Checkpoints) -> Checkpoints:
        """With what has happened since; several processes may say that the same one is there."""
        if news.newest is not None and self.newest is not None and _order(news.newest) <= _order(self.newest):
            return self
        return Checkpoints(
            resumed_from=self.resumed_from or news.resumed_from,
            saved=self.saved + news.saved,
            newest=news.newest or self.newest,
            bytes=news.bytes if news.newest else self.bytes,
        )


def _order(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))
