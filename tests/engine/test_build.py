"""An engine built from flags: what audits make of a real model, right and wrong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from llguidance import LLMatcher  # noqa: E402

from stepwell.base.errors import ConfigError, RequestError  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.engine import build  # noqa: E402
from stepwell.engine.config import EngineFacts, engine_config  # noqa: E402
from stepwell.engine.grammar import wire  # noqa: E402
from stepwell.engine.grammar.desk import Desk, Order  # noqa: E402
from stepwell.engine.llm import LLM, LocalEngine  # noqa: E402
from stepwell.engine.text.tokenizer import Tokenizer  # noqa: E402
from stepwell.engine.worker import build as worker  # noqa: E402
from stepwell.sched.request import Request, SamplingParams, Tokens  # noqa: E402
from stepwell.store.device import DeviceArena  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.server.templates import word_tokenizer  # noqa: E402

SIX = SamplingParams(max_tokens=6, ignore_eos=True)
PROMPT = np.random.default_rng(0).integers(3, 512, 150).astype(np.int32)
FLAGS = {"device": "cpu", "device_memory": "4MiB", "host_memory": "0", "max_num_seqs": 2, "max_num_batched_tokens": 128}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    torch.set_num_threads(1)
    yield write_checkpoint(tmp_path_factory.mktemp("model"), hidden=64, layers=4, vocab=512)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_resumes_pass_their_audits(checkpoint: Path, dtype: str) -> None:
    with LLM(str(checkpoint), **FLAGS, dtype=dtype, verify_resume=1.0) as llm:
        prompt = PROMPT
        for params in (SIX, SamplingParams(max_tokens=6, temperature=1.0, min_tokens=6), SIX):
            answer = llm.generate(prompt, params)[0]
            prompt = np.concatenate([prompt, np.array(answer.token_ids, np.int32), PROMPT[:40]])
        stats = llm.stats()
        assert answer.outcome.cached > 150
        assert (stats.audits, stats.audit_mismatches, stats.audits_skipped) == (2, 0, 0)
        assert stats.tally.admissions == 3 and not stats.leases and not stats.running


@pytest.mark.parametrize("what", ["kv", "image"])
def test_a_page_gone_wrong_is_found_and_taken_out(
    checkpoint: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arenas: list[DeviceArena] = []

    def made(*args: object) -> DeviceArena:
        arenas.append(DeviceArena(*args))  # type: ignore[arg-type]
        return arenas[0]

    monkeypatch.setattr(worker, "DeviceArena", made)
    facts: list[EngineFacts] = []
    config = engine_config({"model": str(checkpoint), **FLAGS, "dtype": "float32", "verify_resume": 1.0})
    loop = build.build_engine(config, facts.append)
    llm = LocalEngine(loop, Tokenizer.load(config.model), facts[-1])
    first = llm.generate(PROMPT, SIX)[0]
    items = [item for node in loop.directory.tree.nodes() for item in node.items() if item.what == what]
    for item in items:
        slots = item.at[Tier.DEVICE]
        assert slots is not None
        page = arenas[0].rows[int(slots[0])].view(torch.float32)
        page.neg_()
    with caplog.at_level(logging.ERROR):
        wrong = llm.generate(PROMPT, SIX)[0]
    stats = llm.stats()
    assert wrong.outcome.cached == 128 and stats.audit_mismatches == 1 and stats.quarantined > 0
    assert "answers otherwise" in caplog.text and "resumed 128 of 150 tokens" in caplog.text
    again = llm.generate(PROMPT, SIX)[0]
    assert again.outcome.cached == 0 and again.token_ids == first.token_ids
    assert llm.stats().audit_mismatches == 1


def test_a_model_whose_vocabulary_no_grammar_reads_starts_and_refuses_grammars(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, hidden=64, layers=4, vocab=512)
    for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / file).unlink(missing_ok=True)
    word_tokenizer(tmp_path, 512)
    with LLM(str(tmp_path), **FLAGS, load_format="dummy") as llm:
        assert any("grammars are off" in doubt and "tokenizer.json" in doubt for doubt in llm.facts.doubts)
        answer = llm.generate("w5 w6 w7", SIX)[0]
        assert answer.text.split() == [f"w{token}" for token in answer.token_ids]
        with pytest.raises(RequestError, match=r"cannot be held to a grammar: .*tokenizer\.json"):
            llm.generate("w5", SamplingParams(grammar=str(LLMatcher.grammar_from_regex("w5"))))
        assert llm.generate("w5 w6 w7", SIX)[0].token_ids == answer.token_ids
    with pytest.raises(ConfigError, match="--load-format dummy"):
        LLM(str(tmp_path), **FLAGS)


def test_a_mask_that_takes_long_holds_up_no_other_answer(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, usual = threading.Event(), Desk.follow

    def gated(desk: Desk, orders: Sequence[Order]) -> Iterator[wire.Told]:
        assert gate.wait(60)
        yield from usual(desk, orders)

    monkeypatch.setattr(Desk, "follow", gated)
    facts: list[EngineFacts] = []
    loop = build.build_engine(engine_config({"model": str(checkpoint), **FLAGS}), facts.append)
    held = Request("held", PROMPT, SamplingParams(8, grammar=LLMatcher.grammar_from_regex("a+")))
    while not loop.prepare(held):
        gate.wait(0.001)
    loop.submit(held)
    loop.submit(Request("plain", PROMPT, SIX))
    said: dict[str, list[int]] = {"plain": [], "held": []}

    def turn() -> bool:
        """Whether the last one has ended."""
        for event in loop.step():
            if isinstance(event, Tokens):
                said[event.request_id] += event.tokens
        return not loop.queues.running and not loop.queues.waiting

    while len(said["plain"]) < 6:
        turn()
    assert said["held"] == []
    gate.set()
    while not turn():
        continue
    loop.end(0.0)
    assert set(Tokenizer.load(str(checkpoint)).decode(said["held"])) == {"a"}
