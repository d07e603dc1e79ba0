"""A headless Chromium that looks at a server's page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.harness import Running, eventually

_BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
_DRIVER = shutil.which("chromedriver")
in_browser = pytest.mark.skipif(
    _BROWSER is None or _DRIVER is None, reason="needs Chromium and chromedriver (apt install chromium chromium-driver)"
)

_UNNAMED = """
    return [...document.querySelectorAll("section, svg, button, input, select, textarea, details, aside, [role=img], [role=region]")]
      .filter((e) => e.checkVisibility() && !(e.ariaLabel || e.getAttribute("aria-labelledby") || e.textContent.trim()
        || [...e.labels || []].some((label) => label.textContent.trim())))
      .map((e) => e.outerHTML.slice(0, 80))"""
_FAINTEST = """
    const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
      .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
      return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
    const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
      if (!c.endsWith(", 0)") && c !== "transparent") return c; } };
    const words = "h1, h2, dt, dd, th, button:enabled, summary, label, code, .note, .row span, .axis span, li, p, pre, #state";
    return Math.min(...[...document.querySelectorAll(words)].filter((e) => e.textContent.trim() && e.checkVisibility())
      .map((e) => { const a = light(getComputedStyle(e).color), b = light(behind(e));
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }))"""


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium, driven, until the block ends."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(_BROWSER)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(_DRIVER)))
    driver.set_page_load_timeout(90)
    driver.set_script_timeout(90)
    try:
        yield driver
    finally:
        driver.quit()


def text(browser: Any, css: str) -> str:
    """All text of the first element that fits, shown or not."""
    return str(browser.execute_script("return document.querySelector(arguments[0]).textContent", css))


def opened(
    browser: Any, server: Running, width: int = 1200, height: int = 1500, path: str = "/dashboard", state: str = "Live"
) -> None:
    """Show the page, and wait until it says that it is in `state`."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(server.url + path)
    assert eventually(lambda: text(browser, "#state") == state), text(browser, "#state")


def console(browser: Any) -> list[str]:
    """What was written to the console since the last call."""
    return [str(entry["message"]) for entry in browser.get_log("browser")]


def unnamed(browser: Any) -> list[str]:
    """Elements shown that a screen reader would have no name for."""
    found: list[str] = browser.execute_script(_UNNAMED)
    return found


def faintest(browser: Any) -> float:
    """The least contrast of any text shown with what is behind it, as WCAG counts it."""
    return float(browser.execute_script(_FAINTEST))
