"""Answers of every kind in every dialect, parsed strictly by the packages that clients use: no type is coerced, no event is unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import Field, TypeAdapter, ValidationError

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.generation.choice import Choice
from stepwell.server.http.streams import EventStream
from tests.engine.scripted import CONTEXT
from tests.server.harness import MODEL, Running, eventually, running
from tests.server.templates import talking_tokenizer

WORDS = ["hello", "Zürich\n\n", " two  ", "<", '{"a": 1}', "\u2028", "emoji 🎈", "```py\nx\n```"]
CALLS = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>',
    '<tool_call>\n{"arguments": {"days": 1, "city": "x"}, "name": "weather"}\n</tool_call>',
    '<tool_call>\n{"name": "free", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "weather", "arguments": {"city": "broken',
    '<tool_call>\n{"name": "weather", "arguments": {"days": 1e999}}\n</tool_call>',
    '<tool_call>\n{"name": "nobody", "arguments": {"x": [1, null, true]}}\n</tool_call>',
    "<tool_call>\nno call at all\n</tool_call>",
    "<tool_call>\n<function=weather>\n<parameter=city>\nZürich </parameter> x\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=weather>\n<parameter=days>\nNaN\n</parameter>\n</function>\n<function=free>\n</function>\n</tool_call>",
    "<function=weather>\n<parameter=city>\nnever closed",
]
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
SCHEMAS = {"weather": {"type": "object", "properties": PROPERTIES}, "free": {"type": "object"}}
SAID = st.tuples(
    st.sampled_from(["", "</think>", "a thought</think>", "a thought that never ends", "<think>hm</think>"]),
    st.lists(st.sampled_from(WORDS + CALLS), max_size=5).map("\n".join),
).map("".join)
ASKED = {"said": SAID, "most": st.sampled_from([1, 2, 7, 30, 400]), "thinks": st.booleans(), "shown": st.booleans()}
MANY = settings(
    max_examples=max(4, settings().max_examples // 6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

BLOCK_EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[RawMessageStreamEvent, Field(discriminator="type")])
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[ResponseStreamEvent, Field(discriminator="type")])


@pytest.fixture(scope="module", params=[False, True], ids=["json", "tagged"])
def talker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return talking_tokenizer(tmp_path_factory.mktemp("talker"), tagged=request.param)


@pytest.fixture(scope="module")
def talking(talker: Tokenizer) -> Iterator[Running]:
    with running(talker) as server:
        yield server


def strictly(adapter: TypeAdapter[Any], text: str) -> Any:
    """As JSON that is not JSON in Python alone, and with every type as it is declared."""
    json.loads(text, parse_constant=_no_number)
    return adapter.validate_json(text, strict=True)


def _no_number(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def events(text: str) -> list[tuple[str, str]]:
    """(event, data) of each, "" where there is no event line; lines end at line feeds alone."""
    found = []
    assert text.endswith("\n\n"), text[-200:]
    for part in text[:-2].split("\n\n"):
        fields = dict(re.fullmatch(r"(event|data): (.*)", line, re.DOTALL).groups() for line in part.split("\n"))  # type: ignore[union-attr, misc]
        found.append((fields.get("event", ""), fields["data"]))
    return found


def post(server: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def thinking(thinks: bool) -> dict[str, Any]:
    return {"chat_template_kwargs": {"thinking": thinks}}


def messages(said: str, most: int, thinks: bool, shown: bool) -> dict[str, Any]:
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    asked = {"max_tokens": most, "messages": [{"role": "user", "content": said or "."}], **thinking(thinks)}
    return asked | ({"tools": tools} if shown else {})


def chats(said: str, most: int, thinks: bool, shown: bool) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in SCHEMAS.items()]
    asked = {"max_tokens": most, "messages": [{"role": "user", "content": said or "."}], **thinking(thinks)}
    return asked | ({"tools": tools} if shown else {})


def responses(said: str, most: int, thinks: bool, shown: bool) -> dict[str, Any]:
    tools = [{"type": "function", "name": n, "parameters": s, "strict": False} for n, s in SCHEMAS.items()]
    asked = {"max_output_tokens": most, "input": said or ".", "store": False, **thinking(thinks)}
    return asked | ({"tools": tools} if shown else {})


def whole_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def check_blocks(text: str, broken: bool = False) -> None:
    """Blocks open and close one after the other; calls are JSON; the message ends with its reason."""
    found, inside, arguments, ended, cut = events(text), -1, "", False, False
    at, kind = 0, ""
    for name, data in found:
        if name == "ping":
            assert json.loads(data) == {"type": "ping"}
            continue
        if name == "error":
            assert broken and json.loads(data)["type"] == "error" and json.loads(data)["error"]["type"]
            assert (name, data) == found[-1]
            return
        event = strictly(BLOCK_EVENT, data)
        assert event.type == name
        match name:
            case "content_block_start":
                assert inside == -1 and event.index == at
                inside, kind, arguments = at, event.content_block.type, ""
            case "content_block_delta":
                assert event.index == inside
                arguments += event.delta.partial_json if event.delta.type == "input_json_delta" else ""
            case "content_block_stop":
                assert event.index == inside
                assert not cut, "what is cut ends the answer"
                cut = kind == "tool_use" and not whole_object(arguments or "{}")
                inside, at = -1, at + 1
            case "message_delta":
                assert inside == -1 and event.delta.stop_reason
                assert not cut or event.delta.stop_reason == "max_tokens", "a call that is cut is said to be"
                ended = True
    found = [one for one in found if one[0] != "ping"]  # which may come before anything is known
    assert not broken and found[0][0] == "message_start" and found[-1][0] == "message_stop" and ended


def check_chunks(text: str, broken: bool = False) -> None:
    found = events(text)
    assert found[-1] == ("", "[DONE]")
    for _, data in found[:-1]:
        if '"error"' in data[:9]:
            assert broken and json.loads(data)["error"]["message"]
            continue
        chunk = strictly(TypeAdapter(ChatCompletionChunk), data)
        assert chunk.object == "chat.completion.chunk" and chunk.model == MODEL
    reasons = [
        c["finish_reason"] for _, d in found[:-1] for c in json.loads(d).get("choices", []) if c["finish_reason"]
    ]
    assert broken or len(reasons) == 1


def check_response(text: str, broken: bool = False) -> None:
    found = [(name, strictly(RESPONSE_EVENT, data)) for name, data in events(text)]
    assert [event.sequence_number for _, event in found] == list(range(len(found)))
    assert all(name == event.type for name, event in found)
    last = found[-1][1]
    assert found[0][0] == "response.created"
    assert last.type in (("response.failed",) if broken else ("response.completed", "response.incomplete"))
    opened = [event.item.id for name, event in found if name == "response.output_item.added"]
    closed = [event.item.id for name, event in found if name == "response.output_item.done"]
    assert broken or opened == closed == [item.id for item in last.response.output]
    for item in last.response.output:
        if item.type == "function_call" and item.status == "completed":
            assert isinstance(json.loads(item.arguments), dict)


DIALECTS = [
    ("/v1/messages", messages, check_blocks),
    ("/v1/chat/completions", chats, check_chunks),
    ("/v1/responses", responses, check_response),
]
NAMES = ["messages", "chats", "responses"]


@MANY
@given(**ASKED)
def test_messages(talking: Running, said: str, most: int, thinks: bool, shown: bool) -> None:
    body = messages(said, most, thinks, shown)
    whole = post(talking, "/v1/messages", body)
    message = strictly(TypeAdapter(Message), whole.text)
    assert whole.status_code == 200 and message.stop_reason in ("end_turn", "max_tokens", "tool_use")
    check_blocks(post(talking, "/v1/messages", body | {"stream": True}).text)
    client = anthropic.Anthropic(base_url=talking.url, api_key="none", max_retries=0)
    with client.messages.stream(model=MODEL, **_extra(body)) as stream:
        again = stream.get_final_message()
    assert [block.type for block in again.content] == [block.type for block in message.content]
    assert again.stop_reason == message.stop_reason


@MANY
@given(**ASKED)
def test_chats(talking: Running, said: str, most: int, thinks: bool, shown: bool) -> None:
    body = chats(said, most, thinks, shown)
    whole = post(talking, "/v1/chat/completions", body)
    (choice,) = strictly(TypeAdapter(ChatCompletion), whole.text).choices
    for call in choice.message.tool_calls or []:
        assert choice.finish_reason == "length" or isinstance(json.loads(call.function.arguments), dict)
    for options in ({}, {"stream_options": {"include_usage": True}}):
        check_chunks(post(talking, "/v1/chat/completions", body | {"stream": True, **options}).text)


@MANY
@given(**ASKED)
def test_responses(talking: Running, said: str, most: int, thinks: bool, shown: bool) -> None:
    body = responses(said, most, thinks, shown)
    whole = strictly(TypeAdapter(Response), post(talking, "/v1/responses", body).text)
    assert whole.status in ("completed", "incomplete")
    text = post(talking, "/v1/responses", body | {"stream": True}).text
    check_response(text)
    last = json.loads(events(text)[-1][1])["response"]
    assert [item["type"] for item in last["output"]] == [item.type for item in whole.output]


def _extra(body: dict[str, Any]) -> dict[str, Any]:
    """What the client's method has no argument for."""
    own = {name: value for name, value in body.items() if name == "chat_template_kwargs"}
    return {name: value for name, value in body.items() if name not in own} | {"extra_body": own}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("after", [0, 1, 5, 40])
