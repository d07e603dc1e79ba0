"""The server on the real loop with the tell-tale model: resumed answers are the cold ones, wherever the prompt came from."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import numpy as np

from stepwell.base.clock import WallClock
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.engine.config import EngineConfig
from stepwell.engine.llm import LocalEngine
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import SamplingParams
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import Memory, TellTaleRunner, answer, geometry
from tests.engine.scripted import facts
from tests.server.harness import Running, eventually, running

VOCAB = 300


def real_loop(pages: int = 64, slots: int = 400) -> OwnedLoop:
    """The engine loop with a pool that holds few conversations."""
    sizes = geometry()
    memory = Memory(sizes, pages, slots, 8)
    cache = CacheConfig(sizes, pages, slots, chunk=16, interval=64, min_load_tokens=1)
    config = SchedConfig(8, 64, 200, decode_rung_tokens=4, vocab=VOCAB)
    return OwnedLoop(cache, config, TellTaleRunner(memory, sizes, VOCAB), InstantMover(memory.copy), WallClock())


def complete(server: Running, prompt: list[int], **fields: Any) -> tuple[list[int], dict[str, int]]:
    """Tokens of the answer, read from the next turn's point of view, and where the prompt came from."""
    body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, **fields}
    reply = httpx.post(server.url + "/v1/completions", json=body, timeout=20)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    assert usage["completion_tokens"] == 12
    return reply.json()["choices"][0]["text"], usage["prompt_tokens_details"]


def test_conversations_resume_from_device_and_host_with_the_cold_answers(tokenizer: Tokenizer) -> None:
    loop = real_loop()
    tiers = {"device_tokens": 0, "host_tokens": 0, "disk_tokens": 0, "cached_tokens": 0}
    with running(tokenizer, loop=loop) as server:
        histories = [[(7 * i + j) % VOCAB for j in range(40)] for i in range(10)]
        for _turn in range(2):
            for history in [h for h in histories for _ in range(2)]:  # two turns at once, then a long pause
                said, sources = complete(server, history)
                expected = answer(np.array(history, np.int32), 12, VOCAB)
                assert said == tokenizer.decode(expected)
                assert sources["cached_tokens"] == sum(sources[t] for t in tiers if t != "cached_tokens")
                tiers = {name: count + sources[name] for name, count in tiers.items()}
                history += [*expected, 1, 2, 3, 4, 5]
        assert server.client.open == 0
        eventually(lambda: loop.directory.use(Tier.DEVICE).leased == 0)  # idle copies may be out
    assert tiers["device_tokens"] > 0, tiers
    assert tiers["host_tokens"] > 0, tiers


def test_salts_share_nothing_and_callers_can_pass_the_cache_by(tokenizer: Tokenizer) -> None:
    prompt = [(3 * j) % VOCAB for j in range(40)]
    with running(tokenizer, loop=real_loop()) as server:
        unsalted, _ = complete(server, prompt)
        said, sources = complete(server, prompt, cache_salt="b", write_cache=False)
        assert sources["cached_tokens"] == 0
        assert said == tokenizer.decode(answer(np.array(prompt, np.int32), 12, VOCAB, "b")) != unsalted
        assert complete(server, prompt, cache_salt="b")[1]["cached_tokens"] == 0  # nothing had been written
        assert complete(server, prompt, cache_salt="b")[1]["cached_tokens"] > 0
        assert complete(server, prompt, read_cache=False)[1]["cached_tokens"] == 0
        assert complete(server, prompt)[1]["cached_tokens"] > 0


def test_many_callers_at_once_get_their_own_answers(tokenizer: Tokenizer) -> None:
    loop = real_loop(pages=128)
    wrong: list[int] = []
    with running(tokenizer, loop=loop) as server:

        def call(i: int) -> None:
            prompt = [(i * j + i) % VOCAB for j in range(30)]
            said, _ = complete(server, prompt, n=1)
            if said != tokenizer.decode(answer(np.array(prompt, np.int32), 12, VOCAB)):
                wrong.append(i)

        callers = [threading.Thread(target=call, args=(i,)) for i in range(24)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(30)
        assert not wrong
        assert eventually(lambda: loop.directory.use(Tier.DEVICE).leased == 0), "once its copies down have landed"


def test_what_can_never_fit_is_a_400_with_both_numbers(tokenizer: Tokenizer) -> None:
    with running(tokenizer, loop=real_loop(pages=16)) as server:
        reply = httpx.post(server.url + "/v1/completions", json={"prompt": [5] * 150, "stream": True})
        assert reply.status_code == 400
        assert "151" in reply.json()["error"]["message"] and "64" in reply.json()["error"]["message"]
        assert complete(server, [5] * 20)[1]["cached_tokens"] == 0


def test_engine_in_process_resumes_too(tokenizer: Tokenizer) -> None:
    prompts = [[(5 * i + j) % VOCAB for j in range(35)] for i in range(3)]
    with LocalEngine(real_loop(), tokenizer, facts(EngineConfig("tiny"))) as llm:
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        for _ in range(2):
            for prompt, said in zip(prompts, llm.generate(prompts, params), strict=True):
                assert list(said.token_ids) == answer(np.array(prompt, np.int32), 9, VOCAB)
        assert said.outcome.cached > 0
