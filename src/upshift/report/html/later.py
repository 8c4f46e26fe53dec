"""What is kept as text in the page, and becomes elements when a reader opens it."""

from __future__ import annotations

from upshift.report.html.elements import Html, data, tag


class Later:
    """Contents that come at the end of the page."""

    def __init__(self) -> None:
        self._kept: list[Html] = []

    def details(self, title: str, content: Html, *, key: str, opened: bool = False, kind: str = "") -> Html:
        """Something to open.

        Parameters
        ----------
        title
            What it is.
        content
            What is shown then.
        key
            Its name, unique in the page: a page that reloads itself opens it again by that.
        opened
            Whether it opens by itself, as soon as it comes into view.
        kind
            A class.
        """
        self._kept.append(data(f"later-{key}", content))
        return tag(
            "details",
            {"class": f"later {kind}".rstrip(), "data-later": key, "open": opened},
            tag("summary", None, title),
            tag("div", {"class": "inner"}),
        )

    def keep(self, element: Html) -> None:
        """Something else that the script of the page needs."""
        self._kept.append(element)

    def all(self) -> list[Html]:
        """What was kept."""
        return self._kept
