"""An engine that drafts gives the answers of one that does not: greedy and drawn, through every tier, preempted, at both depths."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.engine.compute import torch_runner  # noqa: E402
from stepwell.engine.llm import LLM  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.sched.drafts import Always  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import Cut, FromImage, Step  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.amounts import long  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.test_loading import changed  # noqa: E402


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measured time decides whether answers draft."""
    monkeypatch.setattr("stepwell.engine.build.Measured", Always)


FLAGS: dict[str, Any] = {"max_model_len": 512, "host_memory": "16MiB", "device_memory": "16MiB", "dtype": "float32"}
DRAFTS: dict[str, Any] = {"num_speculative_tokens": 3}
VOCAB = 512


def guessable(tensors: dict[str, Any]) -> dict[str, Any]:
    """A model whose next token depends on the last one most of all, and a draft layer that knows: about half of its drafts are right."""
    tensors = dict(tensors)
    embedding, norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    straight = torch.eye(norm.shape[0])
    return {
        **tensors,
        "model.embed_tokens.weight": 8 * embedding,
        "mtp.pre_fc_norm_embedding.weight": torch.zeros_like(norm),
        "mtp.fc.weight": torch.cat((4 * straight, 0.3 * straight), 1),
        "mtp.norm.weight": norm.clone(),
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("drafts")
    plain = write_checkpoint(folder / "plain", hidden=64, layers=4, vocab=VOCAB, mtp=True)
    return changed(plain, folder / "guessable", guessable)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, int(rng.integers(5, 150))).tolist() for _ in range(count)]


def served(checkpoint: Path, asked: list[list[int]], params: Any, **flags: Any) -> tuple[list[Any], Any]:
    """The answers, and what the engine counted."""
    with LLM(str(checkpoint), **{**FLAGS, **flags}) as llm:
        return llm.generate(asked, params), llm.stats()


def tokens(answers: list[Any]) -> list[tuple[int, ...]]:
    return [one.token_ids for one in answers]


@pytest.mark.parametrize("ahead", [long("off"), "on"])
def test_greedy_answers_are_the_same_and_a_third_of_the_first_drafts_is_right(checkpoint: Path, ahead: str) -> None:
    asked, params = prompts(12), SamplingParams(max_tokens=40, ignore_eos=True)
    plain, before = served(checkpoint, asked, params)
    drafted, stats = served(checkpoint, asked, params, **DRAFTS, async_scheduling=ahead)
    assert tokens(drafted) == tokens(plain)
    first, accepted = stats.drafts[1]
    assert accepted > first / 3 and sorted(stats.drafts) == [1, 2, 3] and not before.drafts


class Turning(Always):
    """Drafts in turns of four steps."""

    steps = 0

    def wants(self, decodes: int) -> bool:
        return self.steps % 8 < 4

    def saw(self, step: Any) -> None:
        self.steps += 1


@pytest.mark.long
@pytest.mark.parametrize("ahead", [long("off"), "on"])
def test_answers_are_the_same_where_drafts_turn_themselves_off_and_on(
    checkpoint: Path, ahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, params = prompts(8), SamplingParams(max_tokens=40, ignore_eos=True)
    plain, _ = served(checkpoint, asked, params)
    monkeypatch.setattr("stepwell.engine.build.Measured", Turning)
    drafted, stats = served(checkpoint, asked, params, **DRAFTS, async_scheduling=ahead)
    assert tokens(drafted) == tokens(plain) and stats.drafts[1][1]


@pytest.mark.long
@pytest.mark.parametrize("settings", [long({}), {"top_p": 0.9, "min_p": 0.02}, long({"top_k": 8})])
def test_drawn_answers_are_the_same_for_every_seed(checkpoint: Path, settings: dict[str, Any]) -> None:
    """So their distribution is, too: a row draws by its request's seed and its own place in the answer, drafts or not."""
    asked = prompts(1) * 24
    params = [SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=i, **settings) for i in range(24)]
    plain, _ = served(checkpoint, asked, params)
    drafted, stats = served(checkpoint, asked, params, **DRAFTS)
    assert tokens(drafted) == tokens(plain)
    assert stats.drafts[1][1] > 5 and len(set(tokens(plain))) > 20


