"""The page in a real browser: it fills, it can be used by keyboard and on a phone, and the console stays empty."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.explain import Ladder, RungSeen
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from tests.engine.scripted import SLOW, ScriptedLoop
from tests.server.harness import Running, eventually, running
from tests.server.http.test_gate import KEY, MINE
from tests.server.looking import console, faintest, in_browser, opened, text, unnamed


def state(server: Running, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The first event of the page's stream."""
    with httpx.stream("GET", server.url + "/dashboard/events", headers=headers, timeout=60) as stream:
        line = next(line for line in stream.iter_lines() if line)
    told: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return told


def test_events_tell_the_window_and_what_is_in_flight(server: Running) -> None:
    body = {"prompt": "sesame", "max_tokens": 3, "cache_salt": "tenant", "session_id": "s-9"}
    httpx.post(server.url + "/v1/completions", json=body)
    with httpx.stream("POST", server.url + "/v1/completions", json={"prompt": [SLOW, 40], "stream": True}) as stream:
        lines = stream.iter_lines()  # kept: the connection goes with it
        next(lines)
        told = state(server)
    (row,) = told["requests"]
    assert (row["phase"], row["prompt"]) == ("decode", 2) and told["open"] == 1
    assert sum(told["totals"]["tokens"].values()) == sum(
        point[source] for point in told["points"] for source in ("device", "host", "disk", "recomputed")
    )
    assert told["pages"]["device"]["private"] == 0 and told["joint"].startswith("joint:")
    assert not any(word in json.dumps(told) for word in ("sesame", "tenant", "s-9"))
    assert eventually(lambda: server.client.open == 0)


@pytest.fixture(scope="module")
def locked(tokenizer: Tokenizer) -> Iterator[Running]:
    with running(tokenizer, keys=Keys([KEY])) as server:
        yield server


@in_browser
def test_page_fills_and_follows_and_says_the_same_in_words(browser: Any, server: Running) -> None:
    opened(browser, server)
    body = {"prompt": "the water and the land and the water again " * 3, "max_tokens": 5}
    for _ in range(2):
        httpx.post(server.url + "/v1/completions", json=body)
    assert eventually(lambda: "device" in text(browser, "#tiers"))
    assert eventually(lambda: not text(browser, "#figures").startswith("Prompt tokens reused–"))
    assert eventually(lambda: "new" in text(browser, "#lost"))
    assert text(browser, "#joint").startswith("joint:")
    for chart in ("fill", "hits", "ttft", "itl", "copies"):
        label = browser.execute_script("return document.getElementById(arguments[0]).ariaLabel", chart)
        assert label and label != "no data yet", chart
        assert browser.execute_script("return document.querySelectorAll(`#${arguments[0]} canvas`).length", chart) == 1
    assert eventually(lambda: "came from memory" in text(browser, "#story"))
    assert "on average, measured over 2 answers" in text(browser, "#detail")
    with httpx.stream("POST", server.url + "/v1/completions", json={"prompt": [SLOW, 40], "stream": True}) as stream:
        lines = stream.iter_lines()  # kept: the connection goes with it
        next(lines)
        assert eventually(lambda: "decode" in text(browser, "#requests"))
    assert eventually(lambda: text(browser, "#requests") == "")
    assert console(browser) == []


@in_browser
def test_keyboard_reaches_everything_in_order(browser: Any, server: Running) -> None:
    from selenium.webdriver import Keys as Press
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, server)
    focused = []
    for _ in range(6):
        ActionChains(browser).send_keys(Press.TAB).perform()
        focused.append(browser.execute_script("const e = document.activeElement; return e.id || e.className"))
    assert focused == ["skip", "tab-dashboard", "pause", "theme", "window", "term"]
    browser.execute_script("document.getElementById('theme').focus()")
    before = browser.execute_script("return document.documentElement.dataset.theme")
    ActionChains(browser).send_keys(Press.ENTER).perform()
    assert browser.execute_script("return document.documentElement.dataset.theme") != before
    assert console(browser) == []


@in_browser
def test_everything_has_a_name_and_headings_stand_in_order(browser: Any, server: Running) -> None:
    opened(browser, server)
    assert unnamed(browser) == []
    levels = browser.execute_script("return [...document.querySelectorAll('h1,h2,h3')].map((e) => e.tagName)")
    assert levels[0] == "H1" and set(levels[1:]) == {"H2"}
    assert browser.execute_script("return document.documentElement.lang") == "en"


@in_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_nothing_is_cut_off_and_text_can_be_read(browser: Any, server: Running, theme: str, width: int) -> None:
    wanted = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    opened(browser, server, width)
    assert browser.execute_script("return document.documentElement.dataset.theme") == theme
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert faintest(browser) >= 4.5
    assert console(browser) == []


@in_browser
def test_page_asks_for_a_key_where_there_is_one(browser: Any, locked: Running) -> None:
    assert httpx.get(locked.url + "/dashboard/events").status_code == 401
    assert state(locked, MINE)["model"] == "tiny"
    browser.get(locked.url + "/dashboard")
    assert eventually(lambda: text(browser, "#state") == "A key is needed")
    field = browser.find_element("css selector", "#key")
    assert eventually(lambda: bool(field.is_displayed()))
    shown = "return [...document.querySelectorAll('main > *')].filter((e) => e.checkVisibility()).map((e) => e.id)"
    assert browser.execute_script(shown) == ["ask"], "nothing empty stands below the form"
    field.send_keys("wrong-key\n")
    assert eventually(lambda: text(browser, "#state") == "This key does not fit")
    field.send_keys(KEY + "\n")
    assert eventually(lambda: text(browser, "#state") == "Live")
    assert not field.is_displayed() and browser.find_element("css selector", "#panel-dashboard").is_displayed()
    console(browser)  # a refusal is told there; nothing else may be left for the next test


