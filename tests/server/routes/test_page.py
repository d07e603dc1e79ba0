"""The page at `/` in a real browser: a chat whose answers say where their prompts came from, configurations to copy, three tabs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from stepwell.server.routes.page import FILES, PAGE_PATHS
from tests.server.harness import Running, eventually, running
from tests.server.http.test_gate import KEY
from tests.server.looking import console, faintest, in_browser, opened, text, unnamed
from tests.server.templates import talking_tokenizer
from tools.clients import TARGET, programs, written

HTML = {"accept": "text/html,*/*;q=0.8"}
CALL = 'Let me look.<tool_call>{"name": "look", "arguments": {"at": "Rome"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Answers with what the first message says; thinks first where the page wants it to."""
    folder = tmp_path_factory.mktemp("talking")
    talking_tokenizer(folder)
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace("if thinking", "if enable_thinking"))
    with running(Tokenizer.load(str(folder))) as server:
        yield server


def test_a_browser_gets_the_page_and_a_program_gets_json(server: Running) -> None:
    page = httpx.get(server.url + "/", headers=HTML)
    assert page.headers["content-type"].startswith("text/html") and page.headers["vary"] == "accept"
    assert httpx.get(server.url + "/").json()["server"] == "stepwell"
    assert httpx.get(server.url + "/dashboard").content == page.content


_OF_UPLOT = "https://github.com/leeoniya/uPlot"  # in the comment that names its version


def test_page_has_no_outside_parts(server: Running) -> None:
    page = httpx.get(server.url + "/dashboard")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for path in PAGE_PATHS - {"/page/clients.json"}:  # which holds addresses to copy
        told = httpx.get(server.url + path).text.replace(_OF_UPLOT, "")
        assert "http://" not in told and "https://" not in told, path
        assert "innerHTML" not in told or path == "/page/uplot.js"  # which writes no text of a model


def test_every_file_of_the_page_is_served_with_its_type_and_nothing_else_is(server: Running) -> None:
    folder = TARGET.parent
    assert {path.name for path in folder.iterdir()} == {"index.html", *FILES}
    for name, kind in FILES.items():
        answer = httpx.get(f"{server.url}/page/{name}")
        assert (answer.content, answer.headers["content-type"]) == ((folder / name).read_bytes(), kind)
    for name in ("index.html", "..%2Fapp.py", "nothing.js"):
        assert httpx.get(f"{server.url}/page/{name}").status_code == 404


def test_configurations_are_those_of_the_document() -> None:
    assert TARGET.read_text("utf-8") == written(), "run python tools/clients.py"
    names = {str(program["name"]) for program in programs(Path("docs/clients.md").read_text("utf-8"))}
    assert {"Claude Code", "Codex CLI", "opencode", "Continue", "n8n"} <= names
    assert "127.0.0.1" not in written() and "qwen" not in written()


def chat(browser: Any, said: str) -> None:
    """Send a message, and wait until it has been answered."""
    send(browser, said)
    assert eventually(lambda: browser.execute_script("return !document.getElementById('send').disabled"))


def send(browser: Any, said: str) -> None:
    browser.execute_script("document.getElementById('say').value = arguments[0]", said)
    browser.find_element("css selector", "#send").click()


def fresh(browser: Any, server: Running, width: int = 1200) -> None:
    """The chat with nothing said yet."""
    opened(browser, server, width, path="/", state="Ready")
    browser.execute_script("sessionStorage.clear(); document.getElementById('new').click()")


def shown(browser: Any, css: str) -> list[str]:
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css
    )
    return found


def press(browser: Any, label: str) -> None:
    """The last button that says this."""
    browser.execute_script(
        "[...document.querySelectorAll('button')].filter((e) => e.textContent === arguments[0]).at(-1).click()", label
    )


