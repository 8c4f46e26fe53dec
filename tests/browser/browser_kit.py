"""A window of a real browser, and what tests ask a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from upshift.report.page import report_page
from upshift.runs.history.runs import Run

PATIENCE = 30
_LOCAL = ("file:", "data:", "about:", "blob:", "chrome:", "chrome-untrusted:")


class Browser:
    """One window.

    Parameters
    ----------
    driver
        What drives it.
    folder
        Where reports are put.
    """

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def show(self, run: Run, *others: Run, **options: Any) -> str:
        """Write the report of a run, and open it. Returns the page."""
        page = report_page(run, others, **options)
        self.open(page)
        return page

    def open(self, page: str, name: str = "report.html") -> None:
        """Open a page."""
        file = self.folder / name
        file.write_text(page, encoding="utf-8")
        self.driver.get(file.as_uri())

    def all(self, selector: str) -> list[WebElement]:
        """Elements, in order."""
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        """The first element; there may have to be waited for it."""
        return self.until(lambda: next(iter(self.all(selector)), None))

    def until(self, there: Callable[[], Any]) -> Any:
        """What ``there`` gives, as soon as that is something."""
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _: there())

    def script(self, code: str, *arguments: Any) -> Any:
        """What JavaScript returns."""
        return self.driver.execute_script(code, *arguments)

    def open_all(self) -> None:
        """Open everything that can be opened."""
        self.script("for (const each of document.querySelectorAll('details')) each.open = true")
        self.script("for (const each of document.querySelectorAll('[aria-expanded=false]')) each.click()")

    def size(self, width: int, height: int = 900) -> None:
        """The window's size, in pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """What the system says: ``light`` or ``dark``."""
        wished = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wished.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """What the console says since the last time; nothing, if all is well."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What was asked of any network since the last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(_LOCAL)]


FOCUSED = """
const one = document.activeElement;
if (!one || one === document.body) return null;
const style = getComputedStyle(one), box = one.getBoundingClientRect();
const rect = one.querySelector("rect:not([class])");
const thick = rect !== null && getComputedStyle(rect).strokeWidth === "3px";
return {
  kind: one.tagName.toLowerCase(),
  name: (one.getAttribute("aria-label") || one.textContent || one.labels?.[0]?.textContent || "").trim(),
  visible: (thick || style.outlineStyle !== "none") && box.width > 0 && box.left > -50,
};
"""
"""Of the element that has the focus: its kind, its name, and whether one sees that it has it."""

FAINT = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const pixel = (colours) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = (rgb) => {
  const [r, g, b] = rgb.map((value) => linear(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  const found = [];
  for (let one = element; one; one = one.parentElement) {
    const style = getComputedStyle(one);
    found.unshift(style.backgroundColor);
    if (one.classList.contains("node")) found.unshift(getComputedStyle(one.querySelector("rect")).fill);
  }
  return found;
};
const faint = [];
for (const element of document.querySelectorAll("main *, footer *, header *")) {
  const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!text || !element.getClientRects().length || element.matches("title, option, iframe *")) continue;
  const style = getComputedStyle(element);
  const behind = ground(element), front = element.closest("svg") ? style.fill : style.color;
  const [a, b] = [light(pixel([...behind, front])), light(pixel(behind))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.45) faint.push([element.outerHTML.slice(0, 80), ratio]);
}
return faint.slice(0, 10);
"""
"""Texts that are too faint before what is behind them: below 4.5 to 1 (WCAG 2.1), but for rounding."""

SHAPE = """
const kinds = "script img iframe svg a style title form input h1 h3 pre article".split(" ");
return kinds.map((kind) => document.querySelectorAll(kind).length);
"""
"""How many elements there are of kinds that a text could add to by breaking out."""
