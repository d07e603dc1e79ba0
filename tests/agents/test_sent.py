"""Every call that a real agent made is answered: Claude Code, Codex, opencode and aider, as bench/real_agents.sh ran them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.read.names import ServedNames
from stepwell.testing.agents import TEMPLATE, forgetful, write_agent_tokenizer
from tests.agents.bodies import PROGRAMS, Sent, sent_by
from tests.amounts import long
from tests.engine import scripted
from tests.server.harness import MODEL, Running, eventually, running

_ENDS = {
    "/v1/chat/completions": ("data: [DONE]",),
    "/v1/messages": ("event: message_stop",),
    "/v1/responses": ("event: response.completed", "event: response.incomplete"),
}
_LIMITS = {"/v1/responses": "max_output_tokens"}


@pytest.fixture(
    scope="module", params=[pytest.param(TEMPLATE, id="preserving"), long(forgetful(TEMPLATE), id="forgetful")]
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_agent_tokenizer(tmp_path_factory.mktemp("agents"), scripted.VOCAB, template=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "CONTEXT", 1 << 20)  # agents show many tools
        with running(Tokenizer.load(str(path)), names=ServedNames(MODEL, any_name=True)) as up:
            yield up


def ask(server: Running, call: Sent) -> httpx.Response:
    body = call.body
    if body is not None and call.kind:
        body = body | {_LIMITS.get(call.path, "max_tokens"): 12, "seed": 1}
    headers = dict.fromkeys((name for name in call.headers if name.startswith("x-")), "made-up")
    return httpx.request(call.method, server.url + call.path, json=body, headers=headers, timeout=60)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_call_is_answered_and_every_stream_ends(server: Running, program: str) -> None:
    calls = list(sent_by(program))
    assert len(calls) > 1 and {call.kind for call in calls} >= {"main"}
    for call in calls:
        answer = ask(server, call)
        assert answer.status_code == 200, (call.path, call.kind, answer.text)
        if call.kind and call.body is not None and call.body.get("stream"):
            assert any(f"\n{end}" in answer.text for end in _ENDS[call.path]), answer.text[-500:]
            assert '"error":{' not in answer.text
    assert eventually(lambda: server.client.open == 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("program", PROGRAMS)
def test_next_step_of_a_turn_goes_on_where_the_last_one_ended(server: Running, program: str) -> None:
    """With a template that keeps thoughts, whatever one call has sent is the beginning of the next one's prompt."""
    main = [call for call in sent_by(program) if call.kind == "main"]
    prompts = [server.loop.seen[-1].prompt for call in main if ask(server, call).status_code == 200]
    longer = [(a, b) for a, b in itertools.pairwise(prompts) if len(b) > len(a)]
    begun = sum(bool((b[: len(a) - 8] == a[: len(a) - 8]).all()) for a, b in longer)  # less the header of the answer
    assert begun >= len(longer) - 3, f"{begun} of {len(longer)} calls extend the one before"
