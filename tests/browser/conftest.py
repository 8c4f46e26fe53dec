"""A real browser without a window. What it tells of (errors, requests) is looked at after each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_kit import Browser
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """The browser of all tests."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    service = shutil.which("chromedriver")
    if program is None or service is None:
        pytest.skip("chromium and chromedriver are not installed: make engines")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*_OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=Service(service, env={**os.environ, "LANG": "C.UTF-8"})
    )
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[Browser]:
    """A window that complains about nothing and asks no network for anything, else the test fails."""
    browser = Browser(chromium, tmp_path)
    browser.size(1280)
    browser.prefer("light")
    browser.complaints(), browser.requests()
    yield browser
    complaints, requests = browser.complaints(), browser.requests()
    chromium.get("about:blank")
    assert complaints == []
    assert requests == []