@pytest.mark.long
def test_drawn_tokens_come_as_often_as_the_model_says(checkpoint: Path) -> None:
    """The third tokens of answers that begin alike, drawn behind a draft more often than not, against the model's three likeliest."""
    (prompt,) = prompts(1)
    params = [SamplingParams(max_tokens=3, ignore_eos=True, temperature=1.0, top_k=3, seed=i) for i in range(500)]
    with LLM(str(checkpoint), **{**FLAGS, "max_num_seqs": 64, "max_num_batched_tokens": 512}, **DRAFTS) as llm:
        told = tokens(llm.generate([prompt] * len(params), params))
        ((begin, count),) = Counter(answer[:2] for answer in told).most_common(1)
        asked = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=3)
        (rated,) = llm.generate([[*prompt, *begin]], asked)
    chances = {token: float(np.exp(logprob)) for token, logprob in rated.logprobs[0].top}
    counts = Counter(answer[2] for answer in told if answer[:2] == begin)
    assert set(counts) <= set(chances) and count > 50
    for token, chance in chances.items():
        share = chance / sum(chances.values())
        assert abs(counts[token] - count * share) < 4 * (count * share * (1 - share)) ** 0.5 + 1


def conversations(checkpoint: Path, **flags: Any) -> tuple[list[tuple[int, ...]], dict[str, int], Any]:
    """Four conversations of three turns, two at once; the engine is started anew after the second turn.

    Returns all answers, tokens by source, and what the last engine counted.
    """
    talks, told, seen = [talk[:90] for talk in prompts(4, seed=5)], [], Counter[str]()
    for turns in ((1, 2), (3,)):
        with LLM(str(checkpoint), **{**FLAGS, **flags}) as llm:
            for turn in turns:
                params = SamplingParams(max_tokens=20 + turn, ignore_eos=True)
                answers = [*llm.generate(talks[:2], params), *llm.generate(talks[2:], params)]
                told += tokens(answers)
                talks = [[*t, *a.token_ids, 7, 9 + turn] for t, a in zip(talks, answers, strict=True)]
                for answer in answers:
                    seen.update({name: getattr(answer.outcome, name) for name in ("device", "host", "disk")})
            stats = llm.stats()
            seen["preemptions"] += stats.preemptions
            assert not stats.leases and not stats.running
    return told, seen, stats


@pytest.fixture(scope="module")
def spoken(checkpoint: Path) -> list[tuple[int, ...]]:
    """What is said in the conversations without drafts, with room for all."""
    return conversations(checkpoint)[0]


@pytest.mark.parametrize(
    ("ahead", "faults"),
    [long("off", ()), ("on", ("fail:*:host->*:copied=half:chance=0.5", "fail:*:disk->*:chance=0.3"))],
)
def test_every_tier_a_restart_and_failed_copies(
    checkpoint: Path, tmp_path: Path, spoken: Any, ahead: str, faults: Any
) -> None:
    small = {"device_memory": "1200KiB", "host_memory": "4MiB", "disk_cache": f"{tmp_path}:64MiB", "min_load_tokens": 0}
    steps = {"max_num_seqs": 3, "max_num_batched_tokens": 128, "async_scheduling": ahead, "faults": faults}
    told, seen, stats = conversations(checkpoint, **small, **steps, **DRAFTS)
    assert told == spoken
    assert stats.drafts[1][1] and (faults or (seen["host"] and seen["disk"]))


@pytest.mark.parametrize("ahead", [long("off"), "on"])
def test_a_preempted_answer_goes_on_behind_what_was_accepted(checkpoint: Path, ahead: str) -> None:
    asked, params = [prompt[:90] for prompt in prompts(4, seed=5)], SamplingParams(max_tokens=60, ignore_eos=True)
    plain, _ = served(checkpoint, asked, params)
    drafted, stats = served(checkpoint, asked, params, device_memory="1000KiB", async_scheduling=ahead, **DRAFTS)
    assert tokens(drafted) == tokens(plain)
    assert stats.preemptions and stats.drafts[1][1]


