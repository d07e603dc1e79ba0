"""Chat templates are rendered in processes of their own: what never ends, or fills memory, is refused, and others go on meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvloop

from stepwell.base.errors import ConfigError, RequestError
from stepwell.engine.text.chat_template import ChatTemplate, TakesTooMuch
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.prompt import templates
from stepwell.server.prompt.beside import Beside
from stepwell.server.prompt.template_process import rendered
from stepwell.server.prompt.template_wire import Job, Refused
from stepwell.server.prompt.templates import Closing, TemplateProcesses
from stepwell.testing.agents import TEMPLATE, write_agent_tokenizer
from tests.server.harness import running
from tests.server.templates import talking_tokenizer

_Result = TypeVar("_Result")
TRAPS = (
    "{%- set said = messages[0].content -%}"
    "{%- if said == 'for ever' -%}{%- for a in range(99999) -%}{%- for b in range(99999) -%}{%- endfor -%}{%- endfor -%}{%- endif -%}"
    "{%- if said == 'much' -%}{{ said[:1] * 2 ** 23 }}{%- endif -%}"
    "{%- if said == 'more than there is' -%}{{ said[:1] * 2 ** 40 }}{%- endif -%}"
    "{%- if said == 'no' -%}{{ raise_exception('I will not') }}{%- endif -%}"
    "{{ bos_token }}{{ said }}"
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def within(
    work: Callable[[TemplateProcesses], Awaitable[_Result]], template: ChatTemplate, seconds: float = 0.3
) -> _Result:
    """What `work` comes to with processes for `template`, within a minute."""

    async def run() -> _Result:
        templates = TemplateProcesses(template, Beside(), seconds)
        try:
            return await asyncio.wait_for(work(templates), 60)
        finally:
            templates.close()

    return uvloop.run(run())  # as `serve` does; the call over HTTP below has asyncio's own loop


@pytest.fixture(scope="module")
def traps() -> ChatTemplate:
    return ChatTemplate.alone(TRAPS, {"bos_token": "<s>"})


def test_a_template_that_takes_too_much_is_refused_and_whoever_waits_behind_it_is_answered(traps: ChatTemplate) -> None:
    async def ask(templates: TemplateProcesses) -> list[Any]:
        said = ("a", "for ever", "b", "no", "much", "more than there is", "c" * 100_000, "d")
        jobs = [templates.render(Job([user(text)]), len(text)) for text in said]
        return await asyncio.gather(*jobs, return_exceptions=True)

    a, endless, b, no, much, more, long, d = within(ask, traps)
    assert (a, b, d) == ("<s>a", "<s>b", "<s>d") and long == "<s>" + "c" * 100_000
    assert all(isinstance(fault, TakesTooMuch) and fault.param == "messages" for fault in (endless, much, more))
    assert "takes more than 0.3 s, or more memory" in str(endless)
    assert "makes 8,388,61" in str(much) and "takes more memory than it is given" in str(more)
    assert type(no) is RequestError and "refuses these messages: I will not" in str(no)


def test_a_caller_that_goes_costs_nobody_an_answer(traps: ChatTemplate) -> None:
    async def ask(templates: TemplateProcesses) -> str:
        gone = asyncio.create_task(templates.render(Job([user("for ever")]), 10))
        await asyncio.sleep(0)
        await templates.start()
        gone.cancel()
        return await templates.render(Job([user("a")]), 1)

    assert within(ask, traps) == "<s>a"


def test_a_template_that_ends_for_nobody_ends_the_start() -> None:
    endless = "{%- for a in range(99999) -%}{%- for b in range(99999) -%}{%- endfor -%}{%- endfor -%}"
    with pytest.raises(ConfigError, match=r"takes more than 0\.3 s.*--chat-template"):
        within(TemplateProcesses.start, ChatTemplate.alone(endless, {}))
    within(TemplateProcesses.start, ChatTemplate.alone("{{ raise_exception('tools alone') }}", {}))


def test_a_template_that_ends_for_everyone_but_a_system_alone_ends_the_start() -> None:
    """The server renders such conversations itself, to know what the template takes."""
    endless = "{%- if messages[0].role == 'system' -%}{%- for a in range(99999) -%}{%- for b in range(99999) -%}{%- endfor -%}"
    endless += "{%- endfor -%}{%- endif -%}"
    with pytest.raises(ConfigError, match=r"takes more than 0\.3 s.*--chat-template"):
        within(TemplateProcesses.start, ChatTemplate.alone(endless, {}))


def test_whole_numbers_of_any_size_may_stand_in_a_conversation() -> None:
    large = 123456789012345678901234567890
    template = ChatTemplate.alone("{{ messages[0].n }} {{ tools[0].m }}", {})
    job = Job([user("a") | {"n": large}], tools=[{"m": -large}])
    assert within(lambda templates: templates.render(job, 10), template) == f"{large} {-large}"


def test_a_process_that_was_ended_while_it_had_nothing_to_do_is_no_reason_to_refuse(traps: ChatTemplate) -> None:
    async def ask(templates: TemplateProcesses) -> str:
        await templates.start()
        link = await templates._short.open()
        os.kill(link._process.pid, signal.SIGKILL)
        return await templates.render(Job([user("a")]), 1)

    assert within(ask, traps) == "<s>a"


def test_a_conversation_that_the_end_cuts_off_is_told_so_and_no_process_is_left(traps: ChatTemplate) -> None:
    async def ask(templates: TemplateProcesses) -> list[Any]:
        await templates.start()
        asked = [asyncio.ensure_future(templates.render(Job([user(text)]), 10)) for text in ("for ever", "a")]
        while templates.open < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        templates.close()
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [*found, templates.open]

    cut, behind, still = within(ask, traps)
    assert isinstance(cut, Closing) and isinstance(behind, Closing) and not still


def test_a_caller_that_goes_while_a_process_begins_leaves_none_behind(traps: ChatTemplate) -> None:
    async def ask(templates: TemplateProcesses) -> int:
        for _ in range(3):
            asked = asyncio.ensure_future(templates.render(Job([user("a")]), 1))
            while not asked.done() and templates._short._opening.locked() is False:
                await asyncio.sleep(0)
            await asyncio.sleep(0.02)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        assert await templates.render(Job([user("a")]), 1) == "<s>a"
        return len(left())

    def left() -> list[str]:
        own = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
        return [pid for pid in own if "template_process" in Path(f"/proc/{pid}/cmdline").read_text()]

    before = len(left())
    assert within(ask, traps) <= before + 1


def test_what_is_nested_too_deeply_is_refused(traps: ChatTemplate) -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]

    with pytest.raises(RequestError, match="cannot be rendered"):
        within(lambda templates: templates.render(Job([user("a")], variables={"x": deep}), 10), traps)


def test_texts_may_be_longer_than_their_conversations_within_bounds(traps: ChatTemplate) -> None:
    template = ChatTemplate.alone("{{ messages[0].content * 6000000 }}", {})
    refused = rendered(template, Job([user("a")]), 100)
    assert isinstance(refused, Refused) and refused.too_much and "6,000,000 characters" in refused.why


TALKS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([user("hi")], {}),
    ([{"role": "system", "content": "be brief"}, user("hi")], {"variables": {"enable_thinking": False}}),
    ([user("hi"), {"role": "assistant", "content": "well"}], {"open_answer": False, "continue_last": True}),
    (
        [
            user("go"),
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": {"a": 1.5, "b": [None, True]}},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "ü 語 \u2028"},
        ],
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "b": 1, "a": 2}}}]},
    ),
]


def test_a_process_renders_what_the_tokenizer_itself_would_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer.load(str(write_agent_tokenizer(tmp_path, 400, 4096, "{{ eos_token }}" + TEMPLATE)))

    async def ask(templates: TemplateProcesses) -> list[str]:
        return [await templates.render(Job(messages, **named), 1) for messages, named in TALKS]

    assert within(ask, tokenizer.chat, 20) == [tokenizer.render(messages, **named) for messages, named in TALKS]
    assert capfd.readouterr().err == ""


def test_a_call_whose_template_never_ends_is_refused_and_others_are_answered_meanwhile(tmp_path: Path) -> None:
    tokenizer = talking_tokenizer(tmp_path, template=TRAPS)
    templates = TemplateProcesses(tokenizer.chat, Beside(), 1)
    with running(tokenizer, templates=templates) as server, httpx.Client(base_url=server.url, timeout=60) as http:

        def say(text: str) -> httpx.Response:
            return http.post("/v1/chat/completions", json={"messages": [user(text)], "max_tokens": 4})

        with ThreadPoolExecutor(4) as threads:
            endless = threads.submit(say, "for ever")
            with http.stream(
                "POST", "/v1/completions", json={"prompt": "abc", "stream": True, "max_tokens": 8}
            ) as stream:
                assert list(stream.iter_lines())[-2] == "data: [DONE]"
            refused = endless.result(60)
        assert refused.status_code == 400
        assert "the chat template takes more than 1 s, or more memory" in refused.json()["error"]["message"]
        assert say("a").status_code == 200
    templates.close()


def test_a_process_has_no_torch_and_its_bound_counts_from_what_is_mapped() -> None:
    program = """
import mmap, resource, sys
from stepwell.server.prompt.template_process import hide_torch, limit_memory
large = mmap.mmap(-1, 5 * 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)  # as libraries of CUDA do
hide_torch()
import importlib.util
assert importlib.util.find_spec("torch") is None
from stepwell.engine.text.chat_template import ChatTemplate
limit_memory(2**28)
print(ChatTemplate.alone("{{ messages[0].content }}", {}).render([{"role": "user", "content": "said"}]))
try:
    bytes(2**29)
except MemoryError:
    print("bounded")
assert not [name for name, module in sys.modules.items() if name.startswith("torch") and module is not None]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["said", "bounded"], done.stderr


def test_where_no_process_can_be_had_the_server_renders_itself(
    traps: ChatTemplate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(templates, "_MODULE", "stepwell.nowhere")

    async def run() -> str:
        found = await asyncio.wait_for(templates.started(traps), 60)
        return await found.render(Job([user("a")]), 1)

    assert uvloop.run(run()) == "<s>a"
    assert "no process can read the chat template" in caplog.text