@in_browser
def test_answers_say_where_their_prompt_came_from(browser: Any, talker: Running) -> None:
    fresh(browser, talker)
    browser.execute_script("document.getElementById('thinking').value = 'on'")
    said = "hm</think>**Deep** wells hold `water`.\n\n```sh\ndig <b>deeper</b>\n```"
    chat(browser, said)
    (first,) = shown(browser, "aside")
    assert "0.0 % of" in first and "First token after" in first and "saved nothing" in first
    assert shown(browser, ".assistant strong") == ["Deep"] and "dig <b>deeper</b>" in shown(browser, ".assistant pre")
    assert browser.execute_script("return document.querySelector('.thoughts').open") is False
    assert "hm" in text(browser, ".thoughts")
    chat(browser, "and then? " * 10)
    second = shown(browser, "aside")[1]
    assert "device" in second and not second.startswith("0.0 %")
    label = browser.execute_script("return [...document.querySelectorAll('aside .bar')].at(-1).ariaLabel")
    assert label.startswith("device ") and ", computed " in label
    assert "tokens of context used" in text(browser, "#meter") and text(browser, "#told") == "The answer is complete"
    assert console(browser) == []


@in_browser
def test_another_answer_and_another_question_are_branches(browser: Any, talker: Running) -> None:
    fresh(browser, talker)
    chat(browser, "one well")
    press(browser, "Regenerate")
    assert eventually(lambda: "branch 2 of 2" in text(browser, "#talk"))
    press(browser, "Edit")
    browser.execute_script("document.querySelector('.edit textarea').value = 'two wells'")
    press(browser, "Send as a branch")
    assert eventually(lambda: "two wells" in text(browser, ".assistant") and len(shown(browser, "aside")) == 1)
    assert shown(browser, ".user .said") == ["two wells"]
    press(browser, "‹")
    assert shown(browser, ".user .said") == ["one well"] and "branch 2 of 2" in text(browser, ".assistant")
    browser.refresh()
    assert eventually(lambda: shown(browser, ".user .said") == ["one well"]), "a reload keeps the conversation"
    assert console(browser) == []


@in_browser
def test_calls_of_tools_are_shown_and_their_results_can_be_given(browser: Any, talker: Running) -> None:
    fresh(browser, talker)
    browser.execute_script("document.getElementById('tools').value = arguments[0]", json.dumps([TOOL]))
    chat(browser, CALL)
    assert "Calls the tool look" in text(browser, ".call") and '"at": "Rome"' in text(browser, ".call")
    assert browser.execute_script("return document.getElementById('say').placeholder") == "Result of look"
    chat(browser, "it is there")
    assert shown(browser, ".tool code") == ["it is there"] and len(shown(browser, ".assistant")) == 2
    sent = [(m["role"], "tool_calls" in m) for m in bodies(browser)]
    assert sent == [("user", False), ("assistant", True), ("tool", False), ("assistant", True)]
    browser.execute_script("document.getElementById('tools').value = 'no JSON'")
    chat(browser, "what then")
    assert "The tools are not JSON" in text(browser, "[role=alert]")
    browser.execute_script("document.getElementById('tools').value = ''")


def bodies(browser: Any) -> list[dict[str, Any]]:
    """The messages of the conversation shown, as the next call would send them."""
    told: list[dict[str, Any]] = browser.execute_async_script("""
        const done = arguments[0];
        import("/page/tree.js").then((tree) => {
          const talk = tree.load(sessionStorage.getItem("stepwell.conversation"));
          done(tree.messages(tree.last(talk), "")); });""")
    return told


@in_browser
def test_an_answer_can_be_stopped(browser: Any, server: Running) -> None:
    from selenium.webdriver import Keys as Press
    from selenium.webdriver.common.action_chains import ActionChains

    fresh(browser, server)
    server.loop.gate.clear()  # so that the answer cannot end by itself
    try:
        send(browser, "hello")
        assert eventually(lambda: server.client.open == 1)
        ActionChains(browser).send_keys(Press.ESCAPE).perform()
        assert eventually(lambda: "Stopped" in text(browser, "#talk"))
        assert eventually(lambda: server.client.open == 0)
        assert text(browser, "#told") == "Stopped"
    finally:
        server.loop.gate.set()