def test_scores_of_accepted_tokens_are_the_models(checkpoint: Path) -> None:
    asked, params = prompts(4), SamplingParams(max_tokens=24, ignore_eos=True, logprobs=2)
    plain, _ = served(checkpoint, asked, params)
    drafted, stats = served(checkpoint, asked, params, **DRAFTS)
    assert tokens(drafted) == tokens(plain) and stats.drafts[1][1]
    for one, other in zip(plain, drafted, strict=True):
        ours, theirs = ([score.logprob for score in answer.logprobs] for answer in (one, other))
        assert np.allclose(ours, theirs, atol=1e-4)


def test_whoever_looks_back_or_may_not_end_yet_is_served_beside(checkpoint: Path) -> None:
    asked = prompts(5)
    params = [
        SamplingParams(max_tokens=24, ignore_eos=True),
        SamplingParams(max_tokens=24, presence_penalty=1.0, frequency_penalty=0.5),
        SamplingParams(max_tokens=24, allowed=(5, 6, 7, 8, 9), ignore_eos=True),
        SamplingParams(max_tokens=24, min_tokens=20, logit_bias=((2, 5.0),)),
        SamplingParams(max_tokens=24, temperature=1.0, seed=3, repetition_penalty=1.3),
    ]
    plain, _ = served(checkpoint, asked, params)
    drafted, _ = served(checkpoint, asked, params, **DRAFTS)
    assert tokens(drafted) == tokens(plain)


def test_a_stop_token_within_what_was_accepted_ends_the_answer(checkpoint: Path) -> None:
    (whole,) = tokens(served(checkpoint, prompts(1), SamplingParams(max_tokens=40, ignore_eos=True))[0])
    for place in range(3, 9):
        stop = whole[place]
        end = whole.index(stop) + 1
        params = SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(stop,))
        (answer,) = served(checkpoint, prompts(1), params, **DRAFTS)[0]
        assert answer.token_ids == whole[:end] and answer.finish_reason == "stop"