@in_browser
def test_a_longer_window_is_asked_of_the_server_and_told_in_words(browser: Any, server: Running) -> None:
    opened(browser, server)
    httpx.post(server.url + "/v1/completions", json={"prompt": "water", "max_tokens": 2})
    for seconds, words in ((86400, "last day"), (60, "last minute")):
        browser.execute_script(
            "const e = document.getElementById('window'); e.value = arguments[0]; e.dispatchEvent(new Event('change'))",
            str(seconds),
        )
        assert eventually(lambda words=words: words in text(browser, "#story"))  # type: ignore[misc]
    assert console(browser) == []


def test_a_window_that_is_none_is_refused(server: Running) -> None:
    for window in ("0", "1e9", "x"):
        assert httpx.get(server.url + f"/dashboard/events?window={window}").status_code == 400


LADDER = Ladder(
    "a-session",
    480,
    (RungSeen(128, "gone", ""), RungSeen(256, "disk", "interval"), RungSeen(448, "device", "prompt_end")),
    (("device", 0, 448), ("disk", 0, 256)),
    AdmissionOutcome("cmpl-7-0", 470, 256, 0, 0, 214, 256, 256, Tier.DISK, Reason.COMPLETE),
    3.25,
)


def test_paths_are_asked_for_only_while_somebody_looks_and_told_without_names(tokenizer: Tokenizer) -> None:
    loop = ScriptedLoop()
    loop.shown = (LADDER,)
    with running(tokenizer, loop=loop) as server:
        httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1})
        httpx.get(server.url + "/dashboard")
        assert loop.watched == []
        told = [state(server) for _ in range(3)]
        assert len(loop.watched) < 3 and loop.watched[0][1] == ""
    (row,) = told[0]["ladders"]
    assert (row["known"], row["boundary"], row["from"], row["reason"]) == (480, 256, "disk", "complete")
    assert row["rungs"][1] == [256, "disk", "interval"] and row["kv"][1] == ["disk", 0, 256]
    assert row["session"] == hashlib.sha256(b"a-session").hexdigest()[:8]
    assert "a-session" not in json.dumps(told)


def test_keys_with_caches_of_their_own_see_their_own_paths_and_requests(tokenizer: Tokenizer) -> None:
    loop = ScriptedLoop()
    keys = Keys([KEY, KEY + "-other"], salt_per_key=True)
    with running(tokenizer, loop=loop, keys=keys) as server:
        body = {"prompt": [SLOW, 40], "stream": True, "cache_salt": "mine"}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, headers=MINE) as stream:
            lines = stream.iter_lines()  # kept: the connection goes with it
            next(lines)
            told = [state(server, headers) for headers in (MINE, {"authorization": f"Bearer {KEY}-other"})]
    mine, other = (owner for _, owner in loop.watched)
    assert mine and other and mine != other
    assert [len(one["requests"]) for one in told] == [1, 0]
    assert all(one["open"] == 1 for one in told), "sums are the whole server's"


def test_an_engine_that_has_no_time_holds_up_nothing(tokenizer: Tokenizer) -> None:
    class Busy(ScriptedLoop):
        def ladders(self, count: int, owner: str) -> tuple[Ladder, ...]:
            threading.Event().wait(2)
            return super().ladders(count, owner)

    with running(tokenizer, loop=Busy()) as server:
        assert state(server)["ladders"] == []


@in_browser
def test_paths_are_drawn_and_said(browser: Any, tokenizer: Tokenizer) -> None:
    loop = ScriptedLoop()
    again = replace(LADDER, outcome=replace(LADDER.outcome, request_id="cmpl-6-0"))
    loop.shown = (
        LADDER,
        again,
        replace(LADDER, session=None, rungs=(), kv=()),
    )  # a session is shown once, as it was last
    with running(tokenizer, loop=loop) as server:
        opened(browser, server)
        assert eventually(lambda: browser.execute_script("return document.querySelectorAll('.ladder').length") == 2)
        first = browser.execute_script("return document.querySelector('.ladder').ariaLabel")
        assert first == "rungs: 1 device, 1 disk, 1 gone; KV: device 93.3 %, disk 53.3 %; last request resumed at 256"
        places = browser.execute_script("""
            const line = document.querySelector('.ladder'), box = line.getBoundingClientRect();
            return ['.gone', '.rung.disk', '.here'].map((name) => {
              const at = line.querySelector(name).getBoundingClientRect();
              return Math.round(480 * ((at.left + at.right) / 2 - box.left) / box.width / 4) * 4; })""")
        assert places == [128, 256, 256]
        assert "cmpl-7-0" in text(browser, "#paths") and "resumed at 256 of 470 from disk" in text(browser, "#paths")
        assert console(browser) == []
        browser.get("about:blank")  # the stream ends, and with it the server at once


@in_browser
def test_server_that_goes_away_is_told_and_does_not_break_the_page(browser: Any, tokenizer: Tokenizer) -> None:
    with running(tokenizer) as server:
        opened(browser, server)
    assert eventually(lambda: "lost" in text(browser, "#state") or "stopped" in text(browser, "#state"))
    assert all("ERR_" in line for line in console(browser))
    browser.get("about:blank")  # it would go on trying
    console(browser)
