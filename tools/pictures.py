"""Takes pictures of a server's page: chat, clients and dashboard, light and dark, wide and on a phone. Needs Chromium and chromedriver.

    python tools/pictures.py http://127.0.0.1:8000 docs/pictures

What the chat asks is for the small model in `tiny/model`; the later answers show what came from the cache.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

_DOORS = [
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "black",
    "orange",
    "purple",
    "brown",
    "grey",
    "pink",
    "silver",
    "golden",
]
QUESTIONS = (
    " ".join(f"The code of the {colour} door is {4711 + 97 * i}." for i, colour in enumerate(_DOORS))
    + " What is the code of the green door?",
    "What is the code of the silver door?",
    "What is the code of the brown door?",
)
WIDE, PHONE = (1200, 900), (390, 844)
_LONGEST_ANSWER_S = 300


def browser() -> Any:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium") or shutil.which("google-chrome"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def show(driver: Any, size: tuple[int, int], scheme: str) -> None:
    """From now on in this size (CSS pixels) and colour scheme."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def wait(driver: Any, expression: str) -> None:
    """Until a JavaScript expression is true. Raises TimeoutError."""
    deadline = time.monotonic() + _LONGEST_ANSWER_S
    while not driver.execute_script(f"return {expression}"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the page did not come to: {expression}")
        time.sleep(0.1)


def converse(driver: Any, url: str, tokens: int) -> None:
    """Ask all questions in the page's chat."""
    driver.get(url + "/")
    wait(driver, "document.getElementById('state').textContent === 'Ready'")
    wanted = (
        f"document.getElementById('max-tokens').value = '{tokens}'; document.getElementById('temperature').value = '0'"
    )
    driver.execute_script(wanted)
    for question in QUESTIONS:
        box = driver.find_element(By.ID, "say")
        box.send_keys(question, Keys.ENTER)
        wait(driver, "document.getElementById('send').disabled === false")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take pictures of a server's page.")
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=40, help="most tokens of an answer in the chat")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    url, driver = given.url.rstrip("/"), browser()
    try:
        for scheme in ("light", "dark"):
            for name, size in (("wide", WIDE), ("phone", PHONE)):
                show(driver, size, scheme)
                converse(driver, url, given.tokens)
                driver.save_screenshot(str(given.folder / f"chat-{scheme}-{name}.png"))
                driver.execute_script("sessionStorage.clear()")
                for tab in ("clients", "dashboard"):
                    driver.find_element(By.ID, f"tab-{tab}").click()
                    time.sleep(3)
                    driver.save_screenshot(str(given.folder / f"{tab}-{scheme}-{name}.png"))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