def test_a_stream_that_is_closed_leaves_nothing_behind(checkpoint: Path) -> None:
    with LLM(str(checkpoint), **FLAGS, **DRAFTS) as llm:
        stream = llm.stream(prompts(1)[0], SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        stream.close()
        assert not (llm.stats().running or llm.stats().leases)
        after = llm.generate(prompts(1), SamplingParams(max_tokens=20, ignore_eos=True))
    assert tokens(after) == tokens(served(checkpoint, prompts(1), SamplingParams(max_tokens=20, ignore_eos=True))[0])


def test_a_resume_at_a_rung_drafts_as_a_cold_run_does(checkpoint: Path) -> None:
    """The image brings the row to go on from; pages before the rung are shared, the draft layer's entries in them, too."""
    decoder = load_decoder(checkpoint, drafts=True)
    text = np.array(prompts(1, seed=8)[0] * 2, np.int32)[:90]
    rig = Rig(decoder, pages=60, depth=8, drafts=3)
    pages, image = rig.table(100), rig.image()
    rig.last(work(text, pages, 0, 90, cuts=[Cut(64, image)]))
    for slot, shared in ((1, 64), (2, 80)):  # the KV may reach further than the rung
        own = np.concatenate((pages[: shared // 16], rig.table(100 - shared)))
        rig.last(work(text, own, 64, 90, FromImage(image), slot=slot, write_from=shared))
    drafts = rig.runner._memory.drafts
    assert drafts[0].tolist() == drafts[1].tolist() == drafts[2].tolist()
    hidden = rig.live.hidden[0]
    assert torch.allclose(hidden[0], hidden[1], atol=1e-4) and hidden[0].abs().max() > 0.1


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_rung_among_drafts_is_the_state_there(checkpoint: Path, kept: int) -> None:
    """A step of four rows leaves the image behind its third; whoever goes on from it stands where one token after another leads."""
    decoder = load_decoder(checkpoint, drafts=True)
    text = np.array(prompts(1, seed=8)[0] * 3, np.int32)[:120]
    rig = Rig(decoder, pages=80, depth=8, drafts=3)
    pages, image = rig.table(120), rig.image()
    rig.last(work(text, pages, 0, 77))
    rig.runner._memory.drafts[0] = torch.from_numpy(text[78:81].astype(np.int64))
    step = replace(work(text, pages, 77, 78, cuts=[Cut(80, image)]), pages=pages[:6], drafts=3)
    rig.run(step)
    straight = Rig(decoder, pages=80, depth=8, drafts=3)
    table, there = straight.table(120), straight.image()
    straight.last(work(text, table, 0, 80, cuts=[Cut(80, there)]))
    ours, theirs = (one.live.as_images(one.arena.get(at)) for one, at in ((rig, image), (straight, there)))
    for name in ("recurrent", "conv", "hidden"):
        assert torch.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-4), name
    rig.live.pending[0] = kept  # as if so many of them had been accepted
    rig.live.hidden[0, 0] = 0
    after = rig.last(work(text, pages, 77 + kept, 100))
    whole = straight.last(work(text, straight.table(120), 0, 100, slot=1))
    assert torch.allclose(after, whole, atol=1e-3)


def test_the_runner_tells_of_drafts_that_are_made_behind_a_result(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may write to pages that are free by then: loads wait for this event."""
    rig = Rig(load_decoder(checkpoint, drafts=True), pages=60, depth=8, drafts=3)
    text = np.array(prompts(1, seed=8)[0] * 2, np.int32)[:60]
    told: list[str] = []
    draft = rig.runner._drafting.draft  # type: ignore[union-attr]

    def drafting(self: Any, laid: Any) -> None:
        draft(laid)
        told.append("drafted")

    def recorded(device: Any) -> Any:
        told.append("event")
        return len(told)

    monkeypatch.setattr(torch_runner.Drafting, "draft", drafting)
    monkeypatch.setattr(torch_runner, "_recorded", recorded)
    pages = rig.table(70)
    rig.runner.launch(Step((work(text, pages, 0, 50),), drafting=False))
    assert told == [] and rig.runner.drafted is None
    rig.runner.launch(Step((work(text, pages, 50, 51),)))
    assert told == ["drafted", "event"] and rig.runner.drafted == 2
    rig.runner.launch(Step((work(text, pages, 51, 52),), drafting=False))
    assert rig.runner.drafted == 2


def test_a_broken_row_ends_its_request_and_no_other(checkpoint: Path) -> None:
    decoder = load_decoder(checkpoint, drafts=True)
    text = np.array(prompts(1, seed=8)[0] * 2, np.int32)[:60]
    rig = Rig(decoder, pages=60, depth=8, drafts=3)
    first, second = rig.table(70), rig.table(70)
    rig.run(work(text, first, 0, 50), work(text, second, 0, 50, slot=1))
    rig.arena.keys[0][int(first[0]), 3] = float("nan")
    steps = [
        replace(work(text, pages, 50, 51, slot=i), pages=pages, drafts=3) for i, pages in enumerate((first, second))
    ]
    result, _ = rig.run(*steps)
    assert [index for index, _ in result.errors] == [0] and result.sampled[0] == () and result.sampled[1]


def test_memory_for_drafts_and_what_cannot_draft_is_told(checkpoint: Path, tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", hidden=64, layers=4, vocab=VOCAB)
    with pytest.raises(ConfigError, match=r"no mtp\. tensors"):
        LLM(str(plain), **FLAGS, **DRAFTS)
    with pytest.raises(ConfigError, match="must be below --block-size 16"):
        LLM(str(checkpoint), **FLAGS, num_speculative_tokens=16)
    with pytest.raises(ConfigError, match="leave out --num-speculative-tokens"):
        LLM(str(checkpoint), **FLAGS, **DRAFTS, deterministic=True)
    with pytest.raises(ConfigError, match="at least 188: 4 tokens for each"):
        LLM(str(checkpoint), **FLAGS, **DRAFTS, max_num_batched_tokens=187)
    shape = HybridConfig.from_file(checkpoint).shape
    assert shape.drafting().image_bytes() == shape.image_bytes() + 2 * shape.hidden
    assert shape.drafting().kv_token_bytes() == 2 * shape.kv_token_bytes()
