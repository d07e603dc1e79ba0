"""The load client's judges: what counts as garbage, in which order prompts are asked, what a figure is worth beside its target."""

from __future__ import annotations

import asyncio
import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.replay.bound import Bound
from stepwell.replay.gauges import parse
from stepwell.replay.synthetic import synthetic

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

exact, figures = importlib.import_module("exact"), importlib.import_module("gpu_summary")
client, judge = importlib.import_module("load.client"), importlib.import_module("load.sound")


def reply(*tokens: int, device: int = 0) -> Any:
    return client.Reply(
        (0.1,) * len(tokens),
        (1,) * len(tokens),
        tokens,
        4,
        {"cached_tokens": device, "device_tokens": device, "host_tokens": 0},
    )


@dataclass
class FakeClient:
    """Answers each prompt with its first token; notes what was asked, and how many calls were open at once."""

    nats: list[float] = field(default_factory=lambda: [0.0])
    random: float = 10.0
    refuses: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)
    open: int = 0
    most: int = 0

    async def ask(self, prompt: list[int], new: int, **more: object) -> Any:
        self.asked.append((prompt[0], new))
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return reply(*[prompt[0]] * new)

    async def behind(self, prompt: list[int], answer: list[int]) -> list[float]:
        if self.refuses:
            raise client.CallFailed("400: prompt_logprobs are not to be had")
        return (self.nats + [self.random] * judge.RANDOM)[: len(answer)]


def judged(fake: Any, *tokens: int) -> dict[str, Any]:
    return asyncio.run(judge.sound(fake, [judge.Sample([1, 2], reply(*tokens))]))


def test_an_answer_as_far_behind_as_random_words_is_garbage() -> None:
    found = judged(FakeClient(nats=[0.0, 9.0, 9.0, 12.0]), 7, 8, 9, 9)
    assert found == {
        "tokens": 4, "distinct": 3, "first": 0.25, "behind_nats": 7.5, "worst_nats": 7.5, "random_nats": 10.0, "garbage": 1.0,
    }  # fmt: skip


def test_an_answer_that_rounding_turned_is_none() -> None:
    assert judged(FakeClient(nats=[0.0, 1.1, 4.0, 0.0]), 7, 8, 9, 9)["garbage"] == 0.0


@pytest.mark.parametrize("wrong", ["nats", "random"])
def test_a_score_that_is_no_number_is_garbage(wrong: str) -> None:
    fake = FakeClient(nats=[float("nan")]) if wrong == "nats" else FakeClient(random=float("nan"))
    assert judged(fake, 7)["garbage"] == 1.0


def test_a_server_that_scores_no_prompts_is_told_apart_from_a_sound_one() -> None:
    found = judged(FakeClient(refuses=True), 7, 8)
    assert "garbage" not in found and found["unscored"].startswith("400")


def test_samples_are_spread_from_the_first_to_the_last() -> None:
    samples = [judge.Sample([n], reply(n)) for n in range(10)]
    assert [sample.prompt[0] for sample in judge.spread(samples, 4)] == [0, 3, 6, 9]
    assert len(judge.spread(samples[:2], 4)) == 2


@pytest.mark.parametrize("lag", [0, 3, 8])
def test_a_prompt_comes_again_at_once_and_behind_as_many_others_as_asked(lag: int) -> None:
    fake: Any = FakeClient()
    cases = [exact.Case([n]) for n in range(5)]
    asyncio.run(exact.Play(fake, 2, 2).run(cases, [[100 + n] for n in range(lag)], lag))
    assert fake.most <= 2
    for case in cases:
        at = [place for place, (first, _) in enumerate(fake.asked) if first == case.prompt[0]]
        assert len(at) == 3 and set(case.replies) == {"cold", "device", "host"}
        between = {first for first, _ in fake.asked[at[1] : at[2]]} - {case.prompt[0]}
        assert len(between) >= lag - 2  # as many as run at once may still be on their way
    assert all(new == (1 if first >= 100 else 2) for first, new in fake.asked)


def test_a_call_that_fails_ends_the_play() -> None:
    class Refusing(FakeClient):
        async def ask(self, prompt: list[int], new: int, **more: object) -> Any:
            raise client.CallFailed("500")

    with pytest.raises(ExceptionGroup):
        asyncio.run(exact.Play(Refusing(), 2, 2).run([exact.Case([1])], [], 0))  # type: ignore[arg-type]


