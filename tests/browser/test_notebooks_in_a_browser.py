"""What notebooks draw, on the light and dark pages of those who show it."""

from __future__ import annotations

import pytest
from browser_kit import FAINT, Browser
from made_up_runs import nasty, training

from upshift import pipeline, step

LONG = "<b>a name</b> that is far too long for a cell " * 4
PAGE = "<!doctype html><title>cell</title><body style='background: {}; color: {}'><main>{}</main></body>"


@step
def fit(x: int = 1) -> int:
    """<b>Fits."""
    return x


@pipeline
def fitting(text: str = LONG) -> list[int]:
    return fit.map([1, 2, 3])


@pytest.mark.parametrize("colours", [("#ffffff", "#202020"), ("#111111", "#e8e8e8")], ids=["light", "dark"])
@pytest.mark.parametrize("width", [480, 1280])
def test_what_is_drawn_can_be_read_and_stays_in_its_cell(
    browser: Browser, colours: tuple[str, str], width: int
) -> None:
    good = training(browser.folder / "good")
    bad = nasty(browser.folder / "bad", step="train", text=LONG)
    shown = [good, good.steps, *good.steps, *(s.tasks[0] for s in good.steps if s.tasks), bad, fitting, fit]
    browser.size(width)
    browser.open(PAGE.format(*colours, "".join(str(each._repr_html_()) for each in shown)))  # type: ignore[attr-defined]
    assert len(browser.all(".upshift")) == len(shown)
    assert len(browser.all(".upshift .graph svg.icon")) > len(good.steps)
    assert browser.script("return document.querySelector('bdi b, p b b, script')") is None
    assert browser.script("return document.documentElement.scrollWidth") <= width
    assert browser.script(FAINT) == []