@in_browser
def test_an_error_of_the_server_is_said(browser: Any, server: Running) -> None:
    fresh(browser, server)
    browser.execute_script("document.getElementById('temperature').value = '9'")
    chat(browser, "hello")
    assert "temperature" in text(browser, "[role=alert]")
    browser.execute_script("document.getElementById('temperature').value = ''")
    assert all("400" in line for line in console(browser))


@in_browser
def test_tabs_go_by_keyboard_and_have_addresses(browser: Any, server: Running) -> None:
    from selenium.webdriver import Keys as Press
    from selenium.webdriver.common.action_chains import ActionChains

    fresh(browser, server)
    browser.execute_script("document.getElementById('tab-chat').focus()")
    for name, address in (("clients", "/#clients"), ("dashboard", "/dashboard"), ("chat", "/")):
        ActionChains(browser).send_keys(Press.ARROW_RIGHT).perform()
        assert browser.execute_script("return document.activeElement.id") == f"tab-{name}"
        assert browser.current_url == server.url + address
        assert browser.execute_script("return [...document.querySelectorAll('.panel')].filter((e) => !e.hidden).length")
        assert browser.execute_script("return document.getElementById('panel-' + arguments[0]).hidden", name) is False
    assert console(browser) == []


@in_browser
def test_configurations_name_this_server(browser: Any, server: Running) -> None:
    opened(browser, server, path="/#clients", state="Ready")
    assert eventually(lambda: len(shown(browser, ".program")) > 5)
    told = " ".join(shown(browser, ".program pre"))
    assert f"ANTHROPIC_BASE_URL={server.url}" in told and "ANTHROPIC_MODEL=tiny" in told and "{{" not in told
    assert console(browser) == []


@in_browser
def test_chat_asks_for_a_key_and_goes_on_with_it(browser: Any, tokenizer: Tokenizer) -> None:
    with running(tokenizer, keys=Keys([KEY])) as locked:
        opened(browser, locked, path="/", state="A key is needed")
        browser.find_element("css selector", "#key").send_keys(KEY + "\n")
        assert eventually(lambda: text(browser, "#state") == "Ready")
        browser.execute_script("document.getElementById('max-tokens').value = '3'")
        chat(browser, "hello")
        assert "prompt tokens came from the cache" in text(browser, "aside")
        browser.get("about:blank")
    console(browser)


@in_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_chat_can_be_read_in_both_themes_and_on_a_phone(browser: Any, talker: Running, theme: str, width: int) -> None:
    wanted = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    fresh(browser, talker, width)
    browser.execute_script("document.getElementById('thinking').value = 'on'")
    chat(browser, "hm</think># Wells\n\n* deep `wells`\n* " + "w" * 300 + "\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    assert shown(browser, ".said li")[0] == "deep wells" and shown(browser, ".said td") == ["1", "2"]
    browser.execute_script("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert faintest(browser) >= 4.5
    assert unnamed(browser) == []
    assert console(browser) == []


@in_browser
@pytest.mark.parametrize(
    "answer",
    [">" * 20000, "a|b\n" + "|-" * 20000 + "x", "\n".join(" " * i + "- x" for i in range(3000)), "*a **b " * 3000],
)
def test_an_answer_of_any_form_is_drawn(browser: Any, server: Running, answer: str) -> None:
    browser.get(server.url)
    drawn = browser.execute_async_script(
        "const [text, done] = arguments; import('/page/markdown.js').then((m) => m.render(text).textContent.length)"
        ".then(done, (fault) => done(String(fault)));",
        answer,
    )
    assert isinstance(drawn, int), drawn
    assert drawn > 0