def test_lengths_lie_between_their_ends_and_are_mostly_short() -> None:
    found = exact.lengths(np.random.default_rng(0), 1000, 1000, 32_000)
    assert min(found) >= 1000 and max(found) <= 32_000
    assert np.median(found) < 2000 and max(found) > 28_000


def test_what_differs_is_told_with_the_tokens_that_agree() -> None:
    same, other = exact.Case([1, 2, 3, 4]), exact.Case([5, 6, 7, 8])
    same.replies = {"cold": reply(1, 2, 3), "device": reply(1, 2, 3, device=4)}
    other.replies = {"cold": reply(1, 2, 3), "device": reply(1, 2, 9)}
    found = exact.told([same, other], "device")
    assert found == {"identical": 1, "differ": 1, "agreed": 2.0, "prompts_from_tier": 1, "from_tier": 0.5}


def test_flips_are_counted_over_both_tiers() -> None:
    parts = {"trained": {"exact": {"device": {"identical": 9, "differ": 1}, "host": {"identical": 10, "differ": 0}}}}
    assert figures.flips(parts, "trained", share=True) == 0.05
    assert figures.flips(parts, "trained", share=False) == 1
    assert figures.flips(parts, "D-deterministic", share=False) is None


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.0, "[green]aim"), (2.5, "[green]must"), (3.3, "[red]+10.0%"), (None, "not measured")]
)
def test_a_figure_is_judged_by_its_target(value: float | None, verdict: str) -> None:
    assert figures.Target(("x",), must=3.0, aim=2.0, vllm=None).judged(value) == verdict


def test_more_is_better_where_the_target_says_so() -> None:
    target = figures.Target(("x",), must=0.95, aim=0.98, vllm=None, most=False)
    assert [target.judged(value) for value in (0.99, 0.96, 0.95)] == ["[green]aim", "[green]must", "[green]must"]
    assert target.judged(0.9).startswith("[red]-")


def test_every_target_names_a_figure_of_the_summary() -> None:
    told: Any = figures.summary({})
    for target in figures.TARGETS:
        assert target.path[0] in told


def test_garbage_is_found_wherever_a_run_tells_of_it() -> None:
    parts = {"D": {"agents": {"sound": {"garbage": 0.5}}, "decode": {"8": {"sound": {"garbage": 0.0}}}}}
    assert figures.garbage(parts) == [("D agents sound", 0.5)]


def test_squeezed_prompts_part_where_they_parted() -> None:
    replay = importlib.import_module("gpu_replay")
    whole = synthetic(3, seed=1)
    small = [replay.Squeeze(8, 0.01).conversation(one) for one in whole.conversations]
    for one, squeezed in zip(whole.conversations, small, strict=True):
        assert squeezed.block == one.block // 8
        turns = [turn for stream in one.streams for turn in stream.turns]
        after = [turn for stream in squeezed.streams for turn in stream.turns]
        for turn, smaller in zip(turns, after, strict=True):
            assert smaller.prompt == turn.prompt // 8 and smaller.runs == turn.runs
            assert smaller.think == pytest.approx(turn.think / 100) and smaller.output >= 1
        bounds = [Bound(), Bound()]
        for turn, smaller in zip(turns, after, strict=True):
            found = bounds[0].add(one, turn), bounds[1].add(squeezed, smaller)
            assert abs(found[0] / 8 - found[1]) <= 8  # a block


def test_memory_of_the_card_is_told_by_the_server() -> None:
    served = importlib.import_module("gpu_served")
    told = parse(
        'stepwell_device_memory_bytes{kind="planned"} 100\nstepwell_device_memory_bytes{kind="peak"} 130\n'
        'stepwell_kernels_compiled_total{when="serving"} 2\nstepwell_kernels_compiled_total{when="start"} 40\n'
    )
    assert served.memory(told) == {"planned": 100, "peak": 130, "over_plan": 1.3, "compiled_serving": 2}


def test_prompts_that_were_begun_in_time_are_asked_three_times() -> None:
    fake: Any = FakeClient()
    cases = [exact.Case([n]) for n in range(50)]
    done = asyncio.run(exact.Play(fake, 2, 2).run(cases, [[100]] * 5, 5, seconds=0.0005))
    assert 0 < len(done) < 50
    assert all(set(case.replies) == {"cold", "device", "host"} for case in done)
