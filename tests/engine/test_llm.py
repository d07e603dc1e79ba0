"""The engine in this process: prompts in, completions out, nothing left running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.base.errors import CapacityError, EngineDead, RequestError, StepwellError
from stepwell.engine.config import EngineFacts
from stepwell.engine.llm import LocalEngine
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import Finished, Request, SamplingParams
from stepwell.testing.tokenizer import train_tokenizer, write_tokenizer
from tests.engine.scripted import CONTEXT, EOS, FAILS, RAISES, TOO_LARGE, VOCAB, ScriptedLoop

FACTS = EngineFacts("tiny", CONTEXT, VOCAB)
SIX = SamplingParams(max_tokens=6)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path, train_tokenizer(300), 4096)
    return Tokenizer.load(str(path))


@pytest.fixture
def loop() -> ScriptedLoop:
    return ScriptedLoop()


@pytest.fixture
def llm(loop: ScriptedLoop, tokenizer: Tokenizer) -> LocalEngine:
    return LocalEngine(loop, tokenizer, FACTS)


def test_text_and_ids_one_or_many(llm: LocalEngine) -> None:
    ids = llm.tokenizer.encode("hello ")
    one = llm.generate("hello ", SIX)
    for prompt in (ids, ids.tolist(), [ids], [ids.tolist()], ["hello "]):
        again = llm.generate(prompt, SIX)
        assert [(c.text, c.token_ids) for c in again] == [(c.text, c.token_ids) for c in one]
    many = llm.generate(["hello ", [7, 8], np.array([9])], [SIX, SamplingParams(max_tokens=2), SIX], progress=True)
    assert [len(c.token_ids) for c in many] == [6, 2, 6]
    assert many[1].token_ids == (7, 8) and many[1].prompt_tokens == 2 and many[1].finish_reason == "length"
    assert many[0].outcome.prompt == len(ids)
    assert llm.generate([]) == []


def test_end_token_is_an_id_but_no_text(llm: LocalEngine) -> None:
    ids = [*llm.tokenizer.encode("bye").tolist(), EOS]
    answer = llm.generate(ids, SamplingParams(max_tokens=None))[0]
    assert answer.text == "bye" and answer.token_ids == tuple(ids) and answer.finish_reason == "stop"


def test_stop_string_ends_an_answer_and_its_request(llm: LocalEngine, loop: ScriptedLoop) -> None:
    answer = llm.generate("one two three ", SamplingParams(max_tokens=1000), stop="thr")[0]
    assert (answer.text, answer.finish_reason) == ("one two ", "stop")
    assert llm.tokenizer.decode(answer.token_ids).startswith("one two thr")
    assert len(loop.aborted) == 1 and not loop.busy


def test_stream_gives_the_text_as_it_appears_and_then_the_completion(llm: LocalEngine, loop: ScriptedLoop) -> None:
    whole = llm.generate("one two three ", SamplingParams(max_tokens=9))[0]
    stream, parts = llm.stream("one two three ", SamplingParams(max_tokens=9)), []
    with pytest.raises(StopIteration) as end:
        while True:
            parts.append(next(stream))
    assert len(parts) > 1 and "".join(parts) == whole.text
    assert (end.value.value.token_ids, end.value.value.finish_reason) == (whole.token_ids, "length")
    assert not loop.busy


def test_stream_that_is_closed_early_leaves_nothing_running(llm: LocalEngine, loop: ScriptedLoop) -> None:
    stream = llm.stream("one two three ", SamplingParams(max_tokens=4000))
    next(stream)
    stream.close()
    assert len(loop.aborted) == 1 and not loop.busy


def test_chat_renders_messages(llm: LocalEngine, loop: ScriptedLoop) -> None:
    assert llm.chat([{"role": "user", "content": "hi"}], SIX, salt="s").finish_reason == "length"
    assert llm.tokenizer.decode(loop.seen[-1].prompt.tolist()) == "user\nhi\nassistant\n"
    assert loop.seen[-1].salt == "s"


@pytest.mark.parametrize("prompt", ["", [], [[]], [VOCAB], [-1], [2**40], [1] * CONTEXT, ["x", 5]])
def test_wrong_prompts_are_refused_before_anything_runs(llm: LocalEngine, loop: ScriptedLoop, prompt: object) -> None:
    if prompt == []:
        assert llm.generate([]) == []  # no prompts, no answers
        return
    with pytest.raises(RequestError):
        llm.generate(prompt)  # type: ignore[arg-type]
    assert not loop.seen


def test_number_of_params_must_fit(llm: LocalEngine) -> None:
    with pytest.raises(RequestError, match="2 prompts but 3 params"):
        llm.generate(["a", "b"], [SIX] * 3)


def test_whatever_goes_wrong_leaves_nothing_running(llm: LocalEngine, loop: ScriptedLoop) -> None:
    with pytest.raises(CapacityError):
        llm.generate([[5], [TOO_LARGE]])
    assert not loop.busy
    with pytest.raises(StepwellError, match="went wrong"):
        list(llm.stream([FAILS], SamplingParams(max_tokens=100)))
    assert not loop.busy
    assert llm.generate([5], SIX)[0].token_ids == (5,) * 6


def test_a_request_that_fails_is_told_in_its_place_and_the_others_are_whole(
    llm: LocalEngine, loop: ScriptedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    first, failed, last = llm.generate([[5], [FAILS], [6]], SamplingParams(max_tokens=50))
    assert failed.finish_reason == "error" and "went wrong" in failed.error and len(failed.token_ids) < 50
    assert (first.token_ids, last.token_ids) == ((5,) * 50, (6,) * 50) and not first.error
    assert first.outcome.prompt == 1
    assert "1 of 3 prompts have failed" in caplog.text
    assert not loop.busy and loop.aborted == []


def test_what_fails_before_it_is_admitted_has_no_outcome(llm: LocalEngine, loop: ScriptedLoop) -> None:
    loop.gate.clear()
    submit = loop.submit

    def refused_later(request: Request) -> None:
        submit(request)
        loop.waiting.clear()
        loop._events.append(Finished(request.id, "error", "nothing is left of it"))

    loop.submit = refused_later  # type: ignore[method-assign]
    (failed,) = llm.generate([[5]], SIX)
    assert failed.admitted is None and failed.token_ids == () and failed.text == ""
    with pytest.raises(StepwellError, match="nothing is left of it"):
        assert failed.outcome


def test_error_of_the_loop_reaches_the_caller(llm: LocalEngine) -> None:
    with pytest.raises(RuntimeError, match="the script says so"):
        llm.generate([RAISES])
    with pytest.raises(EngineDead):
        llm.generate([5])


def test_error_of_the_loop_ends_a_stream_and_the_engine(llm: LocalEngine, loop: ScriptedLoop) -> None:
    with pytest.raises(RuntimeError, match="the script says so"):
        next(llm.stream([RAISES]))
    with pytest.raises(EngineDead):
        next(llm.stream([5]))


def test_closed_engine_says_so(llm: LocalEngine) -> None:
    with llm:
        pass
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("x")


def test_package_offers_llm_and_imports_nothing_heavy_for_it() -> None:
    program = "import sys, stepwell; assert not {'torch', 'transformers', 'zmq'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert issubclass(stepwell.LLM, LocalEngine)
    assert stepwell.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        stepwell.Llm  # type: ignore[attr-defined]  # noqa: B018