@pytest.mark.parametrize(("path", "body", "check"), DIALECTS, ids=NAMES)
def test_a_fault_of_ours_ends_a_stream_as_its_dialect_says(
    talking: Running, path: str, body: Any, check: Any, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes: before the first token, in a thought, in a text, in a call."""
    usual, told = Choice.take, [0]

    def broken(choice: Choice, delivery: Any) -> Any:
        told[0] += len(delivery.tokens)
        if told[0] > after:
            raise ZeroDivisionError("nobody has thought of this")
        return usual(choice, delivery)

    monkeypatch.setattr(Choice, "take", broken)
    asked = body(f"a thought</think>and text, some of it {CALLS[0]}", 400, True, True)
    answer = post(talking, path, asked | {"stream": True})
    assert answer.status_code == 200
    check(answer.text, broken=True)
    assert "nobody has thought of this" not in answer.text, "what went wrong inside is for the log"
    assert eventually(lambda: talking.client.open == 0)
    whole = post(talking, path, asked)
    assert whole.status_code == 500 and "nobody has thought" not in whole.text


def test_every_list_of_models_that_clients_know_is_one_body(talking: Running) -> None:
    for model in openai.OpenAI(base_url=talking.url + "/v1", api_key="x").models.list():
        assert (model.id, model.owned_by) == (MODEL, "stepwell")
    found = list(anthropic.Anthropic(base_url=talking.url, api_key="x").models.list())
    assert [model.id for model in found] == [MODEL] and found[0].max_input_tokens
    body = httpx.get(talking.url + "/v1/models").json()
    TypeAdapter(list[anthropic.types.ModelInfo]).validate_json(json.dumps(body["data"]), strict=True)
    assert body["models"] == [], "Codex reads a list of its own settings, and complains where there is none"


def test_the_judge_is_strict() -> None:
    with pytest.raises(ValidationError):
        strictly(BLOCK_EVENT, '{"type": "content_block_stop", "index": "0"}')
    with pytest.raises(ValidationError):
        strictly(RESPONSE_EVENT, '{"type": "response.unheard_of"}')
    with pytest.raises(AssertionError):
        strictly(BLOCK_EVENT, '{"type": "content_block_stop", "index": NaN}')


@pytest.mark.parametrize(("path", "body", "check"), DIALECTS, ids=NAMES)
def test_what_is_sent_in_silence_is_an_event_that_the_client_knows(
    talking: Running, path: str, body: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a prompt waits, and in the middle of an answer: an event that adds nothing, and no comment."""
    monkeypatch.setattr("stepwell.server.routes.calls.EventStream", partial(EventStream, seconds=0.01))
    asked = body("hello, " * 4, 20, False, False)
    talking.loop.gate.clear()
    text = ""
    with httpx.stream("POST", talking.url + path, json=asked | {"stream": True}, timeout=60) as silent:
        for piece in silent.iter_text():
            text += piece
            if _beats(text[: text.rfind("\n\n") + 2]) > 2:
                talking.loop.gate.set()
    check(text)
    assert _beats(text) > 2 and not any(line.startswith(":") for line in text.splitlines())


def _beats(text: str) -> int:
    """Events so far that add nothing."""
    return sum(_adds_nothing(name, data) for name, data in events(text)) if text else 0


def _adds_nothing(name: str, data: str) -> bool:
    if name in ("ping", "response.in_progress"):
        return True
    choices = json.loads(data).get("choices") if name == "" and data != "[DONE]" else None
    return bool(choices) and choices[0]["delta"] in ({}, {"content": ""}) and choices[0]["finish_reason"] is None


@pytest.mark.sampled(1)
@MANY
@given(**ASKED)
def test_what_goes_out_can_come_back(talking: Running, said: str, most: int, thinks: bool, shown: bool) -> None:
    """Whatever a model has answered, cut or whole, the next turn is no fault; calls get a result, or none where the client gave up."""
    given: tuple[str, int, bool, bool] = (said, most, thinks, shown)
    again = {"role": "user", "content": "go on"}

    chat = chats(*given)
    answer = post(talking, "/v1/chat/completions", chat).json()["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in answer.get("tool_calls") or []]
    for after in (results, []):
        history = [*chat["messages"], answer, *after, again]
        assert post(talking, "/v1/chat/completions", chat | {"messages": history}).status_code == 200

    block = messages(*given)
    content = post(talking, "/v1/messages", block).json()["content"] or "(nothing)"
    calls = [part["id"] for part in content if isinstance(part, dict) and part["type"] == "tool_use"]
    told: list[Any] = [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name in calls]
    for after in (told, []):
        user = {"role": "user", "content": [*after, {"type": "text", "text": "go on"}]}
        history = [*block["messages"], {"role": "assistant", "content": content}, user]
        assert post(talking, "/v1/messages", block | {"messages": history}).status_code == 200

    item = responses(*given) | {"store": True}
    response = post(talking, "/v1/responses", item).json()
    outputs = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "ok"}
        for one in response["output"]
        if one["type"] == "function_call"
    ]
    for after in (outputs, []):
        history = [{"role": "user", "content": item["input"]}, *response["output"], *after, again]
        assert post(talking, "/v1/responses", item | {"input": history}).status_code == 200
        kept = item | {"input": [*after, again], "previous_response_id": response["id"]}
        assert post(talking, "/v1/responses", kept).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "words", "code"),
    [
        ("/v1/messages", messages, r"prompt is too long: (\d+) tokens > (\d+) maximum", "invalid_request_error"),
        ("/v1/chat/completions", chats, r"maximum context length is \d+ tokens", "context_length_exceeded"),
        ("/v1/responses", responses, r"maximum context length is \d+ tokens", "context_length_exceeded"),
    ],
    ids=NAMES,
)
def test_an_overflow_is_told_in_the_words_by_which_clients_compact(
    talking: Running, path: str, body: Any, words: str, code: str
) -> None:
    for stream in (False, True):
        answer = post(talking, path, body("x " * CONTEXT, 20, False, False) | {"stream": stream})
        error = answer.json()["error"]
        assert answer.status_code == 400 and re.search(words, error["message"])
        assert code in (error.get("code"), error["type"])


def test_nineteen_counts_at_once_are_nineteen_answers(talking: Running) -> None:
    """Claude Code asks so for `/context`."""
    body = {"messages": [{"role": "user", "content": "hello"}]}
    with ThreadPoolExecutor(19) as pool:
        answers = list(pool.map(lambda _: post(talking, "/v1/messages/count_tokens", body), range(19)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["input_tokens"] for answer in answers}) == 1
